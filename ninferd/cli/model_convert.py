"""``ninferd model convert``: a Hugging Face directory becomes an artifact; or only the table of what it would hold."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ninferd.errors import InputError

if TYPE_CHECKING:
    from ninferd.weights.convert.request import Prepared
    from ninferd.weights.formats.encoders import Nvfp4Method

MOST_THREADS = 8  # more than this many wait for the disk
METHODS: dict[str, Nvfp4Method] = {"none": "max_abs", "mse": "least_error"}
COMPONENTS = ("vision", "mtp", "dflash", "dflash2", "proposal")
RESOURCES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to ``ninferd model``."""
    parser = commands.add_parser(
        "convert",
        help="make an artifact from a Hugging Face directory",
        usage="%(prog)s SRC DST.ninfer [--recipe NAME] [...]\n       %(prog)s --dry-run {SRC [DST] | --geometry NAME}",
        description="Writes DST, DST.sha256 and DST.conversion.json, which says what became of every tensor. Quantised "
        "tensors that have the recipe's format already are kept bit for bit.",
    )
    parser.add_argument("source", nargs="?", metavar="SRC", help="Hugging Face model directory, or embedded:NAME")
    parser.add_argument("destination", nargs="?", type=Path, metavar="DST", help="artifact to write")
    _add_contents(parser.add_argument_group("what it holds"))
    how = parser.add_argument_group("how")
    how.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to quantise")
    how.add_argument(
        "--search",
        choices=tuple(METHODS),
        default="none",
        help="mse: scales of nvfp4 blocks with the least squared error, instead of by the largest value",
    )
    how.add_argument(
        "--threads",
        type=_positive,
        default=min(len(os.sched_getaffinity(0)), MOST_THREADS),
        metavar="N",
        help=f"threads that read and quantise, each in up to 0.1 GB; the cores, at most {MOST_THREADS}, without it",
    )
    how.add_argument(
        "--max-file-bytes", type=_positive, metavar="N", help="beyond this size, continue in further files"
    )
    how.add_argument(
        "--artifact-id", type=_identifier, metavar="HEX", help="instead of a random one: same input, same bytes"
    )
    how.add_argument("--force", action="store_true", help="replace DST if it exists")
    dry = parser.add_argument_group("only the table")
    dry.add_argument("--dry-run", action="store_true", help="print objects and exact sizes; no weight is read")
    dry.add_argument("--geometry", metavar="NAME", help="a published model instead of SRC, such as qwen3.8-27b")
    dry.add_argument(
        "--resource-bytes",
        type=_resource_bytes,
        action="append",
        default=[],
        metavar="NAME=BYTES",
        help="size of a frontend file of that model; repeatable",
    )
    dry.add_argument("--container", choices=("v3", "v2"), default="v3", help="version of its file")
    parser.set_defaults(handler=run_convert)


def _add_contents(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--recipe",
        default="nvfp4",
        metavar="NAME",
        help="which tensor gets which format: nvfp4, groupwise-int, qwen3.8-nvfp4, bf16, or that of a published model",
    )
    group.add_argument(
        "--without",
        type=_components,
        default=frozenset(),
        metavar="NAMES",
        help=f"components to leave out, separated by commas, of {', '.join(COMPONENTS)}",
    )
    group.add_argument(
        "--base",
        metavar="DIR",
        help="the same model in full precision, for what SRC holds quantised in another format than the recipe's",
    )
    group.add_argument("--draft", metavar="DIR", help="checkpoint of a DFlash or DFlash2 drafter")
    group.add_argument(
        "--draft-head-counts",
        type=Path,
        metavar="FILE",
        help="how often each token occurs (int64), for an optimised draft head of the most frequent ones",
    )
    group.add_argument("--draft-head-rows", type=_positive, metavar="N", help="its rows, such as 131072")
    group.add_argument("--name", help="name of the model; that of the directory without it")


def run_convert(args: argparse.Namespace) -> int:
    """Convert, or print the table; 0 done."""
    _require_sensible(args)
    if args.geometry is not None:
        return _show_geometry(args)
    from ninferd.weights.artifact.plan import plan_artifact
    from ninferd.weights.convert.request import Request, prepare
    from ninferd.weights.convert.table import file_lines, inventory_lines

    prepared = prepare(
        Request(
            source=_directory(args.source),
            recipe=args.recipe,
            without=args.without,
            base=None if args.base is None else _directory(args.base),
            draft=None if args.draft is None else _directory(args.draft),
            draft_head_counts=args.draft_head_counts,
            draft_head_rows=args.draft_head_rows,
            name=args.name,
        )
    )
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    if not args.dry_run:
        return _write(args, prepared)
    name = "model.ninfer" if args.destination is None else args.destination.name
    print(*inventory_lines(prepared.inventory), sep="\n")
    print(*file_lines(name, plan_artifact(prepared.inventory.contents, name, args.max_file_bytes)), sep="\n")
    return 0


def _require_sensible(args: argparse.Namespace) -> None:
    """InputError for options that do not go together."""
    if args.geometry is not None:
        if not args.dry_run or args.source is not None:
            raise InputError("--geometry: goes with --dry-run and without SRC")
        return
    if args.source is None:
        raise InputError("model convert: SRC, a Hugging Face model directory, is missing")
    if args.destination is None and not args.dry_run:
        raise InputError("model convert: DST, the artifact to write, is missing")
    if not (args.dry_run or args.force) and os.path.lexists(args.destination):
        raise InputError(f"{args.destination}: exists already; --force replaces it")
    if args.container != "v3" or args.resource_bytes:
        raise InputError("--container and --resource-bytes: go with --geometry")
    if (args.draft_head_counts is None) != (args.draft_head_rows is None):
        raise InputError("--draft-head-counts and --draft-head-rows: go together")


def _directory(text: str) -> Path:
    from ninferd.cli.model_path import model_path

    path = model_path(text)
    if not path.is_dir():
        raise InputError(f"{path}: is not a directory; a Hugging Face model directory is needed")
    return path


def _write(args: argparse.Namespace, prepared: Prepared) -> int:
    import torch

    from kernels_numba.quantise import quantiser
    from ninferd.cli.ending import ended_in_order
    from ninferd.cli.progress import Progress
    from ninferd.weights.convert.conversion import Output, convert

    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no CUDA device here")
    output = Output(
        path=args.destination,
        encoders=quantiser(torch.device(args.device)),
        method=METHODS[args.search],
        threads=args.threads,
        max_file_bytes=args.max_file_bytes,
        artifact_id=args.artifact_id,
        overwrite=args.force,
    )
    with ended_in_order():
        report = convert(prepared, output, Progress("weights"), Progress("checksum"))
    for file in report["files"]:
        print(f"{output.path.with_name(file['name'])}: {file['bytes']:,} bytes, SHA-256 {file['sha256']}")
    return 0


def _show_geometry(args: argparse.Namespace) -> int:
    from ninferd.weights.artifact.plan import plan_artifact
    from ninferd.weights.convert.assumed import assumed_inventory
    from ninferd.weights.convert.table import file_lines, inventory_lines
    from ninferd.weights.convert.version2 import version2_file
    from ninferd.weights.parameters.presets import GEOMETRIES

    geometry = GEOMETRIES.get(args.geometry)
    if geometry is None:
        raise InputError(f"--geometry: there is no {args.geometry!r}; known: {', '.join(GEOMETRIES)}")
    geometry = geometry.without(args.without)
    resource_bytes = dict(args.resource_bytes)
    inventory = assumed_inventory(args.geometry, geometry, args.recipe, resource_bytes)
    print(*inventory_lines(inventory), sep="\n")
    if args.container == "v2":
        file = version2_file(geometry, inventory, resource_bytes, _weights_id(args.recipe))
        print(f"version 2: {file.objects} objects, payload starts at byte {file.payload_start:,}")
        print(f"model.ninfer: {file.file_bytes:,} bytes")
    else:
        print(
            *file_lines("model.ninfer", plan_artifact(inventory.contents, "model.ninfer", args.max_file_bytes)),
            sep="\n",
        )
    return 0


def _weights_id(recipe: str) -> str:
    return "nvfp4" if "nvfp4" in recipe else "groupwise-int"


def _components(text: str) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name)
    unknown = sorted(names - set(COMPONENTS))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown component {unknown[0]!r}; known: {', '.join(COMPONENTS)}")
    return names


def _resource_bytes(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if name not in RESOURCES or not size.isdecimal() or int(size) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=BYTES with a name of {', '.join(RESOURCES)}")
    return name, int(size)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _identifier(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not 32 hexadecimal digits")
    return value

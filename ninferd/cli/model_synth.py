"""``ninferd model synth``: an artifact of random weights, as large as that of a published model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ninferd.errors import InputError

COMPONENTS = ("vision", "mtp", "dflash", "dflash2", "proposal")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to ``ninferd model``."""
    parser = commands.add_parser(
        "synth",
        help="make an artifact of random weights",
        description="Writes DST with the objects, formats and sizes of the geometry's real artifact and random weights "
        "of a trained model's statistics, for benchmarks and tests. It has the tokenizer of the embedded model, and so "
        "speaks nonsense. The same arguments give the same bytes.",
    )
    parser.add_argument(
        "geometry", metavar="GEOMETRY", help="a published model, such as qwen3.8-27b, or a config.json or its directory"
    )
    parser.add_argument("destination", type=Path, metavar="DST", help="artifact to write; must not exist")
    parser.add_argument(
        "--recipe",
        default="nvfp4",
        metavar="NAME",
        help="which tensor gets which format: nvfp4, groupwise-int, qwen3.8-nvfp4, bf16, or that of a published model",
    )
    parser.add_argument(
        "--without",
        type=_components,
        default=frozenset(),
        metavar="NAMES",
        help=f"components to leave out, separated by commas, of {', '.join(COMPONENTS)}",
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the random numbers; 0 without it")
    parser.set_defaults(handler=run_synth)


def run_synth(args: argparse.Namespace) -> int:
    """Write the artifact; 0 done."""
    import torch

    from kernels_numba.quantise import quantiser
    from ninferd.cli.ending import ended_in_order
    from ninferd.cli.progress import Progress
    from ninferd.weights.synthesis.artifact import write_synthetic
    from ninferd.weights.synthesis.model import plan_synthetic

    if os.path.lexists(args.destination):
        raise InputError(f"{args.destination}: exists already; it is not overwritten")
    model = plan_synthetic(args.geometry, args.recipe, args.seed, args.without)
    encoders = quantiser(torch.device("cpu"))
    with ended_in_order():
        size_bytes = write_synthetic(model, args.destination, encoders, Progress("weights"))
    print(f"{args.destination}: {size_bytes:,} bytes, {', '.join(model.geometry.components)}")
    return 0


def _components(text: str) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name)
    if unknown := sorted(names - set(COMPONENTS)):
        raise argparse.ArgumentTypeError(f"unknown component {unknown[0]!r}; known: {', '.join(COMPONENTS)}")
    return names


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)

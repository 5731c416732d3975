"""``ninferd bench``: what this machine reaches at best, and what ninferd makes of it, in one run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

from ninferd.benchmarks.families import FAMILIES, MOST_ROWS
from ninferd.config.groups.engine import EngineSettings, KvDtype
from ninferd.errors import InputError

if TYPE_CHECKING:
    from ninferd.benchmarks.results import Report
    from ninferd.benchmarks.run import Show

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_MODEL = "embedded:ninfer-tiny"
MOST_LANES = 8
CONTEXTS = {"kernels": (8192, 65536, 262144), "decode": (8192, 262144), "prefill": (8192, 131072)}
"""On a GPU, as far as the model reaches."""
CPU_CONTEXT = 256
LARGEST_CHUNK = 1 << 20


def register(commands: Commands) -> None:
    """Add the group and its benchmarks to the tree."""
    parser = commands.add_parser("bench", help="measure speed as shares of what this machine reaches")
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, help_text, add_options, handler in (
        ("kernels", "every op at the sizes of the model's layers", _add_kernels, _kernels),
        ("decode", "whole rounds by lanes, rows and context", _add_decode, _decode),
        ("prefill", "prompts, from submission to the first token", _add_prefill, _prefill),
        ("start", "from the process to readiness, phase by phase", _add_start, _start),
    ):
        each = benchmarks.add_parser(
            name,
            help=help_text,
            usage="%(prog)s [--model MODEL] [--device DEVICE] [--json] [OPTIONS]",
            description="Measures the ceilings of this machine first: reading memory, copying it, products, launches. "
            "Every figure is given as a share of them too. See docs/performance.md.",
        )
        each.add_argument(
            "--model",
            default=DEFAULT_MODEL,
            metavar="MODEL",
            help="a .ninfer file, a Hugging Face directory, embedded:NAME, or synthetic:GEOMETRY[:RECIPE], which is "
            f"made on the device, such as synthetic:qwen3.8-27b:nvfp4 (default {DEFAULT_MODEL})",
        )
        each.add_argument(
            "--device", type=_device, default="auto", metavar="DEVICE", help="auto, cpu or a CUDA device's number"
        )
        each.add_argument(
            "--json", action="store_true", help="one JSON object on standard output, lines on standard error"
        )
        add_options(each)
        each.set_defaults(handler=handler)


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="OPS", help=", ".join(FAMILIES)
    )
    _numbers(parser, "--rows", (1, 4, 8, 16), MOST_ROWS, "rows of activations, and of queries of a sequence")
    _numbers(parser, "--prefill-rows", (), None, "rows of a prefill chunk (default 2048, on a CPU 64)")
    _numbers(parser, "--lanes", (1, 8), MOST_LANES, "sequences")
    _numbers(parser, "--contexts", (), None, "cached tokens of a sequence")
    _kv_dtypes(parser, "all; fp32 on a CPU")


def _add_decode(parser: argparse.ArgumentParser) -> None:
    _numbers(parser, "--lanes", (1, 2, 4, 8), MOST_LANES, "sequences that decode together")
    _numbers(parser, "--rows", (1,), MOST_ROWS, "rows of each: more than one is a round that verifies drafts")
    _numbers(parser, "--contexts", (), None, "tokens of a sequence, filled without computing a prompt")
    _kv_dtypes(parser, "bf16 and nvfp4; fp32 on a CPU")
    parser.add_argument("--rounds", type=_positive, default=64, metavar="N", help="measured of each kind (default 64)")
    parser.add_argument("--sampled", action="store_true", help="draw tokens (temperature 0.7, top-p 0.8, top-k 20)")
    parser.add_argument("--no-graphs", action="store_true", help="without CUDA graphs")


def _add_prefill(parser: argparse.ArgumentParser) -> None:
    _numbers(parser, "--prompts", (), None, "tokens of a prompt", name="contexts")
    _numbers(parser, "--chunks", (), None, "tokens computed in one step, as engine.prefill_chunk (default 2048)")
    _kv_dtypes(parser, "bf16; fp32 on a CPU")


def _add_start(parser: argparse.ArgumentParser) -> None:
    chosen = EngineSettings()
    parser.add_argument(
        "--lanes",
        type=_at_most(MOST_LANES),
        default=chosen.max_concurrency,
        metavar="N",
        help="as engine.max_concurrency",
    )
    parser.add_argument(
        "--context", type=_positive, default=chosen.max_context, metavar="N", help="as engine.max_context"
    )
    parser.add_argument("--kv-dtype", choices=get_args(KvDtype), metavar="TYPE", help="as engine.kv_dtype")
    parser.add_argument(
        "--cold", action="store_true", help="ask the kernel to forget the files' pages before each load"
    )


def _kernels(args: argparse.Namespace) -> int:
    from ninferd.benchmarks.kernels import KernelOptions, measure_kernels
    from ninferd.benchmarks.run import run_on_model

    on_cpu = _on_cpu(args)
    options = KernelOptions(
        rows=args.rows,
        prefill_rows=args.prefill_rows or ((64,) if on_cpu else (2048,)),
        lanes=args.lanes,
        contexts=args.contexts or _contexts(args),
        kv_dtypes=args.kv_dtypes or (("fp32",) if on_cpu else ("bf16", "fp8", "int8", "nvfp4", "k8v4")),
    )
    return _shown(
        args,
        lambda show: run_on_model(
            "kernels",
            args.model,
            args.device,
            lambda subject, ceilings: measure_kernels(subject, options, ceilings, args.only),
            show,
        ),
    )


def _decode(args: argparse.Namespace) -> int:
    from ninferd.benchmarks.decode import DecodeOptions, measure_decode
    from ninferd.benchmarks.run import run_on_model

    options = DecodeOptions(
        lanes=args.lanes,
        rows=args.rows,
        contexts=args.contexts or _contexts(args),
        kv_dtypes=args.kv_dtypes or (("fp32",) if _on_cpu(args) else ("bf16", "nvfp4")),
        rounds=args.rounds,
        sampled=args.sampled,
        graphs=not args.no_graphs,
    )
    return _shown(
        args,
        lambda show: run_on_model(
            "decode",
            args.model,
            args.device,
            lambda subject, ceilings: measure_decode(subject, options, ceilings),
            show,
        ),
    )


def _prefill(args: argparse.Namespace) -> int:
    from ninferd.benchmarks.prefill import PrefillOptions, measure_prefill
    from ninferd.benchmarks.run import run_on_model

    for chunk in args.chunks:
        if chunk % 128 or chunk > LARGEST_CHUNK:
            raise InputError(
                f"--chunks: {chunk} is not a multiple of 128 up to {LARGEST_CHUNK}, as engine.prefill_chunk must be"
            )
    options = PrefillOptions(
        prompts=args.contexts or _contexts(args),
        chunks=args.chunks or (2048,),
        kv_dtypes=args.kv_dtypes or (("fp32",) if _on_cpu(args) else ("bf16",)),
    )
    return _shown(
        args,
        lambda show: run_on_model(
            "prefill",
            args.model,
            args.device,
            lambda subject, ceilings: measure_prefill(subject, options, ceilings),
            show,
        ),
    )


def _start(args: argparse.Namespace) -> int:
    from ninferd.benchmarks.run import run_start
    from ninferd.benchmarks.start import StartOptions, measure_start
    from ninferd.cli.ending import ended_in_order

    options = StartOptions(
        artifact=args.model,
        device=args.device,
        kv_dtype=args.kv_dtype or ("fp32" if _on_cpu(args) else "bf16"),
        lanes=args.lanes,
        context_tokens=args.context,
        cold=args.cold,
    )
    with ended_in_order():  # processes that were started end too
        return _shown(
            args, lambda show: run_start(args.model, args.device, lambda dtype: measure_start(options, dtype), show)
        )


def _shown(args: argparse.Namespace, run: Callable[[Show], Report]) -> int:
    """Run, with the lines on standard output, or with the JSON there and the lines beside it; 0 done."""
    lines = sys.stderr if args.json else sys.stdout
    report = run(lambda line: print(line, file=lines, flush=True))
    if args.json:
        print(report.json(), flush=True)
    return 0


def _on_cpu(args: argparse.Namespace) -> bool:
    from ninferd.engine.build import resolve_device

    return resolve_device(args.device).type == "cpu"


def _contexts(args: argparse.Namespace) -> Sequence[int]:
    """Those of a benchmark that the model reaches, or what a CPU can do in a moment."""
    if _on_cpu(args):
        return (CPU_CONTEXT,)
    from ninferd.benchmarks.subject import longest_context

    longest = longest_context(args.model)
    return tuple(context for context in CONTEXTS[args.benchmark] if context <= longest) or (longest,)


def _numbers(
    parser: argparse.ArgumentParser,
    flag: str,
    default: Sequence[int],
    most: int | None,
    help_text: str,
    name: str | None = None,
) -> None:
    usual = f" (default {' '.join(map(str, default))})" if default else ""
    parser.add_argument(
        flag,
        dest=name,
        nargs="+",
        type=_positive if most is None else _at_most(most),
        default=default,
        metavar="N",
        help=f"{help_text}{usual}",
    )


def _kv_dtypes(parser: argparse.ArgumentParser, usual: str) -> None:
    parser.add_argument(
        "--kv-dtypes",
        nargs="+",
        choices=get_args(KvDtype),
        metavar="TYPE",
        help=f"stored forms of keys and values, of {', '.join(get_args(KvDtype))} (default {usual})",
    )


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _at_most(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = _positive(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} is more than {most}")
        return value

    return number


def _device(text: str) -> str | int:
    if text in ("auto", "cpu"):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu or a number")

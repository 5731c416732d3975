"""``ninferd model verify``: is a model whole, complete, and free of values that cannot be?"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ninferd.errors import InputError, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from ninferd.weights.verify.findings import Findings

MAX_SHOWN = 20


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to ``ninferd model``."""
    parser = commands.add_parser(
        "verify",
        help="check structure, completeness, values and SHA-256 of a model",
        usage="%(prog)s PATH [--sha256 HEX] [--quick]",
        description="Checks the container or the headers, that every parameter of the model is there in its shape, "
        "and reads everything: the SHA-256 if PATH.sha256 or SHA256SUMS lists one, and all values for NaN, infinite "
        "scales and codes that no encoder writes. Exit status 0: no errors; 2: errors.",
    )
    parser.add_argument("path", metavar="PATH", help=".ninfer file, Hugging Face directory or embedded:NAME")
    parser.add_argument("--sha256", metavar="HEX", help="what the .ninfer file must hash to")
    parser.add_argument("--quick", action="store_true", help="do not read the values, nor hash without --sha256")
    parser.set_defaults(handler=run_verify)


def run_verify(args: argparse.Namespace) -> int:
    """0: no errors; 2: errors, one line each on standard error."""
    from ninferd.cli.model_path import model_path
    from ninferd.cli.progress import Progress
    from ninferd.weights.verify.checksums import expected_files
    from ninferd.weights.verify.verification import verify_model

    path = model_path(args.path)
    if args.sha256 is not None:
        expected_files(path, args.sha256)  # a mistyped one is refused before everything is read
    findings = verify_model(path, with_values=not args.quick, on_progress=Progress("values"))
    hashed = _check_sha256(path, args, findings)
    for kind, lines in (("error", findings.errors), ("warning", findings.warnings)):
        for line in lines[:MAX_SHOWN]:
            print(one_line(f"{kind}: {line}"), file=sys.stderr)
        if len(lines) > MAX_SHOWN:
            print(f"{kind}: and {len(lines) - MAX_SHOWN} more", file=sys.stderr)
    read = "structure only" if args.quick else "structure and values"
    verdict = ", ".join((_count(findings.errors, "error"), _count(findings.warnings, "warning")))
    print(one_line(f"{path}: {verdict}; checked {read}; SHA-256 {hashed}"))
    return InputError.exit_status if findings.errors else 0


def _check_sha256(path: Path, args: argparse.Namespace, findings: Findings) -> str:
    """What became of the comparison."""
    from ninferd.cli.progress import Progress
    from ninferd.weights.verify.checksums import check_files, expected_files

    if args.quick and args.sha256 is None:
        return "not compared (--quick)"
    try:
        expected = expected_files(path, args.sha256)
        if not expected:
            return "not compared: no list beside it and no --sha256"
        check_files(expected, Progress("checksum"))
    except InputError as error:
        findings.error(str(error))
        return "not as expected"
    return f"as expected ({expected[0].where})"


def _count(lines: list[str], noun: str) -> str:
    return f"{len(lines) or 'no'} {noun}{'' if len(lines) == 1 else 's'}"

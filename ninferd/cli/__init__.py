"""Command line: ``ninferd COMMAND``. Each module registers its own commands; heavy imports happen in handlers."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from ninferd import __version__
from ninferd.config.origin import ConfigError
from ninferd.errors import InputError, NinferError, one_line


def build_parser() -> argparse.ArgumentParser:
    """The whole command tree; every leaf sets ``handler``, a function of the parsed arguments to an exit status."""
    from ninferd.cli import bench, chat, config, model, run

    parser = argparse.ArgumentParser(prog="ninferd", description="Inference daemon for the Qwen3.5 hybrid family.")
    parser.add_argument("--version", action="version", version=f"ninferd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (run, config, chat, model, bench):
        module.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; 0 done, 1 failed, 2 refused (usage, configuration or input)."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.handler(args)
    except ConfigError as error:
        print(*map(one_line, error.lines), sep="\n", file=sys.stderr)
        return error.exit_status
    except InputError as error:
        print(one_line(f"ninferd: {error}"), file=sys.stderr)
        return error.exit_status
    except NinferError as error:
        print(f"ninferd: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout has seen enough; the interpreter's last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


if __name__ == "__main__":
    sys.exit(main())

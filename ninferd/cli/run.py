"""``ninferd run``: the daemon in the foreground, which is also how systemd runs it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ninferd.cli.options import add_config_options, sources_from_args

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def register(commands: Commands) -> None:
    """Add the command to the tree."""
    parser = commands.add_parser(
        "run",
        help="serve a model until stopped (SIGHUP reloads, SIGTERM drains)",
        usage="%(prog)s [ARTIFACT] [CONFIGURATION OPTIONS]",
    )
    add_config_options(parser, positional_artifact=True)
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace) -> int:
    from ninferd.daemon.late_signals import hold_late_signals

    hold_late_signals()
    from ninferd.daemon.lifecycle import run_daemon

    return run_daemon(sources_from_args(args))

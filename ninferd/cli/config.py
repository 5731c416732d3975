"""``ninferd check`` and ``ninferd config show|diff|set``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ninferd.cli.options import add_config_options, sources_from_args

if TYPE_CHECKING:
    from ninferd.config.layers import ConfigSources, ResolvedConfig
    from ninferd.config.reload import Change
    from ninferd.config.running import RunningConfig


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this module to the tree."""
    check = commands.add_parser("check", help="validate the configuration", usage="%(prog)s [CONFIGURATION OPTIONS]")
    add_config_options(check)
    check.set_defaults(handler=run_check)

    config = commands.add_parser("config", help="show, compare or change the configuration")
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)

    show = actions.add_parser(
        "show", help="print the effective configuration", usage="%(prog)s [--origin] [--format F] [KEY] [...]"
    )
    show.add_argument("key", nargs="?", metavar="KEY", help="one key or one table; all without it")
    show.add_argument("--origin", action="store_true", help="say where each value was set and how it reloads")
    show.add_argument("--format", choices=("toml", "json"), default="toml")
    add_config_options(show)
    show.set_defaults(handler=run_show)

    diff = actions.add_parser(
        "diff",
        help="compare the running daemon with the files",
        usage="%(prog)s [CONFIGURATION OPTIONS]",
        description="Says what a reload would change. The daemon is found by daemon.runtime_dir; what is read are the "
        "files, the environment and the command line of its start, so the options below only serve to find it.",
    )
    add_config_options(diff)
    diff.set_defaults(handler=run_diff)

    set_parser = actions.add_parser(
        "set",
        help="set one key in a drop-in, if the result is valid",
        usage="%(prog)s KEY VALUE [...]",
        description="Writes the drop-in 50-ninferd-set.toml (--conf-dir), if the whole configuration stays valid.",
    )
    set_parser.add_argument("key", metavar="KEY")
    set_parser.add_argument("value", metavar="VALUE", help="as TOML; text needs no quotes")
    add_config_options(set_parser)
    set_parser.set_defaults(handler=run_set)


def run_check(args: argparse.Namespace) -> int:
    """One line per problem on standard error; 0 valid, 2 not."""
    from ninferd.config.layers import load
    from ninferd.config.origin import ConfigError
    from ninferd.daemon.serving import check_model, outside_problems

    resolved = load(sources_from_args(args))
    for warning in resolved.warnings:
        print(f"config warning: {warning}", file=sys.stderr)
    problems = outside_problems(resolved)
    if problems:
        raise ConfigError(problems)
    model_lines = check_model(resolved)
    files = ", ".join(map(str, resolved.files)) or "no file (defaults, environment and command line only)"
    print(f"configuration is valid; read {files}", *model_lines, sep="\n")
    return 0


def run_show(args: argparse.Namespace) -> int:
    from ninferd.config.layers import load
    from ninferd.config.show import as_json, as_toml, select

    specs = select(args.key)
    resolved = load(sources_from_args(args))
    write = as_json if args.format == "json" else as_toml
    sys.stdout.write(write(resolved, specs, origin=args.origin))
    return 0


def run_diff(args: argparse.Namespace) -> int:
    """0: compared; 1: no daemon runs; 2: a reload would be refused."""
    from ninferd.config.layers import load, runtime_dir
    from ninferd.config.origin import ConfigError
    from ninferd.config.running import FILE_NAME, read_running

    path = runtime_dir(sources_from_args(args)) / FILE_NAME
    running = read_running(path)
    if running is None:
        print(f"no daemon is running here: {path} is missing or left by one that has ended", file=sys.stderr)
        return 1
    print(f"running: pid {running.pid}, generation {running.generation}, profile {running.profile or 'none'}")
    try:
        resolved = load(running.sources.to_sources())
    except ConfigError:
        print("a reload would be refused and the running configuration kept:", file=sys.stderr)
        raise
    _print_differences(running, resolved)
    return 0


def _print_differences(running: RunningConfig, resolved: ResolvedConfig) -> None:
    changes = running.changes_to(resolved.settings)
    for change in changes:
        print(_change_line(change, resolved))
    for key, reason in running.pending_restart.items():
        if all(change.key != key for change in changes):
            print(f"{key}: was pending ({reason}); the files are back at the running value")
    if not changes:
        print("the files say what the daemon runs with; a reload would change nothing")


def _change_line(change: Change, resolved: ResolvedConfig) -> str:
    action = "pending_restart" if change.reload == "process" else "reload"
    from ninferd.config.describe import value_text

    old, new = (value_text(value) for value in (change.old, change.new))
    return f"{change.key}: {old} -> {new} ({resolved.origin(change.key)}) [{change.reload}] {action}: {change.reason}"


def run_set(args: argparse.Namespace) -> int:
    from ninferd.config.describe import value_text
    from ninferd.config.drop_in import set_value
    from ninferd.config.reload import reason_for

    sources: ConfigSources = sources_from_args(args)
    result = set_value(sources, args.key, args.value)
    spec = result.spec
    if not result.wins:
        print(f"wrote {result.path}, but {result.resolved.origin(spec.name)} sets {spec.name} too and wins")
        return 0
    command = "restart" if spec.reload == "process" else "reload"
    print(f"{spec.name} = {value_text(spec.value(result.resolved.settings))} in {result.path}")
    print(f"apply with `systemctl {command} ninferd`: {reason_for(spec)}")
    return 0

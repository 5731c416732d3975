"""Command-line options that choose and override the configuration, shared by all commands that load one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ninferd.config.availability import build_note
from ninferd.config.keys import KEYS, KeySpec
from ninferd.config.layers import DEFAULT_BASE_FILE, ConfigSources

IGNORED_FLAGS = {
    "--chat-template-semantics": "the template is a real Jinja program here",
    "--host-kv-cache": "replaced by --host-kv-mib",
}
"""Flags of older engines that existing command lines carry; accepted with a warning."""


def add_config_options(parser: argparse.ArgumentParser, *, positional_artifact: bool = False) -> None:
    """Add file choice, ``--set`` and one flag per key with a reference name.

    ``positional_artifact`` also takes the model as a positional argument, as the reference command does.
    """
    files = parser.add_argument_group("configuration files")
    files.add_argument("--config", type=Path, metavar="FILE", help=f"base file (default {DEFAULT_BASE_FILE})")
    files.add_argument("--profile", metavar="NAME", help="profile to apply over the base file")
    files.add_argument(
        "--profiles-dir", type=Path, metavar="DIR", help="where profiles are (default: profiles beside the base file)"
    )
    files.add_argument(
        "--conf-dir", type=Path, metavar="DIR", help="where drop-ins are (default: conf.d beside the base file)"
    )
    keys = parser.add_argument_group("configuration keys")
    if positional_artifact:
        keys.add_argument("artifact", nargs="?", metavar="ARTIFACT", help=_help(KEYS["model.artifact"]))
    keys.add_argument(
        "--set",
        dest="config_overrides",
        action="append",
        default=[],
        type=_assignment,
        metavar="GROUP.NAME=VALUE",
        help="set any key; may be repeated",
    )
    for spec in KEYS.values():
        if spec.flag is not None:
            _add_flag(keys, spec, spec.flag)
    keys.add_argument("--api-key", type=_refuse_secret, help=argparse.SUPPRESS)
    for flag in IGNORED_FLAGS:
        keys.add_argument(flag, type=partial(_warn_ignored, flag), help=argparse.SUPPRESS)


def sources_from_args(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> ConfigSources:
    """What ``load`` needs, from parsed options and a snapshot of the environment."""
    named = args.config or (Path(env["NINFERD_CONFIG"]) if env.get("NINFERD_CONFIG") else None)
    base = named or DEFAULT_BASE_FILE
    artifact = getattr(args, "artifact", None)
    return ConfigSources(
        base_file=base,
        profile=args.profile,
        profiles_dir=args.profiles_dir or base.parent / "profiles",
        conf_dir=args.conf_dir or base.parent / "conf.d",
        env=dict(env),
        overrides=(*args.config_overrides, *([("model.artifact", artifact)] if artifact else [])),
        base_file_required=named is not None,
    )


def _add_flag(group: argparse._ArgumentGroup, spec: KeySpec, flag: str) -> None:
    """All flags append to one list, so that of several for one key the last wins."""
    if spec.annotation is bool:
        for name, text in ((flag, "true"), (f"--no-{flag.removeprefix('--')}", "false")):
            group.add_argument(
                name,
                dest="config_overrides",
                action="append_const",
                const=(spec.name, text),
                help=_help(spec) if text == "true" else argparse.SUPPRESS,
            )
    else:
        group.add_argument(
            flag,
            dest="config_overrides",
            action="append",
            type=partial(_pair, spec.name),
            metavar=spec.path[-1].upper(),
            help=_help(spec),
        )


def _help(spec: KeySpec) -> str:
    twin = f" (or --no-{spec.flag.removeprefix('--')})" if spec.flag and spec.annotation is bool else ""
    return f"{spec.name}{twin}: {spec.help} {build_note(spec)}".rstrip().replace("%", "%%")


def _pair(key: str, text: str) -> tuple[str, str]:
    return key, text


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("GROUP.NAME=VALUE expected")
    return key.strip(), value.strip()


def _refuse_secret(_text: str) -> None:
    raise argparse.ArgumentTypeError(
        "not accepted, since every user of the machine can read a command line; write the key to a file of "
        "`label:key` lines with mode 0600 and set server.api_keys_file"
    )


def _warn_ignored(flag: str, _text: str) -> None:
    print(f"ninferd: warning: {flag} is ignored: {IGNORED_FLAGS[flag]}", file=sys.stderr)

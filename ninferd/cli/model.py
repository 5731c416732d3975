"""``ninferd model ACTION``: models on disk, without loading them."""

from __future__ import annotations

import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group and its actions to the tree."""
    from ninferd.cli import model_convert, model_inspect, model_synth, model_verify

    parser = commands.add_parser("model", help="look at, check and make .ninfer files and Hugging Face directories")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for module in (model_inspect, model_verify, model_convert, model_synth):
        module.register(actions)

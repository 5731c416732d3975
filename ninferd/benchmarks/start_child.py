"""``python -m ninferd.benchmarks.start_child ARTIFACT …``: starts an engine phase by phase and says when each was done.

A process of its own, since much of a start happens once in a process. Prints a JSON object a line; the last one may be
the problem that ended it.
"""

from __future__ import annotations

import argparse
import json
import signal
import time

from ninferd.errors import NinferError


def main(argv: list[str] | None = None) -> int:
    """Start, and be gone; 0 done."""
    _done("interpreter")
    parser = argparse.ArgumentParser(prog="ninferd.benchmarks.start_child")
    parser.add_argument("artifact")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-dtype", required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    args = parser.parse_args(argv)
    try:
        _start(args)
    except NinferError as error:
        print(json.dumps({"problem": str(error), "status": error.exit_status}), flush=True)
        return error.exit_status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _start(args: argparse.Namespace) -> None:
    import torch

    from kernels_numba.selection import ops_for
    from ninferd.benchmarks.rehearsal import GREEDY, Rehearsal
    from ninferd.benchmarks.subject import load_subject, open_source
    from ninferd.engine.build import resolve_device, resolve_dtype

    _done("imports")
    device = resolve_device(args.device if not args.device.isdecimal() else int(args.device))
    torch.zeros(1, device=device)
    _done("device")
    ops_for(device, resolve_dtype("auto", open_source(args.artifact, device).config, device))
    _done("kernels and self-test")
    subject = load_subject(args.artifact, args.device, lambda _done, _total: None)
    _done("weights", subject.model.weights_bytes)
    rehearsal = Rehearsal(subject, args.lanes, args.context, args.kv_dtype, graphs=True)
    info = rehearsal.engine.info
    _done("caches and probe", info.kv_bytes + info.state_bytes)
    for lanes in range(1, args.lanes + 1):
        rehearsal.start(lanes, 1, GREEDY)
        rehearsal.stop()
    stats = rehearsal.engine.stats()
    _done("rounds of all lanes", stats.graph_bytes)


def _done(phase: str, size_bytes: int | None = None) -> None:
    """``at_s`` is of a clock that all processes share."""
    print(json.dumps({"phase": phase, "at_s": time.monotonic(), "bytes": size_bytes}), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

"""Seconds of one call: on a CUDA device inside a graph, as the engine runs it, and as long as the card sustains it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch

from ninferd.engine.cuda_graphs import CudaGraphs
from ninferd.engine.graphs import CaptureError

GRAPH_LAUNCHES: Final = 48
GRAPH_S: Final = 0.005
"""A graph has so many launches or takes so long, at least: launching the graph itself takes several microseconds."""
SUSTAINED_S: Final = 0.05
"""A card runs that long before anything counts: its clock falls under load, so a burst shows more than it keeps."""
REPLAYS: Final = 7
HOST_CALLS: Final = 200
CPU_PASS_S: Final = 0.01
"""A pass on the CPU repeats its calls for so long, if one of each takes less."""


class PerCall(NamedTuple):
    """Of one call."""

    seconds: float
    captured: bool
    """Whether it was replayed from a CUDA graph, as it is in a decode round."""


def seconds_per_call(calls: Sequence[Callable[[], object]], device: torch.device) -> PerCall:
    """The median of several passes over all of ``calls``, one after the other.

    They should differ in what they read, so that no cache helps. On CUDA a pass is a graph of at least 48 launches, of
    fewer if they take long, or eager if the calls cannot be captured, as torch's ops that stand in for a kernel.
    """
    if device.type == "cpu":
        return PerCall(_cpu_seconds(calls), captured=False)
    graphs = CudaGraphs(device)
    can_capture = _can_capture(graphs, calls)
    eager = replay_seconds(partial(_run, calls), 2, device)[-1]
    repeated = list(calls) * max(1, min(-(-GRAPH_LAUNCHES // len(calls)), math.ceil(GRAPH_S / eager)))
    replay = _captured(graphs, repeated) if can_capture else None
    run = replay or partial(_run, calls)
    once = statistics.median(replay_seconds(run, 3, device))
    for _ in range(int(SUSTAINED_S / once)):
        run()
    seconds = statistics.median(replay_seconds(run, max(REPLAYS, int(SUSTAINED_S / once)), device))
    graphs.release()
    return PerCall(seconds / len(repeated if replay else calls), captured=replay is not None)


def replay_seconds(call: Callable[[], object], count: int, device: torch.device) -> list[float]:
    """Of each of ``count`` calls in a row; on CUDA the device's seconds, without a wait between the calls."""
    if device.type == "cpu":
        return [elapsed_s(call) for _ in range(count)]
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


def host_seconds(call: Callable[[], object], device: torch.device) -> float:
    """That a call takes the processor, device work left in the queue."""
    call()
    synchronize(device)
    seconds = elapsed_s(partial(_run, [call] * HOST_CALLS)) / HOST_CALLS
    synchronize(device)
    return seconds


def elapsed_s(call: Callable[[], object]) -> float:
    """Of the host's clock."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _can_capture(graphs: CudaGraphs, calls: Sequence[Callable[[], object]]) -> bool:
    """Whether none of them waits for the device; what ops make at their first call is made here."""
    _, obstacle = graphs.observe(partial(_run, calls))
    if obstacle is not None:
        _, obstacle = graphs.observe(partial(_run, calls))  # it may have been the making
    return obstacle is None


def _captured(graphs: CudaGraphs, repeated: Sequence[Callable[[], object]]) -> Callable[[], None] | None:
    """What replays them, None if they cannot be captured after all."""
    try:
        return graphs.capture(partial(_run, repeated)).replay
    except CaptureError:
        return None


def _run(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _cpu_seconds(calls: Sequence[Callable[[], object]]) -> float:
    _run(calls)
    once = elapsed_s(partial(_run, calls))
    turns = max(1, int(CPU_PASS_S / max(once, 1e-9)))
    passes = [elapsed_s(partial(_run, list(calls) * turns)) for _ in range(REPLAYS)]
    return statistics.median(passes) / turns / len(calls)

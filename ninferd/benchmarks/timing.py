"""Seconds of one call: on a CUDA device inside a graph, as the engine runs it, and as long as the card sustains it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

GRAPH_LAUNCHES: Final = 48
"""Calls in a graph at least: launching the graph itself takes several microseconds."""
SUSTAINED_S: Final = 0.05
"""A card runs that long before anything counts: its clock falls under load, so a burst shows more than it keeps."""
REPLAYS: Final = 7
HOST_CALLS: Final = 200
CPU_PASS_S: Final = 0.01
"""A pass on the CPU repeats its calls for so long, if one of each takes less."""


def seconds_per_call(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Of one of ``calls``, the median of several passes over all of them, one after the other.

    They should differ in what they read, so that no cache helps. On CUDA they must be fit for capture.
    """
    if device.type == "cpu":
        return _cpu_seconds(calls)
    repeated = list(calls) * max(1, -(-GRAPH_LAUNCHES // len(calls)))
    graph = _captured(calls, repeated, device)
    once = statistics.median(replay_seconds(graph.replay, 3, device))
    for _ in range(int(SUSTAINED_S / once)):
        graph.replay()
    count = max(REPLAYS, int(SUSTAINED_S / once))
    return statistics.median(replay_seconds(graph.replay, count, device)) / len(repeated)


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
    seconds = elapsed_s(lambda: [call() for _ in range(HOST_CALLS)]) / HOST_CALLS
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


def _captured(
    calls: Sequence[Callable[[], object]], repeated: Sequence[Callable[[], object]], device: torch.device
) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for call in calls:  # what an op makes at its first call is made outside the capture
            call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in repeated:
            call()
    return graph


def _cpu_seconds(calls: Sequence[Callable[[], object]]) -> float:
    for call in calls:
        call()
    once = elapsed_s(lambda: [call() for call in calls])
    turns = max(1, int(CPU_PASS_S / max(once, 1e-9)))
    passes = [elapsed_s(lambda: [call() for _ in range(turns) for call in calls]) for _ in range(REPLAYS)]
    return statistics.median(passes) / turns / len(calls)

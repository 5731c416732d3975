"""The gated delta rule, norms and gates on a GPU against the memory's ceiling and torch, in one run.

    python bench/cuda_gated_delta.py [--heads 16x48] [--lanes 1 2 4 8] [--tokens 512 2048 4096]

Prints first what a kernel reads that does nothing else, then microseconds inside a CUDA graph: of a decode step per
layer by sequences, with plain and with programmatic launches (in a chain of such launches, over enough layers that the
L2 cache does not help), with the share of the ceiling at which states are read and written; of rounds of several rows;
of prefills and their parts; of norms and gates; last, what a call costs the host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels_numba.nvidia import gated_delta_ops, norms_ops
from kernels_numba.nvidia.gated_delta_layout import DIM, TAPS
from kernels_numba.nvidia.launch import device_of
from kernels_numba.ops import GatedDelta
from kernels_numba.shapes import GatedDeltaPending, GatedDeltaShape, GatedDeltaWeights
from kernels_numba.torch_ops import dense
from kernels_numba.torch_ops import gated_delta as torch_gated_delta

STREAM_BYTES = 4 << 30
LAYERS = 48
ROWS = (1, 2, 4, 8, 16)
PARTS = ("chunk", "scan", "out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="16x48", metavar="HKxHV")
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 2048, 4096])
    args = parser.parse_args()
    key_heads, value_heads = (int(count) for count in args.heads.split("x"))
    shape = GatedDeltaShape(key_heads, value_heads, DIM, DIM, TAPS)
    ceiling = read_ceiling()
    print(
        f"{device_of(torch.device('cuda')).label}, read ceiling {ceiling / 1e9:.0f} GB/s; heads {args.heads} of {DIM}"
    )
    rule = Rule(shape, max(args.lanes))
    for lanes in args.lanes:
        decode(rule, lanes, ceiling)
    for lanes in args.lanes:
        rounds(rule, lanes)
    for tokens in args.tokens:
        prefill(rule, tokens)
    for rows in (1, 8, 2048):
        norms(rows)
    host(rule)


class Rule:
    """Weights, and states of so many sequences in every layer."""

    def __init__(self, shape: GatedDeltaShape, lanes: int) -> None:
        self.shape = shape
        self.weights = GatedDeltaWeights(
            conv=0.5 * torch.randn(TAPS, shape.conv_channels, device="cuda"),
            decay_rate=-torch.randn(shape.value_heads, device="cuda").exp(),
            dt_bias=torch.randn(shape.value_heads, device="cuda"),
            norm=torch.ones(DIM, device="cuda"),
            eps=1e-6,
        )
        self.conv = torch.randn(lanes, LAYERS, shape.conv_channels, TAPS - 1, device="cuda").bfloat16()
        self.recurrent = torch.randn(lanes, LAYERS, shape.value_heads, DIM, DIM, device="cuda")

    def calls(self, op: GatedDelta, rows: int, slots: int, count: int = LAYERS) -> list[Callable[[], Tensor]]:
        """One for each layer in turn."""
        projected = torch.randn(rows, self.shape.projected_width, device="cuda").bfloat16()
        chosen = torch.arange(slots, device="cuda")
        states = self.weights, self.conv, self.recurrent
        return [partial(op, projected, *states, layer % LAYERS, chosen, self.shape) for layer in range(count)]

    def rounds(self, rows: int, slots: int) -> list[Callable[[], Tensor]]:
        """One for each layer, with room for just so many rows."""
        shape, sizes = self.shape, (slots, LAYERS, rows)
        pending = GatedDeltaPending(
            inputs=torch.randn(*sizes, shape.conv_channels, device="cuda").bfloat16(),
            keys=torch.randn(*sizes, shape.key_heads, DIM, device="cuda") / DIM**0.5,
            deltas=torch.randn(*sizes, shape.value_heads, DIM, device="cuda"),
            log_decays=-torch.rand(*sizes, shape.value_heads, device="cuda"),
        )
        projected = torch.randn(slots * rows, shape.projected_width, device="cuda").bfloat16()
        chosen, accepted = torch.arange(slots, device="cuda"), torch.full((slots,), rows, device="cuda")
        states = self.weights, self.conv, self.recurrent, pending
        op = gated_delta_ops.gated_delta_round
        return [partial(op, projected, *states, layer, chosen, accepted, shape) for layer in range(LAYERS)]


def read_ceiling() -> float:
    """Bytes per second."""
    kernel = device_of(torch.device("cuda")).kernel("stream_read")
    source, out = torch.ones(STREAM_BYTES // 4, device="cuda"), torch.zeros(4, device="cuda")
    grid = (4 * torch.cuda.get_device_properties(0).multi_processor_count, 1, 1)
    return STREAM_BYTES / seconds([lambda: kernel(grid, source.data_ptr(), out.data_ptr(), STREAM_BYTES // 32768)] * 4)


def seconds(calls: Sequence[Callable[[], object]], replays: int = 9) -> float:
    """Of one call, inside a CUDA graph: the median of several replays."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


@contextmanager
def switched(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def decode(rule: Rule, lanes: int, ceiling: float) -> None:
    """Print one line."""
    size = 2 * 4 * rule.recurrent[:lanes, 0].numel()
    times = []
    for overlapping in (False, True):
        with switched(gated_delta_ops, "PROGRAMMATIC", overlapping):
            times.append(seconds(rule.calls(gated_delta_ops.gated_delta_decode, lanes, lanes)))
    share = 100 * size / min(times) / ceiling
    eager = seconds(rule.calls(torch_gated_delta.gated_delta_decode, lanes, lanes))
    plain, programmatic = (f"{1e6 * time_:.2f}" for time_ in times)
    print(f"decode, {lanes} lanes: {plain} us, PDL {programmatic} ({share:.0f}%); torch {1e6 * eager:.0f}", flush=True)


def rounds(rule: Rule, lanes: int) -> None:
    """Print one line: all rows of the round before are accepted."""
    line = []
    for rows in ROWS:
        times = []
        for programmatic in (False, True):
            with switched(gated_delta_ops, "PROGRAMMATIC", programmatic):
                times.append(f"{1e6 * seconds(rule.rounds(rows, lanes)):.2f}")
        line.append(f"{rows}: {', PDL '.join(times)}")
    print(f"rounds, {lanes} lanes, us by rows: {'; '.join(line)}", flush=True)


def prefill(rule: Rule, tokens: int) -> None:
    """Print one line; a part's time is what leaving it out saves."""
    calls = rule.calls(gated_delta_ops.gated_delta_prefill, tokens, 1, count=4)
    whole = seconds(calls)
    parts = {}
    for part in PARTS:
        with switched(gated_delta_ops, "device_of", partial(_without, part)):
            parts[part] = whole - seconds(calls)
    line = ", ".join(f"{part} {1e6 * time_:.0f}" for part, time_ in parts.items())
    theirs = seconds(rule.calls(torch_gated_delta.gated_delta_prefill, tokens, 1, count=2), replays=3)
    spans = []
    for span in (1024, 2048, 4096):
        with switched(gated_delta_ops, "SPAN_TOKENS", span):
            spans.append(f"{1e6 * seconds(calls):.0f}")
    print(
        f"prefill of {tokens}: {1e6 * whole:.0f} us ({line}); in passes of 1024, 2048, 4096: {', '.join(spans)};"
        f" torch {1e6 * theirs:.0f}",
        flush=True,
    )


class _Without:
    """A device on which one kernel does nothing."""

    def __init__(self, left_out: str, device: torch.device) -> None:
        self._left_out, self._device = left_out, device_of(device)
        self.arch, self.shared_bytes_per_block = self._device.arch, self._device.shared_bytes_per_block

    def kernel(self, name: str) -> Callable[..., None]:
        if name.startswith(f"gated_delta_{self._left_out}"):
            return lambda *_, **__: None
        return self._device.kernel(name)


def _without(left_out: str, device: torch.device) -> _Without:
    return _Without(left_out, device)


def norms(rows: int, width: int = 5120, inner: int = 17408) -> None:
    """Print one line."""
    x, residual = torch.randn(2, rows, width, device="cuda").bfloat16()
    weight, gate_up = torch.ones(width, device="cuda"), torch.randn(rows, 2 * inner, device="cuda").bfloat16()
    ops: dict[str, tuple[Callable[..., object], Callable[..., object], tuple[object, ...]]] = {
        "rms_norm": (norms_ops.rms_norm, dense.rms_norm, (x, weight, 1e-6)),
        "add_rms_norm": (norms_ops.add_rms_norm, dense.add_rms_norm, (residual, x, weight, 1e-6)),
        "silu_mul": (norms_ops.silu_mul, dense.silu_mul, (gate_up,)),
    }
    line = []
    for name, (ours, theirs, arguments) in ops.items():
        times = []
        for programmatic in (False, True):
            with switched(norms_ops, "PROGRAMMATIC", programmatic):
                times.append(f"{1e6 * seconds([partial(ours, *arguments)] * LAYERS):.2f}")
        line.append(
            f"{name} {times[0]} us, PDL {times[1]}, torch {1e6 * seconds([partial(theirs, *arguments)] * 8):.1f}"
        )
    print(f"{rows} rows: " + "; ".join(line), flush=True)


def host(rule: Rule) -> None:
    """Print what a call costs the processor."""
    x, weight = torch.randn(1, 5120, device="cuda").bfloat16(), torch.ones(5120, device="cuda")
    step = rule.calls(gated_delta_ops.gated_delta_decode, 1, 1)[0]
    for name, call in (("rms_norm", partial(norms_ops.rms_norm, x, weight, 1e-6)), ("decode step", step)):
        call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            call()
        print(f"host: {name} {(time.perf_counter() - begin) / 200 * 1e6:.1f} us")
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()

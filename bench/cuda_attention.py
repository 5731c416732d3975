"""Decode attention on a GPU against the memory's read ceiling and torch's attention, in one run.

    python bench/cuda_attention.py [--heads 24x4] [--contexts 8192 65536 262141] [--lanes 1 8]

Prints first what a kernel reads that does nothing else, then per context and number of sequences: microseconds of the
op (both kernels, gate included) inside a CUDA graph, with plain and with programmatic launches, the share of the
ceiling that the keys and values alone are read at, and the best of torch's backends on keys and values that are
contiguous already, with the queries that share them folded into one sequence. Launches take turns over enough layers
that the L2 cache does not help.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import attention_decode_ops as attention_ops
from kernels_numba.nvidia.launch import device_of
from kernels_numba.shapes import AttentionShape

PAGE_TOKENS = 64
STREAM_BYTES = 4 << 30
COLD_BYTES = 400 << 20
"""Read between two launches on the same memory: several times any L2 cache."""
LAUNCHES = 48
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="24x4", metavar="HxKV")
    parser.add_argument("--contexts", nargs="+", type=int, default=[8192, 65536, 262141])
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 8])
    args = parser.parse_args()
    heads, kv_heads = (int(count) for count in args.heads.split("x"))
    shape = AttentionShape(heads, kv_heads, head_dim=256, rotary_dim=64)
    ceiling = read_ceiling()
    print(f"{device_of(torch.device('cuda')).label}, read ceiling {ceiling / 1e9:.0f} GB/s; {args.heads} heads of 256")
    print(f"{'context':>8} {'lanes':>5} {'us':>9} {'GB/s':>6} {'%':>4} {'us PDL':>9} {'%':>4}   torch")
    for lanes in args.lanes:
        for context in args.contexts:
            compare(shape, [context] * lanes, ceiling)
    if 8 in args.lanes:
        print("one long sequence beside seven short ones")
        compare(shape, [max(args.contexts)] + [1000] * 7, ceiling)


def read_ceiling() -> float:
    """Bytes per second."""
    kernel = device_of(torch.device("cuda")).kernel("stream_read")
    source, out = torch.ones(STREAM_BYTES // 4, device="cuda"), torch.zeros(4, device="cuda")
    chunks = STREAM_BYTES // 32768
    grid = (4 * torch.cuda.get_device_properties(0).multi_processor_count, 1, 1)
    return STREAM_BYTES / seconds([lambda: kernel(grid, source.data_ptr(), out.data_ptr(), chunks)] * 4)


def seconds(calls: Sequence[Callable[[], object]]) -> float:
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
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


def random_kv(shape: AttentionShape, layers: int, pages: int) -> PagedKv:
    kv = PagedKv.zeros(KvLayout(KV_CODECS["bf16"], layers, shape.kv_heads, shape.head_dim), pages, "cuda")
    kv.plain.normal_()
    return kv


def compare(shape: AttentionShape, contexts: list[int], ceiling: float) -> None:
    """Print one line."""
    lanes, pages = len(contexts), [-(-context // PAGE_TOKENS) for context in contexts]
    size = sum(contexts) * shape.kv_heads * shape.head_dim * 4
    layers = max(1, min(16, -(-COLD_BYTES // size) + 1))
    kv = random_kv(shape, layers, sum(pages))
    table = torch.zeros(lanes, max(pages), dtype=torch.int32)
    for row, own in zip(table, torch.split(torch.randperm(sum(pages)), pages), strict=True):
        row[: len(own)] = own
    table, lengths = table.cuda(), torch.tensor(contexts).cuda()
    query = torch.randn(lanes, shape.heads, shape.head_dim, device="cuda").bfloat16()
    projected = torch.randn(lanes, shape.projected_width, device="cuda").bfloat16()
    count = LAUNCHES if size < COLD_BYTES else layers * max(1, 8 // layers)

    def call(turn: int) -> Callable[[], Tensor]:
        return partial(attention_ops.attention_decode, query, projected, kv, turn % layers, table, lengths, shape)

    calls = [call(turn) for turn in range(count)]
    plain, programmatic = (timed(calls, switch) for switch in (False, True))
    share = [100 * size / time_ / ceiling for time_ in (plain, programmatic)]
    name = str(contexts[0]) if len(set(contexts)) == 1 else "mixed"
    print(
        f"{name:>8} {lanes:>5} {1e6 * plain:9.1f} {size / plain / 1e9:6.0f} {share[0]:4.0f}"
        f" {1e6 * programmatic:9.1f} {share[1]:4.0f}   ",
        end="",
    )
    if len(set(contexts)) > 1:
        print()
        return
    times = torch_seconds(shape, contexts[0], lanes, layers, count)
    print(", ".join(f"{backend} {1e6 * t:.1f} us = {t / plain:.2f}x" for backend, t in times.items()), flush=True)


def timed(calls: Sequence[Callable[[], object]], programmatic: bool) -> float:
    before = attention_ops.PROGRAMMATIC
    attention_ops.PROGRAMMATIC = programmatic
    try:
        return seconds(calls)
    finally:
        attention_ops.PROGRAMMATIC = before


def torch_seconds(shape: AttentionShape, context: int, lanes: int, layers: int, count: int) -> dict[str, float]:
    """By backend; those that refuse are left out."""
    size = (layers, 2, lanes, shape.kv_heads, context, shape.head_dim)
    kv = torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_()
    group = shape.heads // shape.kv_heads
    query = torch.randn(lanes, shape.kv_heads, group, shape.head_dim, device="cuda").bfloat16()

    def call(turn: int) -> Callable[[], Tensor]:
        key, value = kv[turn % layers]
        return lambda: functional.scaled_dot_product_attention(query, key, value)

    times = {}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                times[name] = seconds([call(turn) for turn in range(count)])
        except RuntimeError as error:
            print(f"[{name}: {str(error).splitlines()[0][:60]}]", end=" ")
    return times


if __name__ == "__main__":
    main()

"""Decode attention on a GPU against the memory's read ceiling and torch's attention, in one run.

    python bench/cuda_attention.py [--codecs nvfp4 fp8 ...] [--rows 1 2 4 8] [--contexts 8192 65536 262141]

Prints first what a kernel reads that does nothing else. Then, by context and query rows of a sequence: the best of
torch's backends over contiguous bfloat16 keys and values, with the queries that share them folded into one sequence;
and by codec microseconds of the op (both kernels, gate included) inside a CUDA graph with programmatic launches, the
share of the ceiling at which it reads what is cached, and how much faster than torch that is. Launches take turns over
so many layers that the L2 cache does not help. Then batches of sequences of different lengths, and the error of a few
heads at the longest context against float64.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.attention_decode_ops import attention_decode
from kernels_numba.nvidia.launch import device_of
from kernels_numba.shapes import AttentionShape

STREAM_BYTES = 4 << 30
COLD_BYTES = 400 << 20
"""Read between two launches on the same memory: several times any L2 cache."""
DIFFERENT_PAGES = 256
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
MIXES = ([65536, 1000], [65536, 32768, 8192, 1000], [65536, 60000, 32768, 16384, 8192, 4096, 1000, 100])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="24x4", metavar="HxKV")
    parser.add_argument("--codecs", nargs="+", default=["nvfp4", "fp8", "int8", "k8v4", "bf16"])
    parser.add_argument("--contexts", nargs="+", type=int, default=[8192, 65536, 262141])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8])
    args = parser.parse_args()
    heads, kv_heads = (int(count) for count in args.heads.split("x"))
    shape = AttentionShape(heads, kv_heads, head_dim=256, rotary_dim=64)
    ceiling = read_ceiling()
    print(f"{device_of(torch.device('cuda')).label}, read ceiling {ceiling / 1e9:.0f} GB/s; {args.heads} heads of 256")
    torchs = {(c, rows): best_of_torch(shape, c, rows) for c in args.contexts for rows in args.rows}
    for (context, rows), (backend, time) in torchs.items():
        print(f"torch bf16 {context:>7} x {rows:>2} rows {1e6 * time:8.1f} us ({backend})", flush=True)
    for codec in args.codecs:
        for context in args.contexts:
            cache = Cache(shape, codec, [context])
            for rows in args.rows:
                time = cache.seconds(rows)
                line = f"{codec:>5} {context:>7} x {rows:>2} rows {1e6 * time:8.1f} us"
                share = 100 * cache.size_bytes / time / ceiling
                print(f"{line} {share:4.0f} %, {torchs[context, rows][1] / time:.2f}x torch", flush=True)
            if context == max(args.contexts):
                errors = ", ".join(f"{cache.error(rows):.1e}" for rows in args.rows)
                print(f"{codec:>5} {context:>7} error of one kv head: {errors}", flush=True)
            del cache
        for contexts in MIXES:
            cache = Cache(shape, codec, contexts)
            for rows in (1, 4):
                time = cache.seconds(rows)
                share = 100 * cache.size_bytes / time / ceiling
                print(
                    f"{codec:>5} {len(contexts)} sequences x {rows} rows {1e6 * time:8.1f} us {share:4.0f} %",
                    flush=True,
                )
            del cache


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


def turns(size_bytes: int) -> tuple[int, int]:
    """Layers to take turns over, and launches."""
    layers = max(1, min(16, -(-COLD_BYTES // size_bytes) + 1))
    return layers, layers * max(1, -(-16 // layers))


class Cache:
    """Sequences on shuffled pages. A few hundred pages of numbers repeat: only their addresses differ."""

    def __init__(self, shape: AttentionShape, codec: str, contexts: list[int]) -> None:
        self.shape, self.contexts = shape, contexts
        counts = [-(-context // PAGE_TOKENS) for context in contexts]
        layout = KvLayout(KV_CODECS[codec], 1, shape.kv_heads, shape.head_dim)
        self.size_bytes = sum(contexts) * layout.page_bytes // PAGE_TOKENS
        self.layers, self.launches = turns(self.size_bytes)
        few = PagedKv.zeros(layout, DIFFERENT_PAGES, "cuda")
        slots = torch.arange(DIFFERENT_PAGES * PAGE_TOKENS, device="cuda")
        size = (len(slots), shape.kv_heads, shape.head_dim)
        store(few, 0, slots, torch.randn(size, device="cuda"), torch.randn(size, device="cuda"))
        layout = KvLayout(layout.codec, self.layers, shape.kv_heads, shape.head_dim)
        self.kv = PagedKv.zeros(layout, sum(counts), "cuda")
        for layer in range(self.layers):
            for start in range(0, sum(counts), DIFFERENT_PAGES):
                part = self.kv.runs[start : start + DIFFERENT_PAGES, layer]
                part.copy_(few.runs[: len(part), 0])
        table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
        for row, own in zip(table, torch.split(torch.randperm(sum(counts)), counts), strict=True):
            row[: len(own)] = own
        self.table, self.lengths = table.cuda(), torch.tensor(contexts).cuda()

    def call(self, rows: int, layer: int) -> Callable[[], Tensor]:
        generator = torch.Generator("cuda").manual_seed(rows)
        count = rows * len(self.contexts)
        query = torch.randn(count, self.shape.heads, 256, device="cuda", generator=generator).bfloat16()
        projected = torch.full((count, self.shape.projected_width), 30.0, device="cuda").bfloat16()  # open gates
        return partial(attention_decode, query, projected, self.kv, layer, self.table, self.lengths, self.shape)

    def seconds(self, rows: int) -> float:
        calls = [self.call(rows, layer) for layer in range(self.layers)]
        return seconds([calls[turn % self.layers] for turn in range(self.launches)])

    def error(self, rows: int) -> float:
        """Of the first kv head of the only sequence, by norm, against float64 on what is cached."""
        call = self.call(rows, 0)
        assert isinstance(call, partial)
        query, context, group = call.args[0], self.contexts[0], self.shape.heads // self.shape.kv_heads
        found = call().view(rows, self.shape.heads, 256)[:, :group].double()
        parts = [load(self.kv, 0, pages, torch.float32) for pages in torch.split(self.table[0].long(), 256)]
        key, value = (torch.cat([part[i][:, 0] for part in parts]).flatten(0, 1)[:context] for i in range(2))
        scores = query[:, :group].double() @ key.double().T / math.sqrt(256)
        hidden = torch.arange(context, device="cuda") > context - rows + torch.arange(rows, device="cuda")[:, None]
        expected = torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), -1) @ value.double()
        return float((found - expected).norm() / expected.norm())


def best_of_torch(shape: AttentionShape, context: int, rows: int) -> tuple[str, float]:
    """The quicker backend and its seconds, over keys and values in bfloat16 that are contiguous already."""
    layers, launches = turns(context * shape.kv_heads * shape.head_dim * 4)
    kv = torch.empty(layers, 2, 1, shape.kv_heads, context, shape.head_dim, dtype=torch.bfloat16, device="cuda")
    kv.normal_()
    columns = rows * shape.heads // shape.kv_heads
    query = torch.randn(1, shape.kv_heads, columns, shape.head_dim, device="cuda").bfloat16()

    def call(turn: int) -> Callable[[], Tensor]:
        key, value = kv[turn % layers]
        return lambda: functional.scaled_dot_product_attention(query, key, value)

    times: dict[str, float] = {}
    for name, backend in BACKENDS.items():
        if name == "cudnn" and rows > 1:  # several times slower with more than a few queries
            continue
        try:
            with sdpa_kernel(backend):
                times[name] = seconds([call(turn) for turn in range(launches)])
        except RuntimeError:  # refuses these shapes
            continue
    return min(times.items(), key=lambda item: item[1])


if __name__ == "__main__":
    main()

"""Cache writes and prefill attention on a GPU, against the ceilings of the same run.

    python bench/cuda_prefill_attention.py [--heads 24x4] [--chunks 2048 4096] [--contexts 8192 32768 131072]

Prints first what large bfloat16 products reach. Then, for every codec, cache writes with norms, rope,
rotation and the queries: microseconds inside a CUDA graph, and of a call on the host. Then a chunk of new tokens at the
end of a context, over a cache of each codec: milliseconds of the op, TFLOP/s of causal attention, their share of the
products' ceiling, and how much of the time brings keys and values out of the cache; beside it torch's attention on the
same queries and bfloat16 keys and values that lie there contiguously: cuDNN's, with its plan made before, and
FlashAttention-2, over the whole context and without a gate. Last, whole prompts chunk by chunk, and few rows at a long
context.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kernels_numba.kv.access import store
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia import append_ops
from kernels_numba.nvidia import attention_prefill_ops as prefill_ops
from kernels_numba.nvidia.attention_kernels import EXPANDED, PAGE_TOKENS
from kernels_numba.nvidia.launch import device_of
from kernels_numba.shapes import AttentionNorms, AttentionShape

CUDA = torch.device("cuda")
LAUNCHES = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="24x4", metavar="HxKV")
    parser.add_argument("--codecs", nargs="+", default=EXPANDED, choices=EXPANDED)
    parser.add_argument("--chunks", nargs="+", type=int, default=[2048, 4096])
    parser.add_argument("--contexts", nargs="+", type=int, default=[8192, 32768, 131072])
    parser.add_argument("--prompts", nargs="+", type=int, default=[8192, 131072])
    args = parser.parse_args()
    heads, kv_heads = (int(count) for count in args.heads.split("x"))
    shape = AttentionShape(heads, kv_heads, head_dim=256, rotary_dim=64)
    ceiling = products_ceiling()
    print(
        f"{device_of(CUDA).label}, products {ceiling / 1e12:.0f} TFLOP/s sustained; {args.heads} heads of 256",
        flush=True,
    )
    for codec in args.codecs:
        appends(codec, shape)
    for codec in args.codecs:
        for chunk in args.chunks:
            for context in args.contexts:
                prefill(codec, shape, chunk, context, ceiling)
    for tokens in args.prompts:
        prompt("nvfp4", shape, args.chunks[0], tokens, ceiling)
    for rows in (2, 16, 64, 255, 300, 640, 1000):
        prefill("nvfp4", shape, rows, max(args.contexts), ceiling)


def appends(codec: str, shape: AttentionShape) -> None:
    kv, weight = _cache(codec, shape, 80), torch.ones(shape.head_dim, device=CUDA)
    norms, results = AttentionNorms(weight, weight, 1e-6), []
    for rows in (1, 4, 8, 2048):
        projected = torch.randn(rows, shape.projected_width, device=CUDA).bfloat16()
        cos, sin = torch.rand(2, rows, shape.rotary_dim // 2, device=CUDA)
        slots = torch.randperm(80 * PAGE_TOKENS)[:rows].cuda()
        append = partial(append_ops.append_kv, projected, norms, cos, sin, kv, 1, slots, shape)
        captured, host = graph_seconds(append), host_seconds(append)
        results.append(f"{rows} rows {1e6 * captured:.2f} us ({1e6 * host:.1f} a call)")
    print(f"append {codec:5} {', '.join(results)}", flush=True)


def prefill(codec: str, shape: AttentionShape, rows: int, context: int, ceiling: float) -> None:
    """Print one line."""
    kv, pages = (
        _cache(codec, shape, -(-context // PAGE_TOKENS)),
        torch.randperm(-(-context // PAGE_TOKENS)).int().cuda(),
    )
    query, projected = _rows(shape, rows)
    flop = 4 * shape.heads * shape.head_dim * rows * (2 * context - rows + 1) / 2
    ours = eager(lambda: prefill_ops.attention_prefill(query, projected, kv, 1, pages, context, shape))
    whole, stretch = context - rows, prefill_ops.STRETCH_TOKENS
    begins = range(0, whole - whole % stretch + 1, stretch)
    workspace = query.new_empty(2 * shape.kv_width * min(context, stretch + rows))

    def expand() -> None:
        for begin in begins:
            end = context if begin == begins[-1] else begin + stretch
            prefill_ops._expanded(kv, 1, pages, begin, end - begin, shape, workspace)

    line = f"{codec:5} {rows:5} at {context:6}: {1e3 * ours:8.3f} ms {flop / ours / 1e12:4.0f} TFLOP/s"
    line += f" {flop / ours / ceiling:4.0%} of products, expansion {1e6 * eager(expand):6.1f} us"
    if codec == "bf16":
        key, value = torch.randn(2, 1, shape.kv_heads, context, shape.head_dim, device=CUDA).bfloat16()
        heads = query.transpose(0, 1)[None]
        for name, attend in (
            ("flash", lambda: prefill_ops._flash(heads, key, value, True, shape.softmax_scale)),
            ("cuDNN, whole", lambda: prefill_ops._cudnn(heads, key, value, shape.softmax_scale)),
        ):
            seconds = eager(attend)
            line += f"; {name} {1e3 * seconds:.3f} ms = {seconds / ours:.2f}x"
    print(line, flush=True)


def prompt(codec: str, shape: AttentionShape, chunk: int, tokens: int, ceiling: float) -> None:
    """Print one line: all chunks of a prompt, one layer."""
    kv, pages = _cache(codec, shape, tokens // PAGE_TOKENS), torch.randperm(tokens // PAGE_TOKENS).int().cuda()
    query, projected = _rows(shape, chunk)

    def whole() -> None:
        for end in range(chunk, tokens + 1, chunk):
            prefill_ops.attention_prefill(query, projected, kv, 1, pages, end, shape)

    flop, seconds = 4 * shape.heads * shape.head_dim * tokens * (tokens + 1) / 2, eager(whole, 1)
    share = flop / seconds / ceiling
    print(f"{codec} prompt of {tokens} in chunks of {chunk}: {1e3 * seconds:.1f} ms a layer, {share:.0%} of products")


def _cache(codec: str, shape: AttentionShape, pages: int) -> PagedKv:
    """Normal numbers in layer 1."""
    kv = PagedKv.zeros(KvLayout(KV_CODECS[codec], 2, shape.kv_heads, shape.head_dim), pages, CUDA)
    for slots in torch.split(torch.arange(pages * PAGE_TOKENS, device=CUDA), 8192):
        new = torch.randn(2, len(slots), shape.kv_heads, shape.head_dim, device=CUDA)
        store(kv, 1, slots, new[0], new[1])
    return kv


def _rows(shape: AttentionShape, rows: int) -> tuple[Tensor, Tensor]:
    query = torch.randn(rows, shape.heads, shape.head_dim, device=CUDA).bfloat16()
    return query, torch.randn(rows, shape.projected_width, device=CUDA).bfloat16()


def products_ceiling() -> float:
    """FLOP per second of large bfloat16 products, long enough for the power limit to count."""
    a, b = torch.randn(2, 8192, 8192, device=CUDA).bfloat16()
    return float(2 * 8192**3 / eager(lambda: a @ b, 300))


def graph_seconds(call: Callable[[], object]) -> float:
    """Of one call inside a CUDA graph: the median of several replays."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    return sorted(eager(graph.replay, 1) for _ in range(9))[4] / LAUNCHES


def host_seconds(call: Callable[[], object]) -> float:
    """That a call takes the host."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(200):
        call()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / 200


def eager(call: Callable[[], object], count: int = 3) -> float:
    """Seconds of one call outside a graph, after two that are not counted."""
    for _ in range(2):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count


if __name__ == "__main__":
    main()

"""Mixtures of experts on a GPU: the whole op (routing to sum) in a CUDA graph, against reading the chosen experts.

    python -m bench.cuda_moe [--experts 256] [--hidden 2048] [--inner 512] [--top-k 8] [--tokens 1 2 4 8 16 32 128 2048]

Layers of random NVFP4 experts, more of them than the L2 cache holds, one after the other. ``distinct`` is the mean
number of experts that the tokens of a layer chose, ``GB/s`` their bytes over the time of a layer.
"""

from __future__ import annotations

import argparse

import torch

from kernels_numba.matrices import Nvfp4Matrix
from kernels_numba.nvidia import moe_ops
from kernels_numba.nvidia.linear import pack_linear
from kernels_numba.shapes import PackedLinear

LAYERS, ROUNDS = 4, 12


def stack(experts: int, rows: int, columns: int) -> PackedLinear:
    def words(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, dtype=torch.uint8, device="cuda")

    codes, scales = words(256, experts, rows, columns // 2), words(64, experts, rows, columns // 16)
    return pack_linear(Nvfp4Matrix(codes, scales, torch.full((experts, rows), 0.02, device="cuda")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("experts", 256), ("hidden", 2048), ("inner", 512), ("top-k", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 128, 2048])
    args = parser.parse_args()
    layers = [
        (stack(args.experts, 2 * args.inner, args.hidden), stack(args.experts, args.hidden, args.inner))
        for _ in range(LAYERS)
    ]
    expert_bytes = 3 * args.inner * args.hidden * 9 // 16
    print(f"{torch.cuda.get_device_name()}: {args.experts} experts of {expert_bytes / 1e6:.2f} MB, top {args.top_k}")
    print("tokens  distinct   us a layer    GB/s")
    for tokens in args.tokens:
        x, shared = torch.randn(2, tokens, args.hidden, device="cuda").bfloat16() / 45
        routings = torch.randn(LAYERS, tokens, args.experts + 1, device="cuda").bfloat16()
        chosen = routings[..., :-1].topk(args.top_k).indices
        distinct = sum(len(each.unique()) for each in chosen) / LAYERS
        us = 1e3 * measured_ms(x, shared, routings, layers, args.top_k) / LAYERS
        print(f"{tokens:6} {distinct:9.1f} {us:12.1f} {distinct * expert_bytes / us / 1e3:7.0f}", flush=True)


def measured_ms(
    x: torch.Tensor,
    shared: torch.Tensor,
    routings: torch.Tensor,
    layers: list[tuple[PackedLinear, PackedLinear]],
    top_k: int,
) -> float:
    """Median of all layers, one after the other."""

    def run() -> None:
        for routing, (gate_up, down) in zip(routings, layers, strict=True):
            moe_ops.moe_experts(x, routing, gate_up, down, top_k, shared)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            run()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / ROUNDS)
    return float(sorted(times)[2])


if __name__ == "__main__":
    main()

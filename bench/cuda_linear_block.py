"""All between the mixers of a 27B's layers on a CUDA device: one launch a layer against one op after the other.

    python -m bench.cuda_linear_block [--widths 1 4 8 16]

64 layers of NVFP4 weights, every fourth followed by an attention layer, the others by a gated delta rule layer with
its 96 plain rows; every matrix its own. Launches are replayed from one CUDA graph, the median of several; shares are
of what merely reading memory reaches in the same run. ``mixers``: with a small kernel between two layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bench.cuda_linear import median_us, random_bytes, read_ceiling, stream_bytes
from kernels_numba.dense_block import composed_dense_block
from kernels_numba.nvidia import linear_block_ops
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.linear import StreamSegment, linear
from kernels_numba.nvidia.linear_formats import FORMATS
from kernels_numba.nvidia.norms_ops import add_rms_norm, rms_norm, silu_mul
from kernels_numba.shapes import DenseBlockWeights, PackedLinear

WIDTH, MIXED, INNER, LAYERS = 5120, 6144, 17408, 64
FACTOR = {"nvfp4": 0.004, "bf16": 0.02}
"""Of rows, so that residuals stay small."""
EPS = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 4, 8, 16])
    options = parser.parse_args()
    device = device_of(torch.device("cuda"))
    print(f"{device.label}, torch {torch.__version__}")
    ceiling = read_ceiling(device)
    layers = [layer(is_attention=index % 4 == 3) for index in range(LAYERS)]
    size = sum(packed.size_bytes for each in layers for packed in products(each))
    floor_us = size / ceiling / 1e3
    print(f"{LAYERS} layers, {size / 1e9:.2f} GB, read in {floor_us / 1e3:.2f} ms at best")
    one_by_one = composed_dense_block(linear, add_rms_norm, silu_mul)
    for width in options.widths:
        residual, mixed = (torch.randn(width, columns, device="cuda").bfloat16() for columns in (WIDTH, MIXED))
        figures = []
        for name, us in {
            "plain": step_us(layers, residual, mixed, linear_block_ops.dense_block, overlapped=False),
            "overlapped": step_us(layers, residual, mixed, linear_block_ops.dense_block),
            "mixers": step_us(layers, residual, mixed, _after_a_norm),
            "one after the other": step_us(layers, residual, mixed, one_by_one),
        }.items():
            figures.append(f"{name} {us / 1e3:.2f} ms {100 * floor_us / us:.0f} %")
        print(f"M={width}: {'; '.join(figures)}", flush=True)


def layer(is_attention: bool) -> DenseBlockWeights:
    rows = [("nvfp4", 14336)] if is_attention else [("nvfp4", 16384), ("bf16", 96)]
    norm, next_norm = torch.rand(2, WIDTH, device="cuda") + 0.5
    return DenseBlockWeights(
        PackedLinear((segment("nvfp4", WIDTH, MIXED),)),
        norm,
        PackedLinear((segment("nvfp4", 2 * INNER, WIDTH),)),
        PackedLinear((segment("nvfp4", WIDTH, INNER),)),
        next_norm,
        PackedLinear(tuple(segment(kind, count, WIDTH) for kind, count in rows)),
        EPS,
    )


def segment(kind: str, rows: int, columns: int) -> StreamSegment:
    if kind == "bf16":
        stream = torch.randn(rows * columns, device="cuda").half().view(torch.uint8)
    else:
        stream = random_bytes(stream_bytes(kind, rows, columns))
    factor = FACTOR[kind]
    factors = torch.full((rows,), factor, device="cuda")
    counters = torch.zeros(torch.cuda.get_device_properties(0).multi_processor_count, dtype=torch.int32, device="cuda")
    return StreamSegment(stream, factors, counters, (((0, rows, factor / FORMATS[kind].lift),),), kind, columns, 1)


def products(weights: DenseBlockWeights) -> list[PackedLinear]:
    assert weights.next_in_proj is not None
    return [weights.out_proj, weights.gate_up, weights.down, weights.next_in_proj]


def step_us(
    layers: list[DenseBlockWeights],
    residual: Tensor,
    mixed: Tensor,
    run: Callable[[Tensor, Tensor, DenseBlockWeights], object],
    overlapped: bool = True,
) -> float:
    """Of all layers."""
    linear_block_ops.PROGRAMMATIC = overlapped
    try:
        return median_us([partial(run, residual, mixed, each) for each in layers]) * len(layers)
    finally:
        linear_block_ops.PROGRAMMATIC = True


def _after_a_norm(residual: Tensor, mixed: Tensor, weights: DenseBlockWeights) -> None:
    rms_norm(residual, weights.norm, EPS)
    linear_block_ops.dense_block(residual, mixed, weights)


if __name__ == "__main__":
    main()

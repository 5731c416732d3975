"""The part of a dense layer after its mixer, on top of any implementation of its ops."""

from __future__ import annotations

from torch import Tensor

from kernels_numba.ops import AddRmsNorm, DenseBlock, Linear, SiluMul
from kernels_numba.shapes import DenseBlockWeights


def composed_dense_block(linear: Linear, add_rms_norm: AddRmsNorm, silu_mul: SiluMul) -> DenseBlock:
    """The op ``dense_block``, one product after the other."""

    def dense_block(residual: Tensor, mixed: Tensor, weights: DenseBlockWeights) -> tuple[Tensor, Tensor]:
        eps = weights.eps
        residual, normed = add_rms_norm(residual, linear(mixed, weights.out_proj), weights.norm, eps)
        transformed = linear(silu_mul(linear(normed, weights.gate_up)), weights.down)
        residual, normed = add_rms_norm(residual, transformed, weights.next_norm, eps)
        return residual, normed if weights.next_in_proj is None else linear(normed, weights.next_in_proj)

    return dense_block

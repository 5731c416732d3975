"""The Hadamard rotation of keys and queries."""

from __future__ import annotations

from torch import Tensor


def hadamard(x: Tensor) -> Tensor:
    """``x [..., D]`` times the orthonormal Sylvester-Hadamard matrix, D a power of two.

    Entry (i, j) is ``(-1)^popcount(i & j) / sqrt(D)``: symmetric and its own inverse. Butterflies of ascending stride
    and one multiplication at the end, in the type of ``x``: in float32 the order decides the last bit.
    """
    dim = x.shape[-1]
    stride = 1
    while stride < dim:
        pairs = x.reshape(*x.shape[:-1], dim // (2 * stride), 2, stride)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        rotated = x.new_empty(pairs.shape)
        rotated[..., 0, :] = first + second
        rotated[..., 1, :] = first - second
        x, stride = rotated.view(x.shape), 2 * stride
    return x.mul(dim**-0.5)

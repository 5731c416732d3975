"""The values of every vector format: codes and scales of vectors, and back, in natural order.

One rule for all writers of all backends; rounding is to nearest, ties to even, in float32:

* Keys are turned by ``hadamard`` where the codec says so, and what is quantised is rounded to bfloat16 first, keys and
  values alike, whatever the activations are: so a cache does not depend on the type that the engine computes in.
* ``nvfp4``: per 16 values the scale is ``E4M3(max|x| / 6)``, saturating at 448, and the codes are ``E2M1(x / scale)``,
  a true division; where the scale is zero all codes are zero.
* ``fp8``: the scale is ``float16(max|x| / 448)``, the codes ``E4M3(x * (1 / scale))``, clamped to ±448.
* ``int8``: per 64 values ``float16(max|x| / 127)`` and ``round(x * (1 / scale))``, clamped to ±127.
* The inverse of a float16 scale of zero is zero. A float16 scale saturates at 65504.
* Inputs that are not finite: a NaN counts as zero, an infinity as the largest bfloat16 of its sign. So neither codes
  nor scales are ever NaN, and what a broken request wrote reads as finite numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from kernels_numba.kv.codec import FP8, INT8, NVFP4, KvCodec, VectorFormat
from kernels_numba.kv.hadamard import hadamard

E2M1_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E2M1_LARGEST, E4M3_LARGEST, INT8_LARGEST, FLOAT16_LARGEST = 6.0, 448.0, 127.0, 65504.0
_ABOVE_CODE: Final = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""The midpoint above each magnitude, and whether it belongs to the next, which is the even one there."""


def turned(codec: KvCodec, x: Tensor) -> Tensor:
    """Queries or keys ``[..., D]`` as the codec wants them: turned in float32, or as they are; in the type of ``x``."""
    return hadamard(x.float()).to(x.dtype) if codec.rotates_keys else x


def encode_keys(codec: KvCodec, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys ``[..., D]`` that are normed and rotated by position, as a quantised codec stores them."""
    return encode(codec.key, (hadamard(keys.float()) if codec.rotates_keys else keys).to(torch.bfloat16))


def encode_values(codec: KvCodec, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values ``[..., D]`` as a quantised codec stores them."""
    return encode(codec.value, values.to(torch.bfloat16))


def encode(vector_format: VectorFormat, x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 ``[..., D]``, one a byte, and scales ``[..., n]`` (E4M3 words or float16) of vectors ``x [..., D]``.

    Of the quantised formats, in float32 and without rounding ``x``; codes of ``int8`` are in two's complement.
    """
    x = torch.nan_to_num(x.float(), nan=0.0, posinf=_BFLOAT16_LARGEST, neginf=-_BFLOAT16_LARGEST)
    groups = x.view(*x.shape[:-1], vector_format.scales(x.shape[-1]), -1)
    largest = groups.abs().amax(-1)
    if vector_format == NVFP4:
        scales = (largest / _number(E2M1_LARGEST, x)).clamp(max=E4M3_LARGEST).to(torch.float8_e4m3fn)
        codes = _e2m1(groups, scales.float()[..., None])
        return codes.flatten(-2), scales.view(torch.uint8)
    ceiling = E4M3_LARGEST if vector_format == FP8 else INT8_LARGEST
    halves = (largest / _number(ceiling, x)).clamp(max=FLOAT16_LARGEST).to(torch.float16)
    inverse = torch.where(halves == 0, 0.0, _number(1.0, x) / halves.float())
    scaled = (groups * inverse[..., None]).clamp(-ceiling, ceiling).flatten(-2)
    if vector_format == FP8:
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8), halves
    return scaled.round().to(torch.int8).view(torch.uint8), halves


def decode(vector_format: VectorFormat, codes: Tensor, scales: Tensor) -> Tensor:
    """Float32 vectors ``[..., D]``: the product of each code with its scale, rounded once."""
    if vector_format == NVFP4:
        values, factors = _e2m1_values(codes.device)[codes.int()], scales.view(torch.float8_e4m3fn).float()
    elif vector_format == INT8:
        values, factors = codes.view(torch.int8).float(), scales.float()
    else:
        values, factors = codes.view(torch.float8_e4m3fn).float(), scales.float()
    groups = values.view(*factors.shape, -1)
    return groups.mul_(factors[..., None]).flatten(-2)


_BFLOAT16_LARGEST: Final = float(torch.finfo(torch.bfloat16).max)


def _e2m1(groups: Tensor, scales: Tensor) -> Tensor:
    is_zero = scales == 0
    quotient = groups.abs() / torch.where(is_zero, 1.0, scales)
    codes = torch.zeros_like(groups, dtype=torch.uint8)
    for bound, belongs_to_next in _ABOVE_CODE:
        codes += (quotient >= bound) if belongs_to_next else (quotient > bound)
    codes += 8 * torch.signbit(groups).to(torch.uint8)
    return codes.masked_fill(is_zero, 0)


def _number(value: float, like: Tensor) -> Tensor:
    """On the device: torch multiplies with the reciprocal of a divisor that is a Python number on CUDA."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


@lru_cache(maxsize=16)
def _e2m1_values(device: torch.device) -> Tensor:
    return torch.tensor(E2M1_VALUES, device=device)

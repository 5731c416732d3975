"""Weight matrices on a device, in natural row-major order: what a loader builds and ``pack_linear`` takes.

Every kind holds ``rows x columns`` weights, or a stack of such matrices along a leading dimension of each tensor.
Values follow ninferd.weights.formats; bits inside a byte are those of the artifact format.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DenseMatrix:
    """Plain values."""

    values: Tensor  # float32 or bfloat16 [..., N, K]


@dataclass(frozen=True)
class Nvfp4Matrix:
    """``W = E2M1(code) * E4M3(scale of 16 columns) * multiplier of the row``; low nibble is the even column."""

    codes: Tensor  # uint8 [..., N, K/2]
    scales: Tensor  # uint8 [..., N, K/16], E4M3FN words
    multiplier: Tensor  # float32 [..., N]


@dataclass(frozen=True)
class Fp8RowMatrix:
    """``W = E4M3(code) * multiplier of the row``."""

    codes: Tensor  # uint8 [..., N, K], E4M3FN words
    multiplier: Tensor  # float32 [..., N]


@dataclass(frozen=True)
class Fp8BlockMatrix:
    """``W = E4M3(code) * scale[block of the row, k // 128]``."""

    codes: Tensor  # uint8 [..., N, K], E4M3FN words
    scales: Tensor  # float32 [..., B, ceil(K/128)]
    block_of_row: Tensor  # int32 [..., N], rows of ``scales``


@dataclass(frozen=True)
class GroupedMatrix:
    """``W = scale of the group * code``, two's complement codes of ``bits`` bits in groups along K."""

    bits: int  # 2, 4, 5, 6 or 8
    columns: int  # K; codes and scales are padded to a multiple of 128 columns
    codes: Tensor  # uint8 [..., N, groups * 32]
    high: Tensor | None  # uint8 [..., N, groups * 8 (q5) or 16 (q6)]
    scales: Tensor  # float16 [..., N, groups]


Matrix = DenseMatrix | Nvfp4Matrix | Fp8RowMatrix | Fp8BlockMatrix | GroupedMatrix

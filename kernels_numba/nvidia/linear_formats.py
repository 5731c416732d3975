"""How the weight formats lie in memory for the tensor cores, and how a kernel decodes them.

A matrix is a stream of *steps*: 16 rows x 128 columns, first the codes, then the scales, in one contiguous run. A step
is eight A fragments of mma.m16n8k16 side by side, one for each group of 16 columns. Lane ``4 g + q`` of a warp holds of
group j the columns ``16 j + 4 q + {0, 1, 2, 3}`` of rows g and g + 8: registers a0 and a2 are row g, a1 and a3 row
g + 8, two columns each. The activations take the same order of columns, so that it never shows.

* Codes: 512-byte pieces, 16 bytes a lane. Of 4 bits: piece p holds groups 4 p .. 4 p + 3, a word each. Of 8 bits:
  groups 2 p and 2 p + 1, two words each: row g, then row g + 8, columns ascending. Of 16 bits: group p, a0 to a3.
* Scales: 16 bytes (q4: 8) for each g: words that hold the scale of row g in their low and of row g + 8 in their high
  half; NVFP4 holds those of two groups in one word (``ptx.sc_first``, ``ptx.sc_second``).

What decoding leaves out is one power of two, the format's ``lift``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TILE_ROWS = 16
STEP_COLUMNS = 128
GROUPS = 8
"""Groups of 16 columns in a step."""
PLACE_BYTES = 512
"""Sums of one tile, four a lane, which ``linear_gemv`` hands from warp to warp."""


@dataclass(frozen=True)
class StreamFormat:
    """One format of weights as a kernel sees it."""

    name: str
    code_bytes: int  # of a step
    scale_bytes: int
    depth: int  # steps of a warp's ring in shared memory: what is under way must hide the latency of memory
    lift: float  # weight = decoded value * lift * factor of the row
    row_factor_in_values: bool  # the factor of a row is a power of two, to be multiplied before rounding to bfloat16
    fragment: Callable[[int], str]  # source text that makes a0..a3 of a group from pieces C<p> and scales S

    @property
    def step_bytes(self) -> int:
        return self.code_bytes + self.scale_bytes

    @property
    def pieces(self) -> int:
        return self.code_bytes // 512

    @property
    def scale_words(self) -> int:
        """Words of scales that a lane reads."""
        return self.scale_bytes // 32


def _nvfp4(group: int) -> str:
    scale = ("first", "second")[group % 2]
    return f"""
s = P.h2_mul(P.sc_{scale}(S[{group // 2}]), u32({0x78007800}))
v = P.dq8(C{group // 4}[{group % 4}])
a0 = P.h2_mul_lo(v[0], s)
a1 = P.h2_mul_hi(v[1], s)
a2 = P.h2_mul_lo(v[2], s)
a3 = P.h2_mul_hi(v[3], s)"""


def _words(group: int) -> tuple[str, str]:
    """The words of rows g and g + 8 of an 8-bit format."""
    return f"C{group // 2}[{group % 2 * 2}]", f"C{group // 2}[{group % 2 * 2 + 1}]"


def _q8(group: int) -> str:
    """A byte c + 128 behind 0x64 reads 1152 + c as a half."""
    first, second = _words(group)
    scale = f"S[{group // 2}]"
    exponent, bias = f"u32({0x64646464})", f"u32({0xE480E480})"
    return f"""
a0 = P.h2_mul_lo(P.h2_add(P.prmt({first}, {exponent}, u32({0x4140})), {bias}), {scale})
a1 = P.h2_mul_hi(P.h2_add(P.prmt({second}, {exponent}, u32({0x4140})), {bias}), {scale})
a2 = P.h2_mul_lo(P.h2_add(P.prmt({first}, {exponent}, u32({0x4342})), {bias}), {scale})
a3 = P.h2_mul_hi(P.h2_add(P.prmt({second}, {exponent}, u32({0x4342})), {bias}), {scale})"""


def _fp8(group: int) -> str:
    """An E4M3 byte, its sign in bit 15 and the rest in bits 13..7, reads value * 2^-8 as a half."""
    first, second = _words(group)
    return f"""
a0 = P.e4m3_halves(P.prmt({first}, u32(0), u32({0x1404})))
a1 = P.e4m3_halves(P.prmt({second}, u32(0), u32({0x1404})))
a2 = P.e4m3_halves(P.prmt({first}, u32(0), u32({0x3424})))
a3 = P.e4m3_halves(P.prmt({second}, u32(0), u32({0x3424})))"""


def _q4(group: int) -> str:
    """A code + 8 in the low bits of 0x6400 reads 1032 + code; nibble i of each half of a word belongs to a<i>."""
    word, scale = f"C{group // 4}[{group % 4}]", f"S[{group // 4}]"
    lines = []
    for index, half in enumerate(("lo", "hi", "lo", "hi")):
        shifted = f"P.u_shr({word}, u32({4 * index}))" if index else word
        biased = f"P.u_or(P.u_and({shifted}, u32({0x000F000F})), u32({0x64006400}))"
        lines.append(f"a{index} = P.h2_mul_{half}(P.h2_add({biased}, u32({0xE408E408})), {scale})")
    return "\n" + "\n".join(lines)


def _bf16(group: int) -> str:
    """Halves as they are."""
    return "\n".join(f"a{index} = C{group}[{index}]" for index in range(4))


NVFP4 = StreamFormat("nvfp4", 1024, 128, 4, 128.0, False, _nvfp4)
Q8 = StreamFormat("q8", 2048, 128, 3, 1.0, True, _q8)
Q4 = StreamFormat("q4", 1024, 64, 4, 1.0, True, _q4)
FP8 = StreamFormat("fp8", 2048, 0, 3, 256.0, False, _fp8)
BF16 = StreamFormat("bf16", 4096, 0, 2, 1.0, True, _bf16)
FORMATS = {stream.name: stream for stream in (NVFP4, Q8, Q4, FP8, BF16)}

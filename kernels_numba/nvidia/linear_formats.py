"""How the weight formats lie in memory for the tensor cores, and how a kernel decodes them.

A matrix is a stream of *steps*: 16 rows x 128 columns, first the codes (of 5 and 6 bits: the low four, then the high
bits), then the scales, in one contiguous run. A step is eight A fragments of mma.m16n8k16 side by side, one for each
group of 16 columns. Lane ``4 g + q`` of a warp holds of group j the columns ``16 j + 4 q + {0, 1, 2, 3}`` of rows g and
g + 8: registers a0 and a2 are row g, a1 and a3 row g + 8, two columns each. The activations take the same order of
columns, so that it never shows.

* Codes: 512-byte pieces, 16 bytes a lane. Of 4 bits: piece p holds groups 4 p .. 4 p + 3, a word each. Of 8 bits:
  groups 2 p and 2 p + 1, two words each: row g, then row g + 8, columns ascending. Of 16 bits: group p, a0 to a3.
* High bits (q5, q6): 8 or 16 bytes a lane. Half h of a word holds fields of 1 or 2 bits, the lowest first, of a0 to a3
  of one group after the other: those of the code in half h of each register.
* Scales: 16 bytes (q4, q5, q6: 8) for each g: words that hold the scale of row g in their low and of row g + 8 in their
  high half; NVFP4 holds those of two groups in one word (``ptx.sc_first``, ``ptx.sc_second``). FP8 in blocks has one
  scale a row and step: float32, of row g, then of row g + 8, by which the sums of a step are multiplied.

What decoding leaves out is one power of two, the format's ``lift``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kernels_numba.nvidia.text import Source

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
    code_bytes: int  # of a step, without what is in ``high_bytes``
    scale_bytes: int
    depth: int  # steps of a warp's ring in shared memory: what is under way must hide the latency of memory
    lift: float  # weight = decoded value * lift * factor of the row
    row_factor_in_values: bool  # the factor of a row is a power of two, to be multiplied before rounding to bfloat16
    fragment: Callable[[int], str]  # source text that makes a0..a3 of a group from pieces C<p>, scales S, high bits H
    high_bytes: int = 0  # of a step: what codes have beyond four bits
    scales_sums: bool = False  # whether fragments are without scales, which multiply the sums of a step, in float32

    @property
    def step_bytes(self) -> int:
        return self.code_bytes + self.high_bytes + self.scale_bytes

    @property
    def scale_offset(self) -> int:
        """Where the scales of a step begin."""
        return self.code_bytes + self.high_bytes

    @property
    def high_words(self) -> int:
        """Words of high bits that a lane reads."""
        return self.high_bytes // 128

    @property
    def pieces(self) -> int:
        return self.code_bytes // 512

    @property
    def scale_words(self) -> int:
        """Words of scales that a lane reads."""
        return self.scale_bytes // 32

    def copy(self, w: Source) -> None:
        """Start copies of the step at ``at_step`` to ``to`` in shared memory, both plus 16 bytes for each lane."""
        whole = self.step_bytes // 512 * 512
        for offset in range(0, whole, 512):
            w(f"P.cp_async16(u32(to + {offset}), at_step + {offset})")
        if self.step_bytes > whole:
            with w.block(f"if lane < {(self.step_bytes - whole) // 16}:"):
                w(f"P.cp_async16(u32(to + {whole}), at_step + {whole})")

    def read_scales(self, w: Source) -> None:
        """Scales and high bits of the step at ``read`` in shared memory, which has 16 bytes added for each lane."""
        if self.scale_words:
            place = f"u32(read + {self.scale_offset} + g * {4 * self.scale_words} - lane * 16)"
            w(f"S = P.lds{self.scale_words}({place})")
        if self.high_words:
            place = f"u32(read + {self.code_bytes} - lane * {16 - 4 * self.high_words})"
            w(f"H = P.lds{self.high_words}({place})")

    def multiply(self, w: Source, group: int, b: str, sums: str) -> None:
        """Add a group's product with the fragment ``b`` to ``sums``_0 to _3, or to the sums of the step for them."""
        before, after = self._sums_before(group, sums), ", ".join(self._step_sums(sums))
        w(f"{after} = P.mma_f16(a0, a1, a2, a3, {b}, {before})")

    def _step_sums(self, sums: str) -> list[str]:
        return [f"{'of_step_' if self.scales_sums else ''}{sums}{i}" for i in range(4)]

    def _sums_before(self, group: int, sums: str) -> str:
        if self.scales_sums and group == 0:
            return ", ".join(["f32(0)"] * 4)
        return ", ".join(self._step_sums(sums))

    def scale_sums(self, w: Source, sums: str) -> None:
        """What a step leaves to be done when all its groups are multiplied."""
        if self.scales_sums:
            for i, of_step in enumerate(self._step_sums(sums)):
                w(f"{sums}{i} += {of_step} * P.bits_f(S[{i // 2}])")


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


def _grouped(bits: int, group: int) -> str:
    """A code + 2^(bits - 1) in the low bits of 0x6400 reads 1024 more; nibble i of each half of a word belongs to a<i>,
    and so does field i of the group's high bits."""
    word, scale = f"C{group // 4}[{group % 4}]", f"S[{group // 4}]"
    bias = 0xE400E400 | 0x10001 << (bits - 1)  # -(1024 + 2^(bits - 1))
    lines = []
    for index, half in enumerate(("lo", "hi", "lo", "hi")):
        shifted = f"P.u_shr({word}, u32({4 * index}))" if index else word
        biased = f"P.u_or(P.u_and({shifted}, u32({0x000F000F})), u32({0x64006400}))"
        if bits > 4:
            biased = f"P.u_or({biased}, {_high_bits(bits - 4, group, index)})"
        lines.append(f"a{index} = P.h2_mul_{half}(P.h2_add({biased}, u32({bias})), {scale})")
    return "\n" + "\n".join(lines)


def _high_bits(bits: int, group: int, index: int) -> str:
    """Of the codes of a<index>, where they belong: from bit 4 of each half."""
    word, field = divmod(4 * group + index, 16 // bits)
    up = 4 - field * bits
    shifted = f"P.u_shl(H[{word}], u32({up}))" if up > 0 else f"P.u_shr(H[{word}], u32({-up}))"
    return f"P.u_and({shifted if up else f'H[{word}]'}, u32({0x10001 * ((1 << bits) - 1) << 4}))"


def _bf16(group: int) -> str:
    """Halves as they are."""
    return "\n".join(f"a{index} = C{group}[{index}]" for index in range(4))


NVFP4 = StreamFormat("nvfp4", 1024, 128, 4, 128.0, False, _nvfp4)
Q8 = StreamFormat("q8", 2048, 128, 3, 1.0, True, _q8)
Q4 = StreamFormat("q4", 1024, 64, 4, 1.0, True, partial(_grouped, 4))
Q5 = StreamFormat("q5", 1024, 64, 4, 1.0, True, partial(_grouped, 5), high_bytes=256)
Q6 = StreamFormat("q6", 1024, 64, 4, 1.0, True, partial(_grouped, 6), high_bytes=512)
FP8 = StreamFormat("fp8", 2048, 0, 3, 256.0, False, _fp8)
FP8_BLOCK = StreamFormat("fp8_block", 2048, 64, 3, 1.0, True, _fp8, scales_sums=True)
BF16 = StreamFormat("bf16", 4096, 0, 2, 1.0, True, _bf16)
USUAL_FORMATS = NVFP4, Q8, Q4, FP8, BF16
FURTHER_FORMATS = Q5, Q6, FP8_BLOCK
"""Those that have a self-test of their own: should it fail, their matrices alone are torch's."""
FORMATS = {stream.name: stream for stream in (*USUAL_FORMATS, *FURTHER_FORMATS)}

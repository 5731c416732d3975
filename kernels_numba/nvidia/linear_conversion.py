"""Rows of bfloat16 as halves: each row times the power of two that puts its largest magnitude into [2^14, 2^15).

Nothing overflows, and what underflows is 2^-29 of the largest; all that is finite is 2^-29 of an infinity. Source text,
shared by the kernels that convert activations.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels_numba.nvidia.text import Source, bf16

_TOP_EXPONENT = 127 + 14
_LARGEST_EXPONENT = 253
"""Of a scale, so that its inverse is a normal number too."""


def add_magnitudes(source: Source, words: Sequence[str]) -> None:
    """``top`` becomes the largest of itself and the magnitudes of pairs of bfloat16, as the bits of a float32."""
    for word in words:
        source(f"top = P.u_max(top, P.u_and({word}, u32({0x7FFF0000})))")
        source(f"top = P.u_max(top, P.u_and(P.u_shl({word}, u32(16)), u32({0x7FFF0000})))")


def set_scales(source: Source) -> None:
    """``up`` and ``down``: what a row is multiplied by that has ``top``, and what its products are."""
    source(f"""
        exponent = i32(P.u_shr(top, u32(23)))
        field = i32(P.i_min(u32({_TOP_EXPONENT + 127} - exponent), u32({_LARGEST_EXPONENT})))
        up = P.bits_f(P.u_shl(u32(field), u32(23)))
        down = P.bits_f(P.u_shl(u32(254 - field), u32(23)))
    """)


def scaled_halves(word: str) -> str:
    """Two bfloat16, times ``up``, as halves."""
    return f"P.h2_pack({bf16(word, 0)} * up, {bf16(word, 1)} * up)"

"""Rows of bfloat16 as halves: each row times the power of two that puts its largest magnitude into [2^14, 2^15).

Nothing overflows, and what underflows is 2^-29 of the largest. A row with an infinity or a NaN keeps its scale.
"""

from __future__ import annotations

from kernels_numba.nvidia import ptx
from kernels_numba.nvidia.ptx import bf2_hi_f, bf2_lo_f, bits_f, h2_pack, i32, i_min, u32, u_and, u_max, u_shl, u_shr

TOP_EXPONENT = 127 + 14
LARGEST_EXPONENT = 253
"""Of a scale, so that its inverse is a normal number too."""


@ptx.device_function
def largest_magnitude(pair):  # type: ignore[no-untyped-def]
    """Bits of the larger magnitude of two bfloat16, as those of a float32."""
    return u_max(u_and(pair, u32(0x7FFF0000)), u_and(u_shl(pair, u32(16)), u32(0x7FFF0000)))


@ptx.device_function
def scale_exponent(top):  # type: ignore[no-untyped-def]
    """Exponent field of the scale of a row, from the bits of its largest magnitude."""
    exponent = i32(u_shr(top, u32(23)))
    scale = i_min(i32(TOP_EXPONENT + 127 - exponent), i32(LARGEST_EXPONENT))
    if exponent == 255:
        scale = u32(127)
    return u32(scale)


@ptx.device_function
def scale_up(top):  # type: ignore[no-untyped-def]
    """What the row is multiplied by."""
    return bits_f(u_shl(scale_exponent(top), u32(23)))


@ptx.device_function
def scale_down(top):  # type: ignore[no-untyped-def]
    """What its products are to be multiplied by."""
    return bits_f(u_shl(u32(254 - i32(scale_exponent(top))), u32(23)))


@ptx.device_function
def scaled_halves(pair, up):  # type: ignore[no-untyped-def]
    """Two bfloat16, times the scale, as halves."""
    return h2_pack(bf2_lo_f(pair) * up, bf2_hi_f(pair) * up)


CONVERSION = {
    "largest_magnitude": largest_magnitude,
    "scale_up": scale_up,
    "scale_down": scale_down,
    "scaled_halves": scaled_halves,
}
"""The functions by name, for generated source."""

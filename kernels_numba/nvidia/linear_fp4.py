"""Operands of block-scaled FP4 products as cuBLASLt takes them: of streams of NVFP4 weights, and of activations.

An operand is ``[rows, columns]`` in E2M1, two codes a byte with the lower column in the low bits, and an E4M3 scale
for every 16 columns in tiles of 128 rows x 4 scales (``kernels_numba.swizzle``), padded to whole tiles.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_formats import NVFP4, STEP_COLUMNS
from kernels_numba.nvidia.linear_fp4_kernels import BLOCK
from kernels_numba.nvidia.linear_kernels import CONVERTING_THREADS, DEQUANT_STEPS
from kernels_numba.nvidia.text import Source, bf16

WEIGHT_PARAMETERS = "weights codes scales steps tiles first_tile count"
ACTIVATION_PARAMETERS = "x codes scales lift rows width row_bytes"


def weights_source() -> str:
    """For ``count`` tiles of a matrix: one warp a step, grid ``(steps of a slice / DEQUANT_STEPS, slices)``.

    The factors of the rows are left out.
    """
    w = Source("kernel", WEIGHT_PARAMETERS)
    w(f"""
        lane = i32(i32(P.tid_x()) & 31)
        at = i32(i32(P.cta_x()) * {DEQUANT_STEPS} + (i32(P.tid_x()) >> 5))
        if at >= count * steps:
            return
        g = i32(lane >> 2); q = i32(lane & 3)
        tile = i32(P.u_div(u32(at), u32(steps))); step = i32(at - tile * steps)
        part = i32(P.cta_y()); column = i64(part * steps + step) * {STEP_COLUMNS}
        columns = i64(P.ncta_y()) * steps * {STEP_COLUMNS}
        at_step = weights + (i64(part * tiles + first_tile + tile) * steps + step) * {NVFP4.step_bytes}
        C0 = P.ldg_stream4(at_step + lane * 16); C1 = P.ldg_stream4(at_step + 512 + lane * 16)
        S = P.ldg_stream4(at_step + {NVFP4.code_bytes} + g * 16)
        place = codes + i64(tile * 16 + g) * (columns >> 1) + (column >> 1) + q * 16
    """)
    for half in range(2):
        _four_lanes_codes(w, half)
        w(f"P.stg4(place + {half} * 4 * columns, w0, w1, w2, w3)")
    # lanes 0 and 1 of the four: row g, blocks 0..3 and 4..7; lanes 2 and 3: row g + 8
    w("""
        pair0 = S[0]; pair1 = S[1]
        if q & 1:
            pair0 = S[2]; pair1 = S[3]
        by = u32(8 * (q & 2))
        pair0 = P.u_shr(pair0, by); pair1 = P.u_shr(pair1, by)
        low = P.u_or(P.u_and(pair0, u32(127)), P.u_and(P.u_shl(pair0, u32(1)), u32(0x7F00)))
        high = P.u_or(P.u_and(pair1, u32(127)), P.u_and(P.u_shl(pair1, u32(1)), u32(0x7F00)))
        row = i64(tile * 16 + g + 4 * (q & 2)); block = (column >> 4) + 4 * (q & 1)
    """)
    w(f"P.stg1({_scale_place('row', 'block', 'columns')}, P.u_or(low, P.u_shl(high, u32(16))))")
    return str(w)


def _four_lanes_codes(w: Source, half: int) -> None:
    """``w0..w3``: 32 neighbouring columns of row g (or of row g + 8) from the fours of columns of the lanes of g."""
    masks = ((9, 12, 12, 5), (1, 4, 4, -3))[half]  # down-shifts: magnitude and sign of columns 0, 1; of columns 2, 3
    for group in range(8):
        word = f"C{group // 4}[{group % 4}]"
        first = _moved(word, masks[0], masks[1])
        second = _moved(word, masks[2], masks[3])
        w(f"t = P.u_or({first}, P.u_shl({second}, u32(8)))")
        w(f"c{group} = P.u_and(P.u_or(t, P.u_shr(t, u32(12))), u32(0xFFFF))")
    for pair in range(4):
        w(f"w{pair} = P.u_or(c{2 * pair}, P.u_shl(c{2 * pair + 1}, u32(16)))")
    # word p of lane q becomes word q of lane p
    for bit in (1, 2):
        for i in range(4):
            if i & bit:
                continue
            j = i | bit
            w(f"""
                give = w{j}
                if q & {bit}:
                    give = w{i}
                give = P.shfl_xor(give, {bit})
                if q & {bit}:
                    w{i} = give
                else:
                    w{j} = give
            """)
    w("""
        c0 = P.prmt(w0, w1, u32(0x5410)); c1 = P.prmt(w2, w3, u32(0x5410))
        c2 = P.prmt(w0, w1, u32(0x7632)); c3 = P.prmt(w2, w3, u32(0x7632))
        w0 = c0; w1 = c1; w2 = c2; w3 = c3
    """)


def _moved(word: str, magnitude: int, sign: int) -> str:
    """Codes of both halves of a word, scattered as for ``ptx.dq8``, in the low four bits of the halves."""
    signs = f"P.u_shr({word}, u32({sign}))" if sign > 0 else f"P.u_shl({word}, u32({-sign}))"
    return f"P.u_or(P.u_and(P.u_shr({word}, u32({magnitude})), u32(0x70007)), P.u_and({signs}, u32(0x80008)))"


def activations_source() -> str:
    """Grid ``(blocks of 16 columns / CONVERTING_THREADS, rows)``; ``lift [1]`` is the power of two that values take.

    The rule is that of the cache (a scale E4M3(largest / 6), codes E2M1(x / scale), of a scale of zero zeros).
    """
    w = Source("kernel", ACTIVATION_PARAMETERS)
    w(f"""
        block = i32(i32(P.cta_x()) * {CONVERTING_THREADS} + i32(P.tid_x())); row = i64(P.cta_y())
        if block * {BLOCK} >= width:
            return
        up = P.ldg_f(lift); at = x + row * row_bytes + i64(block) * {2 * BLOCK}
        v0 = P.ldg4(at); v1 = P.ldg4(at + 16); largest = f32(0)
    """)
    for i in range(BLOCK):
        w(f"x{i} = {bf16(f'v{i // 8}[{i % 8 // 2}]', i % 2)} * up; largest = P.fmaxf(largest, abs(x{i}))")
    w("scale = P.e4m3_code(P.div_rn(largest, f32(6))); step = P.h2_lo_f(P.u_shl(scale, u32(7))) * f32(256)")
    w("live = u32(0xFFFFFFFF)\nif scale == u32(0):\n    live = u32(0)")
    for half in range(2):
        codes = []
        for i in range(8):
            value = f"x{8 * half + i}"
            sign = f"P.u_and(P.u_shr(P.f_bits({value}), u32(28)), u32(8))"
            codes.append(f"P.u_shl(P.u_or(P.e2m1_code({value}, step), {sign}), u32({4 * i}))")
        w(f"w{half} = u32(0)")
        for code in codes:
            w(f"w{half} = P.u_or(w{half}, {code})")
    w("P.stg2(codes + row * (i64(width) >> 1) + i64(block) * 8, P.u_and(w0, live), P.u_and(w1, live))")
    w(f"P.stg_u8({_scale_place('row', 'i64(block)', 'i64(width)')}, scale)")
    return str(w)


def _scale_place(row: str, block: str, columns: str) -> str:
    tile = f"(({row} >> 7) * ({columns} >> 6) + ({block} >> 2)) * 512"
    return f"scales + {tile} + ({row} & 31) * 16 + ({row} >> 5 & 3) * 4 + ({block} & 3)"


def make_weights() -> Any:
    return P.function_of(weights_source(), "kernel", P=P)


def make_activations() -> Any:
    return P.function_of(activations_source(), "kernel", P=P)

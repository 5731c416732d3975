"""Chunked gated delta rule, what goes from chunk to chunk: a warp scans 16 columns of the state of one value head.

For each chunk, in the words of ``gated_delta_chunk`` and with L the last G: fresh = corrected - carried S;
O = diag(e^G) Q S + within fresh; S = e^L S + Kᵀ diag(e^(L - G)) fresh.

All of it is done transposed: Sᵀ is 16 columns times 128 rows of a warp, float32 sums in registers, and sums of a
product are, rounded to halves, in just the places where the next product wants its left operand. So a warp needs
nothing of the others, and no shared memory but for the right operands, which are the chunk's and which the warps of a
block share: they are copied one chunk ahead.

Values are in units of ``scale``, a power of two of every warp, and so are the halves of the outputs: a state that grows
beyond halves changes its unit. ``corrected`` comes in units of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import (
    CHUNK,
    DIM,
    HALF_PITCH,
    LARGEST,
    PITCH,
    ROW_BYTES,
    SCAN_CARRIED,
    SCAN_DECAY,
    SCAN_KEY,
    SCAN_QUERY,
    SCAN_VALUE,
    SCAN_WITHIN,
    TILE_BYTES,
    scan_stage_bytes,
)
from kernels_numba.nvidia.text import Source, half

PARAMETERS = """heads carried within factors units state slots out out_units
    state_stride chunks key_heads group stages"""
COLUMNS = 16
"""Of the state, in a warp."""
_TOKEN_TILES, _ROW_TILES = CHUNK // 8, DIM // 8


def source(columns: int) -> str:
    """Grid (128 / columns, value heads); a warp for 16 columns; ``state_stride`` in bytes.

    ``state`` points at the layer in slot 0. Reads what ``gated_delta_chunk`` wrote. Writes outputs, halves ``out``
    [value heads, chunks * 64, 128], and their units, float32 ``out_units`` [value heads, chunks, 8], one for every 16
    columns. ``stages``: chunks in shared memory, 1 or 2.
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3); ra = i32(lane & 15); ca = i32((lane >> 4) * 16)
        rb = i32((lane & 7) + (lane >> 4) * 8); cb = i32(((lane >> 3) & 1) * 16)
        part = i32(P.cta_x()); h = i32(P.cta_y()); hk = i32(P.u_div(u32(h), u32(group)))
        r16 = i32(tid >> 4); x16 = i32((tid & 15) * 16); r8 = i32(tid >> 3); x8 = i32((tid & 7) * 16)
        q_at = heads + i64(hk) * chunks * {TILE_BYTES} + r16 * {ROW_BYTES} + x16
        k_at = q_at + i64(key_heads) * chunks * {TILE_BYTES}
        w_at = carried + i64(h) * chunks * {TILE_BYTES} + r16 * {ROW_BYTES} + x16
        u_at = heads + (i64(2 * key_heads) + h) * chunks * {TILE_BYTES} + x8
        u_at += (part * {columns} + r8) * {2 * CHUNK}
        p_at = within + i64(h) * chunks * {CHUNK * CHUNK * 2} + r8 * {2 * CHUNK} + x8
        g_at = factors + i64(h) * chunks * {CHUNK * 8} + tid * 16
        column = i32(part * {columns} + warp * {COLUMNS})
        o_at = out + (i64(h) * chunks * {CHUNK} + g) * {ROW_BYTES} + (column + q * 2) * 2
        s_at = state + P.ldg_l(slots) * state_stride + ((i64(h) * {DIM} + q * 2) * {DIM} + column + g) * 4
        scale = f32(1); ahead = i32(stages - 1)
    """)
    for t, i, at in _state_parts():
        w(f"s{t}_{i} = P.ldg_f(s_at + {at})")
    with w.block("if ahead > 0:"):
        _copy(w, columns, "0", "0")
    with w.block("for chunk in range(chunks):"):
        _copy(w, columns, "P.i_min(u32(chunk + ahead), u32(chunks - 1))", "(chunk + ahead) & ahead")
        w(f"""
            if ahead > 0:
                older_copies_done()
            else:
                copies_done()
            unit = P.ldg_f(units + (i64(h) * chunks + chunk) * 4)
            P.bar_sync()
            at = i32(sm + i32(chunk & ahead) * {scan_stage_bytes(columns)})
        """)
        _rescale(w)
        _products_with_state(w)
        _fresh(w)
        _outputs(w)
        _next_state(w)
        w("P.bar_sync()")
    for t, i, at in _state_parts():
        w(f"P.stg_f(s_at + {at}, s{t}_{i} * scale)")
    return str(w)


def _state_parts() -> Iterator[tuple[int, int, int]]:
    """Tile of 8 rows, index in the lane's part of it, and offset in the state of a head."""
    for t in range(_ROW_TILES):
        for i in range(4):
            yield t, i, ((8 * t + i % 2) * DIM + i // 2 * 8) * 4


def _copy(w: Source, columns: int, chunk: str, stage: str) -> None:
    w(f"n = i64(i32({chunk})); to = i32(sm + i32({stage}) * {scan_stage_bytes(columns)})")
    for start, source_at in ((SCAN_CARRIED, "w_at"), (SCAN_QUERY, "q_at"), (SCAN_KEY, "k_at")):
        w(f"source = {source_at} + n * {TILE_BYTES}; place = i32(to + {start} + r16 * {PITCH} + x16)")
        for j in range(0, CHUNK, columns // 8):
            w(f"P.cp_async16(u32(place + {j * PITCH}), source + {j * ROW_BYTES})")
    shorter = (SCAN_VALUE, "u_at", TILE_BYTES, columns), (SCAN_WITHIN, "p_at", CHUNK * CHUNK * 2, CHUNK)
    for start, source_at, size, rows in shorter:
        w(f"source = {source_at} + n * {size}; place = i32(to + {start} + r8 * {HALF_PITCH} + x8)")
        for j in range(0, rows, columns // 4):
            w(f"P.cp_async16(u32(place + {j * HALF_PITCH}), source + {j * 2 * CHUNK})")
    w(f"""
        if tid < 32:
            P.cp_async16(u32(to + {SCAN_DECAY} + tid * 16), g_at + n * {CHUNK * 8})
        P.cp_commit()
    """)


def _rescale(w: Source) -> None:
    """The warp's unit for this chunk, in which states and values fit halves."""
    w("most = f32(0)")
    for t in range(_ROW_TILES):
        w("; ".join(f"most = P.fmax_abs(most, s{t}_{i})" for i in range(4)))
    for offset in (16, 8, 4, 2, 1):
        w(f"most = P.fmaxf(most, P.shfl_xor_f(most, {offset}))")
    w("power = P.bits_f(P.u_and(P.f_bits(most * scale), u32(0x7F800000)))")
    w(f"needed = P.fmaxf(P.fmaxf(power * f32({1 / LARGEST}), unit), f32(1))")
    with w.block("if needed != scale:"):
        w("ratio = scale * P.rcp(needed); scale = needed")
        for t in range(_ROW_TILES):
            w("; ".join(f"s{t}_{i} *= ratio" for i in range(4)))
    w("unit = unit * P.rcp(scale)")


def _products_with_state(w: Source) -> None:
    """``x``: carried S, ``y``: Q S, of 8 tokens a tile."""
    for t in range(_TOKEN_TILES):
        w(f"x{t}_0 = x{t}_1 = x{t}_2 = x{t}_3 = y{t}_0 = y{t}_1 = y{t}_2 = y{t}_3 = f32(0)")
    w(f"operand = i32(at + rb * {PITCH} + cb)")
    for k in range(DIM // 16):
        words = [f"P.h2_pack(s{2 * k + n}_{i}, s{2 * k + n}_{i + 1})" for n in range(2) for i in (0, 2)]
        w(f"a = ({', '.join(words)})")
        for t in range(0, _TOKEN_TILES, 2):
            for name, start in (("x", SCAN_CARRIED), ("y", SCAN_QUERY)):
                w(f"b = P.ldsm4(u32(operand + {start + 8 * t * PITCH + 32 * k}))")
                w.mma(f"{name}{t}", "a", "b[0]", "b[1]")
                w.mma(f"{name}{t + 1}", "a", "b[2]", "b[3]")


def _fresh(w: Source) -> None:
    """Fresh values as halves: ``d``, and ``e`` that decay to the end of the chunk; what Q S has grown by."""
    for t in range(_TOKEN_TILES):
        for name, start in (("f", SCAN_DECAY), ("r", SCAN_DECAY + 4 * CHUNK)):
            w(f"{name} = P.lds_f2(u32(at + {start + 32 * t} + q * 8))")
        for p in range(2):
            if t % 4 == 0:
                row = f"(warp * {COLUMNS} + g) * {HALF_PITCH} + q * 32"
                w(f"u{p} = P.lds4(u32(at + {SCAN_VALUE + 8 * p * HALF_PITCH + 4 * t} + {row}))")
            w(f"""
                d0 = {half(f"u{p}[{t % 4}]", 0)} * unit - x{t}_{2 * p}
                d1 = {half(f"u{p}[{t % 4}]", 1)} * unit - x{t}_{2 * p + 1}
                d{t}_{p} = P.h2_pack(d0, d1); e{t}_{p} = P.h2_pack(d0 * r[0], d1 * r[1])
                y{t}_{2 * p} *= f[0]; y{t}_{2 * p + 1} *= f[1]
            """)


def _outputs(w: Source) -> None:
    w(f"operand = i32(at + {SCAN_WITHIN} + rb * {HALF_PITCH} + cb)")
    for t in range(0, _TOKEN_TILES, 2):
        for k in range(t // 2 + 1):  # no token sees those behind it
            w(f"a = (d{2 * k}_0, d{2 * k}_1, d{2 * k + 1}_0, d{2 * k + 1}_1)")
            w(f"b = P.ldsm4(u32(operand + {8 * t * HALF_PITCH + 32 * k}))")
            w.mma(f"y{t}", "a", "b[0]", "b[1]")
            w.mma(f"y{t + 1}", "a", "b[2]", "b[3]")
    for t in range(_TOKEN_TILES):
        for p in range(2):
            words = f"P.movmatrix(P.h2_pack(y{t}_{2 * p}, y{t}_{2 * p + 1}))"
            w(f"P.stg1(o_at + {8 * t * ROW_BYTES + 16 * p}, {words})")
    w(f"""
        o_at += {TILE_BYTES}
        if lane == 0:
            P.stg_f(out_units + ((i64(h) * chunks + chunk) * 8 + (column >> 4)) * 4, scale)
    """)


def _next_state(w: Source) -> None:
    w(f"decay = P.lds_f(u32(at + {SCAN_DECAY + 4 * (CHUNK - 1)})); operand = i32(at + {SCAN_KEY} + ra * {PITCH} + ca)")
    for t in range(_ROW_TILES):
        w("; ".join(f"s{t}_{i} *= decay" for i in range(4)))
    for k in range(CHUNK // 16):
        w(f"a = (e{2 * k}_0, e{2 * k}_1, e{2 * k + 1}_0, e{2 * k + 1}_1)")
        for t in range(0, _ROW_TILES, 2):
            w(f"b = P.ldsm4t(u32(operand + {16 * k * PITCH + 16 * t}))")
            w.mma(f"s{t}", "a", "b[0]", "b[1]")
            w.mma(f"s{t + 1}", "a", "b[2]", "b[3]")


def make(columns: int) -> Any:
    return P.function_of(source(columns), "kernel", P=P, copies_done=P.cp_wait(0), older_copies_done=P.cp_wait(1))

"""Chunked gated delta rule, what goes from chunk to chunk: a block scans 64 columns of the state of one value head.

For each chunk, in the words of ``gated_delta_chunk`` and with L the last G: fresh = corrected - carried S;
O = diag(e^G) Q S + within fresh; S = e^L S + Kᵀ diag(e^(L - G)) fresh. The state stays in registers, float32, and is an
operand as halves.

Copies for the next chunk start as soon as their place is free: of ``carried``, the query and the corrected values when
their products are done, of the key and ``within`` at the end. Each is so under way during the other half of the work.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import (
    CHUNK,
    DIM,
    HALF_PITCH,
    PITCH,
    ROW_BYTES,
    SCAN_CARRIED,
    SCAN_COLUMNS,
    SCAN_DECAY,
    SCAN_FRESH,
    SCAN_KEY,
    SCAN_QUERY,
    SCAN_STATE,
    SCAN_VALUE,
    SCAN_WITHIN,
    TILE_BYTES,
)
from kernels_numba.nvidia.text import Source, exp, half

PARAMETERS = "heads carried within decay state slots state_stride chunks key_heads group"
WARPS = 8
BLOCK = 16
_COLUMN_TILES = 4
"""Of 8 columns in a warp: 4 warps share the rows, 2 the columns."""


def source() -> str:
    """Grid (128 / 64, value heads); 8 warps; ``state_stride`` in bytes. ``state`` points at the layer in slot 0.

    Reads what ``gated_delta_chunk`` wrote; the outputs take the place of the corrected values in ``heads``.
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); rows = i32((tid >> 5) & 3); side = i32(tid >> 7)
        g = i32(lane >> 2); q = i32(lane & 3); ra = i32(lane & 15); ca = i32((lane >> 4) * 16)
        rt = i32((lane & 7) + (lane >> 4) * 8); ct = i32(((lane >> 3) & 1) * 16)
        part = i32(P.cta_x()); h = i32(P.cta_y()); hk = i32(P.u_div(u32(h), u32(group)))
        r16 = i32(tid >> 4); x16 = i32((tid & 15) * 16); r8 = i32(tid >> 3); x8 = i32((tid & 7) * 16)
        q_at = heads + i64(hk) * chunks * {TILE_BYTES} + r16 * {ROW_BYTES} + x16
        k_at = q_at + i64(key_heads) * chunks * {TILE_BYTES}
        w_at = carried + i64(h) * chunks * {TILE_BYTES} + r16 * {ROW_BYTES} + x16
        o_at = heads + (i64(2 * key_heads) + h) * chunks * {TILE_BYTES} + part * {2 * SCAN_COLUMNS}
        u_at = o_at + r8 * {ROW_BYTES} + x8
        p_at = within + i64(h) * chunks * {CHUNK * CHUNK * 2} + r8 * {2 * CHUNK} + x8
        g_at = decay + i64(h) * chunks * {CHUNK * 4} + tid * 16
        i0 = i32(rows * {BLOCK} + g)
        o_at += i0 * {ROW_BYTES} + side * 64 + q * 4
        s_at = state + P.ldg_l(slots) * state_stride
        s_at += ((i64(h) * {DIM} + rows * 32 + g) * {DIM} + part * {SCAN_COLUMNS} + side * 32 + q * 2) * 4
        s_to = i32(sm + {SCAN_STATE} + (rows * 32 + g) * {HALF_PITCH} + side * 64 + q * 4)
    """)
    for m, t, p in _state_parts():
        w(f"f = P.ldg_f2(s_at + {(16 * m + 8 * p) * DIM * 4 + 32 * t})")
        w(f"s{m}{t}_{2 * p} = f[0]; s{m}{t}_{2 * p + 1} = f[1]")
    _copy_first(w)
    _copy_second(w)
    with w.block("for chunk in range(chunks):"):
        for m, t, p in _state_parts():
            words = f"P.h2_pack(s{m}{t}_{2 * p}, s{m}{t}_{2 * p + 1})"
            w(f"P.sts1(u32(s_to + {(16 * m + 8 * p) * HALF_PITCH + 16 * t}), {words})")
        w("older_copies_done(); P.bar_sync()")
        _products_with_state(w)
        w("P.bar_sync()")
        _fresh(w)
        w("copies_done(); P.bar_sync()")
        with w.block("if chunk + 1 < chunks:"):
            w(f"w_at += {TILE_BYTES}; q_at += {TILE_BYTES}; u_at += {TILE_BYTES}; g_at += {4 * CHUNK}")
        _copy_first(w)
        _outputs_and_state(w)
        w("P.bar_sync()")
        with w.block("if chunk + 1 < chunks:"):
            w(f"k_at += {TILE_BYTES}; p_at += {CHUNK * CHUNK * 2}")
        _copy_second(w)
    for m, t, p in _state_parts():
        w(f"P.stg_f2(s_at + {(16 * m + 8 * p) * DIM * 4 + 32 * t}, s{m}{t}_{2 * p}, s{m}{t}_{2 * p + 1})")
    w("copies_done()")
    return str(w)


def _state_parts() -> list[tuple[int, int, int]]:
    return [(m, t, p) for m in range(2) for t in range(_COLUMN_TILES) for p in range(2)]


def _copy_first(w: Source) -> None:
    for j in range(0, CHUNK, 16):
        for at, start in (("w_at", SCAN_CARRIED), ("q_at", SCAN_QUERY)):
            w(f"P.cp_async16(u32(sm + {start} + (r16 + {j}) * {PITCH} + x16), {at} + {j * ROW_BYTES})")
    for j in range(0, CHUNK, 32):
        w(f"P.cp_async16(u32(sm + {SCAN_VALUE} + (r8 + {j}) * {HALF_PITCH} + x8), u_at + {j * ROW_BYTES})")
    w(f"if tid < {CHUNK // 4}:\n    P.cp_async16(u32(sm + {SCAN_DECAY} + tid * 16), g_at)")
    w("P.cp_commit()")


def _copy_second(w: Source) -> None:
    for j in range(0, CHUNK, 16):
        w(f"P.cp_async16(u32(sm + {SCAN_KEY} + (r16 + {j}) * {PITCH} + x16), k_at + {j * ROW_BYTES})")
    for j in range(0, CHUNK, 32):
        w(f"P.cp_async16(u32(sm + {SCAN_WITHIN} + (r8 + {j}) * {HALF_PITCH} + x8), p_at + {j * 2 * CHUNK})")
    w("P.cp_commit()")


def _products_with_state(w: Source) -> None:
    for t in range(_COLUMN_TILES):
        w(f"x{t}_0 = x{t}_1 = x{t}_2 = x{t}_3 = y{t}_0 = y{t}_1 = y{t}_2 = y{t}_3 = f32(0)")
    for k in range(DIM // BLOCK):
        for name, start in (("x", SCAN_CARRIED), ("y", SCAN_QUERY)):
            w(f"f{name} = P.ldsm4(u32(sm + {start + 32 * k} + (rows * {BLOCK} + ra) * {PITCH} + ca))")
        for t in range(0, _COLUMN_TILES, 2):
            at = f"{SCAN_STATE + BLOCK * k * HALF_PITCH + 16 * t} + ra * {HALF_PITCH} + side * 64 + ca"
            w(f"v = P.ldsm4t(u32(sm + {at}))")
            for s in range(2):
                for name in "xy":
                    w.mma(f"{name}{t + s}", f"f{name}", f"v[{2 * s}]", f"v[{2 * s + 1}]")


def _fresh(w: Source) -> None:
    """Fresh values; decayed to the end of the chunk they go where the state was."""
    w(f"last = P.lds_f(u32(sm + {SCAN_DECAY + 4 * (CHUNK - 1)}))")
    for p in range(2):
        w(f"gi = P.lds_f(u32(sm + {SCAN_DECAY} + (i0 + {8 * p}) * 4))")
        w(f"to_end = {exp('last - gi')}; grown = {exp('gi')}")
        for t in range(_COLUMN_TILES):
            w(f"""
                at = i32(sm + (i0 + {8 * p}) * {HALF_PITCH} + side * 64 + {16 * t} + q * 4)
                u = P.lds1(u32(at + {SCAN_VALUE}))
                d0 = {half("u", 0)} - x{t}_{2 * p}; d1 = {half("u", 1)} - x{t}_{2 * p + 1}
                P.sts1(u32(at + {SCAN_FRESH}), P.h2_pack(d0, d1))
                P.sts1(u32(at + {SCAN_STATE}), P.h2_pack(d0 * to_end, d1 * to_end))
                y{t}_{2 * p} *= grown; y{t}_{2 * p + 1} *= grown
            """)


def _outputs_and_state(w: Source) -> None:
    for k in range(CHUNK // BLOCK):
        w(f"f = P.ldsm4(u32(sm + {SCAN_WITHIN + 32 * k} + (rows * {BLOCK} + ra) * {HALF_PITCH} + ca))")
        for t in range(0, _COLUMN_TILES, 2):
            at = f"{SCAN_FRESH + BLOCK * k * HALF_PITCH + 16 * t} + ra * {HALF_PITCH} + side * 64 + ca"
            w(f"v = P.ldsm4t(u32(sm + {at}))")
            for s in range(2):
                w.mma(f"y{t + s}", "f", f"v[{2 * s}]", f"v[{2 * s + 1}]")
    for t in range(_COLUMN_TILES):
        for p in range(2):
            w(f"P.stg1(o_at + {8 * p * ROW_BYTES + 16 * t}, P.h2_pack(y{t}_{2 * p}, y{t}_{2 * p + 1}))")
    w(f"o_at += {TILE_BYTES}; chunk_decay = {exp('last')}")
    for m in range(2):
        for t in range(_COLUMN_TILES):
            w("; ".join(f"s{m}{t}_{i} *= chunk_decay" for i in range(4)))
    for k in range(CHUNK // BLOCK):
        for m in range(2):
            w(f"f{m} = P.ldsm4t(u32(sm + {SCAN_KEY + BLOCK * k * PITCH + 32 * m} + rt * {PITCH} + rows * 64 + ct))")
        for t in range(0, _COLUMN_TILES, 2):
            at = f"{SCAN_STATE + BLOCK * k * HALF_PITCH + 16 * t} + ra * {HALF_PITCH} + side * 64 + ca"
            w(f"v = P.ldsm4t(u32(sm + {at}))")
            for s in range(2):
                for m in range(2):
                    w.mma(f"s{m}{t + s}", f"f{m}", f"v[{2 * s}]", f"v[{2 * s + 1}]")


def make() -> Any:
    return P.function_of(source(), "kernel", P=P, copies_done=P.cp_wait(0), older_copies_done=P.cp_wait(1))

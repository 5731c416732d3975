"""Results of a stage of the block kernel: pieces of tiles added and handed on.

A warp takes whole tiles; its lanes hold them as mma leaves them: rows g and g + 8 of weights, of two rows of
activations.
"""

from __future__ import annotations

from kernels_numba.nvidia.linear_block_layout import (
    COUNTER_STRIDE,
    COUNTERS_OF_GROUPS,
    SLICES,
    STATISTICS_ROWS,
    Shared,
)
from kernels_numba.nvidia.linear_formats import PLACE_BYTES
from kernels_numba.nvidia.text import Source, bf16, silu

_LANES_OF_A_ROW = (16, 8, 4)
"""Lanes with the same rows of activations differ by these."""


def find_factors(w: Source) -> None:
    """Of the rows of the warp's first tile, long before they are needed."""
    w("""
        factors = f_out; pair_bytes = i64(0)
        if stage == 1:
            factors = f_gate_up; pair_bytes = i64(inner) * 4
        elif stage == 2:
            factors = f_down
        elif stage == 3:
            factors = f_in
    """)
    load_factors(w, "warp")


def load_factors(w: Source, tile: str) -> None:
    """``factor0`` and 1 are those of rows g and g + 8, 2 and 3 those of the values that are gated."""
    w(f"at_tile = i32({tile}); {'; '.join(f'factor{i} = f32(0)' for i in range(4))}")
    with w.block("if at_tile < own:"):
        w("""
            at_factor = factors + i64((tile0 + at_tile) * 16 + g) * 4
            factor0 = P.ldg_f(at_factor); factor1 = P.ldg_f(at_factor + 32)
            factor2 = P.ldg_f(at_factor + pair_bytes); factor3 = P.ldg_f(at_factor + pair_bytes + 32)
        """)


def add_slices(w: Source, s: Shared) -> None:
    """Onto the residual, by the last block of those that share tiles; it leaves sums of squares, and counts."""
    w("""
        old = residual; new = middle; tiles = i32(width >> 4)
        if stage == 2:
            old = middle; new = hidden_out
    """)
    _prefetch(w, s)
    w("P.bar_sync()")
    _read_downs(w, s)
    with w.block(f"for tile in range(warp, own, {s.warps}):"):
        _add_pieces(w, s, "s", "tile")
        w("partial = partials + (i64(part * tiles + tile0 + tile) * 32 + lane) * 16")
        w("P.stg_f4(partial, s0 * down0, s1 * down1, s2 * down0, s3 * down1)")
    w(f"""
        P.bar_sync()
        if counts and group < groups:
            arrived = P.atom_inc(counters + ({COUNTERS_OF_GROUPS} + group) * {4 * COUNTER_STRIDE}, u32(slices - 1))
            P.sts1(u32(shared + {s.flag}), arrived)
        P.bar_sync()
    """)
    with w.block(f"if group < groups and P.lds1(u32(shared + {s.flag})) == u32(slices - 1):"):
        w(f"square0 = f32(0); square1 = f32(0); slice_bytes = i64(tiles) * {PLACE_BYTES}")
        with w.block(f"for tile in range(warp, own, {s.warps}):"):
            w("""
                partial = partials + (i64(tile0 + tile) * 32 + lane) * 16
                row = i64((tile0 + tile) * 16 + g)
            """)
            for i in range(2):
                w(f"column{i} = i64(P.i_min(u32(2 * q + {i}), u32(rows - 1))) * width + row")
                for half in (0, 1):
                    w(f"old{i}_{half} = P.ldg_l2_u16(old + column{i} * 2 + {16 * half})")
            w("s0, s1, s2, s3 = P.ldg_l2_f4(partial)")
            for k in range(1, max(SLICES)):
                w(f"more{k} = P.ldg_l2_f4(partial + i64(P.i_min(u32({k}), u32(slices - 1))) * slice_bytes)")
            for k in range(1, max(SLICES)):
                with w.block(f"if {k} < slices:"):
                    w("; ".join(f"s{i} += more{k}[{i}]" for i in range(4)))
            for i in range(2):
                with w.block(f"if 2 * q + {i} < rows:"):
                    for half in (0, 1):
                        w(f"""
                            bits = P.bf2_pack({bf16(f"old{i}_{half}", 0)} + s{i + 2 * half} * factor{half}, f32(0))
                            P.stg_u16(new + column{i} * 2 + {16 * half}, bits)
                            value = {bf16("bits", 0)}; square{i} += value * value
                        """)
            load_factors(w, f"i32(tile + {s.warps})")
        w.warp_sum("square0", "square1", offsets=_LANES_OF_A_ROW)
        _leave_statistics(w, s, "P.sts_f2", "square0", "square1")
        with w.block(f"if tid < {STATISTICS_ROWS}:"):
            w("square0 = f32(0)")
            with w.block(f"for other in range({s.warps}):"):
                w(f"square0 += P.lds_f(u32(shared + {s.per_warp} + (other * {STATISTICS_ROWS} + tid) * 4))")
            w(f"P.stg_f(statistics + (group * {STATISTICS_ROWS} + tid) * 4, square0)")
        _arrive(w)


def activated(w: Source, s: Shared) -> None:
    """``silu(gate) * up`` into ``activated``; leaves the largest magnitudes, and counts."""
    w("P.bar_sync()")
    _read_downs(w, s)
    w("top0 = u32(0); top1 = u32(0)")
    with w.block(f"for tile in range(warp, own, {s.warps}):"):
        w("row = i64((tile0 + tile) * 16 + g)")
        _add_pieces(w, s, "s", "tile")
        _add_pieces(w, s, "t", "i32(tile + own)")
        for i in range(2):
            with w.block(f"if 2 * q + {i} < rows:"):
                w(f"result = activated + (i64(2 * q + {i}) * inner + row) * 2")
                for half in (0, 1):
                    w(f"""
                        gate = s{i + 2 * half} * down{i} * factor{half}
                        bits = P.bf2_pack({silu("gate")} * (t{i + 2 * half} * down{i} * factor{2 + half}), f32(0))
                        P.stg_u16(result + {16 * half}, bits)
                        top{i} = P.u_max(top{i}, P.u_shl(P.u_and(bits, u32(0x7FFF)), u32(16)))
                    """)
        load_factors(w, f"i32(tile + {s.warps})")
    for offset in _LANES_OF_A_ROW:
        w("; ".join(f"top{i} = P.u_max(top{i}, P.shfl_xor(top{i}, u32({offset})))" for i in range(2)))
    _leave_statistics(w, s, "P.sts2", "top0", "top1")
    with w.block(f"if tid < {STATISTICS_ROWS}:"):
        w("top0 = u32(0)")
        with w.block(f"for other in range({s.warps}):"):
            w(f"top0 = P.u_max(top0, P.lds1(u32(shared + {s.per_warp} + (other * {STATISTICS_ROWS} + tid) * 4)))")
        w(f"P.stg1(statistics + ((blocks + block) * {STATISTICS_ROWS} + tid) * 4, top0)")
    _arrive(w)


def plain(w: Source, s: Shared, first_row: str) -> None:
    """Rows of the result from ``first_row`` on."""
    w("P.bar_sync()")
    _read_downs(w, s)
    with w.block(f"for tile in range(warp, own, {s.warps}):"):
        w("row = i64((tile0 + tile) * 16 + g)")
        _add_pieces(w, s, "s", "tile")
        for i in range(2):
            with w.block(f"if 2 * q + {i} < rows:"):
                w(f"result = out + (i64(2 * q + {i}) * out_stride + {first_row} + row) * 2")
                w(f"P.stg_u16(result, P.bf2_pack(s{i} * down{i} * factor0, f32(0)))")
                w(f"P.stg_u16(result + 16, P.bf2_pack(s{i + 2} * down{i} * factor1, f32(0)))")
        load_factors(w, f"i32(tile + {s.warps})")


def _add_pieces(w: Source, s: Shared, sums: str, tile: str) -> None:
    """``sums``0 to 3 of a tile on the block's list: of the warp that began it and of those that begin within it."""
    w(f"at_tile = i32({tile}); piece = P.lds_f4(u32(pieces + at_tile * {PLACE_BYTES} + lane * 16))")
    w("; ".join(f"{sums}{i} = piece[{i}]" for i in range(4)))
    w(f"other = i32(P.u_div(u32({s.warps} * (at_tile * each + 1) + total - 1), u32(total)))")
    with w.block(f"while other < {s.warps} and other * total // {s.warps} < (at_tile + 1) * each:"):
        w(f"piece = P.lds_f4(u32(pieces + (listed + other) * {PLACE_BYTES} + lane * 16)); other = i32(other + 1)")
        w("; ".join(f"{sums}{i} += piece[{i}]" for i in range(4)))


def _read_downs(w: Source, s: Shared) -> None:
    """Of the lane's rows of activations."""
    for i in range(2):
        w(f"down{i} = P.lds_f(u32(shared + {s.down} + i32(P.i_min(u32(2 * q + {i}), u32({s.columns - 1}))) * 4))")


def _prefetch(w: Source, s: Shared) -> None:
    """What the last block will read besides: others have long driven it out of the cache."""
    with w.block("if warp < own:"):
        w("row = i64((tile0 + warp) * 16); column = i64(P.i_min(u32(lane), u32(rows - 1)))")
        with w.block(f"if lane < {s.columns}:"):
            w("P.prefetch_l2(old + (column * width + row) * 2)")


def _leave_statistics(w: Source, s: Shared, store: str, first: str, second: str) -> None:
    w(f"""
        if lane < 4:
            {store}(u32(shared + {s.per_warp} + (warp * {STATISTICS_ROWS} + 2 * lane) * 4), {first}, {second})
        P.bar_sync()
    """)


def _arrive(w: Source) -> None:
    w(f"""
        P.bar_sync()
        if counts:
            P.arrive(counters + stage * {4 * COUNTER_STRIDE})
    """)

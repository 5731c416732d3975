"""Products of a few rows of activations with chosen matrices of a stack, whose numbers lie in device memory.

An item is an expert and up to eight rows of activations (``slots``): the columns of a tensor core's product. A block
takes some tiles of 16 rows of one item (grid y); ``2^split`` warps share a tile, each streams a contiguous part of its
steps (``linear_formats``) through a ring of its own, and their sums meet in shared memory, in order. Whatever lies
beside it, a row of activations gets the same numbers.

* ``up``: a stack of ``gate | up`` rows, a tile of each in a block: the result is silu(gate) * up, bfloat16, and the
  largest magnitude of every slot, which meets in memory. Activations are halves, scaled by ``moe_route``.
* ``down``: activations are those results, scaled by a power of two for each slot when they are read; float32 results.

Activations lie in fragment order: of 32 columns, ``[q][2 groups][4 columns]``, so that a lane reads 16 bytes.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_conversion import scaled_halves, set_scales
from kernels_numba.nvidia.linear_formats import FORMATS, GROUPS, PLACE_BYTES, StreamFormat
from kernels_numba.nvidia.moe_kernels import UP, WARPS
from kernels_numba.nvidia.text import Source, silu

PARAMETERS = "weights x scales factors items tokens out maxima tiles steps slices split"
"""``scales``: of a token (``up``: float32), or of a slot (``down``: its maximum); ``steps``: of a tile in one slice."""


def make(format_name: str, part: str) -> Any:
    named = {name: P.cp_wait(groups) for name, groups in waits(format_name).items()}
    return P.function_of(source(format_name, part), "kernel", P=P, **named)


def waits(format_name: str) -> dict[str, int]:
    """Names in the source that wait until at most so many groups of copies are under way."""
    return {"WAIT": FORMATS[format_name].depth - 1}


def source(format_name: str, part: str) -> str:
    weights, up = FORMATS[format_name], part == UP
    w = Source("kernel", PARAMETERS)
    w("""
        P.pdl_launch(); P.pdl_wait()
        item = P.ldg4(items + i64(P.cta_y()) * 16); slots = i32(item[2])
        if slots == 0:
            return
    """)
    _begin(w, weights, up)
    _multiply(w, weights, up)
    w(f"""
        P.sts_f4(u32(places + warp * {PLACE_BYTES} + lane * 16), c0, c1, c2, c3)
        P.bar_sync()
    """)
    (_store_up if up else _store_down)(w)
    return str(w)


def _begin(w: Source, weights: StreamFormat, up: bool) -> None:
    """The warp's tile and steps, the lane's row of activations; the ring begins to fill."""
    ring_bytes = weights.depth * weights.step_bytes
    w("""
        shared = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        expert = i32(item[0]); first = i32(item[1]); last_tile = i32(tiles - 1)
        part = i32(warp & ((1 << split) - 1)); of_block = i32(warp >> split)
    """)
    if up:
        w("""
            half = i32(tiles >> 1); last_tile = i32(half - 1)
            tile = i32(i32(P.cta_x()) * (4 >> split) + (of_block >> 1))
            tile = i32(i32(P.i_min(u32(tile), u32(last_tile))) + (of_block & 1) * half)
        """)
    else:
        w(f"tile = i32(P.i_min(u32(i32(P.cta_x()) * ({WARPS} >> split) + of_block), u32(last_tile)))")
    w(f"""
        total = i32(steps * slices); begin = i32(part * total >> split)
        count = i32(((part + 1) * total >> split) - begin)
        cut = i32(P.u_div(u32(begin), u32(steps))); at = i32(begin - cut * steps)
        at_tile = weights + ((i64(expert) * slices + cut) * tiles + tile) * steps * {weights.step_bytes}
        at_step = at_tile + i64(at) * {weights.step_bytes} + lane * 16
        to_next_slice = i64(tiles - 1) * steps * {weights.step_bytes}
        ring = i32(shared + warp * {ring_bytes} + lane * 16); places = i32(shared + {WARPS * ring_bytes})
        mine = i32(first + i32(P.i_min(u32(g), u32(slots - 1))))
    """)
    for slot in range(weights.depth):
        with w.block(f"if {slot} < count:"):
            _copy_step(w, weights, f"ring + {slot * weights.step_bytes}")
        w("P.cp_commit()")
    if up:
        w("""
            token = i64(P.ldg_i(tokens + i64(mine) * 4)); down = P.ldg_f(scales + token * 4)
        """)
    else:
        w("token = i64(mine); top = P.ldg1(scales + token * 4)")
        set_scales(w)
    w("at_x = x + ((token * total + begin) * 128 + q * 8) * 2")
    for piece in range(GROUPS // 2):
        w(f"n{piece} = P.ldg4(at_x + {64 * piece})")


def _copy_step(w: Source, weights: StreamFormat, target: str) -> None:
    """Copy one step into the ring and go on to the next."""
    w(f"to = i32({target})")
    weights.copy(w)
    w(f"""
        at_step += {weights.step_bytes}; at = i32(at + 1)
        if at == steps:
            at = i32(0); at_step += to_next_slice
    """)


def _multiply(w: Source, weights: StreamFormat, up: bool) -> None:
    """All steps of the warp; the activations of the next are fetched meanwhile."""
    w("c0 = c1 = c2 = c3 = f32(0); slot = i32(0)")
    with w.block("for i in range(count):"):
        for piece in range(GROUPS // 2):
            w(f"x{piece} = n{piece}")
        w("""
            if i < count - 1:
                at_x += 256
        """)
        for piece in range(GROUPS // 2):
            w(f"n{piece} = P.ldg4(at_x + {64 * piece})")
        w("WAIT(); P.syncwarp(); read = i32(ring + slot)")
        weights.read_scales(w)
        for group in range(GROUPS):
            if group * weights.pieces % GROUPS == 0:
                piece = group * weights.pieces // GROUPS
                w(f"C{piece} = P.lds4(u32(read + {512 * piece}))")
            w(weights.fragment(group))
            words = [f"x{group // 2}[{group % 2 * 2 + i}]" for i in range(2)]
            b0, b1 = words if up else (scaled_halves(word) for word in words)
            weights.multiply(w, group, f"{b0}, {b1}", "c")
        weights.scale_sums(w, "c")
        w("P.syncwarp()")
        with w.block(f"if i < count - {weights.depth}:"):
            _copy_step(w, weights, "ring + slot")
        w(f"""
            P.cp_commit()
            slot = i32(slot + {weights.step_bytes})
            if slot == {weights.depth * weights.step_bytes}:
                slot = i32(0)
        """)


def _sum_parts(w: Source, tile: str, names: str) -> None:
    """``names``_0 to _3: the sums of a tile of the block."""
    w(f"""
        place = i32(places + (({tile}) << split) * {PLACE_BYTES} + lane * 16)
        v = P.lds_f4(u32(place))
        {"; ".join(f"{names}_{i} = v[{i}]" for i in range(4))}
        for other in range(1, 1 << split):
            v = P.lds_f4(u32(place + other * {PLACE_BYTES}))
            {"; ".join(f"{names}_{i} += v[{i}]" for i in range(4))}
    """)


def _store_up(w: Source) -> None:
    """A warp for each tile of the gate: rows g and g + 8 of the slots 2 q and 2 q + 1."""
    w("tile = i32(i32(P.cta_x()) * (4 >> split) + warp)")
    with w.block("if warp < (4 >> split) and tile < half:"):
        _sum_parts(w, "2 * warp", "gate")
        _sum_parts(w, "2 * warp + 1", "up")
        w("""
            row = i32(tile * 16 + g); at_factor = factors + (i64(expert) * tiles * 16 + row) * 4; below = i64(half) * 64
        """)
        for i in range(2):
            w(f"gate_factor{i} = P.ldg_f(at_factor + {32 * i}); up_factor{i} = P.ldg_f(at_factor + below + {32 * i})")
        w("""
            remainder = i32(row & 15)
            result = out + (i64(half) * 16 * first + (row >> 5) * 32 + (remainder >> 2) * 8 + ((row >> 4) & 1) * 4
                + (remainder & 3)) * 2
        """)
        for j in range(2):
            w(f"column = i32(2 * q + {j}); scale = P.shfl_idx_f(down, u32(column * 4)); most = u32(0)")
            for i in range(2):
                w(f"""
                    gate = gate_{2 * i + j} * scale * gate_factor{i}; linear = up_{2 * i + j} * scale * up_factor{i}
                    word{i} = P.bf2_pack({silu("gate")} * linear, f32(0))
                    most = P.u_max(most, P.u_and(P.u_shl(word{i}, u32(16)), u32({0x7FFF0000})))
                """)
            with w.block("if column < slots:"):
                w("here = result + i64(column) * half * 32")
                for i in range(2):
                    w(f"P.stg_u16(here + {32 * i}, word{i})")
            for offset in (16, 8, 4):
                w(f"most = P.u_max(most, P.shfl_xor(most, u32({offset})))")
            with w.block("if g == 0 and column < slots:"):
                w("P.red_max(maxima + (i64(first) + column) * 4, most)")


def _store_down(w: Source) -> None:
    w(f"tile = i32(i32(P.cta_x()) * ({WARPS} >> split) + warp)")
    with w.block(f"if warp < ({WARPS} >> split) and tile < tiles:"):
        _sum_parts(w, "warp", "sum")
        w("row = i32(tile * 16 + g); at_factor = factors + (i64(expert) * tiles * 16 + row) * 4")
        w("factor0 = P.ldg_f(at_factor); factor1 = P.ldg_f(at_factor + 32)")
        for j in range(2):
            w(f"column = i32(2 * q + {j}); scale = P.shfl_idx_f(down, u32(column * 4))")
            with w.block("if column < slots:"):
                w("here = out + ((i64(first) + column) * tiles * 16 + row) * 4")
                for i in range(2):
                    w(f"P.stg_f(here + {32 * i}, sum_{2 * i + j} * scale * factor{i})")

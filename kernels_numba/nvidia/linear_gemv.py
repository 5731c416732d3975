"""Skinny products: up to 16 rows of activations times a stream of quantised weights (``linear_formats``).

The weights are the A operand of mma.m16n8k16 and the activations its eight columns, so 1 to 8 rows cost the same. A
matrix is cut into slices along its columns (grid y), each in tiles of 16 rows. A block owns whole tiles of one slice;
its warps split their steps evenly, whatever the tile boundaries, and each streams one contiguous range through a ring
of its own in shared memory. Where a tile is shared, the warp that began it adds what the following warps did, in order.
With several slices the sums meet in memory, and of the blocks that own the same tiles the last to arrive adds them, in
order: the result never depends on timing.

Activations come as bfloat16 (``fused``: each block converts what it needs, worth it for few rows) or already converted
by ``linear_activations``. Either way they are halves in fragment order, ``[32 columns][row][q][2 groups x 4 columns]``,
scaled by a power of two per row (``linear_conversion``).

Shared memory: rings, one place per warp for its part of a tile that an earlier warp began, activations, what products
with each row of them are multiplied by, and (fused) the largest magnitudes of each warp.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_conversion import add_magnitudes, scaled_halves, set_scales
from kernels_numba.nvidia.linear_formats import FORMATS, GROUPS, STEP_COLUMNS, WARPS, StreamFormat
from kernels_numba.nvidia.text import Source

PARAMETERS = "weights x x_scales out row_factors partials counters rows stride steps tiles"
"""``stride``: of a row of ``out``, in values; ``steps``: of a tile in one slice; ``counters``: 0 before and after."""
_THREADS = 32 * WARPS
_PLACES_BYTES = 512 * WARPS
"""For one part of a tile (four sums a lane) of each warp."""


def make(format_name: str, columns: int, fused: bool) -> Any:
    """The kernel for up to ``columns`` (a power of two up to 16) rows of activations."""
    waits = {"WAIT": P.cp_wait(FORMATS[format_name].depth - 2), "ALL_COPIED": P.cp_wait(0)}
    return P.function_of(source(format_name, columns, fused), "kernel", P=P, **waits)


def source(format_name: str, columns: int, fused: bool) -> str:
    weights, tiles_n = FORMATS[format_name], range((columns + 7) // 8)
    w = Source("kernel", PARAMETERS)
    _begin(w, weights)
    ring_bytes = WARPS * weights.depth * weights.step_bytes
    w(f"""
        P.pdl_wait()
        activations = i32(shared + {ring_bytes + _PLACES_BYTES * len(tiles_n)})
        x_factors = i32(activations + steps * {STEP_COLUMNS * 2 * columns})
    """)
    if fused:
        _convert_activations(w, columns)
    else:
        _copy_activations(w, columns)
    for t in tiles_n:
        w(f"""
            x{t}_first = i32(activations + (i32(P.i_min(u32(g + {8 * t}), u32({columns - 1}))) * 4 + q) * 16)
            x{t} = i32(x{t}_first + at * {256 * columns})
            {_sums(t, " = ")} = f32(0)
        """)
    w("head = at != 0; slot = i32(0)")
    with w.block("for i in range(count):"):
        _multiply_step(w, weights, columns)
        with w.block("if at == steps:"):
            _end_tile(w, columns, ring_bytes)
    w("unfinished = at != 0")
    with w.block("if head:  # all that the warp did belongs to an earlier one's tile"):
        _leave_part(w, columns, ring_bytes)
    w("P.bar_sync()")
    with w.block("if unfinished and not head:"):
        _add_parts(w, columns, ring_bytes)
    with w.block("if parts > 1:"):
        _add_slices(w, columns)
    return str(w)


def _sums(t: int, separator: str = ", ") -> str:
    return separator.join(f"c{t}_{i}" for i in range(4))


def _begin(w: Source, weights: StreamFormat) -> None:
    """Find the warp's range of steps and fill its ring. The trigger comes first: one block runs on a multiprocessor and
    one of the next kernel fits beside it."""
    w(f"""
        P.pdl_launch()
        shared = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        block = i32(P.cta_x()); blocks = i32(P.ncta_x()); part = i32(P.cta_y()); parts = i32(P.ncta_y())
        tile0 = i32(P.u_div(u32(block * tiles), u32(blocks)))
        tile1 = i32(P.u_div(u32((block + 1) * tiles), u32(blocks)))
        total = i32((tile1 - tile0) * steps)
        begin = i32(warp * total // {WARPS}); count = i32((warp + 1) * total // {WARPS} - begin)
        tile = i32(P.u_div(u32(begin), u32(steps))); at = i32(begin - tile * steps)
        row = i32((tile0 + tile) * 16 + g); last_row = i32(tiles * 16 - 16 + g)
        at_step = weights + (i64(part * tiles + tile0) * steps + begin) * {weights.step_bytes} + lane * 16
        ring = i32(shared + warp * {weights.depth * weights.step_bytes} + lane * 16)
    """)
    _load_row_factors(w)
    for slot in range(weights.depth - 1):
        with w.block(f"if {slot} < count:"):
            _copy_step(w, weights, f"ring + {slot * weights.step_bytes}")
        w("P.cp_commit()")


def _load_row_factors(w: Source) -> None:
    """Of the tile that begins, long before they are needed."""
    w("""
        at_factor = row_factors + i64(P.i_min(u32(row), u32(last_row))) * 4
        factor0 = P.ldg_f(at_factor); factor1 = P.ldg_f(at_factor + 32)
    """)


def _copy_step(w: Source, weights: StreamFormat, target: str) -> None:
    """Copy one step into the ring and go on to the next."""
    w(f"to = i32({target})")
    for piece in range(weights.pieces):
        w(f"P.cp_async16(u32(to + {512 * piece}), at_step + {512 * piece})")
    if weights.scale_bytes:
        with w.block(f"if lane < {weights.scale_bytes // 16}:"):
            w(f"P.cp_async16(u32(to + {weights.code_bytes}), at_step + {weights.code_bytes})")
    w(f"at_step += {weights.step_bytes}")


def _copy_activations(w: Source, columns: int) -> None:
    w(f"""
        x_bytes = i32(steps * {STEP_COLUMNS * 2 * columns})
        x_from = x + i64(part) * x_bytes + tid * 16; x_to = i32(activations + tid * 16)
        for i in range(tid * 16, x_bytes, {_THREADS * 16}):
            P.cp_async16(u32(x_to), x_from)
            x_from += {_THREADS * 16}; x_to = i32(x_to + {_THREADS * 16})
        P.cp_commit()
        if tid < {columns}:
            P.sts_f(u32(x_factors + tid * 4), P.ldg_f(x_scales + tid * 4))
        ALL_COPIED()
        P.bar_sync()
    """)


def _convert_activations(w: Source, columns: int) -> None:
    """Every thread moves columns of one row, then scales what it moved by the row's maximum over all threads."""
    each = f"for i in range(tid // {columns}, steps * {STEP_COLUMNS // 4}, {_THREADS // columns}):"
    place = f"u32(activations + (((i >> 3) * {columns} + mine) * 4 + (i & 3)) * 16 + ((i >> 2) & 1) * 8)"
    w(f"""
        mine = i32(tid & {columns - 1}); top = u32(0)
        x_row = i64(P.i_min(u32(mine), u32(rows - 1)))
        x_from = x + (x_row * parts + part) * steps * {2 * STEP_COLUMNS} + (tid // {columns}) * 8
    """)
    with w.block(each):
        w("pair = P.ldg2(x_from)")
        add_magnitudes(w, ["pair[0]", "pair[1]"])
        w(f"P.sts2({place}, pair[0], pair[1]); x_from += {_THREADS // columns * 8}")
    for offset in (16, 8, 4, 2, 1):
        if offset >= columns:
            w(f"top = P.u_max(top, P.shfl_xor(top, u32({offset})))")
    w(f"""
        tops = i32(x_factors + {4 * columns})
        if lane < {columns}:
            P.sts1(u32(tops + (warp * {columns} + lane) * 4), top)
        P.bar_sync()
        for i in range({WARPS}):
            top = P.u_max(top, P.lds1(u32(tops + (i * {columns} + mine) * 4)))
    """)
    set_scales(w)
    with w.block(each):
        w(f"raw = P.lds2({place}); P.sts2({place}, {scaled_halves('raw[0]')}, {scaled_halves('raw[1]')})")
    w(f"""
        if tid < {columns}:
            P.sts_f(u32(x_factors + tid * 4), down)
        P.bar_sync()
    """)


def _multiply_step(w: Source, weights: StreamFormat, columns: int) -> None:
    step_bytes, ring_end = weights.step_bytes, weights.depth * weights.step_bytes
    tiles_n = range((columns + 7) // 8)
    w("WAIT(); P.syncwarp(); read = i32(ring + slot)")
    for piece in range(weights.pieces):
        w(f"C{piece} = P.lds4(u32(read + {512 * piece}))")
    if weights.scale_words:
        at_scales = f"u32(read + {weights.code_bytes} + g * {4 * weights.scale_words} - lane * 16)"
        w(f"S = P.lds{weights.scale_words}({at_scales})")
    w(f"""
        refill = i32(slot - {step_bytes})
        if refill < 0:
            refill = i32({ring_end - step_bytes})
    """)
    with w.block(f"if i < count - {weights.depth - 1}:  # into the slot that all lanes read a turn ago"):
        _copy_step(w, weights, "ring + refill")
    w(f"""
        P.cp_commit()
        slot = i32(slot + {step_bytes})
        if slot == {ring_end}:
            slot = i32(0)
    """)
    for group in range(GROUPS):
        if group % 2 == 0:
            for t in tiles_n:
                w(f"b{t} = P.lds4(u32(x{t} + {group // 2 * 64 * columns}))")
        w(weights.fragment(group))
        for t in tiles_n:
            b = f"b{t}[{group % 2 * 2}], b{t}[{group % 2 * 2 + 1}]"
            w(f"{_sums(t)} = P.mma_f16(a0, a1, a2, a3, {b}, {_sums(t)})")
    for t in tiles_n:
        w(f"x{t} = i32(x{t} + {256 * columns})")
    w("at = i32(at + 1)")


def _end_tile(w: Source, columns: int, ring_bytes: int) -> None:
    tiles_n = range((columns + 7) // 8)
    w("at = i32(0)")
    for t in tiles_n:
        w(f"x{t} = x{t}_first")
    with w.block("if head:  # begun by an earlier warp"):
        _leave_part(w, columns, ring_bytes)
        w("head = False")
    with w.block("else:"):
        _store(w, columns)
    w("row = i32(row + 16)")
    _load_row_factors(w)
    for t in tiles_n:
        w(f"{_sums(t, ' = ')} = f32(0)")


def _leave_part(w: Source, columns: int, ring_bytes: int) -> None:
    for t in range((columns + 7) // 8):
        w(f"P.sts_f4(u32(shared + {ring_bytes + _PLACES_BYTES * t} + tid * 16), {_sums(t)})")


def _add_parts(w: Source, columns: int, ring_bytes: int) -> None:
    """The parts of the tile that the following warps did."""
    w("left = i32(steps - at); other = i32(warp + 1)")
    with w.block("while left > 0:"):
        w(f"place = i32(shared + {ring_bytes} + other * 512 + lane * 16)")
        for t in range((columns + 7) // 8):
            w(f"theirs = P.lds_f4(u32(place + {_PLACES_BYTES * t}))")
            w("; ".join(f"c{t}_{i} += theirs[{i}]" for i in range(4)))
        w(f"left = i32(left - ((other + 1) * total // {WARPS} - other * total // {WARPS})); other = i32(other + 1)")
    _store(w, columns)


def _store(w: Source, columns: int) -> None:
    """A finished tile: of two rows of weights for two rows of activations each lane."""
    for t in range((columns + 7) // 8):
        for i in range(2):
            w(f"column = i32({8 * t + i} + 2 * q)")
            with w.block("if column < rows:"):
                w("x_factor = P.lds_f(u32(x_factors + column * 4))")
                w(f"upper = c{t}_{i} * x_factor; lower = c{t}_{i + 2} * x_factor")
                with w.block("if parts == 1:"):
                    w("result = out + (i64(column) * stride + row) * 2")
                    w("P.stg_u16(result, P.bf2_pack(upper * factor0, f32(0)))")
                    w("P.stg_u16(result + 16, P.bf2_pack(lower * factor1, f32(0)))")
                with w.block("else:"):
                    w(f"partial = partials + ((i64(part) * {columns} + column) * tiles * 16 + row) * 4")
                    w("P.stg_f(partial, upper); P.stg_f(partial + 32, lower)")


def _add_slices(w: Source, columns: int) -> None:
    """The last of the blocks with the same tiles adds the sums of all slices, four rows of weights a thread."""
    w("""
        P.fence_gpu()
        P.bar_sync()
        if tid == 0:
            P.sts1(u32(shared), P.atom_inc(counters + i64(block) * 4, u32(parts - 1)))
        P.bar_sync()
    """)
    with w.block("if i32(P.lds1(u32(shared))) == parts - 1:"):
        w(f"P.fence_gpu(); quads = i32((tile1 - tile0) * 4); slice_bytes = i64(tiles) * {64 * columns}")
        with w.block(f"for i in range(tid, quads * rows, {_THREADS}):"):
            w("""
                column = i32(P.u_div(u32(i), u32(quads))); first = i32(tile0 * 16 + (i - column * quads) * 4)
                partial = partials + (i64(column) * tiles * 16 + first) * 4
                even = P.ldg_l2_f4(partial); odd = P.ldg_l2_f4(partial + slice_bytes)
            """)
            w("; ".join(f"s{j} = even[{j}] + odd[{j}]" for j in range(4)))
            with w.block("for j in range(2, parts, 2):"):
                w("even = P.ldg_l2_f4(partial + j * slice_bytes); odd = P.ldg_l2_f4(partial + (j + 1) * slice_bytes)")
                w("; ".join(f"s{j} = s{j} + even[{j}] + odd[{j}]" for j in range(4)))
            w("factors = P.ldg_f4(row_factors + i64(first) * 4); result = out + (i64(column) * stride + first) * 2")
            for j in range(4):
                w(f"P.stg_u16(result + {2 * j}, P.bf2_pack(s{j} * factors[{j}], f32(0)))")

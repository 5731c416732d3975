"""Skinny products: up to 16 rows of activations times a stream of quantised weights (``linear_formats``).

The weights are the A operand of mma.m16n8k16 and the activations its eight columns, so 1 to 8 rows cost the same. A
matrix is cut into slices along its columns (grid y), each in tiles of 16 rows. A block owns whole tiles of one slice;
its warps split their steps evenly, whatever the tile boundaries, and each streams one contiguous range through a ring
of its own in shared memory. Where a tile is shared, the warp that began it adds what the following warps did, in order.
With several slices the sums meet in memory, and of the blocks that own the same tiles the last to arrive adds them, in
order: the result never depends on timing.

Activations come as bfloat16 (``fused``: each block converts what it needs, worth it for few rows) or already converted
by ``linear_activations``. Either way they are halves in fragment order, ``[32 columns][row][q][2 groups x 4 columns]``,
scaled by a power of two per row so that the largest lies in [2^14, 2^15): no overflow, and bfloat16's range kept.
"""

from __future__ import annotations

from textwrap import indent
from typing import Any

from kernels_numba.nvidia import ptx
from kernels_numba.nvidia.linear_conversion import CONVERSION
from kernels_numba.nvidia.linear_formats import FORMATS, GROUPS, STEP_COLUMNS, WARPS, StreamFormat

THREADS = 32 * WARPS
SIGNATURE = "lllllll" + "iiii"
"""weights, activations, their scales, out, row factors, partial sums, counters; rows, row stride of out, steps of a
slice, tiles."""


def make(format_name: str, columns: int, fused: bool) -> Any:
    """The kernel for up to ``columns`` (a power of two up to 16) rows of activations."""
    weights = FORMATS[format_name]
    tiles_n = range((columns + 7) // 8)
    step_bytes, depth = weights.step_bytes, weights.depth
    ring_bytes = WARPS * depth * step_bytes
    pair_bytes = columns * 64  # activations of 32 columns of weights
    lines = [
        f"""
def kernel(weights, x, x_scales, out, row_factors, partials, counters, rows, stride, steps, tiles):
    pdl_launch()  # at the top: one block runs on a multiprocessor, and one of the next kernel fits beside it
    shared = smem_base()
    tid = i32(tid_x())
    lane = i32(tid & 31)
    warp = i32(tid >> 5)
    g = i32(lane >> 2)
    q = i32(lane & 3)
    block = i32(cta_x())
    blocks = ncta_x()
    part = i32(cta_y())
    parts = i32(ncta_y())
    tile0 = i32(u_div(block * tiles, blocks))
    total = i32((i32(u_div((block + 1) * tiles, blocks)) - tile0) * steps)
    begin = i32(warp * total // {WARPS})
    count = i32(i32((warp + 1) * total // {WARPS}) - begin)
    tile = i32(u_div(begin, steps))
    source = weights + (i64(part * tiles + tile0) * steps + begin) * {step_bytes} + lane * 16
    ring = i32(shared + warp * {depth * step_bytes} + lane * 16)
    at = i32(begin - tile * steps)
    row = i32((tile0 + tile) * 16 + g)
    last_row = i32(tiles * 16 - 16 + g)
    factor0 = ldg_f(row_factors + i64(i_min(row, last_row)) * 4)
    factor1 = ldg_f(row_factors + i64(i_min(row, last_row)) * 4 + 32)"""
    ]
    add = lines.append
    for slot in range(depth - 1):
        add(f"    if {slot} < count:")
        add(_copy_step(weights, f"i32(ring + {slot * step_bytes})", 8))
        add("    cp_commit()")
    add(f"    pdl_wait()\n    activations = i32(shared + {ring_bytes + 512 * WARPS * len(tiles_n)})")
    add(f"    x_factors = i32(activations + steps * {STEP_COLUMNS * 2 * columns})")
    add(_fused_prologue(columns) if fused else _copied_prologue(columns))
    for t in tiles_n:
        add(f"    x{t}_first = i32(activations + (i_min(i32(g + {8 * t}), i32({columns - 1})) * 4 + q) * 16)")
        add(f"    x{t} = i32(x{t}_first + at * {4 * pair_bytes})")
        add(f"    {_all(t, 'c', ' = ')} = f32(0)")
    add("""
    head = at != 0
    slot = i32(0)
    for i in range(count):
        WAIT()
        syncwarp()
        read = i32(ring + slot)""")
    for piece in range(weights.pieces):
        add(f"        C{piece} = lds4(u32(read + {512 * piece}))")
    if weights.scale_bytes:
        word_bytes = 4 * weights.scale_words
        add(f"        S = lds{weights.scale_words}(u32(read + {weights.code_bytes} + g * {word_bytes} - lane * 16))")
    add(f"""
        refill = i32(slot - {step_bytes})
        if refill < 0:
            refill = i32({(depth - 1) * step_bytes})
        if i < count - {depth - 1}:  # into the slot read a turn ago, by all lanes
{_copy_step(weights, "i32(ring + refill)", 12)}
        cp_commit()
        slot = i32(slot + {step_bytes})
        if slot == {depth * step_bytes}:
            slot = i32(0)""")
    for group in range(GROUPS):
        if group % 2 == 0:
            for t in tiles_n:
                add(f"        b{t} = lds4(u32(x{t} + {group // 2 * pair_bytes}))")
        add(indent(weights.fragment(group), " " * 8))
        for t in tiles_n:
            operands = f"b{t}[{group % 2 * 2}], b{t}[{group % 2 * 2 + 1}], {_all(t, 'c')}"
            add(f"        {_all(t, 'c')} = mma_f16(a0, a1, a2, a3, {operands})")
    for t in tiles_n:
        add(f"        x{t} = i32(x{t} + {4 * pair_bytes})")
    add("        at = i32(at + 1)\n        if at == steps:\n            at = i32(0)")
    for t in tiles_n:
        add(f"            x{t} = x{t}_first")
    add("            if head:  # begun by an earlier warp, which adds it at the end")
    for t in tiles_n:
        add(f"                sts_f4(u32(shared + {ring_bytes + 512 * WARPS * t} + tid * 16), {_all(t, 'c')})")
    add("                head = False\n            else:")
    for t in tiles_n:
        add(f"                {_store(t)}")
    add("            row = i32(row + 16)")
    add("            factor0 = ldg_f(row_factors + i64(i_min(row, last_row)) * 4)")
    add("            factor1 = ldg_f(row_factors + i64(i_min(row, last_row)) * 4 + 32)")
    for t in tiles_n:
        add(f"            {_all(t, 'c', ' = ')} = f32(0)")
    add("    unfinished = at != 0\n    if head:  # all of the warp's work belongs to an earlier one's tile")
    for t in tiles_n:
        add(f"        sts_f4(u32(shared + {ring_bytes + 512 * WARPS * t} + tid * 16), {_all(t, 'c')})")
    add(f"""    bar_sync()
    if unfinished and not head:
        left = i32(steps - at)
        other = i32(warp + 1)
        while left > 0:
            place = i32(shared + {ring_bytes} + other * 512 + lane * 16)""")
    for t in tiles_n:
        add(f"            joined = lds_f4(u32(place + {512 * WARPS * t}))")
        add("\n".join(f"            c{t}_{i} += joined[{i}]" for i in range(4)))
    add(f"""            left = i32(left - i32((other + 1) * total // {WARPS} - other * total // {WARPS}))
            other = i32(other + 1)""")
    for t in tiles_n:
        add(f"        {_store(t)}")
    add(_last_block(columns))
    return ptx.function_of(
        "\n".join(lines),
        "kernel",
        WAIT=ptx.cp_wait(depth - 2),
        ALL_COPIED=ptx.cp_wait(0),
        store=_store_function(columns),
        **CONVERSION,
    )


def _all(t: int, name: str, separator: str = ", ") -> str:
    return separator.join(f"{name}{t}_{i}" for i in range(4))


def _copy_step(weights: StreamFormat, target: str, depth: int) -> str:
    """Copy one step into the ring and go on to the next."""
    lines = [f"to = {target}"]
    lines += [f"cp_async16(u32(to + {512 * piece}), source + {512 * piece})" for piece in range(weights.pieces)]
    if weights.scale_bytes:
        lines.append(f"if lane < {weights.scale_bytes // 16}:")
        lines.append(f"    cp_async16(u32(to + {weights.code_bytes}), source + {weights.code_bytes})")
    lines.append(f"source += {weights.step_bytes}")
    return indent("\n".join(lines), " " * depth)


def _copied_prologue(columns: int) -> str:
    return f"""
    x_bytes = i32(steps * {STEP_COLUMNS * 2 * columns})
    x_from = x + i64(part) * x_bytes + tid * 16
    x_to = i32(activations + tid * 16)
    for i in range(tid * 16, x_bytes, {THREADS * 16}):
        cp_async16(u32(x_to), x_from)
        x_from += {THREADS * 16}
        x_to = i32(x_to + {THREADS * 16})
    cp_commit()
    if tid < {columns}:
        sts_f(u32(x_factors + tid * 4), ldg_f(x_scales + tid * 4))
    ALL_COPIED()
    bar_sync()"""


def _fused_prologue(columns: int) -> str:
    """Every thread moves columns of one row of x, then scales what it moved by the row's maximum over all threads."""
    loop = f"for i in range(tid // {columns}, steps * {STEP_COLUMNS // 4}, {THREADS // columns}):"
    place = f"i32(activations + (((i >> 3) * {columns} + mine) * 4 + (i & 3)) * 16 + ((i >> 2) & 1) * 8)"
    rounds = [offset for offset in (16, 8, 4, 2, 1) if offset >= columns]
    lines = [
        f"""
    mine = i32(tid & {columns - 1})
    x_from = x + (i64(i_min(mine, i32(rows - 1))) * parts + part) * steps * {2 * STEP_COLUMNS} + (tid // {columns}) * 8
    top = u32(0)
    {loop}
        pair = ldg2(x_from)
        top = u_max(top, u_max(largest_magnitude(pair[0]), largest_magnitude(pair[1])))
        sts2(u32({place}), pair[0], pair[1])
        x_from += {THREADS // columns * 8}"""
    ]
    lines += [f"    top = u_max(top, shfl_xor(top, u32({offset})))" for offset in rounds]
    lines.append(f"""
    tops = i32(x_factors + {4 * columns})
    if lane < {columns}:
        sts1(u32(tops + (warp * {columns} + lane) * 4), top)
    bar_sync()
    for i in range({WARPS}):
        top = u_max(top, lds1(u32(tops + (i * {columns} + mine) * 4)))
    up = scale_up(top)
    {loop}
        pair = lds2(u32({place}))
        sts2(u32({place}), scaled_halves(pair[0], up), scaled_halves(pair[1], up))
    if tid < {columns}:
        sts_f(u32(x_factors + tid * 4), scale_down(top))
    bar_sync()""")
    return "\n".join(lines)


def _store(t: int) -> str:
    return (
        f"store(out, partials, parts, part, tiles, rows, stride, row, i32({8 * t} + 2 * q), {_all(t, 'c')}, "
        "x_factors, factor0, factor1)"
    )


def _store_function(columns: int) -> Any:
    """Results of one tile: of rows ``row`` and ``row + 8`` of the weights, for two rows of activations."""
    source = """
def store(out, partials, parts, part, tiles, rows, stride, row, column, c0, c1, c2, c3, x_factors, factor0, factor1):
    if column < rows:
        x0 = lds_f(u32(x_factors + column * 4))
        store_column(out, partials, parts, part, tiles, stride, row, column, c0 * x0, c2 * x0, factor0, factor1)
    if column + 1 < rows:
        x1 = lds_f(u32(x_factors + column * 4 + 4))
        column1 = i32(column + 1)
        store_column(out, partials, parts, part, tiles, stride, row, column1, c1 * x1, c3 * x1, factor0, factor1)
"""
    column_source = f"""
def store_column(out, partials, parts, part, tiles, stride, row, column, low, high, factor0, factor1):
    if parts == 1:
        place = out + (i64(column) * stride + row) * 2
        stg_u16(place, bf2_pack(low * factor0, f32(0)))
        stg_u16(place + 16, bf2_pack(high * factor1, f32(0)))
    else:
        place = partials + ((i64(part) * {columns} + column) * tiles * 16 + row) * 4
        stg_f(place, low)
        stg_f(place + 32, high)
"""
    store_column = ptx.device_function(ptx.function_of(column_source, "store_column"))
    return ptx.device_function(ptx.function_of(source, "store", store_column=store_column))


def _last_block(columns: int) -> str:
    """The last of the blocks with the same tiles adds the sums of all slices, four rows of weights a thread."""
    return f"""
    if parts > 1:
        fence_gpu()
        bar_sync()
        if tid == 0:
            sts1(u32(shared), atom_inc(counters + i64(block) * 4, u32(parts - 1)))
        bar_sync()
        if i32(lds1(u32(shared))) == parts - 1:
            fence_gpu()
            quads = i32((i32(u_div((block + 1) * tiles, blocks)) - tile0) * 4)
            part_bytes = i64(tiles) * {64 * columns}
            for i in range(tid, quads * rows, {THREADS}):
                column = i32(u_div(i32(i), quads))
                first_row = i32(tile0 * 16 + (i32(i) - column * quads) * 4)
                sums_at = partials + (i64(column) * tiles * 16 + first_row) * 4
                even = ldg_l2_f4(sums_at)
                odd = ldg_l2_f4(sums_at + part_bytes)
                s0 = even[0] + odd[0]
                s1 = even[1] + odd[1]
                s2 = even[2] + odd[2]
                s3 = even[3] + odd[3]
                for j in range(2, parts, 2):
                    even = ldg_l2_f4(sums_at + j * part_bytes)
                    odd = ldg_l2_f4(sums_at + (j + 1) * part_bytes)
                    s0 = s0 + even[0] + odd[0]
                    s1 = s1 + even[1] + odd[1]
                    s2 = s2 + even[2] + odd[2]
                    s3 = s3 + even[3] + odd[3]
                factors = ldg_f4(row_factors + i64(first_row) * 4)
                result_at = out + (i64(column) * stride + first_row) * 2
                stg_u16(result_at, bf2_pack(s0 * factors[0], f32(0)))
                stg_u16(result_at + 2, bf2_pack(s1 * factors[1], f32(0)))
                stg_u16(result_at + 4, bf2_pack(s2 * factors[2], f32(0)))
                stg_u16(result_at + 6, bf2_pack(s3 * factors[3], f32(0)))"""

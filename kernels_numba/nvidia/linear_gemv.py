"""Skinny products: up to 16 rows of activations times a stream of quantised weights (``linear_formats``).

The weights are the A operand of mma.m16n8k16 and the activations its eight columns, so 1 to 8 rows cost the same. A
matrix is cut into slices along its columns (grid y), each in tiles of 16 rows; in the stream a tile's slices are
neighbours, or a slice's tiles. A block owns whole tiles of one slice;
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

from dataclasses import dataclass
from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_conversion import add_magnitudes, scaled_halves, set_scales
from kernels_numba.nvidia.linear_formats import FORMATS, GROUPS, PLACE_BYTES, STEP_COLUMNS, StreamFormat
from kernels_numba.nvidia.text import Source

PARAMETERS = "weights x x_scales out row_factors partials counters rows stride steps tiles slice_steps tile_steps"
"""``stride``: of a row of ``out``, in values; ``steps``: of a tile in one slice; ``counters``: 0 before and after;
``slice_steps`` and ``tile_steps``: from one slice and from one tile to the next in the stream."""


def make(format_name: str, columns: int, warps: int, fused: bool) -> Any:
    text = source(format_name, columns, warps, fused)
    named = {name: P.cp_wait(groups) for name, groups in waits(format_name).items()}
    return P.function_of(text, "kernel", P=P, **named)


def waits(format_name: str) -> dict[str, int]:
    """Names in the source that wait until at most so many groups of copies are under way."""
    return {"WAIT": FORMATS[format_name].depth - 2, "ALL_COPIED": 0}


@dataclass(frozen=True)
class _Variant:
    """What the parts of the source depend on."""

    weights: StreamFormat
    columns: int  # most rows of activations, a power of two up to 16
    warps: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def tiles_n(self) -> range:
        """Tiles of eight rows of activations."""
        return range((self.columns + 7) // 8)

    @property
    def ring_bytes(self) -> int:
        return self.weights.depth * self.weights.step_bytes

    @property
    def places(self) -> int:
        """Where the rings end and the places of shared tiles begin, by tile of activations and by warp."""
        return self.warps * self.ring_bytes

    @property
    def activations(self) -> int:
        return self.places + self.warps * PLACE_BYTES * len(self.tiles_n)


def source(format_name: str, columns: int, warps: int, fused: bool) -> str:
    v = _Variant(FORMATS[format_name], columns, warps)
    w = Source("kernel", PARAMETERS)
    _begin(w, v)
    w(f"""
        P.pdl_wait()
        activations = i32(shared + {v.activations})
        x_factors = i32(activations + steps * {STEP_COLUMNS * 2 * columns})
    """)
    if fused:
        _convert_activations(w, v)
    else:
        _copy_activations(w, v)
    for t in v.tiles_n:
        w(f"""
            x{t}_first = i32(activations + (i32(P.i_min(u32(g + {8 * t}), u32({columns - 1}))) * 4 + q) * 16)
            x{t} = i32(x{t}_first + at * {256 * columns})
            {_sums(t, " = ")} = f32(0)
        """)
    w("head = at != 0; slot = i32(0)")
    with w.block("for i in range(count):"):
        _multiply_step(w, v)
        with w.block("if at == steps:"):
            _end_tile(w, v)
    w("unfinished = at != 0")
    with w.block("if head:  # all that the warp did belongs to an earlier one's tile"):
        _leave_part(w, v)
    w("P.bar_sync()")
    with w.block("if unfinished and not head:"):
        _add_parts(w, v)
    with w.block("if parts > 1:"):
        _add_slices(w, v)
    return str(w)


def _sums(t: int, separator: str = ", ") -> str:
    return separator.join(f"c{t}_{i}" for i in range(4))


def _begin(w: Source, v: _Variant) -> None:
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
        begin = i32(warp * total // {v.warps}); count = i32((warp + 1) * total // {v.warps} - begin)
        tile = i32(P.u_div(u32(begin), u32(steps))); at = i32(begin - tile * steps)
        row = i32((tile0 + tile) * 16 + g); last_row = i32(tiles * 16 - 16 + g)
        ahead = i32(steps - at); skipped = i32((tile_steps - steps) * {v.weights.step_bytes})
        at_step = weights + (i64(part) * slice_steps + i64(tile0 + tile) * tile_steps + at) * {v.weights.step_bytes}
        at_step = at_step + lane * 16
        ring = i32(shared + warp * {v.ring_bytes} + lane * 16)
    """)
    _load_row_factors(w)
    for slot in range(v.weights.depth - 1):
        with w.block(f"if {slot} < count:"):
            _copy_step(w, v, f"ring + {slot * v.weights.step_bytes}")
        w("P.cp_commit()")


def _load_row_factors(w: Source) -> None:
    """Of the tile that begins, long before they are needed."""
    w("""
        at_factor = row_factors + i64(P.i_min(u32(row), u32(last_row))) * 4
        factor0 = P.ldg_f(at_factor); factor1 = P.ldg_f(at_factor + 32)
    """)


def _copy_step(w: Source, v: _Variant, target: str) -> None:
    """Copy one step into the ring and go on to the next."""
    w(f"to = i32({target})")
    v.weights.copy(w)
    w(f"""
        at_step += {v.weights.step_bytes}; ahead = i32(ahead - 1)
        if ahead == 0:
            at_step += skipped; ahead = i32(steps)
    """)


def _copy_activations(w: Source, v: _Variant) -> None:
    w(f"""
        x_bytes = i32(steps * {STEP_COLUMNS * 2 * v.columns})
        x_from = x + i64(part) * x_bytes + tid * 16; x_to = i32(activations + tid * 16)
        for i in range(tid * 16, x_bytes, {v.threads * 16}):
            P.cp_async16(u32(x_to), x_from)
            x_from += {v.threads * 16}; x_to = i32(x_to + {v.threads * 16})
        P.cp_commit()
        if tid < {v.columns}:
            P.sts_f(u32(x_factors + tid * 4), P.ldg_f(x_scales + tid * 4))
        ALL_COPIED()
        P.bar_sync()
    """)


def _convert_activations(w: Source, v: _Variant) -> None:
    """Every thread moves columns of one row, then scales what it moved by the row's maximum over all threads."""
    each = f"for i in range(tid // {v.columns}, steps * {STEP_COLUMNS // 4}, {v.threads // v.columns}):"
    place = f"u32(activations + (((i >> 3) * {v.columns} + mine) * 4 + (i & 3)) * 16 + ((i >> 2) & 1) * 8)"
    w(f"""
        mine = i32(tid & {v.columns - 1}); top = u32(0)
        x_row = i64(P.i_min(u32(mine), u32(rows - 1)))
        x_from = x + (x_row * parts + part) * steps * {2 * STEP_COLUMNS} + (tid // {v.columns}) * 8
    """)
    with w.block(each):
        w("pair = P.ldg2(x_from)")
        add_magnitudes(w, ["pair[0]", "pair[1]"])
        w(f"P.sts2({place}, pair[0], pair[1]); x_from += {v.threads // v.columns * 8}")
    for offset in (16, 8, 4, 2, 1):
        if offset >= v.columns:
            w(f"top = P.u_max(top, P.shfl_xor(top, u32({offset})))")
    w(f"""
        tops = i32(x_factors + {4 * v.columns})
        if lane < {v.columns}:
            P.sts1(u32(tops + (warp * {v.columns} + lane) * 4), top)
        P.bar_sync()
        for i in range({v.warps}):
            top = P.u_max(top, P.lds1(u32(tops + (i * {v.columns} + mine) * 4)))
    """)
    set_scales(w)
    with w.block(each):
        w(f"raw = P.lds2({place}); P.sts2({place}, {scaled_halves('raw[0]')}, {scaled_halves('raw[1]')})")
    w(f"""
        if tid < {v.columns}:
            P.sts_f(u32(x_factors + tid * 4), down)
        P.bar_sync()
    """)


def _multiply_step(w: Source, v: _Variant) -> None:
    weights, step_bytes = v.weights, v.weights.step_bytes
    w("WAIT(); P.syncwarp(); read = i32(ring + slot)")
    weights.read_scales(w)
    w(f"""
        refill = i32(slot - {step_bytes})
        if refill < 0:
            refill = i32({v.ring_bytes - step_bytes})
    """)
    with w.block(f"if i < count - {weights.depth - 1}:  # into the slot that all lanes read a turn ago"):
        _copy_step(w, v, "ring + refill")
    w(f"""
        P.cp_commit()
        slot = i32(slot + {step_bytes})
        if slot == {v.ring_bytes}:
            slot = i32(0)
    """)
    for group in range(GROUPS):
        if group * weights.pieces % GROUPS == 0:
            piece = group * weights.pieces // GROUPS
            w(f"C{piece} = P.lds4(u32(read + {512 * piece}))")
        if group % 2 == 0:
            for t in v.tiles_n:
                w(f"b{t} = P.lds4(u32(x{t} + {group // 2 * 64 * v.columns}))")
        w(weights.fragment(group))
        for t in v.tiles_n:
            weights.multiply(w, group, f"b{t}[{group % 2 * 2}], b{t}[{group % 2 * 2 + 1}]", f"c{t}_")
    for t in v.tiles_n:
        weights.scale_sums(w, f"c{t}_")
        w(f"x{t} = i32(x{t} + {256 * v.columns})")
    w("at = i32(at + 1)")


def _end_tile(w: Source, v: _Variant) -> None:
    w("at = i32(0)")
    for t in v.tiles_n:
        w(f"x{t} = x{t}_first")
    with w.block("if head:  # begun by an earlier warp"):
        _leave_part(w, v)
        w("head = False")
    with w.block("else:"):
        _store(w, v)
    w("row = i32(row + 16)")
    _load_row_factors(w)
    for t in v.tiles_n:
        w(f"{_sums(t, ' = ')} = f32(0)")


def _leave_part(w: Source, v: _Variant) -> None:
    for t in v.tiles_n:
        w(f"P.sts_f4(u32(shared + {v.places + v.warps * PLACE_BYTES * t} + tid * 16), {_sums(t)})")


def _add_parts(w: Source, v: _Variant) -> None:
    """The parts of the tile that the following warps did."""
    w("left = i32(steps - at); other = i32(warp + 1)")
    with w.block("while left > 0:"):
        w(f"place = i32(shared + {v.places} + other * {PLACE_BYTES} + lane * 16)")
        for t in v.tiles_n:
            w(f"theirs = P.lds_f4(u32(place + {v.warps * PLACE_BYTES * t}))")
            w("; ".join(f"c{t}_{i} += theirs[{i}]" for i in range(4)))
        w(f"left = i32(left - ((other + 1) * total // {v.warps} - other * total // {v.warps})); other = i32(other + 1)")
    _store(w, v)


def _store(w: Source, v: _Variant) -> None:
    """A finished tile: of two rows of weights for two rows of activations each lane."""
    for t in v.tiles_n:
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
                    w(f"partial = partials + ((i64(part) * {v.columns} + column) * tiles * 16 + row) * 4")
                    w("P.stg_f(partial, upper); P.stg_f(partial + 32, lower)")


def _add_slices(w: Source, v: _Variant) -> None:
    """The last of the blocks with the same tiles adds the sums of all slices, four rows of weights a thread."""
    w("""
        P.fence_gpu()
        P.bar_sync()
        if tid == 0:
            P.sts1(u32(shared), P.atom_inc(counters + i64(block) * 4, u32(parts - 1)))
        P.bar_sync()
    """)
    with w.block("if i32(P.lds1(u32(shared))) == parts - 1:"):
        w(f"P.fence_gpu(); quads = i32((tile1 - tile0) * 4); slice_bytes = i64(tiles) * {64 * v.columns}")
        with w.block(f"for i in range(tid, quads * rows, {v.threads}):"):
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

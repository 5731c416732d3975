"""All that lies between two mixers of a dense model in one launch, for up to 8 rows of activations.

    middle = residual + mixed Wᵀ(out)
    hidden_out = middle + (silu(gate) * up) Wᵀ(down), with gate | up = norm(middle) Wᵀ(gate_up)
    out = norm(hidden_out) Wᵀ(in)

One block runs on a multiprocessor, and all of them meet at a barrier between two of the four stages. The weights do not
wait for it: every warp has a list of all that it will multiply in the whole launch, and its ring in shared memory fills
with what follows the barrier while the block still waits. With programmatic overlap the rings fill while the kernel
before runs.

The products themselves are those of ``linear_gemv``: tiles of 16 rows, of which the warps of a block take equal parts
whatever their boundaries. What each does of a tile is a *piece* in shared memory, and pieces are added in the order of
columns. ``out`` and ``down`` have few tiles, so several blocks share them, each with a slice of the columns; the last
of them to arrive adds the slices, in order. No result depends on timing. Plain rows beside ``in`` (``side``) are whole
tiles of the first blocks, which have fewer of the others.

A warp more than the products need waits for other blocks and counts: its fences do not wait for rings to fill.

Shared memory: ``linear_block_layout.Shared``. Activations are halves in fragment order, as in ``linear_gemv``.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import linear_block_inputs as inputs
from kernels_numba.nvidia import linear_block_outputs as outputs
from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.linear_block_layout import (
    COUNTER_STRIDE,
    NVFP4_UNIT,
    RUNS,
    SIDE_UNIT,
    SLOT_BYTES,
    STAGES,
    Shared,
    Unit,
    activation_pitch,
)
from kernels_numba.nvidia.linear_formats import PLACE_BYTES
from kernels_numba.nvidia.text import Source

_PLAIN, _LAST, _NOTHING = 1 << 31, 1 << 30, 1 << 29
"""In the word of a run: without scales, the last of a stage, not to be copied."""
LONG = 0x7FFFFFFF
"""Units that never end."""
NOBODY = 1 << 16
"""Added to the numbers of the threads of the last warp."""
PARAMETERS = """w_out f_out w_gate_up f_gate_up w_down f_down w_in f_in w_side f_side
    mixed residual norm next_norm hidden_out out partials activated middle statistics counters
    rows mixed_width width inner in_rows side_rows out_stride out_slices down_slices beside slots stages eps"""


def waits(columns: int) -> dict[str, int]:
    """Names in the source that wait until at most so many groups of copies are under way."""
    return {"WAIT": Shared(columns).depth - 2}


def make(columns: int, warps: int) -> Any:
    named = {name: P.cp_wait(groups) for name, groups in waits(columns).items()}
    return P.function_of(source(columns, warps), "kernel", P=P, **named)


def source(columns: int, warps: int) -> str:
    """Grid: as many blocks as multiprocessors. ``counters`` are 0 before the first launch and belong to launches.

    ``partials``: float32, rows x width x the most slices; ``activated``: bfloat16 ``[8, inner]``; ``middle``: bfloat16
    ``[8, width]``; ``statistics``: float32 ``[2, blocks, 8]``; ``stages``: 4, or 3 to end with ``hidden_out``.
    """
    s = Shared(columns, warps)
    w = Source("kernel", PARAMETERS)
    _begin(w, s)
    with w.block("for stage in range(stages):"):
        _plan(w, s)
        _list_runs(w, s, "weights", NVFP4_UNIT)
    with w.block("if stages > 3:"):
        _side(w)
        _list_runs(w, s, "w_side", SIDE_UNIT)
    _fill(w, s)
    inputs.norm_scales(w, s)
    w(f"""
        P.pdl_wait()
        if block == 0 and counts:
            P.stg1(counters + {4 * COUNTER_STRIDE}, u32(0)); P.stg1(counters + {8 * COUNTER_STRIDE}, u32(0))
    """)
    with w.block("for stage in range(stages):"):
        _recall(w, s)
        outputs.find_factors(w)
        inputs.activations(w, s)
        _multiply(w, s, NVFP4_UNIT)
        _recall(w, s)
        with w.block("if stage == 1:"):
            outputs.activated(w, s)
        with w.block("elif stage == 3:"):
            outputs.plain(w, s, "0")
        with w.block("else:"):
            outputs.add_slices(w, s)
    with w.block("if stages > 3 and block < side_rows >> 4:"):
        _side(w)
        w("factors = f_side; pair_bytes = i64(0)")
        outputs.load_factors(w, "warp")
        w("P.bar_sync()")
        _multiply(w, s, SIDE_UNIT)
        outputs.plain(w, s, "in_rows")
    return str(w)


def _begin(w: Source, s: Shared) -> None:
    w(f"""
        P.pdl_launch()
        shared = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); counts = tid == {32 * s.warps}
        if tid >= {32 * s.warps}:  # what is done by thread, by lane or by warp is not for them
            tid = i32(tid + {NOBODY}); lane = i32(lane + 64)
        warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        block = i32(P.cta_x()); blocks = i32(P.ncta_x())
        pieces = i32(shared + {s.pieces}); activations = i32(pieces + slots * {PLACE_BYTES})
        x_first = i32(activations + (i32(P.i_min(u32(g), u32({s.columns - 1}))) * 4 + q) * 16)
        list_begin = i32(shared + {s.runs} + warp * {16 * RUNS}); list_end = i32(list_begin)
        ring = i32(shared + warp * {s.ring_bytes} + lane * 16)
    """)


def _plan(w: Source, s: Shared) -> None:
    """This block's tiles in a stage, noted for later: ``each`` units a tile."""
    for index, stage in enumerate(STAGES):
        with w.block("else:" if index == len(STAGES) - 1 else f"{'el' if index else ''}if stage == {index}:"):
            w(f"""
                weights = w_{stage.name}; tiles = i32({stage.rows} >> 4); units = i32({stage.columns} >> 7)
                slices = i32({stage.slices}); is_pair = i32({int(stage.is_pair)}); sides = i32({stage.sides})
            """)
    w(f"""
        groups = i32(P.u_div(u32(blocks), u32(slices))); group = i32(P.u_div(u32(block), u32(slices)))
        part = i32(block - group * slices); each = i32(P.u_div(u32(units), u32(slices)))
        index = i32(group - sides); shares = i32(groups - sides); before = i32(sides * beside)
        among = i32(tiles - before)
        if index < 0:
            index = i32(group); shares = i32(sides); among = i32(before); before = i32(0)
        tile0 = i32(before + i32(P.u_div(u32(index * among), u32(shares))))
        own = i32(before + i32(P.u_div(u32((index + 1) * among), u32(shares))) - tile0)
        if group >= groups:
            own = i32(0)
        listed = i32(own << is_pair); note = i32(shared + {s.plan} + stage * 32)
        if tid == 0:
            P.sts4(u32(note), u32(tile0), u32(own), u32(each), u32(part))
            P.sts4(u32(note + 16), u32(group), u32(groups), u32(slices), u32(listed))
    """)


def _recall(w: Source, s: Shared) -> None:
    """What ``_plan`` noted, which so takes no registers in between."""
    w(f"""
        noted = P.lds4(u32(shared + {s.plan} + stage * 32))
        tile0 = i32(noted[0]); own = i32(noted[1]); each = i32(noted[2]); part = i32(noted[3])
        noted = P.lds4(u32(shared + {s.plan} + stage * 32 + 16))
        group = i32(noted[0]); groups = i32(noted[1]); slices = i32(noted[2]); listed = i32(noted[3])
        total = i32(listed * each)
    """)


def _side(w: Source) -> None:
    """A tile of plain rows for each of the first blocks."""
    w(f"""
        tiles = i32(side_rows >> 4); units = i32(width >> {SIDE_UNIT.columns.bit_length() - 1}); each = i32(units)
        part = i32(0); tile0 = i32(block); own = i32(1)
        if block >= tiles:
            own = i32(0)
        listed = i32(own); total = i32(each)
    """)


def _list_runs(w: Source, s: Shared, weights: str, unit: Unit) -> None:
    """What this warp multiplies in a stage, by runs of units of one tile: address, number, and a word with the number
    of the tile on the block's list and the first unit."""
    w(f"""
        total = i32(listed * each); begin = i32(warp * total // {s.warps})
        count = i32((warp + 1) * total // {s.warps} - begin)
    """)
    with w.block(f"if count > 0 and warp < {s.warps}:"):
        w("first = i32(P.u_div(u32(begin), u32(each))); last = i32(P.u_div(u32(begin + count - 1), u32(each)) - first)")
        with w.block("if lane <= last:"):
            w(f"""
                at_tile = i32(first + lane); row_tile = i32(tile0 + at_tile)
                if at_tile >= own:
                    row_tile = i32(row_tile + tiles - own)
                start = i32(at_tile * each); stop = i32(start + each); at_unit = i32(0)
                if start < begin:
                    at_unit = i32(begin - start); start = i32(begin)
                stop = i32(P.i_min(u32(stop), u32(begin + count)))
                word = u32(at_tile << 16 | at_unit | {0 if unit.scale_words else _PLAIN})
                if lane == last:
                    word = P.u_or(word, u32({_LAST}))
                entry = i32(list_end + lane * 16)
                P.sts_l(u32(entry), {weights} + (i64(row_tile) * units + part * each + at_unit) * {unit.size_bytes})
                P.sts2(u32(entry + 8), u32(stop - start), word)
            """)
        w("list_end = i32(list_end + (last + 1) * 16)")


def _fill(w: Source, s: Shared) -> None:
    w(f"""
        left = i32({LONG}); copying = i32(0); scales = i32(0); at_step = i64(0); stride = i32(0)
        fetched = i32(list_begin); read_run = i32(list_begin)
        read = i32(ring); ring_end = i32(ring + {s.ring_bytes}); refill = i32(ring_end - {SLOT_BYTES})
        scales_at = i32(1024 + g * 16 - lane * 16)
        if warp < {s.warps}:
            if lane == 0:  # the list ends with what is never copied
                P.sts_l(u32(list_end), at_step); P.sts2(u32(list_end + 8), u32(left), u32({_PLAIN | _NOTHING}))
            left = i32(0)
        P.syncwarp()
    """)
    with w.block(f"for i in range({s.depth - 1}):"):
        _copy_unit(w, f"ring + i * {SLOT_BYTES}")


def _copy_unit(w: Source, target: str) -> None:
    """Copy what comes next on the list into the ring."""
    w(f"""
        if left == 0:
            at_step = P.lds_l(u32(fetched)) + lane * 16; counted = P.lds2(u32(fetched + 8)); left = i32(counted[0])
            plain = i32(P.u_shr(counted[1], u32(31))); nothing = i32(P.u_and(P.u_shr(counted[1], u32(29)), u32(1)))
            stride = i32({SLOT_BYTES} - plain * {SLOT_BYTES - 1024}); fetched = i32(fetched + 16)
            copying = i32(32 - nothing * 32); scales = i32(8 - plain * 8)
        P.cp_unit(u32({target}), at_step, lane, copying, scales); P.cp_commit()
        at_step += stride; left = i32(left - 1)
    """)


def _multiply(w: Source, s: Shared, unit: Unit) -> None:
    """This warp's units of a stage, and its pieces of tiles into shared memory."""
    pitch = activation_pitch(s.columns)
    w(f"more = i32(own)\nif warp >= {s.warps}:\n    more = i32(0)")
    with w.block("while more > 0:"):
        w(f"""
            run = P.lds2(u32(read_run + 8)); read_run = i32(read_run + 16); to_do = i32(run[0])
            at_unit = i32(P.u_and(run[1], u32(0xFFFF)))
            x = i32(x_first + at_unit * {unit.columns // 32 * pitch})
            c0 = c1 = c2 = c3 = f32(0)
        """)
        with w.block("while to_do > 0:"):
            _multiply_unit(w, s, unit)
            w("to_do = i32(to_do - 1)")
        w(f"""
            at_tile = i32(P.u_and(P.u_shr(run[1], u32(16)), u32(0xFFF)))
            if at_unit > 0:  # a tile that an earlier warp began
                at_tile = i32(listed + warp)
            P.sts_f4(u32(pieces + at_tile * {PLACE_BYTES} + lane * 16), c0, c1, c2, c3)
            more = i32(P.u_and(P.u_shr(run[1], u32(30)), u32(1)) ^ 1)
        """)


def _multiply_unit(w: Source, s: Shared, unit: Unit) -> None:
    pitch = activation_pitch(s.columns)
    w("WAIT(); P.syncwarp()")
    if unit.scale_words:
        w(f"S = P.lds{unit.scale_words}(u32(read + scales_at))")
    w("C0 = P.lds4(u32(read)); C1 = P.lds4(u32(read + 512))")
    _copy_unit(w, "refill")  # into the slot that all lanes read a turn ago
    w(f"""
        refill = i32(read); read = i32(read + {SLOT_BYTES})
        if read == ring_end:
            read = i32(ring)
    """)
    for group in range(unit.columns // 16):
        if group % 2 == 0:
            w(f"b = P.lds4(u32(x + {group // 2 * pitch}))")
        w(unit.fragment(group))
        w(f"c0, c1, c2, c3 = P.mma_f16(a0, a1, a2, a3, b[{group % 2 * 2}], b[{group % 2 * 2 + 1}], c0, c1, c2, c3)")
    w(f"x = i32(x + {unit.columns // 32 * pitch})")

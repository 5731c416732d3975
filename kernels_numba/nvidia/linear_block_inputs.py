"""Activations of a stage of the block kernel: read from memory, scaled by row and rounded to halves in fragment order.

A thread takes the same ``QUADS`` groups of four columns of every row.
"""

from __future__ import annotations

from kernels_numba.nvidia.linear_block_layout import (
    COUNTER_STRIDE,
    LOADED_ROWS,
    QUADS,
    SENDERS,
    STATISTICS_ROWS,
    Shared,
    activation_pitch,
)
from kernels_numba.nvidia.linear_conversion import set_scales
from kernels_numba.nvidia.text import WARP_OFFSETS, Source, bf16

LARGEST_NORMED = 7
"""Exponent of a bound of the root of ``width``: so much larger than its weight a normed value may be."""


def norm_scales(w: Source, s: Shared) -> None:
    """Powers of two that keep the values of both norms in the range of halves."""
    names = ("norm", "next_norm")
    w("quads = i32(width >> 2)")
    for index, name in enumerate(names):
        w("top = u32(0)")
        for j in range(QUADS):
            w(f"v = P.ldg4({name} + {_clamped(s, j)} * 16)")
            w("; ".join(f"top = P.u_max(top, P.u_and(v[{k}], u32({0x7FFFFFFF})))" for k in range(4)))
        _warp_max(w, "top")
        w(f"if lane == 0:\n    P.sts1(u32(shared + {s.per_warp} + (warp * {STATISTICS_ROWS} + {index}) * 4), top)")
    w("P.bar_sync()")
    for index in range(len(names)):
        _top_of_warps(w, s, str(index))
        set_scales(w)
        w(f"up = up * f32({2.0**-LARGEST_NORMED}); down = down * f32({2.0**LARGEST_NORMED})")
        w(f"if tid == 0:\n    P.sts_f2(u32(shared + {s.norms + 8 * index}), up, down)")


def activations(w: Source, s: Shared) -> None:
    """Those of ``stage`` into shared memory, and what each row's products are multiplied by."""
    _sources(w, s)
    with w.block("if stage > 0:"):
        w(f"""
            if counts:
                P.wait_for(counters + (stage - 1) * {4 * COUNTER_STRIDE}, u32(senders))
        """)
    w("P.bar_sync()")
    with w.block("if stage == 2 and block == 0 and counts:  # all have passed the first barrier"):
        w("P.stg1(counters, u32(0))")
    each = LOADED_ROWS[s.columns]
    chunks = [range(m, m + each) for m in range(0, s.columns, each)]
    _load(w, chunks[0])
    with w.block("if stage == 0:"):
        _scale_of_slice(w, s, chunks)
    with w.block("elif stage == 2:"):
        _scale_of_largest(w, s)
    with w.block("else:"):
        _scale_of_norm(w, s)
    w("P.bar_sync()")
    for chunk in chunks:
        if chunk is not chunks[0]:
            _load(w, chunk)
        _store(w, s, chunk)
    w("P.bar_sync()")


def _clamped(s: Shared, quad: int) -> str:
    return f"i64(P.i_min(u32(tid + {32 * s.warps * quad}), u32(quads - 1)))"


def _sources(w: Source, s: Shared) -> None:
    """Where rows come from, and what their columns are multiplied by: fetched before the block waits."""
    ones = "; ".join(f"n{j} = (f32(1), f32(1), f32(1), f32(1))" for j in range(QUADS))
    w(f"""
        weight = norm; quads = i32(each * 32); first_column = i32(part * each * 128); senders = i32(blocks); {ones}
        if stage == 0:
            x_from = mixed; x_stride = i32(mixed_width)
        elif stage == 2:
            x_from = activated; x_stride = i32(inner)
        else:
            x_from = middle; x_stride = i32(width)
            senders = i32(out_slices)
            if stage == 3:
                x_from = hidden_out; weight = next_norm
                senders = i32(down_slices)
            senders = i32(P.u_div(u32(blocks), u32(senders)))
    """)
    with w.block("if stage == 1 or stage == 3:"):
        for j in range(QUADS):
            w(f"n{j} = P.ldg_f4(weight + {_clamped(s, j)} * 16)")
    w(f"""
        x_from = x_from + i64(first_column) * 2
        {"; ".join(f"at{j} = {_clamped(s, j)} * 8" for j in range(QUADS))}
    """)


def _load(w: Source, rows: range) -> None:
    """``x<quad>_<place>``: four bfloat16 each. Rows from ``rows`` on are copies of the last."""
    for place, m in enumerate(rows):
        w(f"from_row = x_from + i64(P.i_min(u32({m}), u32(rows - 1))) * x_stride * 2")
        for j in range(QUADS):
            w(f"x{j}_{place} = P.ldg_l2_2(from_row + at{j})")


def _scale_of_slice(w: Source, s: Shared, chunks: list[range]) -> None:
    """Each row of this block's slice has a scale of its own."""
    for chunk in chunks:
        if chunk is not chunks[0]:
            _load(w, chunk)
        for place, m in enumerate(chunk):
            w(f"top{m} = u32(0)")
            for j in range(QUADS):
                for word in (f"x{j}_{place}[0]", f"x{j}_{place}[1]"):
                    w(f"top{m} = P.u_max(top{m}, P.u_and({word}, u32({0x7FFF0000})))")
                    w(f"top{m} = P.u_max(top{m}, P.u_and(P.u_shl({word}, u32(16)), u32({0x7FFF0000})))")
            _warp_max(w, f"top{m}")
            w(f"if lane == 0:\n    P.sts1(u32(shared + {s.per_warp} + (warp * {STATISTICS_ROWS} + {m}) * 4), top{m})")
    w("P.bar_sync()")
    with w.block(f"for m in range(warp, {s.columns}, {s.warps}):"):
        _top_of_warps(w, s, "m")
        set_scales(w)
        _set_row(w, s, "up", "down")
    if len(chunks) > 1:
        _load(w, chunks[0])


def _scale_of_norm(w: Source, s: Shared) -> None:
    """Groups of blocks have left the sums of squares."""
    with w.block(f"for m in range(warp, {s.columns}, {s.warps}):"):
        for k in range(SENDERS // 32):
            at = f"i64(P.i_min(u32(lane + {32 * k}), u32(senders - 1)))"
            w(f"square{k} = P.ldg_l2_f(statistics + ({at} * {STATISTICS_ROWS} + m) * 4)")
        w("square = f32(0)")
        for k in range(SENDERS // 32):
            w(f"if lane + {32 * k} < senders:\n    square += square{k}")
        w.warp_sum("square")
        w(f"scale = P.lds_f2(u32(shared + {s.norms} + (stage >> 1) * 8))")
        _set_row(w, s, "P.rsqrt(square / f32(width) + eps) * scale[0]", "scale[1]")


def _scale_of_largest(w: Source, s: Shared) -> None:
    """All blocks have left the largest magnitudes."""
    with w.block(f"for m in range(warp, {s.columns}, {s.warps}):"):
        for k in range(SENDERS // 32):
            at = f"i64(P.i_min(u32(lane + {32 * k}), u32(blocks - 1)))"
            w(f"top{k} = P.ldg_l2_f(statistics + (({at} + blocks) * {STATISTICS_ROWS} + m) * 4)")
        w("top = u32(0)")
        w("; ".join(f"top = P.u_max(top, P.f_bits(top{k}))" for k in range(SENDERS // 32)))
        _warp_max(w, "top")
        set_scales(w)
        _set_row(w, s, "up", "down")


def _store(w: Source, s: Shared, rows: range) -> None:
    """Halves in fragment order of the rows that were loaded last."""
    for place, m in enumerate(rows):
        w(f"up{place} = P.lds_f(u32(shared + {s.up + 4 * m}))")
    for j in range(QUADS):
        with w.block(f"if tid + {32 * s.warps * j} < quads:"):
            w(f"""
                quad = i32(tid + {32 * s.warps * j})
                start = i32(activations + (quad >> 3) * {activation_pitch(s.columns)})
                start = i32(start + (quad & 3) * 16 + ((quad >> 2) & 1) * 8)
            """)
            for place, m in enumerate(rows):
                words = []
                for word in range(2):
                    x = f"x{j}_{place}[{word}]"
                    low, high = (f"{bf16(x, h)} * up{place} * n{j}[{2 * word + h}]" for h in (0, 1))
                    words.append(f"P.h2_pack({low}, {high})")
                w(f"P.sts2(u32(start + {64 * m}), {', '.join(words)})")


def _set_row(w: Source, s: Shared, up: str, down: str) -> None:
    w(f"""
        if lane == 0:
            P.sts_f(u32(shared + {s.up} + m * 4), {up}); P.sts_f(u32(shared + {s.down} + m * 4), {down})
    """)


def _warp_max(w: Source, name: str) -> None:
    for offset in WARP_OFFSETS:
        w(f"{name} = P.u_max({name}, P.shfl_xor({name}, u32({offset})))")


def _top_of_warps(w: Source, s: Shared, row: str) -> None:
    lane = f"i32(P.i_min(u32(lane), u32({s.warps - 1})))"
    w(f"top = P.lds1(u32(shared + {s.per_warp} + ({lane} * {STATISTICS_ROWS} + {row}) * 4))")
    _warp_max(w, "top")

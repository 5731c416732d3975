"""Causal attention of many rows of one sequence over its paged bfloat16 keys and values.

Grid: (tiles, kv heads, splits). The queries that share keys are folded: row r is query head ``r % group`` of token
``r // group``, a tile TILE_ROWS of them, a warp 16. Tiles with long pasts come first. A block goes through the pages
``[split * most, (split + 1) * most)`` that its rows see: S = Q K^T of a page, a running softmax, O += P V, with the
results of the first product being the operand of the second (as in FlashAttention-2, arXiv 2307.08691). While one
product is computed, asynchronous copies bring in what the other needs next. Pages are as in ``attention_split.py``.

Positions that a row must not see are masked, and rows of values past the context are read from its last token instead:
what lies in the cache behind a context is never multiplied with.

Shared rows are not padded: 16-byte chunk c of row r lies at chunk ``c ^ (r & 7)``, free of bank conflicts for ldmatrix.

Output of a single split: ``out``, times the sigmoid of the gate. Else ``partial [split][kv head][tile row] head_dim``
unnormalised floats and ``statistics`` of the same rows, (maximum, sum), for ``attention_rows_combine.py``.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import PAGE_TOKENS, TILE_ROWS, TILE_WARPS
from kernels_numba.nvidia.text import Source, sigmoid

PARAMETERS = "query kv pages partial statistics gate out rows group first context page_bytes gate_bytes most exponent"
NONE, MASKED = "f32(-1e30)", "f32(-2e30)"
WAITS = {"WAIT": 1}
"""Keys are awaited while values are under way, and the other way round."""
THREADS = 32 * TILE_WARPS
TOKEN_TILES = PAGE_TOKENS // 8


def source(head_dim: int) -> str:
    """``first`` is the position of the first row's token; of ``context`` positions all are in the cache."""
    row_bytes, chunks = 2 * head_dim, head_dim // 8
    page_bytes = PAGE_TOKENS * row_bytes
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_wait()
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3)
        tiles = i32(P.ncta_x()); tile = i32(tiles - 1 - i32(P.cta_x())); head = i32(P.cta_y()); split = i32(P.cta_z())
        kv_heads = i32(P.ncta_y()); heads = i32(kv_heads * group); base = i32(tile * {TILE_ROWS})
        low = i32(first + i32(P.u_div(u32(base), u32(group))))
        high = i32(first + i32(P.u_div(P.i_min(u32(base + {TILE_ROWS - 1}), u32(rows - 1)), u32(group))))
        page = i32(split * most); end = i32(P.i_min(u32(page + most), u32((high + {PAGE_TOKENS}) >> 6)))
        keys = i32(sm + {page_bytes}); values = i32(sm + {2 * page_bytes})
        row = i32(tid >> {chunks.bit_length() - 1}); chunk = i32(tid & {chunks - 1})
        copy_to = i32(row * {row_bytes}); copy_chunk = i32((chunk ^ (row & 7)) * 16)
        copy_from = kv + (i64(head) * {2 * PAGE_TOKENS} + row) * {row_bytes} + chunk * 16
        lower = i32((lane & 7) + (lane >> 4) * 8); upper = i32(lane & 15)
    """)
    for i in range(4):
        w(f"across{i} = i32(upper * {row_bytes} + (({2 * i} + (lane >> 4)) ^ (lane & 7)) * 16)")
        w(f"key{i} = i32(keys + lower * {row_bytes} + (({2 * i} + ((lane >> 3) & 1)) ^ (lane & 7)) * 16)")
        w(f"value{i} = i32(values + across{i}); across{i} = i32(across{i} + sm + warp * {16 * row_bytes})")
    for i, name in enumerate(("row0", "row1")):
        w(f"{name} = i32(base + warp * 16 + {8 * i} + g)")
        w(f"limit{i} = i32(first + i32(P.u_div(P.i_min(u32({name}), u32(rows - 1)), u32(group))))")
    with w.block("if page < end:"):
        w("page_id = P.ldg_i(pages + i64(page) * 4)")
        _copy_queries(w, head_dim)
        _copy_page(w, head_dim, "keys")
        w("P.cp_commit()")
        _copy_values(w, head_dim)
        w("P.cp_commit()")
    w(f"m0 = {NONE}; m1 = {NONE}; l0 = f32(0); l1 = f32(0)")
    for n in range(head_dim // 8):
        w("; ".join(f"o{n}_{i} = f32(0)" for i in range(4)))
    with w.block("while page < end:"):
        w("WAIT(); P.bar_sync()")
        _score(w, head_dim)
        _mask(w)
        w("P.bar_sync(); page = i32(page + 1)")
        with w.block("if page < end:"):
            w("page_id = P.ldg_i(pages + i64(page) * 4)")
            _copy_page(w, head_dim, "keys")
        w("P.cp_commit()")
        _soften(w, head_dim)
        w("WAIT(); P.bar_sync()")
        _mix(w, head_dim)
        w("P.bar_sync()")
        with w.block("if page < end:"):
            _copy_values(w, head_dim)
        w("P.cp_commit()")
    w("P.pdl_launch()")
    w.warp_sum("l0", "l1", offsets=(1, 2))
    with w.block("if i32(P.ncta_z()) == 1:"):
        for i in range(2):
            _store(w, head_dim, i)
    with w.block("else:"):
        for i in range(2):
            _store_partial(w, head_dim, i)
    return str(w)


def _copy_queries(w: Source, head_dim: int) -> None:
    each = THREADS // (head_dim // 8)  # rows by one instruction of the block
    with w.block(f"for i in range(0, {TILE_ROWS}, {each}):"):
        w(f"""
            at = P.i_min(u32(base + i + row), u32(rows - 1)); token = P.u_div(at, u32(group))
            at = u32(i64(token) * heads + head * group + i64(at) - i64(token) * group)
            place = u32(sm + copy_to + i * {2 * head_dim} + (copy_chunk ^ ((i & 7) * 16)))
            P.cp_async16(place, query + i64(at) * {2 * head_dim} + chunk * 16)
        """)


def _copy_page(w: Source, head_dim: int, entry: str) -> None:
    each = THREADS // (head_dim // 8)
    w(f"target = i32({entry} + copy_to); origin = copy_from + i64(page_id) * page_bytes")
    if entry == "values":
        w(f"origin += {PAGE_TOKENS * 2 * head_dim}")
    for row in range(0, PAGE_TOKENS, each):
        place = f"u32(target + {row * 2 * head_dim} + (copy_chunk ^ {(row & 7) * 16}))"
        w(f"P.cp_async16({place}, origin + {row * 2 * head_dim})")


def _copy_values(w: Source, head_dim: int) -> None:
    """Of a whole page, or of the last one without what lies past the context."""
    each = THREADS // (head_dim // 8)
    with w.block(f"if page * {PAGE_TOKENS} + {PAGE_TOKENS} <= context:"):
        _copy_page(w, head_dim, "values")
    with w.block("else:"):
        w(f"""
            target = i32(values + copy_to); origin = copy_from + i64(page_id) * page_bytes
            origin += {PAGE_TOKENS * 2 * head_dim}
            rest = i32(context - 1 - page * {PAGE_TOKENS} - row)
            for i in range(0, {PAGE_TOKENS}, {each}):
                kept = i64(i32(P.i_min(u32(i), u32(rest)))) * {2 * head_dim}
                P.cp_async16(u32(target + i * {2 * head_dim} + (copy_chunk ^ ((i & 7) * 16))), origin + kept)
        """)


def _score(w: Source, head_dim: int) -> None:
    """``s``: rows g and g + 8 of the warp, tokens 2q and 2q + 1 of every 8 of the page."""
    for n in range(TOKEN_TILES):
        w("; ".join(f"s{n}_{i} = f32(0)" for i in range(4)))
    for k in range(head_dim // 16):
        w(f"a = P.ldsm4(u32(across{k % 4} + {128 * (k // 4)}))")
        for pair in range(TOKEN_TILES // 2):
            w(f"b = P.ldsm4(u32(key{k % 4} + {128 * (k // 4) + 32 * head_dim * pair}))")
            _mma(w, f"s{2 * pair}", "a[0], a[1], a[2], a[3]", "b[0], b[1]")
            _mma(w, f"s{2 * pair + 1}", "a[0], a[1], a[2], a[3]", "b[2], b[3]")


def _mma(w: Source, sums: str, a: str, b: str) -> None:
    names = ", ".join(f"{sums}_{i}" for i in range(4))
    w(f"{names} = P.mma_bf16({a}, {b}, {names})")


def _mask(w: Source) -> None:
    """Of positions after a row's own. Pages that all rows of the tile see need none."""
    with w.block(f"if page * {PAGE_TOKENS} + {PAGE_TOKENS - 1} > low:"):
        w(f"token = i32(page * {PAGE_TOKENS} + 2 * q)")
        for n in range(TOKEN_TILES):
            for i in range(4):
                w(f"if token + {8 * n + i % 2} > limit{i // 2}:\n    s{n}_{i} = {MASKED}")


def _soften(w: Source, head_dim: int) -> None:
    """Probabilities relative to the running maximum, in bfloat16: ``p``, the A of the second product."""
    for c in range(2):
        w(f"x{c} = m{c}")
        for n in range(TOKEN_TILES):
            w(f"x{c} = P.fmaxf(P.fmaxf(x{c}, s{n}_{2 * c}), s{n}_{2 * c + 1})")
        for offset in (1, 2):
            w(f"x{c} = P.fmaxf(x{c}, P.shfl_xor_f(x{c}, {offset}))")
        w(f"r{c} = P.ex2((m{c} - x{c}) * exponent); m{c} = x{c}; x{c} = -x{c} * exponent; l{c} *= r{c}")
        for n in range(TOKEN_TILES):
            w(f"y0 = P.ex2(P.fmaf(s{n}_{2 * c}, exponent, x{c})); y1 = P.ex2(P.fmaf(s{n}_{2 * c + 1}, exponent, x{c}))")
            w(f"l{c} += y0 + y1; p{n}_{c} = P.bf2_pack(y0, y1)")
    for n in range(head_dim // 8):
        w("; ".join(f"o{n}_{i} *= r{i // 2}" for i in range(4)))


def _mix(w: Source, head_dim: int) -> None:
    """``o`` += P V."""
    for pair in range(TOKEN_TILES // 2):
        a = f"p{2 * pair}_0, p{2 * pair}_1, p{2 * pair + 1}_0, p{2 * pair + 1}_1"
        for n in range(head_dim // 16):
            w(f"b = P.ldsm4t(u32(value{n % 4} + {128 * (n // 4) + 32 * head_dim * pair}))")
            _mma(w, f"o{2 * n}", a, "b[0], b[1]")
            _mma(w, f"o{2 * n + 1}", a, "b[2], b[3]")


def _store(w: Source, head_dim: int, half: int) -> None:
    with w.block(f"if row{half} < rows:"):
        w(f"""
            scale = P.rcp(l{half}); token = i64(limit{half} - first)
            column = (i64(head) * group + row{half} - token * group) * {head_dim} + 2 * q
            gates = gate + token * gate_bytes + column * 2; target = out + (token * heads * {head_dim} + column) * 2
        """)
        for n in range(head_dim // 8):
            w(f"x = P.ldg1(gates + {16 * n}); y0 = P.bf2_lo_f(x); y1 = P.bf2_hi_f(x)")
            even, odd = (f"o{n}_{2 * half + i} * scale * {sigmoid(f'y{i}')}" for i in range(2))
            w(f"P.stg1(target + {16 * n}, P.bf2_pack({even}, {odd}))")


def _store_partial(w: Source, head_dim: int, half: int) -> None:
    w(f"place = (i64(split) * kv_heads + head) * tiles * {TILE_ROWS} + row{half}")
    with w.block("if q == 0:"):
        w(f"P.stg_f2(statistics + place * 8, m{half}, l{half})")
    w(f"target = partial + place * {4 * head_dim} + q * 8")
    for n in range(head_dim // 8):
        w(f"P.stg_f2(target + {32 * n}, o{n}_{2 * half}, o{n}_{2 * half + 1})")


def make(head_dim: int) -> Any:
    return P.function_of(source(head_dim), "kernel", P=P, **{name: P.cp_wait(groups) for name, groups in WAITS.items()})

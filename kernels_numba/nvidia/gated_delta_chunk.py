"""Chunked gated delta rule, what every chunk of 64 tokens and head can do by itself.

With the running sum G of the log decay, D_ij = e^(G_i - G_j) for j <= i and B = diag(beta):
A = strict_lower(B K Kᵀ ∘ D); T = (I + A)⁻¹; corrected = T B V; carried = T B diag(e^G) K; within = lower(Q Kᵀ ∘ D).
(Yang et al., Gated Delta Networks, 2024.) Operands of products are halves, sums and the inverse are float32.

The inverse grows by halves: of diagonal blocks of 16 by elimination, a column a lane; then from blocks T₀, T₁ on the
diagonal and the system's A₁₀ below them, T₁₀ = -T₁ (A₁₀ T₀).
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import (
    CHUNK,
    CHUNK_BETA,
    CHUNK_DECAY,
    CHUNK_KEY,
    CHUNK_QUERY,
    CHUNK_SYSTEM,
    CHUNK_VALUE,
    HALF_PITCH,
    PITCH,
    ROW_BYTES,
    TILE_BYTES,
)
from kernels_numba.nvidia.text import Source, exp

PARAMETERS = "heads log_decay beta carried within decay chunks key_heads group"
WARPS = 4
BLOCK = 16
"""Rows of a warp in a product, and of the blocks inverted first."""
_TILES = CHUNK // 8
SCALED = {"b": CHUNK_SYSTEM, "e": CHUNK_SYSTEM + CHUNK * HALF_PITCH}


def source() -> str:
    """Grid (chunks, value heads); 4 warps.

    Reads what ``gated_delta_conv`` wrote; the corrected values take the place of the values in ``heads``. Writes halves
    ``carried`` [value heads, chunks * 64, 128] and ``within`` [value heads, chunks, 64, 64], and the running sum of the
    log decay in each chunk, float32 [value heads, chunks * 64].
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3); ra = i32(lane & 15); ca = i32((lane >> 4) * 16)
        rb = i32((lane & 7) + (lane >> 4) * 8); cb = i32(((lane >> 3) & 1) * 16)
        chunk = i32(P.cta_x()); h = i32(P.cta_y()); hk = i32(P.u_div(u32(h), u32(group)))
        tile = i64(h) * chunks + chunk; first = tile * {CHUNK}
        q_at = heads + (i64(hk) * chunks + chunk) * {TILE_BYTES}; k_at = q_at + i64(key_heads) * chunks * {TILE_BYTES}
        v_at = heads + i64(2 * key_heads) * chunks * {TILE_BYTES} + tile * {TILE_BYTES}
    """)
    _load(w)
    _products(w)
    w("P.bar_sync()")
    _invert_blocks(w)
    for size in (BLOCK, 2 * BLOCK):
        _join_blocks(w, size)
    _scale(w)
    _solutions(w)
    return str(w)


def _load(w: Source) -> None:
    w("r = i32(tid >> 4); x = i32((tid & 15) * 16)")
    for j in range(0, CHUNK, 8):
        w(f"at = i32((r + {j}) * {ROW_BYTES} + x); to = i32(sm + (r + {j}) * {PITCH} + x)")
        for name, start in (("k", CHUNK_KEY), ("q", CHUNK_QUERY), ("v", CHUNK_VALUE)):
            w(f"P.cp_async16(u32(to + {start}), {name}_at + at)")
    w("P.cp_commit()")
    with w.block("if warp == 0:"):
        w("pair = P.ldg_f2(log_decay + (first + lane * 2) * 4); sum = pair[0] + pair[1]")
        for offset in (1, 2, 4, 8, 16):
            w(f"sum += P.shfl_up_f(sum, {offset})")
        w(f"P.sts_f2(u32(sm + {CHUNK_DECAY} + lane * 8), sum - pair[1], sum)")
        w("P.stg_f2(decay + (first + lane * 2) * 4, sum - pair[1], sum)")
    with w.block("if warp == 1:"):
        w("pair = P.ldg_f2(beta + (first + lane * 2) * 4)")
        w(f"P.sts_f2(u32(sm + {CHUNK_BETA} + lane * 8), pair[0], pair[1])")
    w("copies_done(); P.bar_sync()")


def _products(w: Source) -> None:
    """K Kᵀ, of which the system's columns go into shared memory, then Q Kᵀ for ``within``; 16 rows a warp."""
    w(f"i0 = i32(warp * {BLOCK} + g); p_at = within + tile * {CHUNK * CHUNK * 2}")
    for part in range(2):
        w(f"g{part} = P.lds_f(u32(sm + {CHUNK_DECAY} + (i0 + {8 * part}) * 4))")
        w(f"b{part} = P.lds_f(u32(sm + {CHUNK_BETA} + (i0 + {8 * part}) * 4))")
    for start, excluded in ((CHUNK_KEY, "<="), (CHUNK_QUERY, "<")):
        for t in range(_TILES):
            w(f"a{t}_0 = a{t}_1 = a{t}_2 = a{t}_3 = f32(0)")
        with w.block(f"for k in range(0, {ROW_BYTES}, 32):"):
            w(f"a = P.ldsm4(u32(sm + {start} + k + (warp * {BLOCK} + ra) * {PITCH} + ca))")
            for t in range(0, _TILES, 2):
                w(f"b = P.ldsm4(u32(sm + {CHUNK_KEY + 8 * t * PITCH} + k + rb * {PITCH} + cb))")
                w.mma(f"a{t}", "a", "b[0]", "b[1]")
                w.mma(f"a{t + 1}", "a", "b[2]", "b[3]")
        for t in range(_TILES):
            w(f"j = i32({8 * t} + 2 * q); gj = P.lds_f2(u32(sm + {CHUNK_DECAY} + j * 4))")
            for part in range(2):
                w(f"i = i32(i0 + {8 * part})")
                for n in range(2):
                    w(f"e{n} = {exp(f'g{part} - gj[{n}]')} * a{t}_{2 * part + n}")
                    w(f"if i {excluded} j + {n}:\n    e{n} = f32(0)")
                if start == CHUNK_KEY:
                    w(f"to = i32(sm + {CHUNK_SYSTEM} + j * {PITCH} + i * 4)")
                    w(f"P.sts_f(u32(to), e0 * b{part}); P.sts_f(u32(to + {PITCH}), e1 * b{part})")
                else:
                    w(f"P.stg1(p_at + i * {2 * CHUNK} + j * 2, P.h2_pack(e0, e1))")


def _invert_blocks(w: Source) -> None:
    """A warp's block on the diagonal: lane c eliminates column c, the upper half of the warp does the same again."""
    w(f"c = i32(lane & {BLOCK - 1}); at = i32(sm + {CHUNK_SYSTEM} + warp * {BLOCK * (PITCH + 4)})")
    for i in range(BLOCK):
        w(f"t{i} = f32(0)\nif c == {i}:\n    t{i} = f32(1)")
    for j in range(BLOCK - 1):
        for i in range((j + 1) // 4 * 4, BLOCK, 4):
            w(f"y = P.lds_f4(u32(at + {j * PITCH + i * 4}))")
            for n in range(max(i, j + 1), i + 4):
                w(f"t{n} -= y[{n - i}] * t{j}")
    w(f"to = i32(sm + {CHUNK_QUERY} + warp * {BLOCK * (PITCH + 4)} + c * 4)")
    for i in range(BLOCK):
        w(f"P.sts_f(u32(to + {i * PITCH}), t{i})")
    w("P.bar_sync()")


def _log2(power: int) -> int:
    return power.bit_length() - 1


def _join_blocks(w: Source, size: int) -> None:
    """Inverses of ``size`` rows become those of twice as many; the product in between lies above the system."""
    threads = 32 * WARPS * 2 * size // CHUNK  # of a pair of blocks
    rows = size * size // threads  # of a thread, in one column
    w(f"""
        base = i32((tid >> {_log2(threads)}) * {2 * size}); c = i32(tid & {size - 1})
        r = i32(((tid & {threads - 1}) >> {_log2(size)}) * {rows})
        upper = i32(sm + {CHUNK_QUERY} + base * {PITCH + 4}); lower = i32(upper + {size * (PITCH + 4)})
        below = i32(sm + {CHUNK_SYSTEM} + base * {PITCH + 4} + {size * 4})
        between = i32(sm + {CHUNK_SYSTEM} + base * {PITCH + 4} + {size * PITCH})
    """)
    w("\n".join(f"y{m} = f32(0)" for m in range(rows)))
    with w.block(f"for k in range({size}):"):
        w(f"x = P.lds_f(u32(upper + k * {PITCH} + c * 4))")
        for m in range(0, rows, 4):
            w(f"f = P.lds_f4(u32(below + k * {PITCH} + (r + {m}) * 4))")
            w("; ".join(f"y{m + n} += f[{n}] * x" for n in range(4)))
    for m in range(rows):
        w(f"P.sts_f(u32(between + (r + {m}) * {PITCH} + c * 4), y{m}); y{m} = f32(0)")
    w("P.bar_sync()")
    with w.block(f"for k in range(0, {size}, 4):"):
        for n in range(4):
            w(f"x{n} = P.lds_f(u32(between + (k + {n}) * {PITCH} + c * 4))")
        for m in range(rows):
            w(f"f = P.lds_f4(u32(lower + (r + {m}) * {PITCH} + k * 4))")
            w(f"y{m} -= " + " + ".join(f"f[{n}] * x{n}" for n in range(4)))
    for m in range(rows):
        w(f"P.sts_f(u32(lower + (r + {m}) * {PITCH} + c * 4 - {4 * size}), y{m})")
        w(f"P.sts_f(u32(upper + (r + {m}) * {PITCH} + c * 4 + {4 * size}), f32(0))")
    w("P.bar_sync()")


def _scale(w: Source) -> None:
    """T B and T B diag(e^G) as halves where the system was; above the diagonal T was never made."""
    w(f"""
        j = i32(lane * 2); f = P.lds_f2(u32(sm + {CHUNK_BETA} + j * 4)); b0 = f[0]; b1 = f[1]
        f = P.lds_f2(u32(sm + {CHUNK_DECAY} + j * 4)); e0 = b0 * {exp("f[0]")}; e1 = b1 * {exp("f[1]")}
    """)
    with w.block(f"for i in range(warp, {CHUNK}, {WARPS}):"):
        w(f"""
            f = P.lds_f2(u32(sm + {CHUNK_QUERY} + i * {PITCH} + j * 4)); t0 = f[0]; t1 = f[1]
            if j > i:
                t0 = f32(0)
            if j + 1 > i:
                t1 = f32(0)
        """)
        for name, start in SCALED.items():
            w(f"P.sts1(u32(sm + {start} + i * {HALF_PITCH} + j * 2), P.h2_pack(t0 * {name}0, t1 * {name}1))")
    w("P.bar_sync()")


def _solutions(w: Source) -> None:
    """The corrected values and what the state is carried into, 16 rows a warp."""
    for name, start in SCALED.items():
        for k in range(CHUNK // BLOCK):
            w(f"f{name}{k} = P.ldsm4(u32(sm + {start + 32 * k} + (warp * {BLOCK} + ra) * {HALF_PITCH} + ca))")
    w(f"b_at = v_at + i0 * {ROW_BYTES} + q * 4; e_at = carried + tile * {TILE_BYTES} + i0 * {ROW_BYTES} + q * 4")
    with w.block(f"for columns in range(0, {ROW_BYTES}, 32):"):
        for s in range(2):
            w(f"b{s}_0 = b{s}_1 = b{s}_2 = b{s}_3 = e{s}_0 = e{s}_1 = e{s}_2 = e{s}_3 = f32(0)")
        for k in range(CHUNK // BLOCK):
            for name, start in (("b", CHUNK_VALUE), ("e", CHUNK_KEY)):
                w(f"f = P.ldsm4t(u32(sm + {start + BLOCK * k * PITCH} + columns + ra * {PITCH} + ca))")
                for s in range(2):
                    w.mma(f"{name}{s}", f"f{name}{k}", f"f[{2 * s}]", f"f[{2 * s + 1}]")
        for s in range(2):
            for name in SCALED:
                for part in range(2):
                    words = f"P.h2_pack({name}{s}_{2 * part}, {name}{s}_{2 * part + 1})"
                    w(f"P.stg1({name}_at + columns + {16 * s + 8 * part * ROW_BYTES}, {words})")


def make() -> Any:
    return P.function_of(source(), "kernel", P=P, copies_done=P.cp_wait(0))

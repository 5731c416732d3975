"""Chunked gated delta rule, what every chunk of 64 tokens and head can do by itself: conv, gates and norms included.

With the running sum G of the log decay, D_ij = e^(G_i - G_j) for j <= i and B = diag(beta):
A = strict_lower(B K Kᵀ ∘ D); T = (I + A)⁻¹; corrected = T B V; carried = T B diag(e^G) K;
within = lower(Q Kᵀ ∘ D).
(Yang et al., Gated Delta Networks, 2024.) Operands of products are halves, sums and the inverse are float32.

A block takes a chunk of a key head and of all its value heads, one after the other.

Rows of V whose largest value is beyond 2^10 are divided by a power of two to get back there, which the factor of their
column of T makes good; so that this factor fits halves too, corrected values are in units of the largest such power.

Tokens up to the next whole chunk are zeros, with beta 0 and no decay: they leave the state as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_inverse import BLOCK, WARPS, invert
from kernels_numba.nvidia.gated_delta_layout import (
    CHUNK,
    CHUNK_BETA,
    CHUNK_DECAY,
    CHUNK_KEY,
    CHUNK_POWER,
    CHUNK_QUERY,
    CHUNK_SYSTEM,
    CHUNK_VALUE,
    DIM,
    HALF_PITCH,
    HISTORY,
    LARGEST,
    PITCH,
    ROW_BYTES,
    TAPS,
    TILE_BYTES,
)
from kernels_numba.nvidia.gated_delta_state import rolled
from kernels_numba.nvidia.text import Source, bf16, exp, sigmoid, silu, softplus
from kernels_numba.shapes import L2_EPS

PARAMETERS = """projected conv slots conv_weight decay_rate dt_bias heads carried within factors units
    row_stride conv_stride tokens chunks key_heads value_heads"""
AT_ONCE = 8
"""Tokens whose rows are fetched together."""
_TILES = CHUNK // 8
SCALED = {"b": CHUNK_SYSTEM, "e": CHUNK_SYSTEM + CHUNK * HALF_PITCH}


def source() -> str:
    """Grid (chunks, key heads); 4 warps; strides in bytes. ``conv`` points at the layer in slot 0.

    Writes halves: ``heads`` [query heads | key heads | value heads, chunks, 64, 128], of which the latter are corrected
    values by column, 4 times 8 pairs of tokens, as a lane of ``gated_delta_scan`` wants them; ``carried`` [value
    heads, chunks, 64, 128]; ``within`` [value heads, chunks, 64, 64]. And float32: ``factors`` [value heads, chunks, 2,
    64], by which the state's part has grown at every token, and how much of a token is left at the end; ``units``
    [value heads, chunks].
    """
    w = Source("kernel", PARAMETERS)
    w(f"""
        sm = P.smem_base(); tid = i32(P.tid_x()); lane = i32(tid & 31); warp = i32(tid >> 5)
        g = i32(lane >> 2); q = i32(lane & 3); ra = i32(lane & 15); ca = i32((lane >> 4) * 16)
        rb = i32((lane & 7) + (lane >> 4) * 8); cb = i32(((lane >> 3) & 1) * 16)
        chunk = i32(P.cta_x()); hk = i32(P.cta_y()); group = i32(P.u_div(u32(value_heads), u32(key_heads)))
        channels = i32({2 * DIM} * key_heads + {DIM} * value_heads)
        first = i32(chunk * {CHUNK} + warp * {BLOCK}); past = conv + P.ldg_l(slots) * conv_stride
        i0 = i32(warp * {BLOCK} + g)
    """)
    with rolled(w, "which", "0", "2"):
        w(f"""
            head = i32(which * key_heads + hk); scale = f32(1)
            to = i32(sm + {CHUNK_KEY} + warp * {BLOCK * PITCH} + lane * 8)
            kept = heads + (i64(head) * chunks + chunk) * {TILE_BYTES} + warp * {BLOCK * ROW_BYTES} + lane * 8
            if which == 0:
                scale = f32({DIM**-0.5}); to = i32(to + {CHUNK_QUERY - CHUNK_KEY})
        """)
        _conv(w, _normed_token)
    w("P.bar_sync()")
    _products(w, "p", CHUNK_QUERY)
    for t in range(_TILES):  # few registers, as they stay
        w("; ".join(f"h{t}_{part} = P.h2_pack(p{t}_{2 * part}, p{t}_{2 * part + 1})" for part in range(2)))
    w("P.bar_sync()")
    with w.block("for member in range(group):"):
        w(f"""
            h = i32(hk * group + member); head = i32(2 * key_heads + h)
            to = i32(sm + {CHUNK_VALUE} + warp * {BLOCK * PITCH} + lane * 8); tile = i64(h) * chunks + chunk
        """)
        _conv(w, _value_token)
        _gates(w)
        w("P.bar_sync()")
        _products(w, "a", CHUNK_KEY)  # again for every head: cheaper than to keep them
        _system(w)
        w("P.bar_sync()")
        invert(w)
        _scale(w)
        _carried(w)
        _corrected(w)
        w("P.bar_sync()")
    return str(w)


def _conv(w: Source, token: Callable[[Source, int], None]) -> None:
    """``y0`` to ``y3``: channels 4 lane to 4 lane + 3 of ``head`` after conv and SiLU, of the warp's 16 tokens."""
    w(f"c = i32(head * {DIM} + lane * 4); at = projected + i64(c) * 2")
    for tap in range(TAPS):
        w(f"w{tap} = P.ldg_f4(conv_weight + (i64(channels) * {tap} + c) * 4)")
    with w.block("if first == 0:"):  # what the state remembers, [channels, 3]
        for i in range(3):
            w(f"p{i} = P.ldg2(past + i64(c) * {2 * HISTORY} + {8 * i})")
        for i in range(4 * HISTORY):
            w(f"x{i % HISTORY}_{i // HISTORY} = {bf16(f'p{i // 4}[{i // 2 % 2}]', i % 2)}")
    with w.block("else:"):
        for tap in range(HISTORY):
            w(f"p = P.ldg2(at + i64(P.i_min(u32(first - {HISTORY - tap}), u32(tokens - 1))) * row_stride)")
            for c in range(4):
                w(f"x{tap}_{c} = {bf16(f'p[{c // 2}]', c % 2)}")
    with rolled(w, "i", "0", f"{BLOCK}", AT_ONCE):
        for j in range(AT_ONCE):
            w(f"u{j} = P.ldg2(at + i64(P.i_min(u32(first + i + {j}), u32(tokens - 1))) * row_stride)")
        for j in range(AT_ONCE):
            for c in range(4):
                w(f"x{HISTORY}_{c} = {bf16(f'u{j}[{c // 2}]', c % 2)}")
                w(f"y = {' + '.join(f'x{tap}_{c} * w{tap}[{c}]' for tap in range(TAPS))}; y{c} = {silu('y')}")
                for tap in range(HISTORY):
                    w(f"x{tap}_{c} = x{tap + 1}_{c}")
            token(w, j)


def _normed_token(w: Source, j: int) -> None:
    """A row of query or key, which ``gated_delta_scan`` wants too."""
    w("square = " + " + ".join(f"y{c} * y{c}" for c in range(4)))
    w.warp_sum("square")
    w(f"""
        factor = P.rsqrt(square + f32({L2_EPS})) * scale
        if first + i + {j} >= tokens:
            factor = f32(0)
        a0 = P.h2_pack(y0 * factor, y1 * factor); a1 = P.h2_pack(y2 * factor, y3 * factor)
        P.sts2(u32(to + i32(i + {j}) * {PITCH}), a0, a1); P.stg2(kept + (i + {j}) * {ROW_BYTES}, a0, a1)
    """)


def _value_token(w: Source, j: int) -> None:
    w("most = P.fmax_abs(P.fmax_abs(P.fmax_abs(P.fmax_abs(f32(0), y0), y1), y2), y3)")
    for offset in (16, 8, 4, 2, 1):
        w(f"most = P.fmaxf(most, P.shfl_xor_f(most, {offset}))")
    w(f"""
        power = P.fmaxf(P.bits_f(P.u_and(P.f_bits(most), u32(0x7F800000))) * f32({1 / LARGEST}), f32(1))
        factor = P.rcp(power)
        if first + i + {j} >= tokens:
            factor = f32(0); power = f32(1)
        a0 = P.h2_pack(y0 * factor, y1 * factor); a1 = P.h2_pack(y2 * factor, y3 * factor)
        P.sts2(u32(to + i32(i + {j}) * {PITCH}), a0, a1)
        if lane == 0:
            P.sts_f(u32(sm + {CHUNK_POWER} + i32(warp * {BLOCK} + i + {j}) * 4), power)
    """)


def _gates(w: Source) -> None:
    """Two tokens a lane of the first warp."""
    with w.block("if warp == 0:"):
        w(f"b_at = projected + i64(channels + {DIM} * value_heads + h) * 2; rate = P.ldg_f(decay_rate + i64(h) * 4)")
        w("bias = P.ldg_f(dt_bias + i64(h) * 4)")
        for n in range(2):
            w(f"""
                t = i32(chunk * {CHUNK} + lane * 2 + {n})
                row = b_at + i64(P.i_min(u32(t), u32(tokens - 1))) * row_stride
                x = {bf16("P.ldg_u16(row + value_heads * 2)", 0)} + bias
            """)
            softplus(w, "soft", "x")
            w(f"x = {bf16('P.ldg_u16(row)', 0)}; beta{n} = {sigmoid('x')}; decay{n} = rate * soft")
            w(f"if t >= tokens:\n    decay{n} = f32(0); beta{n} = f32(0)")
        w("sum = decay0 + decay1")
        for offset in (1, 2, 4, 8, 16):
            w(f"sum += P.shfl_up_f(sum, {offset})")
        w(f"""
            last = P.shfl_idx_f(sum, u32(31)); before = sum - decay1
            to_factors = factors + tile * {8 * CHUNK} + lane * 8
            P.sts_f2(u32(sm + {CHUNK_DECAY} + lane * 8), before, sum)
            P.sts_f2(u32(sm + {CHUNK_BETA} + lane * 8), beta0, beta1)
            P.stg_f2(to_factors, {exp("before")}, {exp("sum")})
            P.stg_f2(to_factors + {4 * CHUNK}, {exp("last - before")}, {exp("last - sum")})
        """)


def _products(w: Source, name: str, start: int) -> None:
    """``name``: 16 rows a warp of the tile at ``start`` times Kᵀ."""
    for t in range(_TILES):
        w(f"{name}{t}_0 = {name}{t}_1 = {name}{t}_2 = {name}{t}_3 = f32(0)")
    with rolled(w, "k", "0", f"{ROW_BYTES}", 32):
        w(f"v = P.ldsm4(u32(sm + {start} + k + (warp * {BLOCK} + ra) * {PITCH} + ca))")
        for t in range(0, _TILES, 2):
            w(f"b = P.ldsm4(u32(sm + {CHUNK_KEY + 8 * t * PITCH} + k + rb * {PITCH} + cb))")
            w.mma(f"{name}{t}", "v", "b[0]", "b[1]")
            w.mma(f"{name}{t + 1}", "v", "b[2]", "b[3]")


def _system(w: Source) -> None:
    """The system's columns into shared memory, and ``within``."""
    w(f"p_at = within + tile * {CHUNK * CHUNK * 2}")
    for part in range(2):
        w(f"g{part} = P.lds_f(u32(sm + {CHUNK_DECAY} + (i0 + {8 * part}) * 4))")
        w(f"b{part} = P.lds_f(u32(sm + {CHUNK_BETA} + (i0 + {8 * part}) * 4))")
    for t in range(_TILES):
        w(f"j = i32({8 * t} + 2 * q); gj = P.lds_f2(u32(sm + {CHUNK_DECAY} + j * 4))")
        for part in range(2):
            w(f"i_ = i32(i0 + {8 * part})")
            for n in range(2):
                # a factor of 0, not of infinity, where a token is not seen
                w(f"e{n} = {exp(f'P.fminf(g{part} - gj[{n}], f32(0))')}")
                w(f"if i_ < j + {n}:\n    e{n} = f32(0)")
            w(f"P.stg1(p_at + i_ * {2 * CHUNK} + j * 2, P.h2_mul(h{t}_{part}, P.h2_pack(e0, e1)))")
            for n in range(2):
                w(f"if i_ == j + {n}:\n    e{n} = f32(0)")
            w(f"entry = i32(sm + {CHUNK_SYSTEM} + j * {PITCH} + i_ * 4)")
            for n in range(2):
                w(f"P.sts_f(u32(entry + {n * PITCH}), e{n} * b{part} * a{t}_{2 * part + n})")


def _scale(w: Source) -> None:
    """T B and T B diag(e^G) as halves where the system was; above the diagonal T was never made."""
    w(f"""
        j = i32(lane * 2); f = P.lds_f2(u32(sm + {CHUNK_BETA} + j * 4)); b0 = f[0]; b1 = f[1]
        f = P.lds_f2(u32(sm + {CHUNK_DECAY} + j * 4)); e0 = b0 * {exp("f[0]")}; e1 = b1 * {exp("f[1]")}
        f = P.lds_f2(u32(sm + {CHUNK_POWER} + j * 4)); unit = P.fmaxf(f[0], f[1])
    """)
    for offset in (16, 8, 4, 2, 1):
        w(f"unit = P.fmaxf(unit, P.shfl_xor_f(unit, {offset}))")
    w("factor = P.rcp(unit); b0 *= f[0] * factor; b1 *= f[1] * factor")
    w("if tid == 0:\n    P.stg_f(units + tile * 4, unit)")
    with rolled(w, "base_", "0", f"{CHUNK}", WARPS):  # as often in all warps
        w(f"""
            row_ = i32(base_ + warp)
            f = P.lds_f2(u32(sm + {CHUNK_QUERY} + row_ * {PITCH} + j * 4)); t0 = f[0]; t1 = f[1]
            if j > row_:
                t0 = f32(0)
            if j + 1 > row_:
                t1 = f32(0)
        """)
        for name, start in SCALED.items():
            w(f"P.sts1(u32(sm + {start} + row_ * {HALF_PITCH} + j * 2), P.h2_pack(t0 * {name}0, t1 * {name}1))")
    w("P.bar_sync()")


def _carried(w: Source) -> None:
    """16 rows a warp."""
    for k in range(CHUNK // BLOCK):
        w(f"f{k} = P.ldsm4(u32(sm + {SCALED['e'] + 32 * k} + (warp * {BLOCK} + ra) * {HALF_PITCH} + ca))")
    w(f"e_at = carried + tile * {TILE_BYTES} + i0 * {ROW_BYTES} + q * 4")
    with rolled(w, "columns", "0", f"{ROW_BYTES}", 64):
        for s in range(4):
            w(f"y{s}_0 = y{s}_1 = y{s}_2 = y{s}_3 = f32(0)")
        for k in range(CHUNK // BLOCK):
            for s in range(0, 4, 2):
                w(f"b = P.ldsm4t(u32(sm + {CHUNK_KEY + BLOCK * k * PITCH + 16 * s} + columns + ra * {PITCH} + ca))")
                w.mma(f"y{s}", f"f{k}", "b[0]", "b[1]")
                w.mma(f"y{s + 1}", f"f{k}", "b[2]", "b[3]")
        for s in range(4):
            for part in range(2):
                words = f"P.h2_pack(y{s}_{2 * part}, y{s}_{2 * part + 1})"
                w(f"P.stg1(e_at + columns + {16 * s + 8 * part * ROW_BYTES}, {words})")


def _corrected(w: Source) -> None:
    """Transposed, 16 columns at a time and twice a warp; no token sees those behind it."""
    with rolled(w, "half_", "0", "2"):
        w(f"column = i32(warp * 32 + half_ * {BLOCK})")
        for t in range(_TILES):
            w(f"y{t}_0 = y{t}_1 = y{t}_2 = y{t}_3 = f32(0)")
        for k in range(CHUNK // BLOCK):
            w(f"f = P.ldsm4t(u32(sm + {CHUNK_VALUE + BLOCK * k * PITCH} + rb * {PITCH} + cb + column * 2))")
            for t in range(2 * k, _TILES, 2):
                w(f"b = P.ldsm4(u32(sm + {SCALED['b'] + 8 * t * HALF_PITCH + 32 * k} + rb * {HALF_PITCH} + cb))")
                w.mma(f"y{t}", "f", "b[0]", "b[1]")
                w.mma(f"y{t + 1}", "f", "b[2]", "b[3]")
        w(f"u_at = heads + (i64(2 * key_heads) * chunks + tile) * {TILE_BYTES} + (column + g) * {2 * CHUNK} + q * 32")
        for part in range(2):
            words = [f"P.h2_pack(y{t}_{2 * part}, y{t}_{2 * part + 1})" for t in range(_TILES)]
            for n in range(0, _TILES, 4):
                w(f"P.stg4(u_at + {8 * part * 2 * CHUNK + 4 * n}, {', '.join(words[n : n + 4])})")


def make() -> Any:
    return P.function_of(source(), "kernel", P=P)

"""Query and key norms, partial rope and the write of keys and values to the paged cache: one warp a head of a token.

Grid: (tokens, (query heads + 2 kv heads) / APPEND_WARPS). Heads count through query, key and value heads. A lane holds
``head_dim / 32`` neighbouring dimensions; the other one of each rotated pair sits in the same place of another lane.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import APPEND_WARPS, PAGE_TOKENS
from kernels_numba.nvidia.text import Source, bf16

PARAMETERS = (
    "projected query_norm key_norm cos sin kv slots query "
    "row_bytes heads kv_heads half_rotary page_bytes layer_bytes eps"
)


def source(head_dim: int) -> str:
    """``projected`` rows of ``row_bytes`` hold query | gate | key | value; a token is ``layer_bytes`` into its page."""
    each = head_dim // 32
    words, floats = range(each // 2), range(each)
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        lane = i32(P.lane_id()); token = i64(P.cta_x())
        head = i32(i32(P.cta_y()) * {APPEND_WARPS} + i32(P.tid_x() >> 5))
        if head >= heads + 2 * kv_heads:
            return
        slot = P.ldg_l(slots + token * 8)
        column = i32(head * {head_dim} + lane * {each})
        if head >= heads:
            column = i32(column + heads * {head_dim})
        raw = {_load_words("projected + token * row_bytes + i64(column) * 2", each)}
        cached = kv + (slot >> 6) * page_bytes + layer_bytes + (slot & 63) * {2 * head_dim} + lane * {2 * each}
    """)
    with w.block("if head >= heads + kv_heads:"):
        w(f"cached += i64(head - heads - kv_heads) * {PAGE_TOKENS * head_dim * 4} + {PAGE_TOKENS * head_dim * 2}")
        w(_store_words("cached", [f"raw[{i}]" for i in words]))
        w("return")
    w("weight = query_norm")
    with w.block("if head >= heads:"):
        w("weight = key_norm")
    for i in range(each // _vector(each)):
        w(f"n{i} = P.ldg_f{_vector(each)}(weight + lane * {4 * each} + {4 * _vector(each) * i})")
    for i in floats:
        w(f"x{i} = {bf16(f'raw[{i // 2}]', i % 2)}")
    w("square = " + " + ".join(f"x{i} * x{i}" for i in floats))
    w.warp_sum("square")
    w(f"factor = P.rsqrt(square * f32({1 / head_dim}) + eps)")
    for i in floats:
        w(f"x{i} *= factor * n{i // _vector(each)}[{i % _vector(each)}]")
    w(f"""
        apart = i32(P.u_div(u32(half_rotary), u32({each})))
        partner = lane; sign = f32(0); angle = i32(0)
        if lane < apart:
            partner = i32(lane + apart); sign = f32(-1); angle = i32(lane * {each})
        if lane >= apart:
            if lane < 2 * apart:
                partner = i32(lane - apart); sign = f32(1); angle = i32(partner * {each})
        angles = (token * half_rotary + angle) * 4
    """)
    for i in floats:
        w(f"y{i} = P.shfl_idx_f(x{i}, u32(partner))")
    with w.block("if lane < 2 * apart:"):
        for i in range(each // _vector(each)):
            at = f"angles + {4 * _vector(each) * i}"
            w(f"c{i} = P.ldg_f{_vector(each)}(cos + {at}); s{i} = P.ldg_f{_vector(each)}(sin + {at})")
        for i in floats:
            part = f"{i // _vector(each)}[{i % _vector(each)}]"
            w(f"x{i} = x{i} * c{part} + sign * y{i} * s{part}")
    packed = [f"P.bf2_pack(x{2 * i}, x{2 * i + 1})" for i in words]
    with w.block("if head < heads:"):
        w(_store_words(f"query + (token * heads + head) * {2 * head_dim} + lane * {2 * each}", packed))
    with w.block("else:"):
        w(f"cached += i64(head - heads) * {PAGE_TOKENS * head_dim * 4}")
        w(_store_words("cached", packed))
    return str(w)


def _vector(each: int) -> int:
    """Floats of one load."""
    return min(each, 4)


def _load_words(address: str, each: int) -> str:
    return f"P.ldg{each // 2}({address})" if each > 2 else f"(P.ldg1({address}),)"


def _store_words(address: str, words: list[str]) -> str:
    return f"P.stg{len(words)}({address}, {', '.join(words)})"


def make(head_dim: int) -> Any:
    """The kernel for heads of 64, 128 or 256 dimensions; both halves of what rotates fill whole lanes."""
    return P.function_of(source(head_dim), "kernel", P=P)

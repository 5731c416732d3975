"""Query and key norms, partial rope, rotation, and the write of keys and values to the paged cache: a warp a head.

Grid: (tokens, (query heads + 2 kv heads) / APPEND_WARPS). Heads count through query, key and value heads. A lane holds
``head_dim / 32`` neighbouring dimensions; the other one of each rotated pair sits in the same place of another lane.

Where the codec rotates, keys are rounded to bfloat16 before and after the Hadamard matrix, whose butterflies go by
ascending stride, first within a lane, then between lanes: the bytes are those of the plain encoder for the same keys.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.append_codes import quantise, store_key, store_value
from kernels_numba.nvidia.append_kernels import APPEND_WARPS
from kernels_numba.nvidia.attention_kernels import PAGE_TOKENS
from kernels_numba.nvidia.text import Source, bf16

PARAMETERS = (
    "projected query_norm key_norm cos sin kv slots query "
    "row_bytes heads kv_heads half_rotary page_bytes layer_bytes eps"
)


def source(*arguments: Any) -> str:
    """Of ``append_arguments``. ``projected`` rows of ``row_bytes`` hold query | gate | key | value; a token is
    ``layer_bytes`` into its page."""
    key, value, rotates, head_dim, key_scales, values, value_scales, run_bytes = arguments
    each = head_dim // 32
    words, floats = range(each // 2), range(each)
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch()
        lane = i32(P.lane_id()); row = i64(P.cta_x())
        head = i32(i32(P.cta_y()) * {APPEND_WARPS} + i32(P.tid_x() >> 5))
        if head >= heads + 2 * kv_heads:
            return
        weight = query_norm; kv_head = i32(0); column = i32(head * {head_dim} + lane * {each})
        if head >= heads:
            weight = key_norm; kv_head = i32(head - heads); column = i32(column + heads * {head_dim})
        if head >= heads + kv_heads:
            kv_head = i32(kv_head - kv_heads)
    """)
    for i in range(each // _vector(each)):
        w(f"n{i} = P.ldg_f{_vector(each)}(weight + lane * {4 * each} + {4 * _vector(each) * i})")
    w(f"""
        P.pdl_wait()
        raw = {_load_words("projected + row * row_bytes + i64(column) * 2", each)}
        slot = P.ldg_l(slots + row * 8); token = i32(slot & {PAGE_TOKENS - 1})
        run = kv + (slot >> 6) * page_bytes + layer_bytes + i64(kv_head) * {run_bytes}
    """)
    for i in floats:
        w(f"x{i} = {bf16(f'raw[{i // 2}]', i % 2)}")
    with w.block("if head >= heads + kv_heads:"):
        if value == "bf16":
            place = f"run + {values} + token * {2 * head_dim} + lane * {2 * each}"
            w(_store_words(place, [f"raw[{i}]" for i in words]))
        else:
            quantise(w, value)
            store_value(w, value, values, value_scales)
        w("return")
    _norm_and_rope(w, head_dim)
    packed = [f"P.bf2_pack(x{2 * i}, x{2 * i + 1})" for i in words]
    if rotates:
        with w.block("if head >= heads:"):
            _round(w, each)
        _rotate(w, head_dim)
    with w.block("if head < heads:"):
        w(_store_words(f"query + (row * heads + head) * {2 * head_dim} + lane * {2 * each}", packed))
        w("return")
    if key == "bf16":
        w(_store_words(f"run + token * {2 * head_dim} + lane * {2 * each}", packed))
    else:
        _round(w, each)
        quantise(w, key)
        store_key(w, key, key_scales)
    return str(w)


def _norm_and_rope(w: Source, head_dim: int) -> None:
    each = head_dim // 32
    floats = range(each)
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
        angles = (row * half_rotary + angle) * 4
    """)
    for i in floats:
        w(f"y{i} = P.shfl_idx_f(x{i}, u32(partner))")
    with w.block("if lane < 2 * apart:"):
        for i in range(each // _vector(each)):
            at = f"angles + {4 * _vector(each) * i}"
            w(f"cos{i} = P.ldg_f{_vector(each)}(cos + {at}); sin{i} = P.ldg_f{_vector(each)}(sin + {at})")
        for i in floats:
            part = f"{i // _vector(each)}[{i % _vector(each)}]"
            w(f"x{i} = x{i} * cos{part} + sign * y{i} * sin{part}")


def _round(w: Source, each: int) -> None:
    """To bfloat16."""
    for i in range(each // 2):
        w(f"r = P.bf2_pack(x{2 * i}, x{2 * i + 1}); x{2 * i} = P.bf2_lo_f(r); x{2 * i + 1} = P.bf2_hi_f(r)")


def _rotate(w: Source, head_dim: int) -> None:
    """By the Hadamard matrix in natural order, which is orthonormal."""
    each = head_dim // 32
    for stride in (1 << bit for bit in range(each.bit_length() - 1)):
        for i in range(each):
            if not i & stride:
                w(f"y = x{i}; x{i} = P.add_rn(y, x{i | stride}); x{i | stride} = P.sub_rn(y, x{i | stride})")
    for lanes in (1, 2, 4, 8, 16):
        w(f"sign = f32(1)\nif lane & {lanes}:\n    sign = f32(-1)")
        for i in range(each):
            w(f"x{i} = P.fmaf(x{i}, sign, P.shfl_xor_f(x{i}, {lanes}))")
    for i in range(each):
        w(f"x{i} = P.mul_rn(x{i}, f32({head_dim**-0.5}))")


def _vector(each: int) -> int:
    """Floats of one load."""
    return min(each, 4)


def _load_words(address: str, each: int) -> str:
    return f"P.ldg{each // 2}({address})" if each > 2 else f"(P.ldg1({address}),)"


def _store_words(address: str, words: list[str]) -> str:
    return f"P.stg{len(words)}({address}, {', '.join(words)})"


def make(*arguments: Any) -> Any:
    """The kernel for heads of 64, 128 or 256 dimensions in bfloat16, of 256 in other formats.

    Both halves of what rotates by position fill whole lanes.
    """
    return P.function_of(source(*arguments), "kernel", P=P)

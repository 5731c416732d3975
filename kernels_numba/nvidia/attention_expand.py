"""Keys and values of a stretch of a context, out of the paged cache, as rows in bfloat16: what libraries attend over.

Grid: (pages that the stretch touches, kv heads). A warp takes the tokens of one block of 16. Output: keys, then values,
each ``[count][kv heads][head dim]``; tokens in front of ``begin`` and from ``begin + count`` on are not read into it.

Values are exact in bfloat16 (plain, ``nvfp4``) or rounded once (8-bit codes times a float16 scale). The order of a head
run is that of ``kernels_numba.kv.order``: values lie there as the matrix instructions of decoding want them, two tokens
a word, and turn into rows by ``movmatrix``.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.attention_kernels import EXPAND_WARPS, PAGE_TOKENS
from kernels_numba.nvidia.text import Source

PARAMETERS = "kv pages out begin count page_bytes"
HEAD_DIM = 256
ROW_BYTES = 2 * HEAD_DIM
BLOCK = PAGE_TOKENS // EXPAND_WARPS
SLICES = HEAD_DIM // 64
_LIFT = "u32(0x78007800)"  # 2^15 twice
_PAIRS = {"fp8": (0x1404, 0x3424), "int8": (0x4140, 0x4342)}
"""Bytes 0 and 1, and 2 and 3, of a word in a half each: on top, or below the exponent of 1024."""


def source(*arguments: Any) -> str:
    """Of the formats of keys and of values, then of the offsets in a head run and its size (``run_arguments``)."""
    key, value, key_scales, values, value_scales, run_bytes = arguments
    w = Source("kernel", PARAMETERS)
    w(f"""
        P.pdl_launch(); P.pdl_wait()
        lane = i32(P.lane_id()); warp = i32(P.tid_x() >> 5); g = i32(lane >> 2); q = i32(lane & 3)
        page = i32((begin >> 6) + i32(P.cta_x())); head = i32(P.cta_y())
        run = kv + i64(P.ldg_i(pages + i64(page) * 4)) * page_bytes + i64(head) * {run_bytes}
        first = i32(page * {PAGE_TOKENS} + warp * {BLOCK} - begin)
        stride = i64(i32(P.ncta_y())) * {ROW_BYTES}
        keys = out + first * stride + i64(head) * {ROW_BYTES}; rows = keys + count * stride
    """)
    for j in range(2):
        w(f"kept{j} = first + g + {8 * j} >= 0 and first + g + {8 * j} < count")
    if key == "nvfp4":
        _nvfp4_keys(w, key_scales)
    else:
        _key_rows(w, key, key_scales)
    if value == "nvfp4":
        _nvfp4_values(w, values, value_scales)
    elif value == "bf16":
        w("keys = rows")
        _key_rows(w, "bf16", 0, values)
    else:
        _byte_values(w, value, values, value_scales)
    return str(w)


def _nvfp4_keys(w: Source, scales: int) -> None:
    """A lane has the fours q of all groups of tokens g and g + 8 of the block."""
    for j in range(2):
        for part in range(2):
            w(f"k{j}_{part} = P.ldg_stream4(run + warp * 2048 + {part * 1024 + j * 512} + lane * 16)")
        w(f"z{j} = P.ldg_stream4(run + {scales} + (warp * {BLOCK} + {8 * j} + g) * 16)")
    for j in range(2):
        w(f"place = keys + (g + {8 * j}) * stride + q * 8")
        for unit in range(8):
            if unit % 2 == 0:
                for name, order in (("even", "first"), ("odd", "second")):
                    w(f"{name} = P.h2_mul(P.sc_{order}(z{j}[{unit // 2}]), {_LIFT})")
            which = ("lo", "hi")[unit % 2]
            w(f"x = P.dq8(k{j}_{unit // 4}[{unit % 4}])")
            for i in range(4):
                name = ("even", "odd")[i // 2]
                w(f"y = P.h2_mul_{which}(x[{i}], {name}); w{unit}_{i} = {_bf16('y', 'f32(128)')}")
        with w.block(f"if kept{j}:"):
            for unit in range(8):
                for odd in range(2):
                    at = 32 * (2 * unit + odd)
                    w(f"P.stg2(place + {at}, w{unit}_{2 * odd}, w{unit}_{2 * odd + 1})")


def _key_rows(w: Source, form: str, scales: int, codes: int = 0) -> None:
    """Rows of 256 numbers or bytes, all lanes of a warp at one; loads of several are under way."""
    size = 16 if form == "bf16" else 8
    for base in range(0, BLOCK, 8):
        for row in range(base, base + 8):
            w(f"at = run + {codes} + (warp * {BLOCK} + {row}) * {32 * size} + lane * {size}")
            w(f"k{row} = P.{'ldg_stream4' if form == 'bf16' else 'ldg_stream2'}(at)")
            if form != "bf16":
                group = " + (lane >> 3)" if form == "int8" else ""
                count = SLICES if form == "int8" else 1
                w(f"s{row} = P.ldg_u16(run + {scales} + ((warp * {BLOCK} + {row}) * {count}{group}) * 2)")
        for row in range(base, base + 8):
            if form == "bf16":
                words = [f"k{row}[{i}]" for i in range(4)]
            else:
                words = [f"w{i}" for i in range(4)]
                w(f"scale = P.h2_lo_f(s{row}) * f32({_unit(form)})")
                for i in range(4):
                    w(f"y = {_halves(form, f'k{row}[{i // 2}]', i % 2)}; w{i} = {_bf16('y', 'scale')}")
            with w.block(f"if first + {row} >= 0 and first + {row} < count:"):
                w(f"P.stg4(keys + {row} * stride + lane * 16, {', '.join(words)})")


def _nvfp4_values(w: Source, codes: int, scales: int) -> None:
    """A lane has, of tokens 2 q and the next and those 8 further, dimensions g and g + 8 of every 16 of a slice."""
    for s in range(SLICES):
        w(f"v{s} = P.ldg_stream4(run + {codes + 512 * s} + warp * 2048 + lane * 16)")
        w(f"z{s} = P.ldg_stream4(run + {scales + 64 * s} + warp * 256 + q * 16)")
    for s in range(SLICES):
        for hi in range(2):
            for rh in range(2):
                w(f"x{rh} = P.dq8(v{s}[{2 * hi + rh}])")
            for i in range(4):
                order = ("first", "second")[i % 2]
                w(f"both = P.h2_mul(P.sc_{order}(z{s}[{2 * hi + i // 2}]), {_LIFT})")
                for rh in range(2):
                    w(f"y = P.movmatrix(P.h2_mul(x{rh}[{i}], both)); w{2 * i + rh} = {_bf16('y', 'f32(128)')}")
            _store_values(w, s, hi, range(8))


def _byte_values(w: Source, form: str, codes: int, scales: int) -> None:
    """As with ``nvfp4``, a byte for each."""
    for s in range(SLICES):
        for half in range(2):
            w(f"v{s}_{half} = P.ldg_stream4(run + {codes + 1024 * s + 512 * half} + warp * 4096 + lane * 16)")
        for hi in range(2):
            at = (
                f"run + {scales + (2 * PAGE_TOKENS * s if form == 'int8' else 0)} + (warp * {BLOCK} + {8 * hi} + g) * 2"
            )
            w(f"z{s}_{hi} = P.h2_lo_f(P.ldg_u16({at})) * f32({_unit(form)})")
    for s in range(SLICES):
        for hi in range(2):
            for i in range(4):
                for rh in range(2):
                    w(f"y = P.movmatrix({_halves(form, f'v{s}_{i // 2}[{2 * (i % 2) + hi}]', rh)})")
                    w(f"w{2 * i + rh} = {_bf16('y', f'z{s}_{hi}')}")
            _store_values(w, s, hi, range(8))


def _store_values(w: Source, s: int, hi: int, words: range) -> None:
    """Dimensions 8 word + 2 q and the next of a slice, of token g or g + 8."""
    with w.block(f"if kept{hi}:"):
        w(f"place = rows + (g + {8 * hi}) * stride + {128 * s} + q * 4")
        for word in words:
            w(f"P.stg1(place + {16 * word}, w{word})")


def _unit(form: str) -> int:
    """Of the numbers that ``_halves`` makes."""
    return 256 if form == "fp8" else 1


def _halves(form: str, word: str, pair: int) -> str:
    """Two neighbouring 8-bit codes of a word as halves."""
    order = f"u32({_PAIRS[form][pair]})"
    if form == "fp8":
        return f"P.e4m3_halves(P.prmt({word}, u32(0), {order}))"
    return f"P.h2_add(P.prmt(P.u_xor({word}, u32(0x80808080)), u32(0x64646464), {order}), u32(0xE480E480))"  # - 1152


def _bf16(halves: str, factor: str) -> str:
    """Two halves times a number."""
    return f"P.bf2_pack(P.h2_lo_f({halves}) * {factor}, P.h2_hi_f({halves}) * {factor})"


def make(*arguments: Any) -> Any:
    return P.function_of(source(*arguments), "kernel", P=P)

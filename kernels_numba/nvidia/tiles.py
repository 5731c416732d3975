"""Fragments of the tensor cores as tuples: intrinsics that emit many instructions at once.

What unrolled kernels cost to compile is mostly numba's inference, call by call. So here an argument is a tuple of
registers, or a tuple of such tuples with one item for each tile of 8 columns:

* ``A``: 8 words, the fragments (a0 .. a3) of two steps of k, 32 deep, one after the other;
* ``B``: for each tile 4 words, the fragments (b0, b1) of the same two steps;
* ``C``: for each tile 4 floats, rows g, g, g + 8, g + 8 and columns 2q, 2q + 1, 2q, 2q + 1 of lane 4g + q.

Decoders make ``A`` of stored words; the orders of those words are those of ``kernels_numba.kv.order``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.cuda.extending import intrinsic

from kernels_numba.nvidia.ptx import (
    BARRIER,
    MMA,
    ORDERED,
    WGMMA_DONE,
    constant,
    e2m1_halves,
    f32,
    inline,
    types,
    u32,
    wgmma_pair,
)

_PAIRS = "mul.f16x2 $0,$1,$2;", "r", "rr"
_ADD = "add.f16x2 $0,$1,$2;", "r", "rr"
_BROADCAST = "{.reg .b16 l,h; .reg .b32 t; mov.b32 {l,h},$2; mov.b32 t,{%s,%s}; mul.f16x2 $0,$1,t;}"
_LOW, _HIGH = ((_BROADCAST % (part, part), "r", "rr") for part in "lh")
_FMA = "fma.rn.f32 $0,$1,$2,$3;", "f", "fff"
_MUL = "mul.rn.f32 $0,$1,$2;", "f", "ff"
_EX2 = "ex2.approx.ftz.f32 $0,$1;", "f", "f"
_PRMT = "prmt.b32 $0,$1,$2,$3;", "r", "rrr"
_LIFT = 0x78007800  # 2^15 twice
_INT8_BIAS = 0xE480E480  # -1152 twice
_SCALES = 0x3F803F80
MASKED = -2e30
"""Stands for a score that counts for nothing."""

Items = list[Any]


class _Emitter:
    """LLVM's builder, with the words of PTX."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.context, self.b = context, builder

    def __call__(self, operation: tuple[str, str, str], *values: Any) -> Any:
        return inline(self.b, *operation, values)[0]

    def items(self, value: Any) -> Items:
        """Of a tuple, or of a tuple of tuples."""
        count = value.type.count
        return [self.b.extract_value(value, index) for index in range(count)]

    def float(self, value: float) -> Any:
        return self.context.get_constant(f32, value)


def _tuple_of(item: Any, *counts: int) -> Any:
    for count in reversed(counts):
        item = types.UniTuple(item, count)
    return item


def _intrinsic(
    arity: int, returns: Callable[..., Any], build: Callable[..., Any], cast: Sequence[Any | None] | None = None
) -> Any:
    """``build(emitter, *values)`` gives nested lists of LLVM values for the type ``returns(*argument types)``.

    ``cast``: the types that arguments are converted to; None keeps theirs.
    """

    def typed(*arguments: Any) -> Any:
        wanted = [to or given for to, given in zip(cast or [None] * arity, arguments, strict=True)]

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            def made(numba_type: Any, value: Any) -> Any:
                if not isinstance(value, list):
                    return value
                parts = [made(part, item) for part, item in zip(numba_type, value, strict=True)]
                return context.make_tuple(builder, numba_type, parts)

            return made(signature.return_type, build(_Emitter(context, builder), *values))

        return returns(*arguments)(*wanted), emit

    parameters = ", ".join(f"value{index}" for index in range(arity))
    scope: dict[str, Any] = {"typed": typed}
    exec(f"def function(context, {parameters}):\n    return typed({parameters})", scope)  # noqa: S102
    return intrinsic(scope["function"])


# ---- products
def _mma(dtype: str) -> Callable[..., list[Items]]:
    def build(e: _Emitter, a: Any, b: Any, c: Any) -> list[Items]:
        rows = e.items(a)
        sums = [e.items(tile) for tile in e.items(c)]
        words = [e.items(tile) for tile in e.items(b)]
        for step in range(2):
            for tile, own in enumerate(words):
                values = [*rows[4 * step : 4 * step + 4], *own[2 * step : 2 * step + 2], *sums[tile]]
                sums[tile] = inline(e.b, *MMA[dtype], values)
        return sums

    return build


def _third(*types: Any) -> Any:
    return types[2]


mma_f16_pair = _intrinsic(3, _third, _mma("f16"))
mma_bf16_pair = _intrinsic(3, _third, _mma("bf16"))


def _b_descriptor(e: _Emitter, address: Any, c: Any) -> Any:
    """Addresses and distances in units of 16 bytes: to the other half of a step of k, and to the next 8 columns."""
    wide, tiles = ir.IntType(64), c.type.count
    place = e.b.zext(e.b.and_(e.b.lshr(address, constant(4)), constant(0x3FFF)), wide)
    return e.b.or_(place, ir.Constant(wide, (128 * tiles >> 4) << 16 | (128 >> 4) << 32))


def _wgmma(e: _Emitter, a: Any, descriptor: Any, c: Any) -> list[Items]:
    tiles = c.type.count
    second = e.b.add(descriptor, ir.Constant(ir.IntType(64), 256 * tiles >> 4))
    sums = [x for tile in e.items(c) for x in e.items(tile)]
    found = inline(e.b, *wgmma_pair(tiles), [*e.items(a), descriptor, second, *sums], ORDERED, in_place=True)
    return [found[4 * tile : 4 * tile + 4] for tile in range(tiles)]


def _wgmma_done(e: _Emitter, c: Any) -> list[Items]:
    tiles = c.type.count
    sums = [x for tile in e.items(c) for x in e.items(tile)]
    found = inline(e.b, WGMMA_DONE, "f" * len(sums), "f" * len(sums), sums, BARRIER, in_place=True)
    return [found[4 * tile : 4 * tile + 4] for tile in range(tiles)]


# of a warpgroup: its 4 warps have 16 rows of A each, B lies in shared memory as 8 x 8 matrices of 128 bytes, a column's
# 8 of k in a row, [step of k][half of k][tile], at a descriptor's address. Begins; C is there when done
b_descriptor = _intrinsic(2, lambda *_: types.int64, _b_descriptor, (u32, None))
wgmma_f16_pair = _intrinsic(3, _third, _wgmma)
wgmma_done = _intrinsic(1, lambda c: c, _wgmma_done)


# ---- E2M1 with E4M3 scales
def _nvfp4_keys(broadcast: tuple[str, str, str]) -> Callable[..., Items]:
    def build(e: _Emitter, upper: Any, lower: Any, *scales: Any) -> Items:
        x, y = (e2m1_halves(e.b, word) for word in (upper, lower))
        found = []
        for step in range(2):
            for half in (2 * step, 2 * step + 1):
                found += [e(broadcast, x[half], scales[step]), e(broadcast, y[half], scales[2 + step])]
        return found

    return build


# A of the groups 2i and 2i + 1 of rows g and g + 8; scales of group 2i and of 2i + 1 of the row g, then of g + 8, in
# the low halves or in the high
nvfp4_keys_low = _intrinsic(6, lambda *_: _tuple_of(u32, 8), _nvfp4_keys(_LOW))
nvfp4_keys_high = _intrinsic(6, lambda *_: _tuple_of(u32, 8), _nvfp4_keys(_HIGH))


def _first(e: _Emitter, word: Any) -> Any:
    return e.b.and_(e.b.shl(word, constant(7)), constant(_SCALES))


def _second(e: _Emitter, word: Any) -> Any:
    return e.b.and_(word, constant(_SCALES))


# the first and the second scales of a word's two halves, as halves of scale * 2^7
key_scales = _intrinsic(
    1, lambda _: _tuple_of(u32, 2), lambda e, z: [e(_PAIRS, part(e, z), constant(_LIFT)) for part in (_first, _second)]
)


def _nvfp4_values(e: _Emitter, *blocks: Any) -> list[Items]:
    words = [e2m1_halves(e.b, word) for block in blocks for word in e.items(block)]
    return [[word[tile] for word in words] for tile in range(4)]


# A of each of the 4 tiles of 16 dimensions, of two blocks of tokens
nvfp4_values = _intrinsic(2, lambda *_: _tuple_of(u32, 4, 8), _nvfp4_values)


def _nvfp4_value_scales(lifted: bool) -> Callable[..., list[Items]]:
    def build(e: _Emitter, *blocks: Any) -> list[Items]:
        units = [e.items(block) for block in blocks]
        found = [
            [(_first, _second)[tile % 2](e, block[2 * high + tile // 2]) for block in units for high in range(2)]
            for tile in range(4)
        ]
        return [[e(_PAIRS, x, constant(_LIFT)) for x in tile] for tile in found] if lifted else found

    return build


# for each of the 4 tiles the scales of tokens (2q, 2q + 1) and 8 more of both blocks, as halves of scale * 2^-8 or,
# lifted, 2^7
nvfp4_value_scales = _intrinsic(2, lambda *_: _tuple_of(u32, 4, 4), _nvfp4_value_scales(lifted=False))
nvfp4_value_scales_lifted = _intrinsic(2, lambda *_: _tuple_of(u32, 4, 4), _nvfp4_value_scales(lifted=True))


# ---- bytes
def _e4m3(e: _Emitter, word: Any) -> Any:
    """Halves of value * 2^-8 of the bytes 1 and 3."""
    b = e.b
    return b.or_(b.and_(word, constant(0x80008000)), b.and_(b.lshr(word, constant(1)), constant(_SCALES)))


def _int8(e: _Emitter, biased: Any, order: int) -> Any:
    """Halves of two of a word's bytes, which were moved by 128."""
    return e(_ADD, e(_PRMT, biased, constant(0x64646464), constant(order)), constant(_INT8_BIAS))


def _biased(e: _Emitter, word: Any) -> Any:
    return e.b.xor(word, constant(0x80808080))


def _fp8_keys(e: _Emitter, *words: Any) -> Items:
    halves = [(_e4m3(e, e.b.shl(word, constant(8))), _e4m3(e, word)) for word in words]
    return [halves[2 * step + row][part] for step in range(2) for part in range(2) for row in range(2)]


def _int8_keys(e: _Emitter, *words: Any) -> Items:
    moved = [_biased(e, word) for word in words]
    orders = 0x4240, 0x4341
    return [_int8(e, moved[2 * step + row], orders[part]) for step in range(2) for part in range(2) for row in range(2)]


# A of words of rows g and g + 8, two steps; k of a lane are the bytes 0, 2, 1, 3 of its word
fp8_keys = _intrinsic(4, lambda *_: _tuple_of(u32, 8), _fp8_keys)
int8_keys = _intrinsic(4, lambda *_: _tuple_of(u32, 8), _int8_keys)


def _byte_values(decode: Callable[[_Emitter, Any, int], Any]) -> Callable[..., list[Items]]:
    def build(e: _Emitter, *blocks: Any) -> list[Items]:
        words = [e.items(block) for block in blocks]
        return [
            [decode(e, block[2 * tile + high], row) for block in words for high in range(2) for row in range(2)]
            for tile in range(2)
        ]

    return build


def _fp8_row(e: _Emitter, word: Any, row: int) -> Any:
    return _e4m3(e, e(_PRMT, word, constant(0), constant((0x1404, 0x3424)[row])))


def _int8_row(e: _Emitter, word: Any, row: int) -> Any:
    return _int8(e, _biased(e, word), (0x4140, 0x4342)[row])


# A of 2 tiles of 16 dimensions, of two blocks of tokens
fp8_values = _intrinsic(2, lambda *_: _tuple_of(u32, 2, 8), _byte_values(_fp8_row))
int8_values = _intrinsic(2, lambda *_: _tuple_of(u32, 2, 8), _byte_values(_int8_row))


# ---- scales of whole fragments
def _scale_b(e: _Emitter, b: Any, scales: Any) -> list[Items]:
    factors = e.items(scales)
    return [[e(_PAIRS, *pair) for pair in zip(e.items(tile), factors, strict=True)] for tile in e.items(b)]


def _scale_a(e: _Emitter, a: Any, scales: Any) -> Items:
    factors = e.items(scales)
    return [e(_PAIRS, word, factors[index // 2]) for index, word in enumerate(e.items(a))]


def _scale_a_rows(e: _Emitter, a: Any, *rows: Any) -> Items:
    return [e(_PAIRS, word, rows[index % 2]) for index, word in enumerate(e.items(a))]


# B, or A, times 4 pairs of halves, one for every 8 of k; A with its rows g and g + 8 times a pair each
scaled_a_rows = _intrinsic(3, lambda a, *_: a, _scale_a_rows)
scaled_b = _intrinsic(2, lambda b, _: b, _scale_b)
scaled_a = _intrinsic(2, lambda a, _: a, _scale_a)


def _scale_rows(e: _Emitter, c: Any, *rows: Any) -> list[Items]:
    return [[e(_MUL, x, rows[i // 2]) for i, x in enumerate(e.items(tile))] for tile in e.items(c)]


def _add_scaled_rows(e: _Emitter, c: Any, added: Any, *rows: Any) -> list[Items]:
    tiles = zip(e.items(c), e.items(added), strict=True)
    return [
        [e(_FMA, x, rows[i // 2], y) for i, (y, x) in enumerate(zip(e.items(tile), e.items(more), strict=True))]
        for tile, more in tiles
    ]


def _scale_columns(e: _Emitter, c: Any, factors: Any) -> list[Items]:
    tiles = zip(e.items(c), e.items(factors), strict=True)
    return [[e(_MUL, x, e.items(own)[i % 2]) for i, x in enumerate(e.items(tile))] for tile, own in tiles]


# C with rows g and g + 8 times a factor each, C plus another with its rows scaled, C with columns 2q, 2q + 1 scaled
scaled_rows = _intrinsic(3, lambda c, *_: c, _scale_rows, (None, f32, f32))
add_scaled_rows = _intrinsic(4, lambda c, *_: c, _add_scaled_rows, (None, None, f32, f32))
scaled_columns = _intrinsic(2, lambda c, _: c, _scale_columns)


# ---- softmax of one tile of C
def _exp2(e: _Emitter, tile: Any, factor: Any, *shifts: Any) -> Items:
    return [e(_EX2, e(_FMA, x, factor, shifts[i % 2])) for i, x in enumerate(e.items(tile))]


def _masked(e: _Emitter, tile: Any, row: Any, *limits: Any) -> Items:
    rows = row, e.b.add(row, constant(8))
    return [
        e.b.select(e.b.icmp_signed(">", rows[i // 2], limits[i % 2]), e.float(MASKED), x)
        for i, x in enumerate(e.items(tile))
    ]


# 2 ** (x * factor + the column's shift); scores of rows past the column's limit become MASKED
exp2_tile = _intrinsic(4, lambda tile, *_: tile, _exp2, (None, f32, f32, f32))
masked_tile = _intrinsic(4, lambda tile, *_: tile, _masked, (None, types.int32, types.int32, types.int32))

"""LLVM instructions on vectors of weights, for decoding that the loop vectoriser does not find.

No instruction is of one processor: LLVM turns a look-up into a permutation of registers where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""Weights in one register."""

INT32, INT64, FLOAT32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
MAY_FUSE = ("contract",)


class VectorBuilder:
    """Emits instructions at one place of a function."""

    def __init__(self, context: Any, builder: Any, lanes: int = LANES) -> None:
        self._context = context
        self._builder = builder
        self.lanes = lanes
        self._registers = 4 if lanes == 16 else 2

    def pointer(self, array_type: Any, array: Any, *index: Any) -> Any:
        """Where the element at leading indices ``index`` of a C-contiguous array begins; nothing checks them."""
        if array_type.layout != "C":
            raise TypeError(f"{array_type} is not C-contiguous")
        view = self._context.make_array(array_type)(self._context, self._builder, array)
        shape = cgutils.unpack_tuple(self._builder, view.shape, array_type.ndim)
        offset = ir.Constant(INT64, 0)
        for axis, size in enumerate(shape):
            offset = self._builder.mul(offset, size)
            if axis < len(index):
                offset = self._builder.add(offset, index[axis])
        return self._builder.gep(view.data, [offset])

    def member(self, structure: Any, index: int) -> Any:
        """A member of a tuple."""
        return self._builder.extract_value(structure, index)

    def index(self, number: int) -> Any:
        """``number`` as an index."""
        return ir.Constant(INT64, number)

    def multiple(self, index: Any, factor: int) -> Any:
        """``index * factor``."""
        return self._builder.mul(index, ir.Constant(index.type, factor))

    def plus(self, index: Any, number: int) -> Any:
        """``index + number``."""
        return self._builder.add(index, ir.Constant(index.type, number))

    def register_blocks(self, count: int) -> list[list[int]]:
        """First lanes of the registers of ``count`` values, as many together as their sums can stay in registers."""
        lanes = list(range(0, count, self.lanes))
        size = self._registers
        return [lanes[first : first + size] for first in range(0, len(lanes), size)]

    def load_scalar(self, pointer: Any, offset: int) -> Any:
        """The float32 ``offset`` elements behind ``pointer``, in all lanes."""
        return self._splat(self._builder.load(self._builder.gep(pointer, [ir.Constant(INT64, offset)])))

    def load_floats(self, pointer: Any, offset: int) -> Any:
        """Float32 values from ``offset`` elements behind ``pointer``."""
        return self._load(pointer, offset, FLOAT32, 4)

    def load_four_pairs(self, pointer: Any, offset: int) -> Any:
        """Four float32 values, each in two neighbouring lanes, over and over."""
        four = ir.VectorType(FLOAT32, 4)
        place = self._builder.gep(pointer, [ir.Constant(INT64, offset)])
        values = self._builder.load(self._builder.bitcast(place, four.as_pointer()))
        values.align = 4
        order = [lane // 2 % 4 for lane in range(self.lanes)]
        return self._builder.shuffle_vector(
            values, ir.Constant(four, ir.Undefined), ir.Constant(self._vector(INT32), order)
        )

    def load(self, array_type: Any, pointer: Any, offset: int) -> Any:
        """Words of an array as int32, zero-extended; float32 values as they are."""
        if array_type.dtype == types.float32:
            return self.load_floats(pointer, offset)
        bits = array_type.dtype.bitwidth
        return self._builder.zext(self._load(pointer, offset, ir.IntType(bits), bits // 8), self._vector(INT32))

    def store(self, values: Any, pointer: Any, offset: int) -> None:
        self._builder.store(values, self._cast(pointer, offset, FLOAT32)).align = 4

    def field(self, words: Any, shift: int, bits: int) -> Any:
        """``bits`` bits of each word from bit ``shift`` on."""
        shifted = self._builder.lshr(words, self.integers(shift)) if shift else words
        return self._builder.and_(shifted, self.integers((1 << bits) - 1))

    def field_and_bit(self, words: Any, shift: int, bits: int, above: int) -> Any:
        """``field``, and on top of it the bit ``above``."""
        offset = above - bits
        moved = self._builder.lshr(words, self.integers(offset)) if offset >= 0 else words
        moved = self._builder.shl(words, self.integers(-offset)) if offset < 0 else moved
        return self._builder.or_(self.field(words, shift, bits), self._builder.and_(moved, self.integers(1 << bits)))

    def looked_up(self, table: Sequence[float], index: Any) -> Any:
        """``table[index]`` of up to 16 entries; the index has no higher bits."""
        if len(table) <= self.lanes:
            return self._permuted(table, index)
        low = self._builder.and_(index, self.integers(self.lanes - 1))
        is_high = self._builder.icmp_unsigned(">", index, self.integers(self.lanes - 1))
        halves = table[self.lanes :], table[: self.lanes]
        return self._builder.select(is_high, *(self._permuted(half, low) for half in halves))

    def _permuted(self, table: Sequence[float], index: Any) -> Any:
        entries = [*table, *([0.0] * (self.lanes - len(table)))]
        source = ir.Constant(self._vector(FLOAT32), entries)
        found = ir.Constant(self._vector(FLOAT32), ir.Undefined)
        for lane in range(self.lanes):
            place = ir.Constant(INT32, lane)
            entry = self._builder.extract_element(source, self._builder.extract_element(index, place))
            found = self._builder.insert_element(found, entry, place)
        return found

    def bfloat16(self, words: Any) -> Any:
        """Bits of bfloat16 as float32."""
        return self._builder.bitcast(self._builder.shl(words, self.integers(16)), self._vector(FLOAT32))

    def minifloat(self, words: Any, mantissa_bits: int, bias: int, sign_bit: int) -> Any:
        """Words of an IEEE-like format as float32, exactly; those of infinities and NaN as large numbers.

        With the exponent rebiased, a normal word is its value g. A subnormal one with mantissa m reads as
        g = t/2 * (1 + m), t being the smallest normal value, and is t * m = 2 g - t: the smaller of the two is right
        for both, and no float32 subnormals, which are slow, come up.
        """
        builder = self._builder
        magnitude = builder.shl(self.field(words, 0, sign_bit), self.integers(23 - mantissa_bits))
        normal = builder.bitcast(builder.add(magnitude, self.integers((127 - bias) << 23)), self._vector(FLOAT32))
        subnormal = self.add_product(self._floats(-(2.0 ** (1 - bias))), normal, self._floats(2.0))
        value = builder.select(builder.fcmp_ordered("<", normal, subnormal), normal, subnormal)
        sign = builder.and_(builder.shl(words, self.integers(31 - sign_bit)), self.integers(-(1 << 31)))
        bits = builder.or_(builder.bitcast(value, self._vector(INT32)), sign)
        return builder.bitcast(bits, self._vector(FLOAT32))

    def signed_bytes(self, words: Any) -> Any:
        """The low byte of each word, in two's complement, as float32."""
        shift = self.integers(24)
        integers = self._builder.ashr(self._builder.shl(words, shift), shift)
        return self._builder.sitofp(integers, self._vector(FLOAT32))

    def _splat(self, value: Any) -> Any:
        undefined = ir.Constant(self._vector(FLOAT32), ir.Undefined)
        first = self._builder.insert_element(undefined, value, ir.Constant(INT32, 0))
        return self._builder.shuffle_vector(first, undefined, ir.Constant(self._vector(INT32), [0] * self.lanes))

    def add(self, x: Any, y: Any) -> Any:
        return self._builder.fadd(x, y)

    def multiply(self, x: Any, y: Any) -> Any:
        return self._builder.fmul(x, y)

    def add_product(self, total: Any, x: Any, y: Any) -> Any:
        """``total + x * y``, fused wherever compiled loops are."""
        return self._builder.fadd(total, self._builder.fmul(x, y, flags=MAY_FUSE), flags=MAY_FUSE)

    def integers(self, value: int) -> Any:
        return ir.Constant(self._vector(INT32), [value] * self.lanes)

    def _floats(self, value: float) -> Any:
        return ir.Constant(self._vector(FLOAT32), [value] * self.lanes)

    def _vector(self, element: Any) -> Any:
        return ir.VectorType(element, self.lanes)

    def _cast(self, pointer: Any, offset: int, element: Any) -> Any:
        moved = self._builder.gep(pointer, [ir.Constant(INT64, offset)])
        return self._builder.bitcast(moved, self._vector(element).as_pointer())

    def _load(self, pointer: Any, offset: int, element: Any, align: int) -> Any:
        values = self._builder.load(self._cast(pointer, offset, element))
        values.align = align
        return values

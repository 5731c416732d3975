"""Instructions on vectors of weights, in the register widths of both kinds of processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit, types
from numba.extending import intrinsic

from kernels_numba.cpu.formats import E2M1
from kernels_numba.cpu.vectors import VectorBuilder

LANES = pytest.mark.parametrize("lanes", [8, 16])
Emit = Any  # VectorBuilder, words -> values


def applied(emit: Emit, words: np.ndarray[Any, Any], lanes: int) -> np.ndarray[Any, Any]:
    """What compiled instructions make of each word."""

    def convert(_context: Any, source: Any, index: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            v = VectorBuilder(context, builder, lanes)
            loaded = v.load(source, v.pointer(source, arguments[0], arguments[1]), 0)
            v.store(emit(v, loaded), v.pointer(target, arguments[2], arguments[1]), 0)
            return context.get_dummy_value()

        return types.void(source, index, target), generate

    converted: Any = intrinsic(convert)

    def run(source: Any, target: Any) -> None:
        for index in range(0, source.shape[0], lanes):
            converted(source, index, target)

    target = np.empty(words.shape, np.float32)
    njit(run)(words, target)
    return target


@LANES
def test_tables_of_every_size(lanes: int) -> None:
    words = np.arange(256, dtype=np.uint8)
    for bits, table in ((1, (0.0, -16.0)), (2, (0.0, 1.0, -2.0, -1.0)), (4, E2M1)):
        for shift in range(0, 8, bits):
            found = applied(lambda v, w: v.looked_up(table, v.field(w, shift, bits)), words, lanes)  # noqa: B023
            expected = np.array(table, np.float32)[words >> shift & (1 << bits) - 1]
            np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@LANES
def test_e4m3(lanes: int) -> None:
    words = np.arange(256, dtype=np.uint8)
    found = applied(lambda v, w: v.minifloat(w, mantissa_bits=3, bias=7, sign_bit=7), words, lanes)
    expected = torch.from_numpy(words).view(torch.float8_e4m3fn).float().numpy()
    numbers = ~np.isnan(expected)
    assert numbers.sum() == 254
    np.testing.assert_array_equal(found[numbers].view(np.int32), expected[numbers].view(np.int32))


@LANES
def test_float16(lanes: int) -> None:
    words = np.arange(1 << 16).astype(np.uint16)
    found = applied(lambda v, w: v.minifloat(w, mantissa_bits=10, bias=15, sign_bit=15), words, lanes)
    expected = words.view(np.float16).astype(np.float32)
    numbers = np.isfinite(expected)
    np.testing.assert_array_equal(found[numbers].view(np.int32), expected[numbers].view(np.int32))


@LANES
def test_bfloat16_and_bytes(lanes: int) -> None:
    words = np.arange(1 << 16).astype(np.uint16)
    found = applied(lambda v, w: v.bfloat16(w), words, lanes)
    np.testing.assert_array_equal(found.view(np.uint32), words.astype(np.uint32) << 16)
    codes = np.arange(256, dtype=np.uint8)
    found = applied(lambda v, w: v.signed_bytes(w), codes, lanes)
    np.testing.assert_array_equal(found, codes.view(np.int8))


def test_arrays_must_be_contiguous() -> None:
    with pytest.raises(TypeError, match="not C-contiguous"):
        applied(lambda v, w: v.bfloat16(w), np.arange(64, dtype=np.uint16)[::2], 8)

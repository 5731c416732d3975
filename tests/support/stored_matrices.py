"""Stored matrices of every format with random codes, and their values in float64 from numbers, not from bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ninferd.weights.stored import FileSpan, Plane, StoredMatrix

Array = NDArray[Any]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).double().numpy()
GROUPED = {
    # format: bits, columns of a group, smallest and largest code
    "q4_g64_fp16": (4, 64, -8, 7),
    "q5_g64_fp16": (5, 64, -16, 15),
    "q6_g64_fp16": (6, 64, -32, 31),
    "q8_g32_fp16": (8, 32, -127, 127),
    "t2_g128_fp16": (2, 128, -1, 1),
}


@dataclass(frozen=True)
class Encoded:
    """What a file would hold, and what it means."""

    format: str
    planes: Mapping[str, Array]
    values: Array  # float64 [N, K]
    attributes: Mapping[str, Any]  # of StoredMatrix


def bf16_values(words: Array) -> Array:
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def swizzled(scales: Array) -> Array:
    """Natural ``[N, K/16]`` to the order of an artifact, offset by offset."""
    rows, across = scales.shape
    n, g = np.indices(scales.shape)
    offsets = ((n // 128) * (across // 4) + g // 4) * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4
    plane = np.empty(scales.size, np.uint8)
    plane[offsets.reshape(-1)] = scales.reshape(-1)
    return plane.reshape(rows, across)


def _words(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """bfloat16 of both signs, from 2^-7 to 2^8."""
    return (generator.integers(0, 2, shape) << 15 | generator.integers(120 << 7, 135 << 7, shape)).astype("<u2")


def _finite_e4m3(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    words = generator.integers(0, 256, shape).astype(np.uint8)
    return np.where(words % 128 == 127, 0, words).astype(np.uint8)


def bf16(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
    words = _words(generator, (rows, columns))
    return Encoded("bf16", {"values": words}, bf16_values(words), {})


def plain(format: str, dtype: str) -> Callable[[np.random.Generator, int, int], Encoded]:
    def make(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
        values = generator.normal(size=(rows, columns)).astype(dtype)
        return Encoded(format, {"values": values}, values.astype(np.float64), {})

    return make


def nvfp4(generator: np.random.Generator, rows: int, columns: int, **attributes: Any) -> Encoded:
    """``attributes`` are ``divisors`` or ``factors``, and ``is_swizzled``."""
    codes = generator.integers(0, 16, (rows, columns))
    scales = generator.integers(0, 127, (rows, columns // 16)).astype(np.uint8)
    numbers = np.asarray(attributes.get("factors", ()), np.float32)
    if divisors := attributes.get("divisors"):
        numbers = (1 / np.asarray(divisors, np.float32).astype(np.float64)).astype(np.float32)
    multiplier = np.repeat(numbers, rows // len(numbers)).astype(np.float64)
    values = E2M1[codes] * np.repeat(E4M3[scales], 16, 1) * multiplier[:, None]
    stored = swizzled(scales) if attributes.get("is_swizzled") else scales
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return Encoded("nvfp4", {"codes": packed, "scales": stored}, values, attributes)


def fp8_rows(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
    codes, scales = _finite_e4m3(generator, (rows, columns)), _words(generator, (rows,)) & np.uint16(0x7FFF)
    values = E4M3[codes] * bf16_values(scales)[:, None]
    return Encoded("fp8_e4m3fn_row_bf16", {"codes": codes, "scales": scales}, values, {})


def fp8_factors(count: int) -> Callable[[np.random.Generator, int, int], Encoded]:
    """One factor for all rows, or one for each (``count`` 0)."""

    def make(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
        codes = _finite_e4m3(generator, (rows, columns))
        factors = tuple(float(each) for each in generator.random(count or rows).astype(np.float32))
        values = E4M3[codes] * np.repeat(np.asarray(factors), rows // len(factors))[:, None]
        return Encoded("fp8_e4m3fn_row_bf16", {"codes": codes}, values, {"factors": factors})

    return make


def fp8_blocks(is_bf16: bool) -> Callable[[np.random.Generator, int, int], Encoded]:
    def make(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
        codes, shape = _finite_e4m3(generator, (rows, columns)), (-(-rows // 128), -(-columns // 128))
        scales = _words(generator, shape) if is_bf16 else generator.random(shape).astype("<f4")
        numbers = bf16_values(scales) if is_bf16 else scales.astype(np.float64)
        values = E4M3[codes] * np.repeat(np.repeat(numbers, 128, 0)[:rows], 128, 1)[:, :columns]
        return Encoded("fp8_e4m3fn_block128", {"codes": codes, "scales": scales}, values, {})

    return make


def grouped(format: str) -> Callable[[np.random.Generator, int, int], Encoded]:
    bits, group, smallest, largest = GROUPED[format]

    def make(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
        width = -(-columns // 128) * 128
        codes = generator.integers(smallest, largest + 1, (rows, width))
        codes[:, columns:] = 0
        scales = generator.normal(size=(rows, width // group)).astype("<f2")
        values = (codes * np.repeat(scales.astype(np.float64), group, 1))[:, :columns]
        planes = {"codes": _packed(codes & 15 if bits in (5, 6) else codes, min(bits, 8) if bits not in (5, 6) else 4)}
        if bits in (5, 6):
            planes["high"] = _packed(codes >> 4, bits - 4)
        return Encoded(format, planes | {"scales": scales}, values, {})

    return make


def _packed(codes: Array, bits: int) -> Array:
    """Each row as one little-endian stream of ``bits`` bits per code, lower bit first."""
    stream = codes[:, :, None] >> np.arange(bits) & 1
    return np.packbits(stream.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")


def nvfp4_swizzled(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
    return nvfp4(generator, rows, columns, divisors=(2.7,), is_swizzled=True)


def nvfp4_bank(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
    divisors = tuple(1.3 + index for index in range(rows // 128))
    return nvfp4(generator, rows, columns, divisors=divisors, is_swizzled=True)


def nvfp4_compressed(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
    return nvfp4(generator, rows, columns, divisors=(2.7,))


def nvfp4_modelopt(generator: np.random.Generator, rows: int, columns: int) -> Encoded:
    return nvfp4(generator, rows, columns, factors=(0.37,))


FORMATS: Mapping[str, Callable[[np.random.Generator, int, int], Encoded]] = {
    "bf16": bf16,
    "fp16": plain("fp16", "<f2"),
    "fp32": plain("fp32", "<f4"),
    "fp64": plain("fp64", "<f8"),
    "nvfp4": nvfp4_swizzled,
    "nvfp4-bank": nvfp4_bank,
    "nvfp4-compressed-tensors": nvfp4_compressed,
    "nvfp4-modelopt": nvfp4_modelopt,
    "fp8-row": fp8_rows,
    "fp8-tensor": fp8_factors(1),
    "fp8-channel": fp8_factors(0),
    "fp8-block": fp8_blocks(is_bf16=False),
    "fp8-block-bf16": fp8_blocks(is_bf16=True),
    "q4": grouped("q4_g64_fp16"),
    "q5": grouped("q5_g64_fp16"),
    "q6": grouped("q6_g64_fp16"),
    "q8": grouped("q8_g32_fp16"),
    "t2": grouped("t2_g128_fp16"),
}
"""Every way in which a source may hold a matrix."""


class Store:
    """Writes planes to files one after the other, each at an odd offset."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def matrix(self, encoded: Encoded, name: str = "some.weight", cut_bytes: int | None = None) -> StoredMatrix:
        """``encoded`` as a stored matrix; with ``cut_bytes``, what is beyond so many bytes is in a second file."""
        path = self._directory / f"{self._count}.bin"
        self._count += 1
        content, places = bytearray(b"\xaa" * 3), {}
        for plane, array in encoded.planes.items():
            places[plane] = (len(content), array)
            content += array.tobytes() + b"\xaa" * (1 + len(content) % 2)
        cut = len(content) if cut_bytes is None else cut_bytes
        second = path.with_suffix(".part")
        path.write_bytes(content[:cut])
        second.write_bytes(b"\xbb" * 5 + content[cut:])

        def spans(offset: int, size: int) -> tuple[FileSpan, ...]:
            first = FileSpan(path, offset, max(0, min(size, cut - offset)))
            rest = FileSpan(second, max(0, offset - cut) + 5, size - first.size_bytes)
            return tuple(span for span in (first, rest) if span.size_bytes)

        planes = {
            plane: Plane("u1" if array.dtype == np.uint8 else array.dtype.str, array.shape, spans(offset, array.nbytes))
            for plane, (offset, array) in places.items()
        }
        rows, columns = encoded.values.shape
        stored = StoredMatrix(name, path, encoded.format, rows, columns, planes)
        return replace(stored, **encoded.attributes)

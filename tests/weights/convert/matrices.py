"""Stored matrices of every kind in files of their own, with random content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.stored import FileSpan, Plane, StoredMatrix

ROWS, COLUMNS = 384, 256


def stored(directory: Path, format: str, planes: dict[str, NDArray[Any]], **more: Any) -> StoredMatrix:
    """A matrix in a file of its own, planes one after the other, the first in two spans."""
    path = directory / f"{format}.bin"
    described = {}
    offset = 0
    with path.open("wb") as file:
        for name, plane in planes.items():
            file.write(plane.tobytes())
            cut = 5 * plane.nbytes // 7
            spans = (FileSpan(path, offset, cut), FileSpan(path, offset + cut, plane.nbytes - cut))
            described[name] = Plane(plane.dtype.str.lstrip("|"), plane.shape, spans)
            offset += plane.nbytes
    return StoredMatrix(format, path, format, ROWS, COLUMNS, described, **more)


def random_matrix(directory: Path, kind: str) -> StoredMatrix:
    """Random codes and plausible scales of every way in which a matrix may be stored."""
    generator = np.random.default_rng(5)

    def codes(columns: int) -> NDArray[np.uint8]:
        return generator.integers(0, 256, (ROWS, columns), np.uint8)

    fp8 = codes(COLUMNS) & 0xF7  # no word is a NaN
    words = generator.integers(0x20, 0x70, (ROWS, COLUMNS // 16), np.uint8)
    values = generator.standard_normal((ROWS, COLUMNS))
    match kind:
        case "bf16":
            return stored(directory, "bf16", {"values": (values.astype("<f4").view("<u4") >> 16).astype("<u2")})
        case "fp16" | "fp32" | "fp64":
            return stored(directory, kind, {"values": values.astype(f"<f{int(kind[2:]) // 8}")})
        case "nvfp4":
            return stored(directory, "nvfp4", {"codes": codes(COLUMNS // 2), "scales": words}, factors=(0.37,))
        case "nvfp4 swizzled":
            planes = {"codes": codes(COLUMNS // 2), "scales": words}
            return stored(directory, "nvfp4", planes, divisors=(2.5, 3.5, 4.5), is_swizzled=True)
        case "fp8 rows":
            scales = generator.integers(0x3C00, 0x4000, ROWS).astype("<u2")
            return stored(directory, "fp8_e4m3fn_row_bf16", {"codes": fp8, "scales": scales})
        case "fp8 tensor":
            return stored(directory, "fp8_e4m3fn_row_bf16", {"codes": fp8}, factors=(0.011,))
        case "fp8 float32 rows":
            return stored(directory, "fp8_e4m3fn_row_bf16", {"codes": fp8}, factors=tuple(values[:, 0].tolist()))
        case "fp8 blocks":
            scales = generator.random((3, 2), np.float32)
            return stored(directory, "fp8_e4m3fn_block128", {"codes": fp8, "scales": scales})
        case "fp8 blocks, bfloat16":
            scales = generator.integers(0x3C00, 0x4000, (3, 2)).astype("<u2")
            return stored(directory, "fp8_e4m3fn_block128", {"codes": fp8, "scales": scales})
        case "q6":
            planes = {"codes": codes(128), "high": codes(64), "scales": values[:, :4].astype("<f2")}
            return stored(directory, "q6_g64_fp16", planes)
    raise AssertionError(kind)

"""Stored matrices in files, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.formats.registry import plane_layout
from ninferd.weights.stored import FileSpan, Plane, StoredMatrix


def object_bytes(format: str, shape: tuple[int, ...], planes: Mapping[str, NDArray[Any]], divisors: int = 1) -> bytes:
    """The planes where ``plane_layout`` puts them, zeros between them."""
    layout = plane_layout(format, shape, divisors)
    content = bytearray(layout[-1].end)
    for spec in layout:
        data = np.ascontiguousarray(planes[spec.name]).astype(spec.dtype, copy=False).tobytes()
        assert len(data) == spec.size_bytes
        content[spec.offset : spec.end] = data
    return bytes(content)


def stored(
    path: Path, format: str, rows: int, columns: int, planes: Mapping[str, NDArray[Any]], **others: Any
) -> StoredMatrix:
    """Writes the planes one after the other at odd places, each cut into two spans, and describes them."""
    content = bytearray(b"\xff")
    described = {}
    for name, array in planes.items():
        data = np.ascontiguousarray(array).tobytes()
        cut = len(data) // 3
        first = FileSpan(path, len(content), cut)
        content += data[:cut] + b"\xff\xff"
        second = FileSpan(path, len(content), len(data) - cut)
        content += data[cut:] + b"\xff"
        described[name] = Plane(array.dtype.str.replace("|", ""), array.shape, (first, second))
    path.write_bytes(content)
    return StoredMatrix(path.stem, path, format, rows, columns, described, **others)

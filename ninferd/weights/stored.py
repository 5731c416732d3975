"""Where the bytes of a weight lie: the meeting point of the file readers, the loader and the converter. Free of torch.

A reader answers a parameter name with runs of rows of stored matrices and reads nothing; whoever wants the values reads
the spans, by mapping (``Plane.array``) or with its own I/O.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.config.files import open_regular
from ninferd.errors import InputError

MAX_OPEN_MAPS = 256

FileIdentity = tuple[int, int, int, int]
"""Device, inode, size in bytes, time of the last change in ns."""


@dataclass(frozen=True)
class FileSpan:
    """A run of bytes of one file; the reader has checked that the file is long enough."""

    path: Path
    offset: int
    size_bytes: int

    def part(self, begin: int, end: int) -> FileSpan:
        """The bytes ``begin`` to ``end`` of this span."""
        return FileSpan(self.path, self.offset + begin, end - begin)


@dataclass(frozen=True)
class Plane:
    """One array of a stored tensor: C order, little-endian, natural row-major unless the matrix says otherwise."""

    dtype: str  # numpy's spelling; bfloat16 is "<u2", the float8 and 4-bit codes are "u1"
    shape: tuple[int, ...]
    spans: tuple[FileSpan, ...]  # in order; several only where a container is split over files

    @property
    def size_bytes(self) -> int:
        return sum(span.size_bytes for span in self.spans)

    def part(self, begin: int, end: int) -> tuple[FileSpan, ...]:
        """Spans of the bytes ``begin`` to ``end``."""
        found = []
        for span in self.spans:
            first, last = max(begin, 0), min(end, span.size_bytes)
            if first < last:
                found.append(span.part(first, last))
            begin, end = begin - span.size_bytes, end - span.size_bytes
        return tuple(found)

    def array(self) -> NDArray[Any]:
        """The values, mapped and read-only; copied only where they straddle files. InputError if the file shrank."""
        pieces = [np.frombuffer(_mapped(span), np.uint8) for span in self.spans]
        raw = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return raw.view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix ``[rows, columns]`` as a file holds it. ``format`` is a name of ``ninferd.weights.formats.registry``.

    Planes by format (N rows, K columns; see that module for their meaning):

    - ``bf16``, ``fp16``, ``fp32``, ``fp64``: ``values [N, K]``
    - ``nvfp4``: ``codes u1 [N, K/2]``, ``scales u1 [N, K/16]``; per row a factor ``multiplier`` or a divisor
    - ``fp8_e4m3fn_row_bf16``: ``codes u1 [N, K]``, ``scales <u2 [N]``; Hugging Face's per-tensor and float32 scales
      come as ``factors`` instead of that plane
    - ``fp8_e4m3fn_block128``: ``codes u1 [N, K]``, ``scales`` (``<f4`` or ``<u2`` for bfloat16)
      ``[ceil(N/128), ceil(K/128)]``
    - ``q4_g64_fp16``, ``q5…``, ``q6…``, ``q8_g32_fp16``, ``t2_g128_fp16``: ``codes u1 [N, groups * bytes]``,
      ``high u1`` (q5 and q6), ``scales <f2 [N, groups]``, K padded to 128
    """

    name: str  # for messages: the object or tensor
    path: Path  # for messages: the file
    format: str
    rows: int
    columns: int
    planes: Mapping[str, Plane]
    divisors: tuple[float, ...] = ()  # nvfp4: value = code * scale / divisor; one, or one for each of equal row blocks
    factors: tuple[float, ...] = ()  # value = code * scale * factor: one, or one per row (ModelOpt, FP8)
    is_swizzled: bool = False  # nvfp4: the scales are in the 128x4 tiles of an artifact
    activation_divisor: float | None = None  # calibrated d_x of nvfp4 activations, where the source has one
    activation_problem: str = ""  # why it is not used although the source has one, for messages


@dataclass(frozen=True)
class RowRun:
    """Rows ``begin`` to ``end`` of a stored matrix."""

    matrix: StoredMatrix
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.begin


def joined(runs: tuple[RowRun, ...]) -> tuple[RowRun, ...]:
    """The same rows in as few runs as possible."""
    merged: list[RowRun] = []
    for run in runs:
        if merged and merged[-1].matrix is run.matrix and merged[-1].end == run.begin:
            merged[-1] = RowRun(run.matrix, merged[-1].begin, run.end)
        else:
            merged.append(run)
    return tuple(merged)


def file_identity(status: os.stat_result) -> FileIdentity:
    """What changes when a file is replaced, resized or written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_spans(spans: Sequence[FileSpan]) -> bytes:
    """A copy of the bytes of ``spans``. InputError if a file is not there or has become too short."""
    return b"".join(_mapped(span) for span in spans)


def forget_maps() -> None:
    """Let go of the files that are mapped here; a file deleted meanwhile gives its disk space back only then."""
    with _maps_lock:
        _maps.clear()


def _mapped(span: FileSpan) -> memoryview:
    if span.size_bytes == 0:
        return memoryview(b"")
    view = memoryview(_map(span.path))
    if span.offset + span.size_bytes > len(view):
        raise InputError(
            f"{span.path}: is {len(view)} bytes long, bytes {span.offset} to {span.offset + span.size_bytes} "
            "are needed: the file changed while it was read"
        )
    return view[span.offset : span.offset + span.size_bytes]


_maps: OrderedDict[Path, tuple[FileIdentity, mmap.mmap]] = OrderedDict()  # the least recently used first
_maps_lock = Lock()


def _map(path: Path) -> mmap.mmap:
    """The whole file. A map is kept for as long as the file stays the same: reading beyond the end of one that shrank
    would kill the process, and a replaced one has other bytes."""
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        identity = file_identity(os.fstat(descriptor))
        with _maps_lock:
            known = _maps.pop(path, None)
            if known is None or known[0] != identity:
                known = identity, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            _maps[path] = known
            if len(_maps) > MAX_OPEN_MAPS:
                _maps.popitem(last=False)
        return known[1]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)

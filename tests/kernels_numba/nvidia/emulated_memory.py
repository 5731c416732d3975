"""Memory as emulated kernels see it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass
class Memory:
    """Global memory as far as it is allowed, and the shared memory of one block."""

    tensors: Sequence[Tensor]
    shared_bytes: int

    def __post_init__(self) -> None:
        spans = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in self.tensors]
        self._spans = [(start, start + size) for start, size in spans]
        self._shared = np.full(self.shared_bytes, 0xFF, np.uint8)
        self.warp = self.barriers = 0  # of the thread that runs
        words = -(-self.shared_bytes // 4)
        self._written_by, self._read_by = (
            [-1] * words,
            [-1] * words,
        )  # barriers and warp; the last of the warps is several

    def place(self, space: str, address: int, size: int) -> int:
        """Host address of what a thread reads or writes, if it may."""
        assert address % min(size, 16) == 0, f"{size} bytes at {address:#x} are not aligned"
        if space == "shared":
            assert 0 <= address <= self.shared_bytes - size, f"{size} bytes at {address} of {self.shared_bytes} shared"
            return int(self._shared.ctypes.data) + address
        assert any(lo <= address and address + size <= hi for lo, hi in self._spans), f"{size} bytes at {address:#x}"
        return address

    def note(self, address: int, size: int, writes: bool) -> None:
        """A warp's access to shared memory; AssertionError if no barrier keeps it apart from another warp's."""
        if size < 4:  # neighbours in a word may belong to different warps
            return
        since = self.barriers * 64  # of what happened after the last barrier
        now, several = since + self.warp, since + 63
        written, read = self._written_by, self._read_by
        for word in range(address // 4, (address + size) // 4):
            race = since <= written[word] != now or (writes and since <= read[word] != now)
            assert not race, (
                f"warp {self.warp} {'writes' if writes else 'reads'} shared {4 * word}, another has just now"
            )
            if writes:
                written[word] = now
            else:
                read[word] = several if since <= read[word] != now else now

    def read(self, space: str, dtype: Any, count: int, address: int) -> Any:
        size = count * np.dtype(dtype).itemsize
        if space == "shared":
            self.note(int(address), size, writes=False)
        values = np.frombuffer(ctypes.string_at(self.place(space, int(address), size), size), dtype)
        return _scalar(values[0]) if count == 1 else tuple(_scalar(value) for value in values)

    def write(self, space: str, dtype: Any, address: int, *values: Any) -> None:
        mask = (1 << 8 * np.dtype(dtype).itemsize) - 1
        data = np.array([v if dtype is np.float32 else int(v) & mask for v in values], dtype).tobytes()
        if space == "shared":
            self.note(int(address), len(data), writes=True)
        ctypes.memmove(self.place(space, int(address), len(data)), data, len(data))


def _scalar(value: Any) -> Any:
    return value if value.dtype == np.float32 else int(value)

"""Batches of pieces from files into tensors: read by threads, several at a time, delivered in order.

On a CPU the threads read straight into the memory of the tensors. For a CUDA device they read into a ring of pinned
buffers, from which a stream of its own copies while the next ones are read; a buffer is read into again when the event
behind its copies has come. Values of another type than the tensor's are converted where the tensor is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ninferd.weights.loading.files import OpenFiles
from ninferd.weights.stored import FileSpan

BATCH_BYTES = 32 << 20
"""Of a batch at most, and of a pinned buffer."""

IN_FLIGHT = 4
"""Batches that are read or copied at the same time; as many threads, and pinned buffers."""

PIECE_ALIGNMENT = 64

TORCH_DTYPES = {
    "u1": torch.uint8,
    "<u2": torch.bfloat16,
    "<f2": torch.float16,
    "<f4": torch.float32,
    "<f8": torch.float64,
    "<i4": torch.int32,
}


@dataclass(frozen=True)
class Piece:
    """Stored elements, at most ``BATCH_BYTES`` of them, and the flat part of a tensor that they become."""

    spans: tuple[FileSpan, ...]
    dtype: torch.dtype
    target: Tensor

    @property
    def size_bytes(self) -> int:
        return self.target.numel() * self.dtype.itemsize

    @property
    def staged_bytes(self) -> int:
        """Room in a buffer, the next piece being aligned."""
        return -(-self.size_bytes // PIECE_ALIGNMENT) * PIECE_ALIGNMENT

    @property
    def is_converted(self) -> bool:
        return self.target.dtype != self.dtype


class Stage(Protocol):
    """One batch of pieces on its way."""

    def read(self) -> None:
        """Read it from files; runs in a thread of its own. Raises InputError."""

    def deliver(self) -> None:
        """Begin to bring what was read to the tensors."""


class Transfer(Protocol):
    """How batches come to one device."""

    def stage(self, pieces: Sequence[Piece]) -> Stage:
        """Room for a batch; stages are read in any order and delivered in that in which they were made."""

    def finish(self) -> None:
        """From here on work on the device sees what was delivered."""


class HostTransfer:
    """Into tensors on the CPU."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files

    def stage(self, pieces: Sequence[Piece]) -> Stage:
        return _HostStage(self._files, pieces)

    def finish(self) -> None:
        """Whatever was read is there."""


@dataclass(frozen=True)
class _HostStage:
    files: OpenFiles
    pieces: Sequence[Piece]

    def read(self) -> None:
        for piece in self.pieces:
            if piece.is_converted:
                stored = torch.empty(piece.size_bytes, dtype=torch.uint8)
                self.files.read_into(piece.spans, _memory(stored))
                piece.target.copy_(stored.view(piece.dtype))
            else:
                self.files.read_into(piece.spans, _memory(piece.target.view(torch.uint8)))

    def deliver(self) -> None:
        """Nothing is left to do."""


class CudaTransfer:
    """Into tensors on a CUDA device; there are ``IN_FLIGHT`` stages at a time."""

    def __init__(self, files: OpenFiles, device: torch.device) -> None:
        self._files = files
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [_PinnedBuffer() for _ in range(IN_FLIGHT)]
        self._staged = 0

    def stage(self, pieces: Sequence[Piece]) -> Stage:
        buffer = self._buffers[self._staged % IN_FLIGHT]
        self._staged += 1
        buffer.copied.synchronize()
        return _CudaStage(self._files, pieces, buffer, self._device, self._stream)

    def finish(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class _PinnedBuffer:
    """Where a batch waits for its copies to the device."""

    def __init__(self) -> None:
        self.memory = torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=True)
        self.copied: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _CudaStage:
    files: OpenFiles
    pieces: Sequence[Piece]
    buffer: _PinnedBuffer
    device: torch.device
    stream: torch.cuda.Stream

    def read(self) -> None:
        for piece, staged in self._staged():
            self.files.read_into(piece.spans, _memory(staged))

    def deliver(self) -> None:
        # The tensors may lie where work that is still queued on the current stream has its last reads.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for piece, staged in self._staged():
                stored = staged.view(piece.dtype)
                if piece.is_converted:
                    stored = stored.to(self.device, non_blocking=True)
                piece.target.copy_(stored, non_blocking=True)
            self.buffer.copied.record()

    def _staged(self) -> Iterator[tuple[Piece, Tensor]]:
        position = 0
        for piece in self.pieces:
            yield piece, self.buffer.memory[position : position + piece.size_bytes]
            position += piece.staged_bytes


def transfer_to(device: torch.device, files: OpenFiles) -> Transfer:
    """How batches come to ``device``."""
    return CudaTransfer(files, device) if device.type == "cuda" else HostTransfer(files)


def _memory(tensor: Tensor) -> memoryview:
    """The memory of a contiguous byte tensor on the CPU."""
    array: Any = tensor.numpy()
    return memoryview(array)

"""The ring of pinned buffers, with a device that exists only in the test: no buffer is read into before it is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ninferd.weights.loading import transfer
from ninferd.weights.loading.files import OpenFiles
from ninferd.weights.loading.transfer import CudaTransfer, Piece
from ninferd.weights.stored import FileSpan

CPU = torch.device("cpu")
BUFFER_BYTES = 1024


class LateStream:
    """Does its copies only when somebody waits for them."""

    def __init__(self) -> None:
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def wait_stream(self, other: Any) -> None:
        if isinstance(other, LateStream):
            other.run()

    def run(self) -> None:
        for target, source in self.pending:
            torch.Tensor.copy_(target, source)
        self.pending = []


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    """Takes the place of the copying stream, of its events and of pinned memory."""
    late, current = LateStream(), SimpleNamespace(wait_stream=lambda other: other.run())

    @contextmanager
    def use(_stream: LateStream) -> Iterator[None]:
        yield

    class Buffer:
        def __init__(self) -> None:
            self.memory = torch.empty(BUFFER_BYTES, dtype=torch.uint8)
            self.copied = SimpleNamespace(synchronize=late.run, record=lambda: None)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: late)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(transfer, "_PinnedBuffer", Buffer)
    return late


class LateTarget(torch.Tensor):
    """A tensor whose copies go to the stream's queue."""

    late: LateStream

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        assert non_blocking
        self.late.pending.append((self.as_subclass(torch.Tensor), source))
        return self


def late_target(stream: LateStream, count: int, dtype: torch.dtype) -> LateTarget:
    target = torch.zeros(count, dtype=dtype).as_subclass(LateTarget)
    target.late = stream
    return target


def test_buffers_are_used_again_when_they_are_free(stream: LateStream, tmp_path: Path) -> None:
    """Bytes of odd sizes beside bfloat16 that becomes float32, which must lie aligned."""
    content = np.random.default_rng(0).integers(0, 120, 20_000).astype(np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    targets, offset = [], 3
    with OpenFiles() as files:
        ring = CudaTransfer(files, CPU)
        for index in range(3 * transfer.IN_FLIGHT):
            pieces = []
            for stored, dtype in ((torch.uint8, torch.uint8), (torch.bfloat16, torch.float32)):
                count = 101 + 2 * index
                size = count * stored.itemsize
                target = late_target(stream, count, dtype)
                pieces.append(Piece((FileSpan(path, offset, 1), FileSpan(path, offset + 1, size - 1)), stored, target))
                targets.append((offset, size, stored, target))
                offset += size
            stage = ring.stage(pieces)
            stage.read()
            stage.deliver()
        ring.finish()
    for begin, size, stored, target in targets:
        expected = torch.from_numpy(content[begin : begin + size].copy()).view(stored).to(target.dtype)
        assert torch.equal(target.as_subclass(torch.Tensor), expected)

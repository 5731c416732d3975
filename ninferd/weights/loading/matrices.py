"""From resolved requests to matrices on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from kernels_numba.matrices import Matrix
from ninferd.weights.loading.assembly import Assembly, Generate
from ninferd.weights.loading.checks import ValueChecks
from ninferd.weights.loading.files import OpenFiles
from ninferd.weights.loading.resolve import ResolvedMatrix
from ninferd.weights.loading.transfer import BATCH_BYTES, IN_FLIGHT, Piece, Stage, transfer_to

OnProgress = Callable[[int, int], None]
"""Called with (bytes of the files done, bytes in all)."""


def load_matrices(
    requests: Iterable[ResolvedMatrix],
    device: torch.device,
    on_progress: OnProgress,
    generate: Generate | None = None,
) -> Iterator[tuple[str, tuple[Matrix, ...]]]:
    """The matrices of every request by its key, in the order of the files, as soon as they are there.

    Files are read ahead of what the caller is given, by a few batches. ``generate`` takes the place of reading. Raises
    InputError if a file has become shorter and, when the last matrix has been taken, if any holds values that cannot
    be; also what torch raises if memory runs out.
    """
    ordered = sorted(requests, key=lambda request: request.file_order)
    total = sum(request.file_bytes for request in ordered)
    done = 0
    checks = ValueChecks()
    with OpenFiles() as files, ThreadPoolExecutor(IN_FLIGHT, "weights") as threads:
        transfer = transfer_to(device, files)
        reading: deque[tuple[_Batch, Stage, Future[None]]] = deque()

        def finish_oldest() -> Iterator[tuple[str, tuple[Matrix, ...]]]:
            nonlocal done
            batch, stage, future = reading.popleft()
            future.result()
            stage.deliver()
            done += sum(piece.size_bytes for piece in batch.pieces)
            on_progress(done, total)
            for assembly in batch.completed:
                transfer.finish()
                yield assembly.key, assembly.matrices(checks)

        for batch in _batches(ordered, device, generate):
            if len(reading) == IN_FLIGHT:
                yield from finish_oldest()
            stage = transfer.stage(batch.pieces)
            reading.append((batch, stage, threads.submit(stage.read)))
        while reading:
            yield from finish_oldest()
        checks.require()


@dataclass
class _Batch:
    """What one thread reads at a time."""

    pieces: list[Piece] = field(default_factory=list)
    staged_bytes: int = 0
    completed: list[Assembly] = field(default_factory=list)  # those whose last piece is in here


def _batches(requests: Sequence[ResolvedMatrix], device: torch.device, generate: Generate | None) -> Iterator[_Batch]:
    """Tensors are allocated when their first batch is due."""
    batch = _Batch()
    for request in requests:
        assembly = Assembly(request, device, generate)
        for piece in assembly.pieces():
            if batch.staged_bytes + piece.staged_bytes > BATCH_BYTES:
                yield batch
                batch = _Batch()
            batch.pieces.append(piece)
            batch.staged_bytes += piece.staged_bytes
        batch.completed.append(assembly)
    yield batch

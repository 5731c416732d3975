"""The stream of a conversion: blocks of rows are read and encoded by threads and written in order."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ninferd.errors import InputError
from ninferd.weights.artifact.writer import ArtifactWriter, PlaneWriter
from ninferd.weights.convert.blocks import block_rows, split
from ninferd.weights.convert.encoding import Block, BlockEncoder, Deviation, EncodedBlock
from ninferd.weights.convert.inventory import Inventory, Weight
from ninferd.weights.convert.sources import Runs, Sources
from ninferd.weights.formats.encoders import nvfp4_divisor
from ninferd.weights.formats.minifloat import bf16_of_float32
from ninferd.weights.formats.registry import BF16, NVFP4

OnProgress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""

BLOCKS_AHEAD = 2
"""Encoded blocks that wait to be written, for each thread."""


@dataclass
class Written:
    """What became of one tensor object."""

    weight: Weight
    sources: tuple[str, ...] = ()  # names of the tensors that its rows come from
    source_formats: tuple[str, ...] = ()
    deviation: Deviation = field(default_factory=Deviation)


class Pipeline:
    """Fills an artifact from its sources."""

    def __init__(
        self,
        writer: ArtifactWriter,
        inventory: Inventory,
        sources: Sources,
        runs: Mapping[str, Runs],
        encoder: BlockEncoder,
        threads: int,
        on_progress: OnProgress,
    ) -> None:
        self._writer = writer
        self._inventory = inventory
        self._sources = sources
        self._runs = runs
        self._encoder = encoder
        self._threads = threads
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(entry.size_bytes for entry in inventory.contents.objects)

    def run(self, resources: Mapping[str, bytes]) -> list[Written]:
        """Write everything; ``resources`` by object id. Stops at the first error, threads included."""
        for object_id, content in resources.items():
            self._put(object_id, content)
        for object_id, value in self._inventory.auxiliaries.items():
            self._put(object_id, struct.pack("<f", value))
        pool = ThreadPoolExecutor(self._threads)
        try:
            return self._weights(pool)
        finally:
            pool.shutdown(cancel_futures=True)

    def _weights(self, pool: ThreadPoolExecutor) -> list[Written]:
        all_written: list[Written] = []
        ahead: deque[tuple[_Target, Future[EncodedBlock]]] = deque()
        for weight in self._inventory.weights:
            written = Written(weight)
            all_written.append(written)
            if weight.members[0].direct is not None:
                self._put_direct(weight)
                continue
            target = _Target(self._writer.planes(weight.record.id), written)
            for future in self._encoded(pool, target):
                ahead.append((target, future))
                while len(ahead) > BLOCKS_AHEAD * self._threads:
                    self._write(*ahead.popleft())
        while ahead:
            self._write(*ahead.popleft())
        return all_written

    def _encoded(self, pool: ThreadPoolExecutor, target: _Target) -> Iterator[Future[EncodedBlock]]:
        """Blocks of a weight on their way, in order."""
        weight = target.written.weight
        runs = tuple(run for member in weight.members for run in self._runs[member.name])
        blocks = list(split(runs, block_rows(weight.record.shape[1])))
        target.blocks_left = len(blocks)
        target.written.sources = tuple(dict.fromkeys(run.matrix.name for run in runs))
        target.written.source_formats = tuple(dict.fromkeys(run.matrix.format for run in runs))
        format = weight.record.format
        if weight.choices[0].is_imported:
            if format == NVFP4:
                target.divisors = _kept_divisors(weight)
            for block in blocks:
                yield pool.submit(self._encoder.keep, block, format)
            return
        divisor = 1.0
        if format == NVFP4:
            divisor = self._divisor(pool, weight, blocks)
            target.divisors = (divisor,)
        for block in blocks:
            yield pool.submit(self._encoder.encode, block, format, divisor)

    def _divisor(self, pool: ThreadPoolExecutor, weight: Weight, blocks: Sequence[Block]) -> float:
        largest = max(pool.map(self._encoder.largest, blocks))
        try:
            return nvfp4_divisor(largest)
        except InputError as error:
            names = ", ".join(member.name for member in weight.members[:4])
            raise InputError(f"{self._sources.model.path}: {names}: {error}") from None

    def _write(self, target: _Target, future: Future[EncodedBlock]) -> None:
        encoded = future.result()
        for name, plane in encoded.planes.items():
            target.planes.write(name, memoryview(plane.data))
            self._advance(plane.nbytes)
        target.written.deviation += encoded.deviation
        target.blocks_left -= 1
        if target.blocks_left == 0:
            if target.divisors:
                target.planes.write("divisors", struct.pack(f"<{len(target.divisors)}f", *target.divisors))
            target.planes.close()

    def _put_direct(self, weight: Weight) -> None:
        values = [np.ascontiguousarray(self._sources.array(member)) for member in weight.members]
        if weight.record.format == BF16:
            values = [bf16_of_float32(each) for each in values]
        self._put(weight.record.id, b"".join(each.tobytes() for each in values))

    def _put(self, object_id: str, content: bytes) -> None:
        self._writer.put(object_id, [content])
        self._advance(len(content))

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._on_progress(self._done_bytes, self._total_bytes)


@dataclass
class _Target:
    """A tensor that is being written."""

    planes: PlaneWriter
    written: Written
    blocks_left: int = 0
    divisors: tuple[float, ...] = ()


def _kept_divisors(weight: Weight) -> tuple[float, ...]:
    divisors = tuple(choice.divisor for choice in weight.choices if choice.divisor is not None)
    return divisors if weight.record.divisors > 1 else divisors[:1]

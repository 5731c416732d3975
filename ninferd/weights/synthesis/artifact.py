"""Writing a synthetic model as an artifact."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ninferd.weights.artifact.plan import plan_artifact
from ninferd.weights.artifact.writer import ArtifactWriter
from ninferd.weights.convert.inventory import Weight
from ninferd.weights.formats.encoders import Encoders
from ninferd.weights.formats.minifloat import bf16_of_float32
from ninferd.weights.formats.registry import BF16, NVFP4
from ninferd.weights.synthesis.model import SyntheticModel
from ninferd.weights.synthesis.pool import PoolKey, RowPool, make_pool, pool_rows
from ninferd.weights.synthesis.statistics import direct_values, matrix_sigma

OnProgress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""


def write_synthetic(
    model: SyntheticModel,
    path: Path,
    encoders: Encoders,
    on_progress: OnProgress,
) -> int:
    """Write the artifact ``path``, which must not exist; returns its size in bytes. The same model, the same bytes.

    Nothing is left behind if it is interrupted. InputError naming the file, also if the disk has too little room.
    """
    contents = model.inventory.contents
    artifact_id = hashlib.sha256(plan_artifact(contents, path.name).json).digest()[:16]
    writer = ArtifactWriter(path, contents, artifact_id=artifact_id)
    with writer:
        _Filling(model, writer, encoders, on_progress).run()
        writer.publish()
    return writer.plan.total_bytes


class _Filling:
    """All objects of one artifact."""

    def __init__(
        self, model: SyntheticModel, writer: ArtifactWriter, encoders: Encoders, on_progress: OnProgress
    ) -> None:
        self._model = model
        self._writer = writer
        self._encoders = encoders
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(entry.size_bytes for entry in model.inventory.contents.objects)
        self._keys = {
            weight.record.id: _key(model, weight)
            for weight in model.inventory.weights
            if weight.members[0].direct is None
        }
        self._most_rows: dict[PoolKey, int] = {}
        for weight in model.inventory.weights:
            if (key := self._keys.get(weight.record.id)) is not None:
                self._most_rows[key] = max(self._most_rows.get(key, 0), weight.record.shape[0])
        self._pools: dict[PoolKey, RowPool] = {}

    def run(self) -> None:
        for component in self._model.inventory.contents.components.values():
            for role, object_id in component.resources.items():
                self._put(object_id, self._model.frontend[role])
        for object_id, value in self._model.inventory.auxiliaries.items():
            self._put(object_id, struct.pack("<f", value))
        for weight in self._model.inventory.weights:
            if weight.record.id in self._keys:
                self._fill(weight, self._pool(self._keys[weight.record.id]))
            else:
                self._put_direct(weight)

    def _pool(self, key: PoolKey) -> RowPool:
        if key not in self._pools:
            rows = pool_rows(key.columns, self._most_rows[key])
            self._pools[key] = make_pool(key, rows, self._encoders, self._model.seed)
        return self._pools[key]

    def _fill(self, weight: Weight, pool: RowPool) -> None:
        """Turns of the pool, one below the other."""
        record = weight.record
        generator = self._model.generator(record.id)
        planes = self._writer.planes(record.id)
        for begin in range(0, record.shape[0], pool.rows):
            down, across = (int(generator.integers(count)) for count in pool.turns)
            pieces = {name: plane[: record.shape[0] - begin] for name, plane in pool.turned(down, across).items()}
            if begin == 0 and record.format == NVFP4:
                pieces["divisors"] = np.full(record.divisors, pool.divisor, "<f4")
            for name, piece in pieces.items():
                planes.write(name, piece)
                self._advance(piece.nbytes)
        planes.close()

    def _put_direct(self, weight: Weight) -> None:
        token_count = self._model.token_count
        for_each = [direct_values(each, token_count, self._model.generator(each.name)) for each in weight.members]
        values = np.concatenate(for_each)
        self._put(weight.record.id, (bf16_of_float32(values) if weight.record.format == BF16 else values).tobytes())

    def _put(self, object_id: str, content: bytes) -> None:
        self._writer.put(object_id, [content])
        self._advance(len(content))

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._on_progress(self._done_bytes, self._total_bytes)


def _key(model: SyntheticModel, weight: Weight) -> PoolKey:
    """All members of an object are of one kind: those that are packed together serve alike."""
    return PoolKey(weight.record.format, weight.record.shape[1], matrix_sigma(weight.members[0], model.geometry))

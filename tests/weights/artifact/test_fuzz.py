"""Whatever a file holds: it opens and all its values are there, or one line says why not. Nothing else happens."""

from __future__ import annotations

import json
import resource
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import ResourceObject
from ninferd.weights.artifact.reader import Artifact
from tests.weights.artifact.mutation import DAMAGES, ENTRY, Files, Mutator, base_artifacts
from tests.weights.artifact.support import framed

SEEDS = range(4)
MUTATIONS_PER_SEED = 5000
MAX_MESSAGE_CHARACTERS = 2000
MEMORY_ROOM_BYTES = 256 << 20
"""Beyond what the process has when the test starts: an allocation by an unchecked number of 32 bits does not fit."""


def written(directory: Path, files: Files) -> Path:
    """Put the files of an artifact into ``directory``, in place of those of the one before."""
    for path in directory.iterdir():
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory / ENTRY


def walk(path: Path) -> str:
    """Open an artifact and look at every value; says how it ended."""
    try:
        artifact = Artifact.open(path)
    except InputError as error:
        require_one_line(error, path)
        return "refused"
    outcome = "accepted"
    matrices = {}
    for object_id, entry in artifact.objects.items():
        try:
            if isinstance(entry, ResourceObject):
                assert len(artifact.resource(object_id)) == entry.size_bytes
            else:
                matrix = matrices[object_id] = artifact.matrix(object_id)
                for plane in matrix.planes.values():
                    assert plane.array().nbytes == plane.size_bytes <= entry.size_bytes
        except InputError as error:
            require_one_line(error, path)
            outcome = "object refused"
    for binding in artifact.bindings.values():
        for part in binding.parts:
            bound = matrices.get(part.object_id)
            assert bound is None or 0 <= part.begin < part.end <= bound.rows * bound.columns
    return outcome


def require_one_line(error: InputError, path: Path) -> None:
    message = str(error)
    assert message.startswith(f"{path.parent}/")  # the entry file or a part
    assert message.isprintable()
    assert len(message) < MAX_MESSAGE_CHARACTERS


@contextmanager
def limited_memory() -> Iterator[None]:
    """An allocation that does not fit is a MemoryError, which fails the test."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_artifacts(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    bases = base_artifacts()
    mutator = Mutator(Random(seed))
    outcomes: Counter[str] = Counter()
    with limited_memory():
        for index in range(MUTATIONS_PER_SEED):
            files = mutator.mutated(bases[index % len(bases)])
            path = written(tmp_path, files)
            try:
                outcomes[walk(path)] += 1
            except BaseException as error:
                error.add_note(f"mutation {index} of seed {seed}, in {tmp_path}")
                raise
    assert min(outcomes[kind] for kind in ("accepted", "object refused", "refused")) > MUTATIONS_PER_SEED // 50
    assert mutator.used.keys() == {damage.__name__ for damage in DAMAGES}
    with capsys.disabled():
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items()))
        print(f"\n{outcomes.total()} mutated artifacts (seed {seed}): {found}", end=" ")


def test_memory_follows_the_size_of_the_file(tmp_path: Path) -> None:
    """Values of JSON take up to 64 bytes for two characters; nothing takes more."""
    bases = base_artifacts()
    mutator = Mutator(Random(99))
    tracemalloc.start()
    try:
        for index in range(300):
            files = mutator.mutated(bases[index % len(bases)])
            path = written(tmp_path, files)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            walk(path)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 100_000 + 64 * sum(len(content) for content in files.values())
    finally:
        tracemalloc.stop()


def test_base_artifacts_are_sound(tmp_path: Path) -> None:
    assert [walk(written(tmp_path, files)) for files in base_artifacts()] == ["accepted"] * 5


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["w", "r", "text", "tensor", "nvfp4", "bf16", "contiguous_le_v1", "full", "AllowA4"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["w", "r", "text", "mtp"]) | st.text(max_size=4)
SMALL = st.integers(0, 300)
OBJECT = st.fixed_dictionaries(
    {
        "id": NAMES | VALUES,
        "kind": st.sampled_from(["tensor", "resource"]) | VALUES,
        "offset": st.sampled_from([0, 256, 512]) | SMALL | VALUES,
        "bytes": SMALL | VALUES,
    },
    optional={
        "shape": st.lists(st.integers(1, 20), max_size=3) | VALUES,
        "format": st.sampled_from(["bf16", "fp32", "q4_g64_fp16", "nvfp4", "fp8_e4m3fn_row_bf16"]) | VALUES,
        "layout": st.sampled_from(["contiguous_le_v1", "row_split_k128_v1", "row_scale_v1"]) | VALUES,
        "encoding": st.just("raw_bytes_v1") | VALUES,
        "divisors": SMALL | VALUES,
    },
)
BINDING = st.fixed_dictionaries(
    {},
    optional={
        "object": NAMES | VALUES,
        "parts": st.lists(
            st.fixed_dictionaries({"object": NAMES | VALUES, "range": st.lists(SMALL, max_size=3) | VALUES}), max_size=2
        )
        | VALUES,
    },
)
COMPONENT: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"config": st.just({}) | VALUES},
    optional={
        "target": NAMES | VALUES,
        "resources": st.dictionaries(st.text(max_size=3), NAMES, max_size=2) | VALUES,
        "proposal": st.fixed_dictionaries({"domain": st.sampled_from(["full", "indexed"])}, optional={"rows": SMALL})
        | VALUES,
    },
)
USE = st.fixed_dictionaries(
    {"parameter": NAMES | VALUES, "input": NAMES | VALUES},
    optional={
        "activation_policy": st.just("AllowA8") | VALUES,
        "auxiliaries": st.dictionaries(st.text(max_size=3), BINDING, max_size=2) | VALUES,
    },
)
FILE = st.fixed_dictionaries({"path": st.none() | NAMES | VALUES, "payload_bytes": st.integers(1, 1000) | VALUES})
DIRECTORY = st.fixed_dictionaries(
    {
        "components": st.dictionaries(NAMES, COMPONENT, max_size=2) | VALUES,
        "objects": st.lists(OBJECT, max_size=3) | VALUES,
        "bindings": st.dictionaries(NAMES, BINDING, max_size=2) | VALUES,
        "uses": st.lists(USE, max_size=2) | VALUES,
        "files": st.lists(FILE, max_size=2) | VALUES,
    },
    optional={"metadata": VALUES, "provenance": VALUES, "x": VALUES},
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(directory=DIRECTORY | VALUES, payload=st.binary(max_size=1000))
def test_generated_directories(tmp_path: Path, directory: Any, payload: bytes) -> None:
    walk(written(tmp_path, {ENTRY: framed(directory, payload)}))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | VALUES.map(json.dumps).map(str.encode))
def test_generated_texts(tmp_path: Path, text: bytes) -> None:
    walk(written(tmp_path, {ENTRY: framed(None, b"", json_bytes=text)}))
    walk(written(tmp_path, {ENTRY: text}))

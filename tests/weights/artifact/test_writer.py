"""Artifacts are written to the byte, and whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.weights.artifact import golden
from tests.weights.artifact.support import write_golden


def test_golden_file_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "golden.ninfer"
    write_golden(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == golden.SHA256
    assert [entry.name for entry in tmp_path.iterdir()] == ["golden.ninfer"]

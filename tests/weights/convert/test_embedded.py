"""The artifact that is shipped is the one that the shipped checkpoint becomes."""

from __future__ import annotations

from pathlib import Path

import ninferd
from ninferd.weights.convert.conversion import Output, convert
from ninferd.weights.convert.request import Request, prepare
from ninferd.weights.formats.encode import NumpyEncoders

ASSETS = Path(ninferd.__file__).parent / "assets"
SHIPPED = ASSETS / "ninfer_tiny_nvfp4" / "ninfer-tiny.ninfer"
IDENTIFIER = bytes.fromhex("6e696e6665722d74696e792d6e766634")  # as in tools/train_tiny/README.md


def test_the_embedded_artifact_is_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ninfer-tiny.ninfer"
    prepared = prepare(Request(ASSETS / "ninfer_tiny", "nvfp4", name="ninfer-tiny"))
    report = convert(prepared, Output(path, NumpyEncoders(), artifact_id=IDENTIFIER), lambda *_: None, lambda *_: None)
    assert path.read_bytes() == SHIPPED.read_bytes(), "convert ninfer_tiny again: see tools/train_tiny/README.md"
    assert path.stat().st_size < 12e6
    assert max(entry.get("relative_rms_error", 0) for entry in report["objects"]) < 0.0025  # trained on this grid

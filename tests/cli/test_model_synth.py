"""``ninferd model synth``: its options, its output and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.cli import main
from ninferd.weights.artifact_source import ArtifactSource
from tests.weights.synthesis.geometries import DENSE, MOE, VISION, written


def synth(*arguments: str | Path) -> int:
    return main(["model", "synth", *map(str, arguments)])


def test_an_artifact_and_one_line_about_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.ninfer"
    assert synth(written(tmp_path, DENSE), path, "--recipe", "groupwise-int", "--seed", "7") == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}: {path.stat().st_size:,} bytes, text, mtp\n"
    assert "weights: 100 %" in printed.err
    source = ArtifactSource.open(path)
    assert source.artifact.provenance == {
        "converter": "ninferd",
        "recipe": "groupwise-int",
        "synthetic": {"geometry": tmp_path.name, "seed": 7},
    }
    assert "q4_g64_fp16" in source.stored_formats("text")


def test_defaults_and_components(tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    assert synth(written(tmp_path, VISION), path, "--without", "vision,mtp") == 0
    source = ArtifactSource.open(path)
    assert source.components == ("text",)
    assert "nvfp4" in source.stored_formats("text")


def test_experts(tmp_path: Path) -> None:
    path = tmp_path / "model.ninfer"
    assert synth(Path(written(tmp_path, MOE)) / "config.json", path, "--recipe", "qwen3_6_35b_a3b_nvfp4") == 0
    assert ArtifactSource.open(path).matrix("text/layers/0/moe/experts/3/down", 256, 128)


def test_what_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.ninfer"
    path.write_text("mine")
    assert synth("qwen3.8-27b", path) == 2
    assert capsys.readouterr().err == f"ninferd: {path}: exists already; it is not overwritten\n"
    assert path.read_text() == "mine"


def test_what_is_written_passes_verification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.ninfer"
    assert synth(written(tmp_path, VISION), path, "--recipe", "qwen3.8-nvfp4") == 0
    assert main(["model", "verify", str(path)]) == 0


@pytest.mark.parametrize("options", [["--seed", "-1"], ["--seed", "x"], ["--without", "text"]])
def test_refused_options(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        synth("qwen3.8-27b", tmp_path / "model.ninfer", *options)
    assert ended.value.code == 2
    assert options[1] in capsys.readouterr().err

"""Files around a conversion: what appears, when, and that nothing is left of one that does not end well."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Component
from ninferd.weights.artifact.plan import Contents, resource_object
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact.writer import ArtifactWriter
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.convert.conversion import Output, convert
from ninferd.weights.convert.request import Request, prepare
from ninferd.weights.formats.encode import NumpyEncoders
from tests.weights.convert import formulas
from tests.weights.convert.checkpoint import HIDDEN, VOCABULARY, Checkpoint, T
from tests.weights.convert.draft import write_draft
from tests.weights.convert.test_round_trip import decoded

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Checkpoint().write(tmp_path_factory.mktemp("source") / "Some-Model")


def run(request: Request, path: Path, **options: Any) -> dict[str, Any]:
    return convert(prepare(request), Output(path, NumpyEncoders(), **options), lambda *_: None, lambda *_: None)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_report_and_checksum(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    report = run(Request(model, "nvfp4"), path)
    assert names(tmp_path) == {"m.ninfer", "m.ninfer.sha256", "m.ninfer.conversion.json"}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tmp_path / "m.ninfer.sha256").read_text() == f"{digest}  m.ninfer\n"
    assert json.loads((tmp_path / "m.ninfer.conversion.json").read_text()) == report
    assert report["files"] == [{"name": "m.ninfer", "bytes": path.stat().st_size, "sha256": digest}]
    assert report["recipe"] == "nvfp4"
    assert report["name"] == "Some-Model"
    artifact = Artifact.open(path)
    assert artifact.artifact_id is not None
    assert report["artifact_id"] == artifact.artifact_id.hex()
    assert artifact.metadata == {"name": "Some-Model"}
    assert artifact.provenance == {
        "converter": "ninferd",
        "recipe": "nvfp4",
        "sources": {"model": {"path": "Some-Model"}},
    }
    assert [entry["id"] for entry in report["objects"]] == [name for name in artifact.objects if "weight" in name]
    methods = {entry["format"]: entry for entry in report["objects"] if "relative_rms_error" in entry}
    assert methods["nvfp4"]["method"] == "encoded, max_abs"
    assert methods["nvfp4"]["source_formats"] == ["bf16"]
    attention = next(entry for entry in report["objects"] if "text/layers/1/attention/query" in entry["parameters"])
    assert [name.rpartition(".layers.1.")[2] for name in attention["sources"]] == [
        f"self_attn.{part}_proj.weight" for part in "qkv"
    ]
    assert 0.08 < methods["nvfp4"]["relative_rms_error"] < 0.11
    assert 0.003 < methods["q8_g32_fp16"]["relative_rms_error"] < 0.01
    assert methods["bf16"]["relative_rms_error"] == 0


def test_least_error_is_better(model: Path, tmp_path: Path) -> None:
    errors = [
        sum(entry["relative_rms_error"] for entry in report["objects"] if entry["format"] == "nvfp4")
        for report in (
            run(Request(model, "nvfp4"), tmp_path / "a.ninfer"),
            run(Request(model, "nvfp4"), tmp_path / "b.ninfer", method="least_error"),
        )
    ]
    assert errors[1] < 0.97 * errors[0]


def test_the_same_identifier_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(Request(model, "nvfp4"), tmp_path / name / "m.ninfer", artifact_id=bytes(range(16)))
    assert (tmp_path / "a/m.ninfer").read_bytes() == (tmp_path / "b/m.ninfer").read_bytes()


def test_an_existing_file_is_replaced_only_on_demand(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match="exists already"):
        run(Request(model, "nvfp4"), path)
    assert path.read_bytes() == b"precious"
    run(Request(model, "nvfp4"), path, overwrite=True)
    Artifact.open(path)


def test_no_checksum_of_a_replaced_artifact_stays(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    run(Request(model, "nvfp4"), path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    output = Output(path, NumpyEncoders(), overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        convert(prepare(Request(model, "bf16")), output, lambda *_: None, interrupted)
    assert names(tmp_path) == {"m.ninfer"}
    assert Artifact.open(path).provenance["recipe"] == "bf16"


@pytest.mark.parametrize("taken", ["m.ninfer", "m.ninfer.sha256", "m.ninfer.conversion.json"])
@pytest.mark.parametrize("kind", ["a directory", "no regular file"])
def test_what_is_no_file_is_never_replaced_and_is_noticed_at_once(
    taken: str, kind: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / taken
    if kind == "a directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    written: list[object] = []
    output = Output(tmp_path / "m.ninfer", NumpyEncoders(), overwrite=True)
    with pytest.raises(InputError, match=f"{taken}: exists already and is {kind}; it is not replaced$"):
        convert(prepare(Request(model, "bf16")), output, lambda *_: written.append(_), lambda *_: None)
    assert names(tmp_path) == {taken}
    assert not path.is_file()
    assert not written


@pytest.mark.parametrize("path", ["", ".", "..", "/"])
def test_a_path_without_a_name(path: str, model: Path) -> None:
    with pytest.raises(InputError, match=r"^[./]+: is not the name of a file$"):
        run(Request(model, "bf16"), Path(path), overwrite=True)


def test_a_name_too_long_for_a_sidecar_is_noticed_at_once(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"conversion\.json: cannot be written: File name too long"):
        run(Request(model, "bf16"), tmp_path / f"{'m' * 238}.ninfer")
    assert not names(tmp_path)


def test_continuations(model: Path, tmp_path: Path) -> None:
    whole, split = tmp_path / "whole.ninfer", tmp_path / "split.ninfer"
    run(Request(model, "nvfp4"), whole, artifact_id=bytes(16))
    report = run(Request(model, "nvfp4"), split, artifact_id=bytes(16), max_file_bytes=1 << 18)
    files = [entry["name"] for entry in report["files"]]
    assert files[:2] == ["split.ninfer", "split.ninfer.part-0001"]
    assert all((tmp_path / name).stat().st_size <= 1 << 18 for name in files)
    listed = (tmp_path / "split.ninfer.sha256").read_text().splitlines()
    assert listed == [f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}" for name in files]
    first, second = ArtifactSource.open(whole), ArtifactSource.open(split)
    for parameter, shape in (("text/token_embedding", (VOCABULARY, HIDDEN)), ("mtp/layers/0/mlp/up", (256, HIDDEN))):
        np.testing.assert_array_equal(decoded(first, parameter, shape), decoded(second, parameter, shape))


def test_components_can_be_left_out(model: Path, tmp_path: Path) -> None:
    run(Request(model, "nvfp4", without=frozenset({"vision", "mtp"})), tmp_path / "m.ninfer")
    artifact = Artifact.open(tmp_path / "m.ninfer")
    assert list(artifact.components) == ["text"]
    assert {name.split("/")[0] for name in artifact.bindings} == {"text"}


def test_an_announced_component_without_weights_is_left_out_with_a_note(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    for name in [name for name in checkpoint.tensors if name.startswith("mtp.")]:
        del checkpoint.tensors[name]
    prepared = prepare(Request(checkpoint.write(tmp_path / "model"), "nvfp4"))
    assert list(prepared.inventory.contents.components) == ["text", "vision"]
    assert any("announces mtp, but the weights have no mtp/input_projection" in note for note in prepared.notes)


@pytest.mark.parametrize("recipe", ["nvfp4", "qwen3_8_27b_nvfp4_qat"])
def test_drafter(model: Path, tmp_path: Path, recipe: str) -> None:
    tensors = write_draft(tmp_path / "draft")
    path = tmp_path / "m.ninfer"
    run(Request(model, recipe, draft=tmp_path / "draft"), path)
    source = ArtifactSource.open(path)
    assert source.components == ("text", "vision", "mtp", "dflash2")
    prefix = "dflash2/layers/0/attention/"
    bindings = source.artifact.bindings
    assert (bindings[f"{prefix}context_key"] == bindings[f"{prefix}key"]) == (recipe == "nvfp4")
    values = tensors["fc.weight"].float().numpy()
    expected = formulas.encoded(values, "q8_g32_fp16" if recipe == "nvfp4" else "nvfp4")
    np.testing.assert_array_equal(decoded(source, "dflash2/feature_projection", values.shape), expected)
    kernel = tensors["layers.0.mlp_conv.base_kernel"].float().numpy()
    np.testing.assert_array_equal(source.array("dflash2/layers/0/mlp_conv/base_kernel", (2, 2, HIDDEN)), kernel)
    key = tensors["layers.0.self_attn.k_proj.weight"].float().numpy()
    if recipe != "nvfp4":
        context = decoded(source, f"{prefix}context_key", (128, HIDDEN))
        np.testing.assert_array_equal(context, formulas.encoded(key, "nvfp4"))


def tokenizer(count: int) -> dict[str, Any]:
    added = [{"id": count - 2 + i, "content": f"<{i}>", "special": i == 1, "normalized": False} for i in range(2)]
    vocabulary = {f"t{i}": i for i in range(count - 2)}
    return {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": added,
    }


def test_draft_head(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    checkpoint = Checkpoint()
    checkpoint.write(source)
    (source / "tokenizer.json").write_text(json.dumps(tokenizer(500)))
    counts = np.random.default_rng(0).permutation(VOCABULARY).astype("<i8")
    (tmp_path / "counts").write_bytes(counts.tobytes())
    path = tmp_path / "m.ninfer"
    run(Request(source, "nvfp4", draft_head_counts=tmp_path / "counts", draft_head_rows=200), path)
    artifact = ArtifactSource.open(path)
    ids = artifact.array("proposal/token_ids", (200,))
    others = sorted((i for i in range(499)), key=lambda i: -counts[i])[:199]
    assert ids.tolist() == sorted([*others, 499], key=lambda i: -counts[i])
    rows = checkpoint.matrix("text/output_head")[ids]
    found = decoded(artifact, "proposal/head", (200, HIDDEN))
    np.testing.assert_array_equal(found, formulas.encoded(rows, "q4_g64_fp16"))
    text = artifact.artifact.components["text"]
    assert text.proposal is not None
    assert (text.proposal.domain, text.proposal.rows) == ("indexed", 200)
    inputs = {use.input for use in artifact.artifact.uses if use.parameter == "proposal/head"}
    assert inputs == {"mtp/final_hidden"}


def test_a_value_that_is_not_finite_names_file_and_tensor_and_leaves_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    checkpoint.tensors["mtp.fc.weight"][5, 5] = float("nan")
    source = checkpoint.write(tmp_path / "model")
    (tmp_path / "out").mkdir()
    with pytest.raises(
        InputError, match=r"model\.safetensors: tensor mtp\.fc\.weight: .* cannot be stored as q8_g32_fp16"
    ):
        run(Request(source, "nvfp4"), tmp_path / "out" / "m.ninfer")
    assert names(tmp_path / "out") == set()


def test_unexpected_tensors_are_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    checkpoint.tensors[f"{T}layers.0.mlp.extra.weight"] = checkpoint.tensors["mtp.norm.weight"].clone()
    with pytest.raises(InputError, match=r"unexpected tensors: layers\.0\.mlp\.extra\.weight"):
        prepare(Request(checkpoint.write(tmp_path / "model"), "nvfp4"))


def test_a_full_disk_is_noticed_before_anything_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(InputError, match=r"needs \d+ bytes, .* has 1000 free"):
        run(Request(model, "nvfp4"), tmp_path / "m.ninfer")
    assert names(tmp_path) == set()


SLOW = """
import os, sys, time
from pathlib import Path
from ninferd.weights.convert.conversion import Output, convert
from ninferd.weights.convert.request import Request, prepare
from ninferd.weights.formats.encode import NumpyEncoders

class Slow(NumpyEncoders):
    def grouped(self, values, bits):
        os.write(1, b"quantising\\n")
        time.sleep(0.2)
        return super().grouped(values, bits)

source, path = map(Path, sys.argv[1:])
try:
    convert(prepare(Request(source, "nvfp4")), Output(path, Slow(), threads=2), lambda *_: None, lambda *_: None)
except KeyboardInterrupt:
    sys.exit(130)
"""


def interrupted(model: Path, path: Path, how: signal.Signals) -> int:
    """Start a conversion, end it in the middle of the weights, and return its exit status."""
    program = [sys.executable, "-c", SLOW, str(model), str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "quantising\n"
        process.send_signal(how)
        return process.wait(60)


def test_interrupting_removes_what_was_written(model: Path, tmp_path: Path) -> None:
    assert interrupted(model, tmp_path / "m.ninfer", signal.SIGINT) == 130
    assert names(tmp_path) == set()


def test_killing_leaves_no_artifact_and_the_next_run_works(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    assert interrupted(model, path, signal.SIGKILL) == -signal.SIGKILL
    assert not path.exists()
    run(Request(model, "nvfp4"), path)
    assert names(tmp_path) == {"m.ninfer", "m.ninfer.sha256", "m.ninfer.conversion.json"}
    Artifact.open(path)


@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("name", ["a\nb.ninfer", "\x1b[31m", "b\x7f"])
def test_a_name_that_breaks_lines(model: Path, tmp_path: Path, name: str, overwrite: bool) -> None:
    refused = pytest.raises(InputError, match=r"the name of an artifact must have no control characters$")
    with refused:
        run(Request(model, "bf16"), tmp_path / name, overwrite=overwrite)
    contents = Contents((resource_object("r", 1),), {"text": Component({})}, {})
    with refused, ArtifactWriter(tmp_path / name, contents, overwrite=overwrite):
        pass
    assert list(tmp_path.iterdir()) == []

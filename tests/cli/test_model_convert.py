"""``ninferd model convert`` as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ninferd.cli import main
from ninferd.weights.artifact.writer import ArtifactWriter
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.convert.inventory import ROLES
from tests.support.frontends import tiny_directory
from tests.support.legacy_inventory import PUBLISHED_BYTES, resources
from tests.weights.convert.checkpoint import Checkpoint
from tests.weights.convert.test_inventory import FRONTEND, PUBLISHED, VERSION_2


def convert(*arguments: str | Path) -> int:
    return main(["model", "convert", *map(str, arguments)])


def sizes(frontend: dict[str, int]) -> list[str]:
    return [part for name, size in frontend.items() for part in ("--resource-bytes", f"{name}={size}")]


@pytest.mark.parametrize(("recipe", "template", "size", "objects", "start"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes_from_the_geometry(
    recipe: str, template: int, size: int, objects: int, start: int, capsys: pytest.CaptureFixture[str]
) -> None:
    frontend = FRONTEND | {"chat_template.jinja": template}
    assert convert("--dry-run", "--geometry", "qwen3.8-27b", "--recipe", recipe, *sizes(frontend)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        f"{objects} objects, 1513 bindings, 844 uses",
        f"payload starts at byte {start:,}",
        f"model.ninfer: {size:,} bytes",
    ]


@pytest.mark.parametrize("identity", VERSION_2, ids="/".join)
def test_published_sizes_of_version_2_from_the_geometry(
    identity: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = identity
    frontend = {name.removeprefix("frontend/"): size for name, size in resources(model).items()}
    without = [] if model == "qwen3.6-35b-a3b" else ["--without", "dflash,dflash2"]
    options = ["--geometry", model, "--recipe", VERSION_2[identity], "--container", "v2", *without, *sizes(frontend)]
    assert convert("--dry-run", *options) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"model.ninfer: {PUBLISHED_BYTES[identity]:,} bytes"


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("--dry-run", tiny_directory(), "--without", "mtp") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["component", "format", "objects", "parameters", "bytes"]
    table = [line.split() for line in lines[1:]]
    assert ["text", "nvfp4", "32", "64", "4,571,264"] in table
    assert ["text", "q8_g32_fp16", "1", "1", "1,114,112"] in table
    assert not any(row[0] == "mtp" for row in table)


def test_the_size_of_a_dry_run_is_that_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("--dry-run", tiny_directory(), tmp_path / "tiny.ninfer") == 0
    planned = capsys.readouterr().out.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    assert convert(tiny_directory(), tmp_path / "tiny.ninfer", "--artifact-id", "00" * 16) == 0
    captured = capsys.readouterr()
    size = (tmp_path / "tiny.ninfer").stat().st_size
    assert planned == f"tiny.ninfer: {size:,} bytes"
    assert captured.out.startswith(f"{tmp_path}/tiny.ninfer: {size:,} bytes, SHA-256 ")
    progress = captured.err.splitlines()
    assert progress[-1].startswith("checksum: 100 % of")
    assert any(line.startswith("weights: 50 % of") for line in progress)
    artifact = ArtifactSource.open(tmp_path / "tiny.ninfer")
    assert artifact.artifact.artifact_id == bytes(16)
    for role in ROLES["text"]:
        assert artifact.resource(role) == (tiny_directory() / role).read_bytes()


def test_options_reach_the_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Checkpoint().write(tmp_path / "model")
    options = ["--recipe", "groupwise-int", "--without", "vision", "--name", "mine", "--max-file-bytes", "200000"]
    assert convert(source, tmp_path / "m.ninfer", *options, "--search", "mse", "--threads", "1") == 0
    assert f"note: {source}/tokenizer.json: is missing, so the artifact goes without it" in capsys.readouterr().err
    report = json.loads((tmp_path / "m.ninfer.conversion.json").read_text())
    assert (report["recipe"], report["name"]) == ("groupwise-int", "mine")
    assert [file["name"] for file in report["files"]][:2] == ["m.ninfer", "m.ninfer.part-0001"]
    assert ArtifactSource.open(tmp_path / "m.ninfer").components == ("text", "mtp")


@pytest.mark.parametrize("is_moe", [False, True], ids=["dense", "moe"])
def test_what_is_written_passes_verification(is_moe: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Checkpoint(is_moe=is_moe, vocabulary=4096).write(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (source / name).write_bytes((tiny_directory() / name).read_bytes())
    assert convert(source, tmp_path / "m.ninfer") == 0
    assert main(["model", "verify", str(tmp_path / "m.ninfer")]) == 0
    assert "no errors, no warnings; checked structure and values; SHA-256 as expected" in capsys.readouterr().out


def test_an_existing_artifact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.ninfer"
    path.write_bytes(b"precious")
    assert convert(tiny_directory(), path) == 2
    assert capsys.readouterr().err == f"ninferd: {path}: exists already; --force replaces it\n"
    assert path.read_bytes() == b"precious"
    assert convert("embedded:ninfer-tiny-bf16", path, "--force") == 0
    ArtifactSource.open(path)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "model convert: SRC, a Hugging Face model directory, is missing"),
        (["SRC/config.json", "DST"], "SRC/config.json: is not a directory; a Hugging Face model directory is needed"),
        (["SRC"], "model convert: DST, the artifact to write, is missing"),
        (["SRC", "DST", "--recipe", "q4"], "there is no recipe 'q4'; known: bf16, nvfp4, groupwise-int"),
        (["SRC", "DST", "--recipe", "qwen3_6_35b_a3b"], "recipe qwen3_6_35b_a3b is for mixture-of-experts models"),
        (["--geometry", "qwen3.8-27b"], "--geometry: goes with --dry-run and without SRC"),
        (["--dry-run", "--geometry", "qwen4"], "--geometry: there is no 'qwen4'; known: qwen3.6-27b"),
        (["SRC", "DST", "--container", "v2"], "--container and --resource-bytes: go with --geometry"),
        (["SRC", "DST", "--draft-head-rows", "9"], "--draft-head-counts and --draft-head-rows: go together"),
        (["nowhere", "DST"], "nowhere: cannot be read: No such file or directory"),
        (["SRC", "DST", "--device", "cuda"], "--device cuda: torch sees no CUDA device here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_refused(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    given = [argument.replace("SRC", str(tiny_directory())) for argument in arguments]
    assert convert(*given) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ninferd: {problem}".replace("SRC/", f"{tiny_directory()}/"))
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--without", "mtp,speech"], "unknown component 'speech'; known: vision, mtp, dflash, dflash2, proposal"),
        (["--resource-bytes", "tokenizer.json"], "'tokenizer.json' is not NAME=BYTES"),
        (["--resource-bytes", "x=1"], "'x=1' is not NAME=BYTES with a name of tokenizer.json"),
        (["--threads", "0"], "'0' is not a number above 0"),
        (["--artifact-id", "12"], "'12' is not 32 hexadecimal digits"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_usage(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        convert("SRC", "DST", *arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_an_interrupted_conversion_ends_with_the_status_of_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ninferd.weights.convert.encoding.BlockEncoder.encode", interrupted)
    assert convert(tiny_directory(), tmp_path / "m.ninfer") == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_misshapen_convolution_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in tiny_directory().iterdir():
        (source / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    table = config.get("text_config", config)
    assert table["linear_conv_kernel_dim"] == 4
    table["linear_conv_kernel_dim"] = 3
    (source / "config.json").unlink()
    (source / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(ArtifactWriter, "__enter__", lambda _: pytest.fail("a file was begun"))
    assert convert(*options, source, tmp_path / "made.ninfer") == 2
    assert re.fullmatch(
        r"ninferd: .*/source/\S+\.safetensors: tensor \S+\.linear_attn\.conv1d\.weight has shape \[\d+, 1, 4\], "
        r"expected \[\d+, 1, 3\]\n",
        capsys.readouterr().err,
    )

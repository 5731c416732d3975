"""``ninferd model inspect``: artifacts of every version and directories of every layout, sound or not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ninferd.cli import main
from ninferd.weights.locate import artifact_path
from tests.support.quantised_checkpoints import compressed_tensors_nvfp4, fp8_block, fp8_row, modelopt_nvfp4
from tests.weights.artifact import golden
from tests.weights.artifact.damage import damaged, put
from tests.weights.artifact.support import write_golden
from tests.weights.artifact.test_older import old_file

Capture = pytest.CaptureFixture[str]

GOLDEN_LINES = """\
{path}: artifact, version 3
  name         golden
  id           000102030405060708090a0b0c0d0e0f
  file         golden.ninfer: 29.8 KiB (30,480 bytes)
  payload      25.8 KiB (26,384 bytes) from byte 4,096
  holds        11 objects, 10 tensors, 1 resource, 3 bindings, 1 use
  text
  a            18.0 KiB (18,440 bytes) in 2 tensors
  other        4.7 KiB (4,840 bytes) in 7 tensors
  c            808 bytes in 1 tensor

format                        tensors            bytes
nvfp4                               1           18,436
q8_g32_fp16                         1            1,360
q6_g64_fp16                         1            1,320
q5_g64_fp16                         1            1,064
q4_g64_fp16                         1              808
t2_g128_fp16                        1              532
fp8_e4m3fn_row_bf16                 1              518
bf16                                1               30
int32                               1               16
fp32                                1                4

layout                        tensors            bytes
block_scale_k16_m128x4_v1           1           18,436
row_split_k128_v1                   5            5,084
row_scale_v1                        1              518
contiguous_le_v1                    3               50

  tokenizer.json               13 bytes

 count            bytes format               shape              tensor
     1               30 bf16                 [3, 5]             t/bf16
     1              808 q4_g64_fp16          [5, 200]           c
     1            1,064 q5_g64_fp16          [5, 200]           t/q5_g64_fp16
     1            1,320 q6_g64_fp16          [5, 200]           t/q6_g64_fp16
     1            1,360 q8_g32_fp16          [5, 200]           t/q8_g32_fp16
     1              532 t2_g128_fp16         [5, 200]           t/t2_g128_fp16
     1           18,436 nvfp4                [256, 128]         {{a,b}}
     1              518 fp8_e4m3fn_row_bf16  [3, 130]           t/fp8
     1                4 fp32                 []                 activation_input_divisor
     1               16 int32                [4]                t/int32
"""


def inspect(capsys: Capture, *arguments: object) -> tuple[str, str]:
    """(standard output, standard error)."""
    assert main(["model", "inspect", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def inspect_json(capsys: Capture, path: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(inspect(capsys, path, "--json")[0])
    return found


@pytest.fixture
def golden_path(tmp_path: Path) -> Path:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(golden.golden_file())
    return path


def test_golden_file(golden_path: Path, capsys: Capture) -> None:
    out, err = inspect(capsys, golden_path)
    assert out == GOLDEN_LINES.format(path=golden_path)
    assert err == f"problem: {golden_path}: text: architectures is missing\n"


def test_golden_file_as_json(golden_path: Path, capsys: Capture) -> None:
    found = inspect_json(capsys, golden_path)
    assert found["container"] == {
        "version": 3,
        "artifact_id": "000102030405060708090a0b0c0d0e0f",
        "model_id": None,
        "weights_id": None,
        "payload_start": 4096,
        "payload_bytes": 26_384,
    }
    assert (found["kind"], found["name"], found["metadata"]) == ("artifact", "golden", {"name": "golden"})
    assert found["counts"] == {"objects": 11, "tensors": 10, "resources": 1, "bindings": 3, "uses": 1}
    assert found["formats"]["nvfp4"] == {"tensors": 1, "bytes": 18_436}
    assert found["layouts"]["row_split_k128_v1"] == {"tensors": 5, "bytes": 808 + 1064 + 1320 + 1360 + 532}
    assert [row["name"] for row in found["tensors"]] == [name for name in golden.object_bytes() if name[:2] == "t/"]
    assert found["tensors"][6] == {
        "name": "t/nvfp4",
        "shape": [256, 128],
        "format": "nvfp4",
        "layout": "block_scale_k16_m128x4_v1",
        "bytes": 18_436,
        "offset": 6656,
        "parameters": ["a", "b"],
        "auxiliary": None,
    }
    assert found["problems"] == [f"{golden_path}: text: architectures is missing"]


def test_every_tensor(golden_path: Path, capsys: Capture) -> None:
    lines = inspect(capsys, golden_path, "--tensors")[0].splitlines()
    assert lines[-11:-9] == [
        "          offset          bytes format               shape              tensor",
        "             256             30 bf16                 [3, 5]             t/bf16",
    ]
    assert "           6,656         18,436 nvfp4                [256, 128]         t/nvfp4 = {a,b}" in lines
    assert (
        "          26,112              4 fp32                 []                 t/fp32 = activation_input_divisor"
        in lines
    )


def test_missing_part_is_shown(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "golden.ninfer"
    write_golden(path, max_file_bytes=16_384)
    path.with_name("golden.ninfer.part-0002").unlink()
    lines = inspect(capsys, path)[0].splitlines()
    assert "  file         golden.ninfer.part-0001: 16.0 KiB (16,384 bytes)" in lines
    assert "  file         golden.ninfer.part-0002: 5.8 KiB (5,904 bytes), MISSING" in lines
    files = inspect_json(capsys, path)["files"]
    assert [(file["bytes"], file["is_there"]) for file in files] == [(16_384, True), (16_384, True), (5904, False)]


def test_format_of_another_engine_is_listed(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(damaged(put("gguf_q4_k", "objects", 2, "format"), put("gguf_blocks_v1", "objects", 2, "layout")))
    assert "gguf_q4_k                           1              808" in inspect(capsys, path)[0]


def test_text_of_a_file_cannot_drive_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "golden.ninfer"
    more = {"a": "\ud800\x9b2J"}  # half a character, which no output can hold, and a control sequence of one byte
    name = put("\x1b[2Jx\n  name y", "metadata", "name")
    path.write_bytes(damaged(name, put("t/\x1b]0;x", "objects", 1, "id"), put(more, "provenance")))
    out, err = inspect(capsys, path)
    assert "\x1b" not in out + err
    assert "  name         \\x1b[2Jx\\n  name y" in out.splitlines()
    assert inspect_json(capsys, path)["provenance"] == more
    assert inspect(capsys, path, "--json")[0].isascii()


def test_version_2(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(old_file(2))
    out, err = inspect(capsys, path)
    assert f"{path}: artifact, version 2" in out
    assert "  weights id   nvfp4" in out
    assert "  text         64 layers (16 attention, 48 gated delta), hidden 5120, feed-forward 17408" in out
    assert err == f"problem: {path}: 963 of its parameters are missing, the first is text/token_embedding\n"


def test_embedded_artifact(capsys: Capture) -> None:
    path = artifact_path("embedded:ninfer-tiny")
    out, err = inspect(capsys, "embedded:ninfer-tiny")
    assert err == ""
    for line in (
        f"{path}: artifact, version 3",
        "  recipe       nvfp4",
        "     6        1,327,128 nvfp4                [1536, 256]        text/layers/*/gdn/{query,key,value,z}",
        "  tokenizer                    4096 tokens, 33 of them added (27 special), ends at [4065, 4063]",
    ):
        assert line in out.splitlines()
    found = inspect_json(capsys, "embedded:ninfer-tiny")
    assert found["problems"] == []
    assert found["weights_profile"] == "qwen36-nvfp4"
    stored = sum(row["bytes"] for row in found["tensors"])
    assert sum(share["bytes"] for share in found["component_sizes"].values()) == stored
    assert sum(share["bytes"] for share in found["formats"].values()) == stored
    assert found["resources"]["tokenizer.json"] == 263_645
    assert found["chat_template"]["bytes"] == found["resources"]["chat_template.jinja"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact_path("embedded:ninfer-tiny-bf16"), tmp_path / "tiny"))


def test_directory(directory: Path, capsys: Capture) -> None:
    found = inspect_json(capsys, directory)
    assert (found["kind"], found["container"], found["weights_profile"]) == ("hugging_face", None, "bf16")
    header = (directory / "model.safetensors").read_bytes()
    data_bytes = len(header) - 8 - int.from_bytes(header[:8], "little")
    assert sum(row["bytes"] for row in found["tensors"]) == data_bytes
    embedding = found["tensors"][0]
    assert embedding["name"] == "model.embed_tokens.weight"
    assert embedding["parameters"] == ["text/token_embedding", "text/output_head"]
    assert found["problems"] == []


def test_layouts_of_a_quantised_directory(directory: Path, capsys: Capture) -> None:
    """A row has the codes and all scales of a weight together."""
    tensors = load_file(directory / "model.safetensors")
    made: dict[str, int] = {}
    for name, quantise in (
        ("model.layers.0.mlp.gate_proj", compressed_tensors_nvfp4),
        ("model.layers.0.mlp.up_proj", modelopt_nvfp4),
        ("model.layers.0.mlp.down_proj", fp8_row),
        ("model.layers.0.linear_attn.out_proj", fp8_block),
    ):
        parts, _ = quantise(name, tensors.pop(f"{name}.weight").float())
        tensors |= {each: tensor.contiguous() for each, tensor in parts.items()}
        made[name] = sum(tensor.nbytes for tensor in parts.values())
    save_file(tensors, directory / "model.safetensors")
    found = inspect_json(capsys, directory)
    rows = {row["name"]: row for row in found["tensors"]}
    for name, tensor, format in (
        ("model.layers.0.mlp.gate_proj", "weight_packed", "nvfp4"),
        ("model.layers.0.mlp.up_proj", "weight", "nvfp4"),
        ("model.layers.0.mlp.down_proj", "weight", "fp8_e4m3fn_row_bf16"),
        ("model.layers.0.linear_attn.out_proj", "weight", "fp8_e4m3fn_block128"),
    ):
        assert (rows[f"{name}.{tensor}"]["format"], rows[f"{name}.{tensor}"]["bytes"]) == (format, made[name])
    assert not [name for name in rows if "scale" in name]
    assert found["weights_profile"] == "custom"
    assert found["problems"] == []


def test_directory_of_an_unknown_model(directory: Path, capsys: Capture) -> None:
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"Qwen3_5ForCausalLM"', '"LlamaForCausalLM"'))
    out, err = inspect(capsys, directory)
    assert f"{config}: " in err
    assert "bf16                              123       21,323,360" in out


def test_tensor_that_is_missing(directory: Path, capsys: Capture) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, directory / "model.safetensors")
    assert (
        inspect(capsys, directory)[1]
        == f"problem: {directory}: 1 of its parameters are missing, the first is text/final_norm\n"
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere", "cannot be read: No such file or directory"),
        ("empty", "is 0 bytes long, shorter than any header (32 bytes)"),
        ("directory/config.json", "cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_opened(tmp_path: Path, capsys: Capture, name: str, problem: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    assert main(["model", "inspect", str(tmp_path / name.partition("/")[0])]) == 2
    assert capsys.readouterr().err == f"ninferd: {tmp_path / name}: {problem}\n"


def test_no_torch_is_needed(golden_path: Path) -> None:
    """Looking at a file must not take seconds of imports."""
    program = (
        "import sys\nfrom ninferd.cli import main\n"
        f"main(['model', 'inspect', {str(golden_path)!r}])\nmain(['model', 'verify', {str(golden_path)!r}])\n"
        "sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 0

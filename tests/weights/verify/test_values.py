"""Wrong values in every plane of every format, at places computed by hand from the layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.stored import FileSpan, Plane, StoredMatrix
from ninferd.weights.verify import values
from ninferd.weights.verify.findings import Findings
from ninferd.weights.verify.values import scan, scanned_bytes
from tests.weights.artifact import golden
from tests.weights.artifact.support import write_golden

OBJECTS = [name for name in golden.object_bytes() if name.startswith("t/")]


def scanned(artifact: Path, object_id: str) -> Findings:
    findings = Findings()
    matrix = Artifact.open(artifact).matrix(object_id)
    read: list[int] = []
    scan(matrix, findings, read.append)
    assert sum(read) == scanned_bytes(matrix)
    return findings


def golden_with(tmp_path: Path, *patches: tuple[int, bytes]) -> Path:
    raw = bytearray(golden.golden_file())
    for offset, content in patches:
        raw[offset : offset + len(content)] = content
    path = tmp_path / "golden.ninfer"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("object_id", OBJECTS)
def test_golden_values_are_sound(tmp_path: Path, object_id: str) -> None:
    findings = scanned(golden_with(tmp_path), object_id)
    assert (findings.errors, findings.warnings) == ([], [])


BF16_AT = 4096 + 256
Q4_AT, Q5_AT, Q6_AT, Q8_AT, T2_AT = (4096 + offset for offset in (512, 1536, 2816, 4352, 5888))
NVFP4_SCALES_AT = 4096 + 6656 + 256 * 128 // 2
FP8_AT = 4096 + 25_344
FP8_SCALES_AT = FP8_AT + 512
FP32_AT = 4096 + 26_112


def test_a_q8_code_that_no_encoder_writes_is_a_warning(tmp_path: Path) -> None:
    path = golden_with(tmp_path, (Q8_AT + 128 + 3, b"\x80"), (Q8_AT + 128 + 5, b"\x81"))
    findings = scanned(path, "t/q8_g32_fp16")
    matrix = Artifact.open(path).matrix("t/q8_g32_fp16")
    groups = matrix.planes["codes"].shape[1]
    place = divmod(128 + 3, groups)
    assert findings.errors == []
    assert findings.warnings == [
        f"{path}: object t/q8_g32_fp16: codes: 1 of {matrix.rows * groups} are -128, which no encoder writes; the "
        f"first is 0x80 at [{place[0]}, {place[1]}], byte {Q8_AT + 131} of the file"
    ]


@pytest.mark.parametrize("chunk_bytes", [16 << 20, 64], ids=["whole planes", "chunks of 64 bytes"])
@pytest.mark.parametrize(
    ("object_id", "patches", "error"),
    [
        pytest.param(
            "t/bf16",
            [(BF16_AT + 14, b"\x80\x7f")],
            f"values: 1 of 15 are not finite; the first is 0x7f80 at [1, 2], byte {BF16_AT + 14} of the file",
            id="bf16 infinity",
        ),
        pytest.param(
            "t/bf16",
            [(BF16_AT + 28, b"\x81\xff"), (BF16_AT + 26, b"\xff\x7f")],
            f"values: 2 of 15 are not finite; the first is 0x7fff at [2, 3], byte {BF16_AT + 26} of the file",
            id="bf16 two NaN",
        ),
        pytest.param(
            "t/fp32",
            [(FP32_AT, b"\0\0\x80\xff")],
            f"values: 1 of 1 are not finite; the first is 0xff800000 at [0, 0], byte {FP32_AT} of the file",
            id="fp32 infinity",
        ),
        pytest.param(
            "t/q4_g64_fp16",
            [(Q4_AT + 768 + 22, b"\0\x7c")],
            f"scales: 1 of 20 are not finite; the first is 0x7c00 at [2, 3], byte {Q4_AT + 768 + 22} of the file",
            id="q4 scale",
        ),
        pytest.param(
            "t/q5_g64_fp16",
            [(Q5_AT + 768 + 256, b"\1\xfe")],
            f"scales: 1 of 20 are not finite; the first is 0xfe01 at [0, 0], byte {Q5_AT + 1024} of the file",
            id="q5 scale",
        ),
        pytest.param(
            "t/q6_g64_fp16",
            [(Q6_AT + 768 + 512 + 38, b"\0\xfc")],
            f"scales: 1 of 20 are not finite; the first is 0xfc00 at [4, 3], byte {Q6_AT + 1318} of the file",
            id="q6 scale",
        ),
        pytest.param(
            "t/q8_g32_fp16",
            [(Q8_AT + 1280 + 76, b"\0\x7e")],
            f"scales: 1 of 40 are not finite; the first is 0x7e00 at [4, 6], byte {Q8_AT + 1356} of the file",
            id="q8 scale",
        ),
        pytest.param(
            "t/t2_g128_fp16",
            [(T2_AT + 3 * 64 + 10, b"\x80")],
            f"codes: 1 of 320 are no code of -1, 0 and 1 (the bits 10); the first is 0x80 at [3, 10], byte "
            f"{T2_AT + 202} of the file",
            id="t2 code",
        ),
        pytest.param(
            "t/nvfp4",
            [(NVFP4_SCALES_AT + 3 * 512 + 17, b"\x7f")],
            "scales: 1 of 2048 are no finite scale of at least 0 (words 0x00 to 0x7e); the first is 0x7f at [129, 5], "
            f"byte {NVFP4_SCALES_AT + 1553} of the file",
            id="nvfp4 NaN scale",
        ),
        pytest.param(
            "t/nvfp4",
            [(NVFP4_SCALES_AT + 2 * 512 + 8 * 16 + 2 * 4 + 2, b"\x81"), (NVFP4_SCALES_AT + 2047, b"\xff")],
            "scales: 2 of 2048 are no finite scale of at least 0 (words 0x00 to 0x7e); the first is 0x81 at [200, 2], "
            f"byte {NVFP4_SCALES_AT + 1162} of the file",
            id="nvfp4 negative scale",
        ),
        pytest.param(
            "t/fp8",
            [(FP8_AT + 2 * 130 + 128, b"\xff")],
            f"codes: 1 of 390 are NaN; the first is 0xff at [2, 128], byte {FP8_AT + 388} of the file",
            id="fp8 NaN code",
        ),
        pytest.param(
            "t/fp8",
            [(FP8_SCALES_AT + 2, b"\x80\xbf")],
            f"scales: 1 of 3 are no finite scale of at least 0; the first is 0xbf80 at [1], byte {FP8_SCALES_AT + 2} "
            "of the file",
            id="fp8 negative scale",
        ),
        pytest.param(
            "t/fp8",
            [(FP8_SCALES_AT + 4, b"\xc0\x7f")],
            f"scales: 1 of 3 are no finite scale of at least 0; the first is 0x7fc0 at [2], byte {FP8_SCALES_AT + 4} "
            "of the file",
            id="fp8 NaN scale",
        ),
    ],
)
def test_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    object_id: str,
    patches: list[tuple[int, bytes]],
    error: str,
    chunk_bytes: int,
) -> None:
    monkeypatch.setattr(values, "CHUNK_BYTES", chunk_bytes)
    path = golden_with(tmp_path, *patches)
    findings = scanned(path, object_id)
    assert (findings.errors, findings.warnings) == ([f"{path}: object {object_id}: {error}"], [])


@pytest.mark.parametrize(
    ("object_id", "patch", "row"),
    [
        pytest.param("t/q4_g64_fp16", (Q4_AT + (1 * 4 + 3) * 32 + 4, b"\x01"), 1, id="q4 column 200"),
        pytest.param("t/q5_g64_fp16", (Q5_AT + 768 + (4 * 4 + 3) * 8 + 7, b"\x80"), 4, id="q5 high bit of column 255"),
        pytest.param(
            "t/q6_g64_fp16", (Q6_AT + 768 + (2 * 4 + 3) * 16 + 2, b"\x01"), 2, id="q6 high bits of column 200"
        ),
        pytest.param("t/q8_g32_fp16", (Q8_AT + 3 * 256 + 200, b"\x01"), 3, id="q8 column 200"),
        pytest.param("t/q8_g32_fp16", (Q8_AT + 1280 + 15 * 2, b"\0\x3c"), 1, id="q8 scale of a group of padding"),
        pytest.param("t/t2_g128_fp16", (T2_AT + 4 * 64 + 50, b"\x01"), 4, id="t2 column 200"),
    ],
)
def test_padding(tmp_path: Path, object_id: str, patch: tuple[int, bytes], row: int) -> None:
    path = golden_with(tmp_path, patch)
    findings = scanned(path, object_id)
    warning = f"{path}: object {object_id}: the padding after column 200 is not zero, first in row {row}"
    assert (findings.errors, findings.warnings) == ([], [warning])


@pytest.mark.parametrize(
    ("object_id", "patch"),
    [
        pytest.param("t/q4_g64_fp16", (Q4_AT + (1 * 4 + 3) * 32 + 3, b"\xff"), id="q4 columns 198 and 199"),
        pytest.param(
            "t/q6_g64_fp16", (Q6_AT + 768 + (2 * 4 + 3) * 16 + 1, b"\xff"), id="q6 high bits up to column 199"
        ),
        pytest.param("t/q8_g32_fp16", (Q8_AT + 3 * 256 + 199, b"\x81"), id="q8 column 199"),
        pytest.param("t/q8_g32_fp16", (Q8_AT + 1280 + 14 * 2, b"\0\xbc"), id="negative q8 scale of columns 192 to 223"),
        pytest.param("t/t2_g128_fp16", (T2_AT + 4 * 64 + 49, b"\xff"), id="t2 columns 196 to 199"),
        pytest.param("t/int32", (4096 + 26_368, b"\xff\xff\xff\xff"), id="int32"),
        pytest.param("t/nvfp4", (4096 + 6656, b"\xff" * 100), id="nvfp4 codes"),
        pytest.param("t/fp8", (FP8_SCALES_AT, b"\x80\x7f"[:1]), id="fp8 scale"),
    ],
)
def test_unusual_values_that_are_values(tmp_path: Path, object_id: str, patch: tuple[int, bytes]) -> None:
    findings = scanned(golden_with(tmp_path, patch), object_id)
    assert (findings.errors, findings.warnings) == ([], [])


@pytest.mark.parametrize("scale", [b"\0\0", b"\0\x80"], ids=["0", "-0"])
def test_row_of_scale_zero(tmp_path: Path, scale: bytes) -> None:
    path = golden_with(tmp_path, (FP8_SCALES_AT + 2, scale))
    assert scanned(path, "t/fp8").warnings == [f"{path}: object t/fp8: row 1 has scale 0 and codes that are not 0"]
    zero_row = FP8_AT + 130, b"\x80\0" * 65
    findings = scanned(golden_with(tmp_path, (FP8_SCALES_AT + 2, scale), zero_row), "t/fp8")
    assert (findings.errors, findings.warnings) == ([], [])


def test_object_in_several_files(tmp_path: Path) -> None:
    """The byte is that of the part which holds it."""
    path = tmp_path / "golden.ninfer"
    write_golden(path, max_file_bytes=8192)
    part = path.with_name("golden.ninfer.part-0006")
    raw = bytearray(part.read_bytes())
    at = 6656 + 16_384 + 3 * 512 + 17 - 6 * 4096 + 4096
    raw[at] = 0x7F
    part.write_bytes(raw)
    assert scanned(path, "t/nvfp4").errors == [
        f"{part}: object t/nvfp4: scales: 1 of 2048 are no finite scale of at least 0 (words 0x00 to 0x7e); the first "
        f"is 0x7f at [129, 5], byte {at} of the file"
    ]


@pytest.mark.parametrize(
    ("dtype", "wrong", "word"),
    [("<f4", np.inf, "0x7f800000"), ("<u2", 0x7F80, "0x7f80")],
    ids=["float32 scales", "bfloat16 scales"],
)
def test_fp8_blocks_of_a_checkpoint(tmp_path: Path, dtype: str, wrong: float, word: str) -> None:
    path = tmp_path / "model.safetensors"
    codes = np.zeros((130, 200), "u1")
    codes[129, 199] = 0x7F
    scales = np.zeros((2, 2), dtype)
    scales[1, 0] = wrong
    path.write_bytes(codes.tobytes() + scales.tobytes())
    planes = {
        "codes": Plane("u1", (130, 200), (FileSpan(path, 0, 26_000),)),
        "scales": Plane(dtype, (2, 2), (FileSpan(path, 26_000, scales.nbytes),)),
    }
    findings = Findings()
    scan(StoredMatrix("tensor a.weight", path, "fp8_e4m3fn_block128", 130, 200, planes), findings, lambda _: None)
    assert findings.errors == [
        f"{path}: tensor a.weight: codes: 1 of 26000 are NaN; the first is 0x7f at [129, 199], byte 25999 of the file",
        f"{path}: tensor a.weight: scales: 1 of 4 are not finite; the first is {word} at [1, 0], byte "
        f"{26_000 + 2 * scales.itemsize} of the file",
    ]


@pytest.mark.parametrize(("dtype", "format"), [("<f2", "fp16"), ("<f8", "fp64")], ids=["fp16", "fp64"])
def test_plain_values_of_a_checkpoint(tmp_path: Path, dtype: str, format: str) -> None:
    path = tmp_path / "model.safetensors"
    content = np.ones((3, 4), dtype)
    content[2, 1] = np.nan
    path.write_bytes(content.tobytes())
    planes = {"values": Plane(dtype, (3, 4), (FileSpan(path, 0, content.nbytes),))}
    findings = Findings()
    scan(StoredMatrix("tensor a", path, format, 3, 4, planes), findings, lambda _: None)
    assert len(findings.errors) == 1
    assert f"at [2, 1], byte {9 * content.itemsize} of the file" in findings.errors[0]

"""Headers of safetensors files, against the reference library and damaged in every field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ninferd.errors import InputError
from ninferd.weights.huggingface.safetensors import MAX_HEADER_BYTES, read_header
from ninferd.weights.stored import read_spans
from tests.weights.huggingface.files import entry, header_bytes

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BOOL": torch.bool,
}


def test_what_the_reference_library_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {f"x.{name}": torch.ones(3, 1, 5).to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    save_file(tensors, path, metadata={"format": "pt"})
    found = read_header(path)
    assert found.keys() == tensors.keys()
    for name, tensor in load_file(path).items():
        assert found[name].shape == tuple(tensor.shape)
        raw = read_spans((found[name].span,))
        assert raw == tensor.contiguous().view(torch.uint8 if tensor.dim() else tensor.dtype).numpy().tobytes()
        if name.startswith("x."):
            assert found[name].dtype == name.removeprefix("x.")


def test_types_that_nobody_asks_for_may_be_unknown(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(header_bytes({"x": entry("F6_E3M2", [4], [0, 3])}) + bytes(3))
    assert read_header(path)["x"].dtype == "F6_E3M2"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a safetensors file: 0 bytes long"),
        (b"\0" * 40, "header of 0 bytes in a file of 40"),
        (b"garbage, not a header", r"header of \d+ bytes in a file of 21"),
        ((50).to_bytes(8, "little") + b'{"a":{}}', "header of 50 bytes in a file of 16"),
        (b"\xff" * 8 + b"{}", "header of 18446744073709551615 bytes"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "header of 100000001 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "its header is an array of 0 items, not an object"),
        ((11).to_bytes(8, "little") + b'{"x":{"a":1', "its header is not valid JSON"),
        ((4).to_bytes(8, "little") + b"{\xff\xff}", "its header is not UTF-8 at byte 1"),
        ((15).to_bytes(8, "little") + b'{"a":{},"a":{}}', "its header names the member 'a' twice"),
        (header_bytes({"x": 7}), "tensor x: its header entry must be an object, not 7"),
        (header_bytes({"x": entry(None)}), "tensor x: dtype must be a string, not null"),
        (header_bytes({"x": entry(shape=None)}), "tensor x: shape must be a list of sizes"),
        (header_bytes({"x": entry(shape=[2.0])}), r"tensor x: shape must be a list of sizes, not \[2\.0\]"),
        (header_bytes({"x": entry(shape=[True])}), r"tensor x: shape must be a list of sizes, not \[true\]"),
        (header_bytes({"x": entry(shape=[64, -2])}), r"tensor x: shape must be a list of sizes, not \[64, -2\]"),
        (header_bytes({"x": entry(shape=[2**40, 2**40])}), "tensor x: shape .* is not possible"),
        (header_bytes({"x": entry(shape=[1] * 17)}), "tensor x: shape .* is not possible"),
        (
            header_bytes({"x": entry(shape=[2**62] * 400_000)}),
            "tensor x: shape an array of 400000 items is not possible",
        ),
        (header_bytes({"x": entry(offsets=[0])}), r"tensor x: data_offsets must be \[begin, end\], not \[0\]"),
        (header_bytes({"x": entry(offsets=[8, 0])}), r"tensor x: data_offsets must be \[begin, end\], not \[8, 0\]"),
        (header_bytes({"x": entry(offsets="ab")}), "tensor x: data_offsets must be a list of sizes"),
        (
            header_bytes({"x": entry(shape=[3])}) + bytes(8),
            r"x: 8 bytes at data_offsets .*, but F32 \[3\] takes 12",
        ),
        (header_bytes({"x": entry()}) + bytes(7), r"is cut short: \d+ bytes, its header needs \d+"),
        (header_bytes({"x": entry()}) + bytes(9), r"is \d+ bytes long, but its header describes only \d+"),
        (header_bytes({"x": entry(), "y": entry(offsets=[4, 12])}) + bytes(12), r"tensor y overlaps x: .* at byte \d+"),
        (header_bytes({"x": entry(), "y": entry()}) + bytes(8), "tensor y overlaps x"),
        (header_bytes({"x\n": entry(dtype=[])}), r"tensor 'x\\n': dtype must be a string"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:40],
)
def test_damaged_files(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message


def test_the_length_must_match_in_the_reference_library_too(tmp_path: Path) -> None:
    """The strictness about the end of the file is the format's own."""
    path = tmp_path / "model.safetensors"
    for size in (7, 9):
        path.write_bytes(header_bytes({"x": entry()}) + bytes(size))
        with pytest.raises(Exception, match=r"MetadataIncompleteBuffer|incomplete metadata"):
            load_file(path)


@pytest.mark.parametrize("kind", ["missing", "directory", "no permission"])
def test_files_that_cannot_be_opened(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    path = tmp_path / "model.safetensors"
    if kind == "directory":
        path.mkdir()
    if kind == "no permission":

        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("os.open", refuse)
    expected = {"missing": "No such file", "directory": "not a regular file", "no permission": "Permission denied"}
    with pytest.raises(InputError, match=rf"model\.safetensors: cannot be read: {expected[kind]}"):
        read_header(path)

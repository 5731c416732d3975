"""Damage to the frame of a file, to its JSON text, and to records that only matter once an object is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact import strict_json
from ninferd.weights.artifact.reader import Artifact
from tests.weights.artifact import golden
from tests.weights.artifact.damage import TENSOR, Damage, damaged, put
from tests.weights.artifact.support import framed

GOLDEN = golden.golden_file()
FORMATS = (
    "bf16, fp32, int32, q4_g64_fp16, q5_g64_fp16, q6_g64_fp16, q8_g32_fp16, t2_g128_fp16, nvfp4, fp8_e4m3fn_row_bf16"
)


def refusal(path: Path, content: bytes) -> str:
    """The message for a file, without its name, which must come first."""
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Artifact.open(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def with_json_bytes(value: int) -> bytes:
    return GOLDEN[:8] + value.to_bytes(8, "little") + GOLDEN[16:]


def with_json(text: bytes) -> bytes:
    return framed(None, b"", json_bytes=text)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "is 0 bytes long, shorter than any header (32 bytes)", id="empty"),
        pytest.param(GOLDEN[:7], "is 7 bytes long, shorter than any header (32 bytes)", id="7 bytes"),
        pytest.param(GOLDEN[:31], "is 31 bytes long, shorter than the header of 32 bytes", id="31 bytes"),
        pytest.param(
            GOLDEN[:32],
            "json_bytes at offset 8 is 4064, it must be 1 to 0, what follows the header (truncated download?)",
            id="32 bytes",
        ),
        pytest.param(
            b"GGUF\3\0\0\0" + GOLDEN[8:],
            "starts with 47 47 55 46 03 00 00 00; an artifact starts with 4e 49 4e 46 45 52 00 03 (NINFER, 0, version)",
            id="wrong magic",
        ),
        pytest.param(
            b"NINPRT\0\3" + GOLDEN[8:],
            "is a continuation of an artifact; open the entry file that lists it",
            id="continuation as entry",
        ),
        pytest.param(
            b"NINFER\0\4" + GOLDEN[8:],
            "is an artifact of version 4; versions 1, 2 and 3 can be read",
            id="version 4",
        ),
        pytest.param(
            b"NINFER\0\2" + GOLDEN[8:],
            "the directory (bytes 16 to 4080) is not valid JSON: Expecting value: line 1 column 1 (char 0)",
            id="version 3 with the magic of 2",
        ),
        pytest.param(
            with_json_bytes(0),
            "json_bytes at offset 8 is 0, it must be 1 to 30448, what follows the header (truncated download?)",
            id="json_bytes 0",
        ),
        pytest.param(
            with_json_bytes(30_449),
            "json_bytes at offset 8 is 30449, it must be 1 to 30448, what follows the header (truncated download?)",
            id="json_bytes one too many",
        ),
        pytest.param(
            with_json_bytes(2**64 - 1),
            "json_bytes at offset 8 is 18446744073709551615, it must be 1 to 30448, what follows the header "
            "(truncated download?)",
            id="json_bytes huge",
        ),
        pytest.param(
            GOLDEN[:-1],
            "is 30479 bytes long, expected 30480: 4096 before the payload and 26384 of it (truncated download?)",
            id="one byte short",
        ),
        pytest.param(
            GOLDEN + b"\0",
            "is 30481 bytes long, expected 30480: 4096 before the payload and 26384 of it (truncated download?)",
            id="one byte long",
        ),
    ],
)
def test_frame(tmp_path: Path, content: bytes, problem: str) -> None:
    assert refusal(tmp_path / "golden.ninfer", content) == problem


def test_directory_larger_than_what_is_read(tmp_path: Path) -> None:
    """The file is sparse, so that it may be as large as its header says."""
    path = tmp_path / "golden.ninfer"
    json_bytes = (256 << 20) + 1
    path.write_bytes(with_json_bytes(json_bytes))
    with path.open("r+b") as file:
        file.truncate(32 + json_bytes)
    with pytest.raises(InputError) as caught:
        Artifact.open(path)
    assert str(caught.value) == f"{path}: the directory has 268435457 bytes; at most 268435456 are read"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(b"\xff\xfe{}", "is not UTF-8 at byte 0", id="not UTF-8"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', "is not UTF-8 at byte 6", id="surrogate in UTF-8"),
        pytest.param(
            b"\xef\xbb\xbf{}",
            "is not valid JSON: Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)",
            id="BOM",
        ),
        pytest.param(
            golden.JSON.encode()[:-1],
            "is not valid JSON: Expecting ',' delimiter: line 1 column 1839 (char 1838)",
            id="cut",
        ),
        pytest.param(b"     ", "is not valid JSON: Expecting value: line 1 column 6 (char 5)", id="only spaces"),
        pytest.param(
            golden.JSON.encode() + b"x",
            "is not valid JSON: Extra data: line 1 column 1840 (char 1839)",
            id="text after it",
        ),
        pytest.param(
            golden.JSON.encode() + b"\0",
            "is not valid JSON: Extra data: line 1 column 1840 (char 1839)",
            id="zeros after it",
        ),
        pytest.param(
            golden.JSON.replace('"uses":', '"files":[],"uses":').encode(),
            "names the member 'files' twice in one object",
            id="duplicate member of the root",
        ),
        pytest.param(
            golden.JSON.replace('"config":{}', '"config":{"x":{"y":1,"y":1}}').encode(),
            "names the member 'y' twice in one object",
            id="duplicate member far down",
        ),
        pytest.param(
            golden.JSON.replace('"config":{}', '"config":{"eps":NaN}').encode(),
            "holds NaN, which is no JSON number",
            id="NaN",
        ),
        pytest.param(
            golden.JSON.replace('"offset":256', '"offset":-Infinity').encode(),
            "holds -Infinity, which is no JSON number",
            id="infinity",
        ),
        pytest.param(
            golden.JSON.replace('"config":{}', '"config":{"eps":1e400}').encode(),
            "holds the number 1e400, which is beyond a float64",
            id="infinity by overflow",
        ),
        pytest.param(
            golden.JSON.replace('"offset":256', f'"offset":{"9" * 5000}').encode(),
            "holds an integer of 5000 characters, starting 99999999999999999999",
            id="integer of 5000 digits",
        ),
        pytest.param(
            golden.JSON.replace('"config":{}', f'"config":{{"a":{"[" * 50_000}{"]" * 50_000}}}').encode(),
            "is nested deeper than 64 levels",
            id="nested 50000 deep",
        ),
    ],
)
def test_json_text(tmp_path: Path, text: bytes, problem: str) -> None:
    found = refusal(tmp_path / "golden.ninfer", with_json(text))
    assert found == f"the directory (bytes 32 to {32 + len(text)}) {problem}"


@pytest.mark.parametrize(
    ("text", "found"),
    [(b"[]", "an array of 0 items"), (b"null", "null"), (b'"x"', "'x'"), (b"3", "3")],
    ids=["array", "null", "string", "number"],
)
def test_root_is_no_object(tmp_path: Path, text: bytes, found: str) -> None:
    assert refusal(tmp_path / "x.ninfer", with_json(text)) == f"directory must be a JSON object, found {found}"


def test_more_values_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before they are parsed: an empty array of 3 bytes takes 64 in memory."""
    monkeypatch.setattr(strict_json, "MAX_VALUES", 1000)
    monkeypatch.setattr(json, "loads", _must_not_be_called)
    text = b'{"components":[' + b",".join([b"[]"] * 600) + b"]}"
    found = refusal(tmp_path / "x.ninfer", with_json(text))
    assert found == f"the directory (bytes 32 to {32 + len(text)}) holds about 1201 values; at most 1000 are read"


def _must_not_be_called(*_: object, **__: object) -> object:
    raise AssertionError


def test_trailing_blanks_are_normal(tmp_path: Path) -> None:
    path = tmp_path / "golden.ninfer"
    start = golden.PAYLOAD_START
    path.write_bytes(framed(None, GOLDEN[start:], json_bytes=golden.JSON.encode() + b" \n\r\t "))
    assert len(Artifact.open(path).objects) == 11


Use = Callable[[Artifact], object]


def tensor(artifact: Artifact) -> object:
    return artifact.matrix("t/bf16")


def q4(artifact: Artifact) -> object:
    return artifact.matrix("t/q4_g64_fp16")


def nvfp4(artifact: Artifact) -> object:
    return artifact.matrix("t/nvfp4")


def resource(artifact: Artifact) -> object:
    return artifact.resource("resource/text/tokenizer.json")


@pytest.mark.parametrize(
    ("damages", "use", "problem"),
    [
        pytest.param(
            [put("mxfp4", *TENSOR, "format")],
            tensor,
            f"object t/bf16: format 'mxfp4' is unknown; known are {FORMATS}",
            id="unknown format",
        ),
        pytest.param(
            [put("BF16", *TENSOR, "format")],
            tensor,
            f"object t/bf16: format 'BF16' is unknown; known are {FORMATS}",
            id="v2 spelling of a format",
        ),
        pytest.param(
            [put("contiguous-le-v1", *TENSOR, "layout")],
            tensor,
            "object t/bf16: format bf16 goes with layout contiguous_le_v1, not 'contiguous-le-v1'",
            id="v2 spelling of a layout",
        ),
        pytest.param(
            [put("row_scale_v1", *TENSOR, "layout")],
            tensor,
            "object t/bf16: format bf16 goes with layout contiguous_le_v1, not 'row_scale_v1'",
            id="wrong pair",
        ),
        pytest.param(
            [put("raw-bytes-v1", "objects", 0, "encoding")],
            resource,
            "object resource/text/tokenizer.json: encoding must be raw_bytes_v1, found 'raw-bytes-v1'",
            id="v2 spelling of an encoding",
        ),
        pytest.param(
            [put(28, *TENSOR, "bytes")],
            tensor,
            "object t/bf16: expected 30 encoded bytes for bf16 [3, 5], the directory says 28",
            id="size too small",
        ),
        pytest.param(
            [put(32, *TENSOR, "bytes")],
            tensor,
            "object t/bf16: expected 30 encoded bytes for bf16 [3, 5], the directory says 32",
            id="size too large",
        ),
        pytest.param(
            [put(807, "objects", 2, "bytes")],
            q4,
            "object t/q4_g64_fp16: expected 808 encoded bytes for q4_g64_fp16 [5, 200], the directory says 807",
            id="size of a grouped tensor",
        ),
        pytest.param(
            [put([2**40, 2**20], *TENSOR, "shape")],
            tensor,
            "object t/bf16: expected 2305843009213693952 encoded bytes for bf16 [1099511627776, 1048576], the "
            "directory says 30",
            id="shape of a million million rows",
        ),
        pytest.param(
            [put(257, *TENSOR, "offset")],
            tensor,
            "object t/bf16: offset 257 must be a multiple of 256",
            id="offset",
        ),
        pytest.param(
            [put([1000], "objects", 2, "shape")],
            q4,
            "object t/q4_g64_fp16: format q4_g64_fp16 holds matrices [rows, columns], not shape [1000]",
            id="grouped vector",
        ),
        pytest.param(
            [put([512, 64], "objects", 7, "shape"), put(3, "objects", 7, "divisors")],
            nvfp4,
            "object t/nvfp4: 3 divisors do not cut 512 rows into equal blocks of a multiple of 128",
            id="divisors that do not divide",
        ),
        pytest.param(
            [put(2**40, "objects", 7, "divisors")],
            nvfp4,
            "object t/nvfp4: 1099511627776 divisors do not cut 256 rows into equal blocks of a multiple of 128",
            id="a million million divisors",
        ),
        pytest.param(
            [put(2, *TENSOR, "divisors")],
            tensor,
            "object t/bf16: format bf16 has no divisors (found 2), only nvfp4 has",
            id="divisors of another format",
        ),
    ],
)
def test_encoding_is_checked_on_first_use(tmp_path: Path, damages: list[Damage], use: Use, problem: str) -> None:
    """Until then the file can be listed and its other objects used."""
    path = tmp_path / "golden.ninfer"
    path.write_bytes(damaged(*damages))
    artifact = Artifact.open(path)
    assert artifact.matrix("t/int32").columns == 4
    with pytest.raises(InputError) as caught:
        use(artifact)
    assert str(caught.value) == f"{path}: {problem}"

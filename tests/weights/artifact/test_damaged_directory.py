"""A directory that breaks a rule of the format is refused when the file is opened: every rule, with its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.artifact.reader import Artifact
from tests.weights.artifact.damage import TENSOR, Damage, append, damaged, drop, put, swap

INTEGER = "must be an integer of"
IDENTIFIER = "must be a non-empty string of valid Unicode without NUL, found"
FILE_NAME = "path must be the plain, printable name of a file beside the entry file, of at most 255 bytes, found"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


CASES: list[tuple[str, list[Damage], str]] = [
    ("no components", [drop("components")], "directory: member 'components' is missing"),
    ("no objects member", [drop("objects")], "directory: member 'objects' is missing"),
    ("no bindings", [drop("bindings")], "directory: member 'bindings' is missing"),
    ("no uses", [drop("uses")], "directory: member 'uses' is missing"),
    ("no files member", [drop("files")], "directory: member 'files' is missing"),
    (
        "unknown root member",
        [put({}, "checksums")],
        "directory: unknown member 'checksums'; known are components, objects, bindings, uses, files, "
        "metadata, provenance",
    ),
    ("no text component", [put({"vision": {"config": {}}}, "components")], "components must have 'text', found vision"),
    ("components empty", [put({}, "components")], "components must have 'text', found none"),
    (
        "components an array",
        [put([], "components")],
        "directory: components must be a JSON object, found an array of 0 items",
    ),
    ("objects empty", [put([], "objects")], "objects is empty"),
    (
        "objects an object",
        [put({}, "objects")],
        "directory: objects must be a JSON array, found an object of 0 members",
    ),
    ("files empty", [put([], "files")], "files is empty; it must list at least the entry file"),
    (
        "bindings an array",
        [put([], "bindings")],
        "directory: bindings must be a JSON object, found an array of 0 items",
    ),
    ("uses an object", [put({}, "uses")], "directory: uses must be a JSON array, found an object of 0 members"),
    (
        "metadata an array",
        [put([], "metadata")],
        "directory: metadata must be a JSON object, found an array of 0 items",
    ),
    ("provenance a string", [put("x", "provenance")], "directory: provenance must be a JSON object, found 'x'"),
    ("offset a float", [put(256.0, *TENSOR, "offset")], f"object t/bf16: offset {INTEGER} 0 to 2^64-1, found 256.0"),
    (
        "offset with an exponent",
        [put(1e3, *TENSOR, "offset")],
        f"object t/bf16: offset {INTEGER} 0 to 2^64-1, found 1000.0",
    ),
    ("offset a boolean", [put(True, *TENSOR, "offset")], f"object t/bf16: offset {INTEGER} 0 to 2^64-1, found true"),
    ("offset negative", [put(-256, *TENSOR, "offset")], f"object t/bf16: offset {INTEGER} 0 to 2^64-1, found -256"),
    ("offset a string", [put("256", *TENSOR, "offset")], f"object t/bf16: offset {INTEGER} 0 to 2^64-1, found '256'"),
    ("offset null", [put(None, *TENSOR, "offset")], f"object t/bf16: offset {INTEGER} 0 to 2^64-1, found null"),
    (
        "bytes beyond 64 bits",
        [put(2**64, *TENSOR, "bytes")],
        f"object t/bf16: bytes {INTEGER} 1 to 2^64-1, found 18446744073709551616",
    ),
    (
        "offset at the end of 64 bits",
        [put(2**64 - 1, *TENSOR, "offset")],
        "object t/bf16: bytes 18446744073709551615 to 18446744073709551645 lie beyond the payload, which "
        "has 26384 bytes",
    ),
    (
        "size of a dimension a float",
        [put([3.0, 5], *TENSOR, "shape")],
        f"object t/bf16: shape[0] {INTEGER} 1 to 2^64-1, found 3.0",
    ),
    (
        "size of a dimension a boolean",
        [put([True, 5], *TENSOR, "shape")],
        f"object t/bf16: shape[0] {INTEGER} 1 to 2^64-1, found true",
    ),
    (
        "payload_bytes a float",
        [put(26384.0, "files", 0, "payload_bytes")],
        f"files[0]: payload_bytes {INTEGER} 1 to 2^64-1, found 26384.0",
    ),
    ("duplicate object id", [put("t/fp8", *TENSOR, "id")], "object t/fp8 is listed twice"),
    (
        "unknown kind",
        [put("blob", *TENSOR, "kind")],
        "object t/bf16: kind must be 'tensor' or 'resource', found 'blob'",
    ),
    ("no kind", [drop(*TENSOR, "kind")], "object t/bf16: member 'kind' is missing"),
    (
        "kind no string",
        [put(["tensor"], *TENSOR, "kind")],
        "object t/bf16: kind must be 'tensor' or 'resource', found ['tensor']",
    ),
    ("object no object", [put(7, *TENSOR)], "objects[1] must be a JSON object, found 7"),
    ("no id", [drop(*TENSOR, "id")], "objects[1]: member 'id' is missing"),
    ("id empty", [put("", *TENSOR, "id")], f"object '': id {IDENTIFIER} ''"),
    ("id with a NUL", [put("a\0b", *TENSOR, "id")], f"object 'a\\x00b': id {IDENTIFIER} 'a\\x00b'"),
    ("id with half a character", [put("a\ud800", *TENSOR, "id")], f"object 'a\\ud800': id {IDENTIFIER} 'a\\ud800'"),
    ("id a number", [put(4, *TENSOR, "id")], f"objects[1]: id {IDENTIFIER} 4"),
    (
        "id with a line break",
        [put("a\nb", *TENSOR, "id"), put(0, *TENSOR, "bytes")],
        f"object 'a\\nb': bytes {INTEGER} 1 to 2^64-1, found 0",
    ),
    ("no shape", [drop(*TENSOR, "shape")], "object t/bf16: member 'shape' is missing"),
    ("no format", [drop(*TENSOR, "format")], "object t/bf16: member 'format' is missing"),
    ("no layout", [drop(*TENSOR, "layout")], "object t/bf16: member 'layout' is missing"),
    ("no offset", [drop(*TENSOR, "offset")], "object t/bf16: member 'offset' is missing"),
    ("no bytes", [drop(*TENSOR, "bytes")], "object t/bf16: member 'bytes' is missing"),
    (
        "unknown member of a tensor",
        [put("00", *TENSOR, "sha256")],
        "object t/bf16: unknown member 'sha256'; known are id, kind, shape, format, layout, offset, bytes, divisors",
    ),
    (
        "format of absurd length",
        [put("q" * 1000, *TENSOR, "format")],
        "object t/bf16: format must be a printable name of at most 128 characters, found "
        f"'{'q' * 80}'... (1000 characters)",
    ),
    (
        "layout with a line break",
        [put("a\nb", *TENSOR, "layout")],
        "object t/bf16: layout must be a printable name of at most 128 characters, found 'a\\nb'",
    ),
    (
        "resource with a shape",
        [put([13], "objects", 0, "shape")],
        "object resource/text/tokenizer.json: unknown member 'shape'; known are id, kind, encoding, offset, bytes",
    ),
    (
        "resource without an encoding",
        [drop("objects", 0, "encoding")],
        "object resource/text/tokenizer.json: member 'encoding' is missing",
    ),
    ("divisors 0", [put(0, "objects", 7, "divisors")], f"object t/nvfp4: divisors {INTEGER} 1 to 2^64-1, found 0"),
    ("zero dimension", [put([0, 5], *TENSOR, "shape")], f"object t/bf16: shape[0] {INTEGER} 1 to 2^64-1, found 0"),
    (
        "negative dimension",
        [put([-3, 5], *TENSOR, "shape")],
        f"object t/bf16: shape[0] {INTEGER} 1 to 2^64-1, found -3",
    ),
    ("rank 17", [put([1] * 17, *TENSOR, "shape")], "object t/bf16: shape has 17 sizes; at most 16 are possible"),
    (
        "shape product beyond 64 bits",
        [put([2**33, 2**31], *TENSOR, "shape")],
        "object t/bf16: shape [8589934592, 2147483648] has 18446744073709551616 elements, beyond 2^64-1",
    ),
    ("shape a number", [put(15, *TENSOR, "shape")], "object t/bf16: shape must be a JSON array, found 15"),
    ("bytes 0", [put(0, *TENSOR, "bytes")], f"object t/bf16: bytes {INTEGER} 1 to 2^64-1, found 0"),
    (
        "out of order",
        [swap(1, 2)],
        "object t/bf16: starts at offset 256, before the end of the previous object at 1320",
    ),
    (
        "overlapping",
        [put(538, *TENSOR, "bytes"), put(0, *TENSOR, "offset")],
        "object t/bf16: starts at offset 0, before the end of the previous object at 13",
    ),
    (
        "overlapping by one byte",
        [put(257, *TENSOR, "bytes")],
        "object t/q4_g64_fp16: starts at offset 512, before the end of the previous object at 513",
    ),
    (
        "beyond the payload",
        [put(17, "objects", 10, "bytes")],
        "object t/int32: bytes 26368 to 26385 lie beyond the payload, which has 26384 bytes",
    ),
    (
        "far beyond the payload",
        [put(2**63, "objects", 10, "offset")],
        "object t/int32: bytes 9223372036854775808 to 9223372036854775824 lie beyond the payload, which "
        "has 26384 bytes",
    ),
    (
        "binding of a resource",
        [put({"object": "resource/text/tokenizer.json"}, "bindings", "a")],
        "binding a: object resource/text/tokenizer.json is a resource, not a tensor",
    ),
    (
        "binding of a missing object",
        [put({"object": "t/none"}, "bindings", "a")],
        "binding a: object t/none does not exist",
    ),
    ("binding in both forms", [put([], "bindings", "a", "parts")], "binding a must have either 'object' or 'parts'"),
    ("binding in no form", [put({}, "bindings", "a")], "binding a must have either 'object' or 'parts'"),
    (
        "binding with an unknown member",
        [put(1, "bindings", "a", "scale")],
        "binding a: unknown member 'scale'; known are object, parts",
    ),
    ("binding no object", [put("t/bf16", "bindings", "a")], "binding a must be a JSON object, found 't/bf16'"),
    ("parts empty", [put({"parts": []}, "bindings", "a")], "binding a: parts is empty"),
    (
        "part of a missing object",
        [put("t/none", "bindings", "b", "parts", 0, "object")],
        "binding b: parts[0]: object t/none does not exist",
    ),
    (
        "part without a range",
        [drop("bindings", "b", "parts", 0, "range")],
        "binding b: parts[0]: member 'range' is missing",
    ),
    (
        "part with an unknown member",
        [put(0, "bindings", "b", "parts", 0, "axis")],
        "binding b: parts[0]: unknown member 'axis'; known are object, range",
    ),
    (
        "range empty",
        [put([5, 5], "bindings", "b", "parts", 0, "range")],
        "binding b: parts[0]: range [5, 5] must not be empty and lie in the 32768 elements of object t/nvfp4",
    ),
    (
        "range backwards",
        [put([6, 5], "bindings", "b", "parts", 0, "range")],
        "binding b: parts[0]: range [6, 5] must not be empty and lie in the 32768 elements of object t/nvfp4",
    ),
    (
        "range beyond the tensor",
        [put([0, 32769], "bindings", "b", "parts", 0, "range")],
        "binding b: parts[0]: range [0, 32769] must not be empty and lie in the 32768 elements of object t/nvfp4",
    ),
    (
        "range of one number",
        [put([5], "bindings", "b", "parts", 0, "range")],
        "binding b: parts[0]: range must be [begin, end], found [5]",
    ),
    (
        "range negative",
        [put([-1, 5], "bindings", "b", "parts", 0, "range")],
        f"binding b: parts[0]: range[0] {INTEGER} 0 to 2^64-1, found -1",
    ),
    ("parameter name empty", [put({"object": "t/bf16"}, "bindings", "")], f"bindings: a member name {IDENTIFIER} ''"),
    ("use of an unknown parameter", [put("z", "uses", 0, "parameter")], "uses[0]: parameter z is not bound"),
    (
        "use listed twice",
        [append({"parameter": "a", "input": "x"}, "uses")],
        "uses[1]: parameter a with input x is listed twice",
    ),
    ("use without an input", [drop("uses", 0, "input")], "uses[0]: member 'input' is missing"),
    (
        "use with an unknown member",
        [put(1, "uses", 0, "priority")],
        "uses[0]: unknown member 'priority'; known are parameter, input, activation_policy, auxiliaries",
    ),
    (
        "bad activation policy",
        [put("AllowA2", "uses", 0, "activation_policy")],
        "uses[0]: activation_policy must be one of A16Only, AllowA8, AllowA4, found 'AllowA2'",
    ),
    (
        "activation policy null",
        [put(None, "uses", 0, "activation_policy")],
        "uses[0]: activation_policy must be one of A16Only, AllowA8, AllowA4, found null",
    ),
    (
        "auxiliary of a missing object",
        [put({"object": "t/none"}, "uses", 0, "auxiliaries", "hadamard_signs")],
        "uses[0]: auxiliary hadamard_signs: object t/none does not exist",
    ),
    (
        "auxiliaries an array",
        [put([], "uses", 0, "auxiliaries")],
        "uses[0]: auxiliaries must be a JSON object, found an array of 0 items",
    ),
    (
        "component without a config",
        [drop("components", "text", "config")],
        "component text: member 'config' is missing",
    ),
    (
        "config a string",
        [put("x", "components", "text", "config")],
        "component text: config must be a JSON object, found 'x'",
    ),
    (
        "component with an unknown member",
        [put(1, "components", "text", "version")],
        "component text: unknown member 'version'; known are config, target, resources, proposal",
    ),
    (
        "target missing",
        [put({"config": {}, "target": "audio"}, "components", "vision")],
        "component vision: target audio must be another component of this file",
    ),
    (
        "target itself",
        [put("text", "components", "text", "target")],
        "component text: target text must be another component of this file",
    ),
    (
        "resource role of a tensor",
        [put("t/bf16", "components", "text", "resources", "tokenizer.json")],
        "component text: resource tokenizer.json: object t/bf16 is a tensor, not a resource",
    ),
    (
        "resource role of a missing object",
        [put("r", "components", "text", "resources", "tokenizer.json")],
        "component text: resource tokenizer.json: object r does not exist",
    ),
    (
        "resource role a number",
        [put(3, "components", "text", "resources", "tokenizer.json")],
        f"component text: resource tokenizer.json {IDENTIFIER} 3",
    ),
    (
        "proposal outside text",
        [put({"config": {}, "proposal": {"domain": "full"}}, "components", "mtp")],
        "component mtp: unknown member 'proposal'; known are config, target, resources",
    ),
    (
        "proposal full with rows",
        [put({"domain": "full", "rows": 5}, "components", "text", "proposal")],
        "component text: proposal: rows must be given exactly for domain 'indexed', found domain 'full'",
    ),
    (
        "proposal indexed without rows",
        [put({"domain": "indexed"}, "components", "text", "proposal")],
        "component text: proposal: rows must be given exactly for domain 'indexed', found domain 'indexed'",
    ),
    (
        "proposal indexed with 0 rows",
        [put({"domain": "indexed", "rows": 0}, "components", "text", "proposal")],
        f"component text: proposal: rows {INTEGER} 1 to 2^64-1, found 0",
    ),
    (
        "proposal of another domain",
        [put({"domain": "some"}, "components", "text", "proposal")],
        "component text: proposal: domain must be 'full' or 'indexed', found 'some'",
    ),
    (
        "proposal null",
        [put(None, "components", "text", "proposal")],
        "component text: proposal must be a JSON object, found null",
    ),
    (
        "entry file with a path",
        [put("golden.ninfer", "files", 0, "path")],
        "files[0]: path must be null for the entry file, found 'golden.ninfer'",
    ),
    ("entry file without a path", [drop("files", 0, "path")], "files[0]: member 'path' is missing"),
    (
        "payload_bytes 0",
        [put(0, "files", 0, "payload_bytes")],
        f"files[0]: payload_bytes {INTEGER} 1 to 2^64-1, found 0",
    ),
    (
        "file with an unknown member",
        [put("00", "files", 0, "sha256")],
        "files[0]: unknown member 'sha256'; known are path, payload_bytes",
    ),
    (
        "part named as the entry file",
        [append({"path": "golden.ninfer", "payload_bytes": 1}, "files")],
        "files[1]: path golden.ninfer is the name of the entry file itself",
    ),
    (
        "part listed twice",
        [append({"path": "p", "payload_bytes": 1}, "files"), append({"path": "p", "payload_bytes": 1}, "files")],
        "files[2]: path p is listed twice",
    ),
    ("part without a name", [append({"path": None, "payload_bytes": 1}, "files")], f"files[1]: {FILE_NAME} null"),
    (
        "part in another directory",
        [append({"path": "../p", "payload_bytes": 1}, "files")],
        f"files[1]: {FILE_NAME} '../p'",
    ),
    (
        "part with an absolute path",
        [append({"path": "/etc/passwd", "payload_bytes": 1}, "files")],
        f"files[1]: {FILE_NAME} '/etc/passwd'",
    ),
    (
        "part with a backslash",
        [append({"path": "a\\b", "payload_bytes": 1}, "files")],
        f"files[1]: {FILE_NAME} 'a\\\\b'",
    ),
    ("part named dot dot", [append({"path": "..", "payload_bytes": 1}, "files")], f"files[1]: {FILE_NAME} '..'"),
    ("part with an empty name", [append({"path": "", "payload_bytes": 1}, "files")], f"files[1]: {FILE_NAME} ''"),
    ("part with a NUL", [append({"path": "a\0", "payload_bytes": 1}, "files")], f"files[1]: {FILE_NAME} 'a\\x00'"),
    (
        "part with a line break",
        [append({"path": "a\nb", "payload_bytes": 1}, "files")],
        f"files[1]: {FILE_NAME} 'a\\nb'",
    ),
    (
        "part with half a character",
        [append({"path": "a\udc80", "payload_bytes": 1}, "files")],
        f"files[1]: {FILE_NAME} 'a\\udc80'",
    ),
    (
        "part with a name of 256 bytes",
        [append({"path": "\u00e9" * 128, "payload_bytes": 1}, "files")],
        f"files[1]: {FILE_NAME} '{'é' * 80}'... (128 characters)",
    ),
    (
        "payload_bytes beyond 64 bits together",
        [append({"path": "p", "payload_bytes": 2**64 - 1}, "files")],
        "files[1]: the payload_bytes sum up to 18446744073709577999, beyond 2^64-1",
    ),
    ("name empty", [put("", "metadata", "name")], f"metadata: name {IDENTIFIER} ''"),
    ("name a number", [put(27, "metadata", "name")], f"metadata: name {IDENTIFIER} 27"),
    (
        "config nested 65 deep",
        [put({"a": nested(64)}, "components", "text", "config")],
        "component text: config is nested deeper than 64 levels",
    ),
    (
        "provenance nested 400 deep",
        [put({"a": nested(400)}, "provenance")],
        "directory: provenance is nested deeper than 64 levels",
    ),
]


@pytest.mark.parametrize(("damages", "problem"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_refused(tmp_path: Path, damages: list[Damage], problem: str) -> None:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(damaged(*damages))
    with pytest.raises(InputError) as caught:
        Artifact.open(path)
    assert str(caught.value) == f"{path}: {problem}"


def test_what_the_cases_start_from_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(damaged())
    assert len(Artifact.open(path).objects) == 11


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(drop("metadata"), id="without metadata"),
        pytest.param(drop("provenance"), id="without provenance"),
        pytest.param(put({"name": "x", "more": [1.5, None]}, "metadata"), id="open metadata"),
        pytest.param(put([], "uses"), id="no uses"),
        pytest.param(put({"domain": "full"}, "components", "text", "proposal"), id="full proposal"),
        pytest.param(put({"domain": "indexed", "rows": 9}, "components", "text", "proposal"), id="indexed proposal"),
        pytest.param(put({"config": {}, "target": "text"}, "components", "mtp"), id="component with a target"),
        pytest.param(put({"a": nested(63)}, "components", "text", "config"), id="config nested 64 deep"),
        pytest.param(append({"path": "p", "payload_bytes": 1}, "files"), id="part that is not there"),
    ],
)
def test_accepted(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(damaged(damage))
    assert len(Artifact.open(path).objects) == 11

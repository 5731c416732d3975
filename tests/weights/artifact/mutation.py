"""Random damage to artifacts: of bytes, of values and structure of the directory, of whole files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from tests.weights.artifact import golden
from tests.weights.artifact.test_older import old_file

Files = dict[str, bytes]
ENTRY = "model.ninfer"

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    127,
    128,
    255,
    256,
    257,
    4095,
    4096,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
)
ODD_VALUES: tuple[Any, ...] = (
    *INTEGERS,
    *(None, True, False, 1.0, -0.0, 1e300, 10**30, "", "a\0b", "a\nb", "\ud800", "..", "/", "x" * 5000, [], {}, [[]]),
    *([2**40, 2**20], [0], [1] * 17, [2**63, 2], [-1, 5], {"object": "w"}, {"parts": []}, ["a"], {"a": {"b": [1]}}),
    *("bf16", "fp32", "nvfp4", "q4_g64_fp16", "t2_g128_fp16", "BF16", "NVFP4", "gguf_q4_k", "tensor", "resource"),
    *("row_split_k128_v1", "contiguous_le_v1", "block_scale_k16_m128x4_v1", "row-scale-v1", "raw_bytes_v1", "text"),
)
FRAGMENTS = (
    *(b"NaN", b"-Infinity", b"1e999", b"-", b'"', b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b"\xff"),
    *(
        b"\0",
        b"9" * 100,
        b"9" * 5000,
        b"[" * 300,
        b"[" * 5000,
        b'{"a":' * 300,
        b'"id":1,',
        b'"bytes":0,',
        b"/**/",
        b" ",
    ),
)


def base_artifacts() -> list[Files]:
    """Sound artifacts: of one file, of several, of every version, with every kind of record."""
    return [{ENTRY: golden.golden_file()}, _model(1), _model(5), {ENTRY: old_file(2)}, {ENTRY: old_file(1)}]


def _model(files: int) -> Files:
    """A small model with every optional member, cut into ``files`` files at odd places."""
    tensors = [
        ("w", [256, 64], "nvfp4", "block_scale_k16_m128x4_v1", 256 * 36 + 8),
        ("d", [], "fp32", "contiguous_le_v1", 4),
        ("c", [4, 2, 3], "bf16", "contiguous_le_v1", 48),
        ("q", [3, 100], "q5_g64_fp16", "row_split_k128_v1", 256 + 256 + 12),
        ("ids", [5], "int32", "contiguous_le_v1", 20),
    ]
    objects: list[dict[str, Any]] = [
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 0, "bytes": 2}
    ]
    end = 2
    for name, shape, format, layout, size_bytes in tensors:
        offset = -(-end // 256) * 256
        record = {"id": name, "kind": "tensor", "shape": shape, "format": format, "layout": layout, "offset": offset}
        objects.append(record | {"bytes": size_bytes})
        end = offset + size_bytes
    objects[1]["divisors"] = 2
    payload = bytearray(b"{}" + bytes(end - 2))
    payload[256 + 256 * 36 : 256 + 256 * 36 + 8] = b"\0\0\x80?\0\0\0@"  # divisors 1 and 2
    cuts = [0, *sorted(Random(files).sample(range(1, end), files - 1)), end]
    slices = [bytes(payload[first:last]) for first, last in pairwise(cuts)]
    names = [f"{ENTRY}.part-{index:04d}" for index in range(1, files)]
    use = {"parameter": "text/a", "input": "x", "activation_policy": "AllowA8"}
    directory = {
        "components": {
            "text": {
                "config": {"layer_types": ["full_attention"], "rope": {"theta": 1e7}},
                "resources": {"tokenizer.json": "r"},
                "proposal": {"domain": "indexed", "rows": 5},
            },
            "mtp": {"config": {}, "target": "text"},
        },
        "objects": objects,
        "bindings": {
            "text/a": {"parts": [{"object": "w", "range": [0, 8192]}, {"object": "w", "range": [8192, 16_384]}]},
            "text/b": {"object": "c"},
            "proposal/token_ids": {"object": "ids"},
        },
        "uses": [use | {"auxiliaries": {"activation_input_divisor": {"object": "d"}}}, use | {"input": "y"}],
        "files": [
            {"path": name, "payload_bytes": len(part)} for name, part in zip([None, *names], slices, strict=True)
        ],
        "metadata": {"name": "tiny"},
        "provenance": {"recipe": "nvfp4"},
    }
    found = {ENTRY: _entry(3, json.dumps(directory).encode(), slices[0])}
    for index, (name, part) in enumerate(zip(names, slices[1:], strict=True), 1):
        head = b"NINPRT\0\x03" + index.to_bytes(8, "little") + golden.ARTIFACT_ID
        found[name] = head.ljust(4096, b"\0") + part
    return found


@dataclass
class Mutator:
    """Makes damaged copies; the same seed makes the same ones."""

    random: Random
    used: dict[str, int] = field(default_factory=dict)  # how often each kind of damage was done

    def mutated(self, files: Files) -> Files:
        """A copy with one to three damages."""
        files = dict(files)
        for _ in range(self.random.choice((1, 1, 1, 1, 2, 3))):
            damage = self.random.choice(DAMAGES)
            self.used[damage.__name__] = self.used.get(damage.__name__, 0) + 1
            damage(self.random, files)
        return files


def flip_bits(random: Random, files: Files) -> None:
    name, raw = _any_file(random, files)
    for _ in range(random.choice((1, 1, 2, 8))):
        if raw:
            raw[_place(random, len(raw))] ^= 1 << random.randrange(8)
    files[name] = bytes(raw)


def overwrite_run(random: Random, files: Files) -> None:
    name, raw = _any_file(random, files)
    start = _place(random, len(raw))
    size = random.choice((1, 2, 4, 8, 64, 1000))
    filling = random.choice((b"\0" * size, b"\xff" * size, random.randbytes(size), b" " * size))
    raw[start : start + size] = filling[: len(raw) - start]
    files[name] = bytes(raw)


def insert_or_delete_run(random: Random, files: Files) -> None:
    name, raw = _any_file(random, files)
    start = _place(random, len(raw))
    if random.random() < 0.5:
        del raw[start : start + random.choice((1, 2, 16, 256, 4096))]
    else:
        raw[start:start] = random.randbytes(random.choice((1, 2, 16, 256, 4096)))
    files[name] = bytes(raw)


def truncate(random: Random, files: Files) -> None:
    name, raw = _any_file(random, files)
    cut = random.choice((0, 1, 7, 8, 16, 31, 32, 33, 4095, 4096, 4097, len(raw) - 1, random.randrange(len(raw) + 1)))
    files[name] = bytes(raw[: max(cut, 0)])


def grow(random: Random, files: Files) -> None:
    name, raw = _any_file(random, files)
    files[name] = bytes(raw) + bytes(random.choice((1, 2, 255, 4096)))


def change_header(random: Random, files: Files) -> None:
    name, raw = _any_file(random, files)
    number = random.choice((*INTEGERS[:2], *INTEGERS[3:-1], len(raw), max(len(raw) - 32, 0), max(len(raw) - 31, 0)))
    raw[8:16] = number.to_bytes(8, "little")
    if random.random() < 0.3:
        raw[:8] = random.choice(
            (b"NINFER\0\1", b"NINFER\0\2", b"NINFER\0\3", b"NINFER\0\4", b"NINPRT\0\3", b"GGUF\3\0\0\0")
        )
    files[name] = bytes(raw)


def change_value(random: Random, files: Files) -> None:
    def change(root: Any) -> None:
        parent, key = _any_member(random, root)
        if parent is not None:
            found = parent[key]
            near = (found + random.choice((-256, -1, 1, 256)),) if type(found) is int else ()
            parent[key] = random.choice((*near, *near, *ODD_VALUES, *([found] if isinstance(found, list) else [])))

    _change_directory(random, files, change)


def change_encoding(random: Random, files: Files) -> None:
    """What is only looked at when an object is used."""

    def change(root: Any) -> None:
        records = root.get("objects") if isinstance(root, dict) else None
        record = random.choice(records) if isinstance(records, list) and records else None
        if isinstance(record, dict):
            name = random.choice(("format", "layout", "shape", "divisors", "encoding", "bytes"))
            old = record.get(name)
            if name in ("divisors", "bytes"):
                record[name] = max(old - random.choice((1, 2)), 1) if type(old) is int else 1
            elif name == "shape":
                record[name] = [random.choice((1, 2, 128, 256, 2**20, 2**31)) for _ in range(random.randrange(4))]
            elif old is not None:
                record[name] = random.choice([value for value in ODD_VALUES if isinstance(value, str) and value])

    _change_directory(random, files, change)


def change_structure(random: Random, files: Files) -> None:
    def change(root: Any) -> None:
        parent, key = _any_member(random, root)
        other, other_key = _any_member(random, root)
        if parent is None or other is None:
            return
        action = random.randrange(5)
        if action == 0:
            del parent[key]
        elif action == 1:
            parent[key] = json.loads(json.dumps(other[other_key]))
        elif action == 2 and isinstance(parent, dict):
            parent[random.choice(("divisors", "x", "bytes", "path", "text", "object", "parts", "rows", ""))] = parent[
                key
            ]
        elif action == 3 and isinstance(parent, list):
            parent.insert(random.randrange(len(parent) + 1), json.loads(json.dumps(parent[key])))
        else:
            first, second = json.dumps(parent[key]), json.dumps(other[other_key])
            parent[key] = json.loads(second)
            other[other_key] = json.loads(first)

    _change_directory(random, files, change)


def deepen(random: Random, files: Files) -> None:
    def change(root: Any) -> None:
        parent, key = _any_member(random, root)
        if parent is not None:
            for _ in range(random.choice((1, 63, 64, 200))):
                parent[key] = [parent[key]] if random.random() < 0.5 else {"a": parent[key]}

    _change_directory(random, files, change)


def change_json_text(random: Random, files: Files) -> None:
    version, text, payload = _taken_apart(files[ENTRY])
    if text is None or payload is None:
        return
    raw = bytearray(text)
    for _ in range(random.choice((1, 1, 2))):
        start = random.randrange(len(raw) + 1)
        raw[start : start + random.choice((0, 0, 1, 5))] = random.choice(FRAGMENTS)
    files[ENTRY] = _entry(version, bytes(raw), payload)


def change_files(random: Random, files: Files) -> None:
    first, second = random.choice(list(files)), random.choice(list(files))
    action = random.randrange(3)
    if action == 0 and first != ENTRY:
        del files[first]
    elif action == 1:
        files[first], files[second] = files[second], files[first]
    else:
        files[first] = files[second]


def repeat_many(random: Random, files: Files) -> None:
    """Thousands of records, small in the file."""

    def change(root: Any) -> None:
        if isinstance(root, dict):
            where = random.choice(("objects", "uses", "files", "bindings"))
            records = root.get(where)
            if isinstance(records, list) and records:
                records.extend([random.choice(records)] * 300)
            elif isinstance(records, dict) and records:
                records.update({f"p{i}": next(iter(records.values())) for i in range(300)})

    _change_directory(random, files, change)


DAMAGES: tuple[Callable[[Random, Files], None], ...] = (
    flip_bits,
    overwrite_run,
    insert_or_delete_run,
    truncate,
    grow,
    change_header,
    *(change_value,) * 6,
    *(change_encoding,) * 4,
    *(change_structure,) * 4,
    *(change_json_text,) * 2,
    deepen,
    change_files,
    repeat_many,
)


def _any_file(random: Random, files: Files) -> tuple[str, bytearray]:
    name = ENTRY if random.random() < 0.6 else random.choice(list(files))
    return name, bytearray(files[name])


def _place(random: Random, size: int) -> int:
    """More often where the header and the directory are."""
    return random.randrange(min(size, random.choice((40, 3000, size))) or 1) if size else 0


def _entry(version: int, text: bytes, payload: bytes) -> bytes:
    head = b"NINFER\0" + bytes([version]) + len(text).to_bytes(8, "little")
    head += (golden.ARTIFACT_ID if version == 3 else b"") + text
    return head.ljust(-(-len(head) // 4096) * 4096, b"\0") + payload


def _taken_apart(raw: bytes) -> tuple[int, bytes | None, bytes | None]:
    """Version, JSON text and payload, as far as the header allows."""
    version = raw[7] if len(raw) > 32 else 0
    if version not in (1, 2, 3):
        return 0, None, None
    start = 32 if version == 3 else 16
    end = start + int.from_bytes(raw[8:16], "little")
    return version, raw[start : min(end, len(raw))], raw[-(-min(end, len(raw)) // 4096) * 4096 :]


def _change_directory(random: Random, files: Files, change: Callable[[Any], None]) -> None:
    version, text, payload = _taken_apart(files[ENTRY])
    if text is None or payload is None:
        return
    try:
        root = json.loads(text)
        change(root)
        text = json.dumps(root, separators=(",", ":")).encode()
    except (ValueError, RecursionError):  # an earlier damage has made it something else
        return
    if random.random() < 0.1:
        text = text.ljust(-(-(len(text) + 32) // 4096) * 4096 - 32)
    files[ENTRY] = _entry(version, text, payload)


def _any_member(random: Random, root: Any) -> tuple[Any, Any]:
    """A container and one of its keys, at any depth; (None, None) if there is none."""
    parent, key, node = None, None, root
    while isinstance(node, dict | list) and node:
        if parent is not None and random.random() < 0.2:
            break
        parent = node
        key = random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
        node = parent[key]
    return parent, key

"""The golden file as writer input, and small helpers around artifacts on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ninferd.weights.artifact.directory import Binding, BindingPart, Component, StoredObject, Use
from ninferd.weights.artifact.plan import Contents, resource_object, tensor_object
from ninferd.weights.artifact.writer import ArtifactWriter
from tests.weights.artifact import golden

TOKENIZER = "resource/text/tokenizer.json"


def golden_contents() -> Contents:
    """What the golden file holds, without offsets."""
    matrices: list[StoredObject] = [
        tensor_object(f"t/{format}", (5, 200), format)
        for format in ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "t2_g128_fp16")
    ]
    return Contents(
        objects=(
            resource_object(TOKENIZER, 13),
            tensor_object("t/bf16", (3, 5), "bf16"),
            *matrices,
            tensor_object("t/nvfp4", (256, 128), "nvfp4"),
            tensor_object("t/fp8", (3, 130), "fp8_e4m3fn_row_bf16"),
            tensor_object("t/fp32", (), "fp32"),
            tensor_object("t/int32", (4,), "int32"),
        ),
        components={"text": Component({}, resources={"tokenizer.json": TOKENIZER})},
        bindings={
            "a": Binding((BindingPart("t/nvfp4", 0, 32768),), is_whole=True),
            "b": Binding((BindingPart("t/nvfp4", 16384, 32768),)),
            "c": Binding((BindingPart("t/q4_g64_fp16", 0, 1000),), is_whole=True),
        },
        uses=(
            Use(
                "a",
                "x",
                "AllowA4",
                {"activation_input_divisor": Binding((BindingPart("t/fp32", 0, 1),), is_whole=True)},
            ),
        ),
        metadata={"name": "golden"},
    )


def write_golden(path: Path, *, max_file_bytes: int | None = None, overwrite: bool = False) -> None:
    """The golden artifact through the writer."""
    with ArtifactWriter(
        path,
        golden_contents(),
        artifact_id=golden.ARTIFACT_ID,
        max_file_bytes=max_file_bytes,
        overwrite=overwrite,
    ) as writer:
        for name, content in golden.object_bytes().items():
            writer.put(name, [content[:100], content[100:]])
        writer.publish()


def framed(directory: Any, payload: bytes, *, json_bytes: bytes | None = None) -> bytes:
    """An entry file with any directory, right or wrong."""
    text = json.dumps(directory).encode() if json_bytes is None else json_bytes
    start = -(-(32 + len(text)) // 4096) * 4096
    head = b"NINFER\0\x03" + len(text).to_bytes(8, "little") + golden.ARTIFACT_ID
    return (head + text).ljust(start, b"\0") + payload

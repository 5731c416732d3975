"""Artifacts put together by hand, right or wrong: records and bytes as given, without the writer under test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ninferd.weights.formats.registry import LAYOUT_OF, encoded_bytes
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.registry import text_parameters
from tests.weights.artifact.support import framed

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "vocab_size": 256,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "rms_norm_eps": 9.999999974752427e-07,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "rope_parameters": {"rope_theta": 10000000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]},
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 128,
}
"""Every projection of a mixer has 128 rows of 64 columns."""


@dataclass
class RawArtifact:
    """Objects in payload order; tensors start at multiples of 256."""

    components: dict[str, Any] = field(default_factory=lambda: {"text": {"config": CONFIG}})
    bindings: dict[str, Any] = field(default_factory=dict)
    uses: list[dict[str, Any]] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)
    payload: bytearray = field(default_factory=bytearray)

    def tensor(self, name: str, shape: list[int], format: str, data: bytes, layout: str | None = None) -> None:
        self.payload += bytes(-len(self.payload) % 256)
        self.objects.append(
            {
                "id": name,
                "kind": "tensor",
                "shape": shape,
                "format": format,
                "layout": layout or LAYOUT_OF[format],
                "offset": len(self.payload),
                "bytes": len(data),
            }
        )
        self.payload += data

    def resource(self, component: str, role: str, data: bytes) -> None:
        name = f"resource/{component}/{role}"
        record = {"id": name, "kind": "resource", "encoding": "raw_bytes_v1"}
        self.objects.append({**record, "offset": len(self.payload), "bytes": len(data)})
        self.components[component].setdefault("resources", {})[role] = name
        self.payload += data

    def bind(self, parameter: str, *parts: tuple[str, int, int]) -> None:
        """To (object, first element, end)."""
        self.bindings[parameter] = {"parts": [{"object": name, "range": [begin, end]} for name, begin, end in parts]}

    def bind_whole(self, parameter: str, name: str) -> None:
        self.bindings[parameter] = {"object": name}

    def use(self, parameter: str, source: str, **auxiliaries: str) -> None:
        """With whole objects as auxiliaries."""
        roles = {role: {"object": name} for role, name in auxiliaries.items()}
        self.uses.append(
            {"parameter": parameter, "input": source, "activation_policy": "AllowA4", "auxiliaries": roles}
        )

    def write(self, path: Path) -> Path:
        directory = {
            "components": self.components,
            "objects": self.objects,
            "bindings": self.bindings,
            "uses": self.uses,
            "files": [{"path": None, "payload_bytes": len(self.payload)}],
        }
        path.write_bytes(framed(directory, bytes(self.payload)))
        return path


def bf16(values: Any) -> bytes:
    """Upper halves of float32; the values must be exact in bfloat16."""
    words = np.asarray(values, np.float32).view(np.uint32)
    assert not (words & 0xFFFF).any()
    return (words >> 16).astype("<u2").tobytes()


def nvfp4(rows: int, columns: int, divisor: float = 1.0) -> bytes:
    """Codes that count, block scales of 1, one divisor: planes at multiples of 256, the last one unpadded."""
    codes = (np.arange(rows * columns // 2) % 256).astype(np.uint8).tobytes()
    scales = bytes([0x38]) * (rows * columns // 16)
    return codes + bytes(-len(codes) % 256) + scales + np.float32(divisor).tobytes()


def old_artifact(path: Path, root: dict[str, Any], version: int, payload: dict[int, bytes], payload_bytes: int) -> Path:
    """A version 1 or 2 file of ``payload_bytes``, zero but for ``payload`` (offset to bytes)."""
    text = json.dumps(root).encode()
    start = -(-(16 + len(text)) // 4096) * 4096
    with path.open("wb") as file:
        file.write(b"NINFER\0" + bytes([version]) + len(text).to_bytes(8, "little") + text)
        for offset, data in payload.items():
            file.seek(start + offset)
            file.write(data)
        file.truncate(start + payload_bytes)
    return path


def text_model(formats: Callable[[str], str], **config: Any) -> RawArtifact:
    """A whole text model of zeros, each matrix parameter in an object of the format that ``formats`` names for it."""
    raw = RawArtifact({"text": {"config": CONFIG | {"hidden_size": 128} | config}})
    geometry = model_geometry({"text": raw.components["text"]["config"]}, "test")
    for parameter in text_parameters(geometry):
        format = parameter.direct or formats(parameter.name)
        size = encoded_bytes(format, parameter.shape)
        data = bytes(size - 4) + np.float32(1).tobytes() if format == "nvfp4" else bytes(size)
        raw.tensor(parameter.name, list(parameter.shape), format, data)
        raw.bind_whole(parameter.name, parameter.name)
    return raw

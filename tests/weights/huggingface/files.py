"""Hand-made safetensors files and directories, byte by byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Entry = tuple[str, list[int], list[int]]
"""dtype, shape, data_offsets."""


def header_bytes(entries: Mapping[str, Any]) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write_directory(
    directory: Path,
    shards: Mapping[str, Mapping[str, torch.Tensor]],
    index: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A checkpoint; with ``index`` also an index file of that weight map."""
    (directory / "config.json").write_text(json.dumps(config or {}))
    for name, tensors in shards.items():
        save_file(dict(tensors), directory / name)
    if index is not None:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return directory

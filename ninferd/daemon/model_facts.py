"""What the main process needs to know of an artifact to predict its memory: read from headers, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ninferd.errors import InputError
from ninferd.weights.json_file import read_json_object
from ninferd.weights.model_types import type_problem

MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_HEADER_BYTES = 100 << 20  # the format's own limit
MAX_SHARDS = 10_000

_ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NOT_LOADED = ("mtp.", "visual.", "model.visual.")  # parts of the artifact that the text model does not take


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of one artifact of the Qwen3.5 family."""

    architecture: str
    stored_dtype_bytes: int  # per element, of config.json's dtype
    weight_elements: int  # of the text model
    weight_stored_bytes: int  # the same in the files
    attention_layers: int
    gdn_layers: int
    kv_heads: int
    head_dim: int
    conv_channels: int
    conv_kernel: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    max_position_embeddings: int


def read_model_facts(directory: Path) -> ModelFacts:
    """Facts of a Hugging Face directory. Raises InputError naming the file that is missing or cannot be used."""
    path = directory / "config.json"
    config = read_json_object(path, MAX_CONFIG_BYTES)
    nested = config.get("text_config")
    text = _Fields(nested if isinstance(nested, dict) else config, path)
    if problem := type_problem(text.values.get("model_type")):
        raise InputError(f"{path}: model_type {problem}")
    attention_layers, gdn_layers = _layer_counts(text)
    key_heads, value_heads = text.count("linear_num_key_heads"), text.count("linear_num_value_heads")
    key_head_dim, value_head_dim = text.count("linear_key_head_dim"), text.count("linear_value_head_dim")
    tied = bool((config if "tie_word_embeddings" in config else text.values).get("tie_word_embeddings"))
    elements, stored_bytes = _weight_sizes(directory, skip_head=tied)
    names = config.get("architectures")
    return ModelFacts(
        architecture=str(names[0]) if isinstance(names, list) and names else str(text.values.get("model_type", "")),
        stored_dtype_bytes=stored_bytes // max(1, elements),
        weight_elements=elements,
        weight_stored_bytes=stored_bytes,
        attention_layers=attention_layers,
        gdn_layers=gdn_layers,
        kv_heads=text.count("num_key_value_heads"),
        head_dim=text.count("head_dim"),
        conv_channels=2 * key_heads * key_head_dim + value_heads * value_head_dim,
        conv_kernel=text.count("linear_conv_kernel_dim"),
        value_heads=value_heads,
        key_head_dim=key_head_dim,
        value_head_dim=value_head_dim,
        max_position_embeddings=text.count("max_position_embeddings"),
    )


@dataclass(frozen=True)
class _Fields:
    values: Mapping[str, Any]
    path: Path

    def count(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is not int or value < 1:
            raise InputError(f"{self.path}: {name} must be a positive integer, found {value!r}")
        return value


def _layer_counts(text: _Fields) -> tuple[int, int]:
    """(attention, gated-delta) layers."""
    layers = text.count("num_hidden_layers")
    types = text.values.get("layer_types")
    if isinstance(types, list):
        attention = types.count("full_attention")
    else:
        attention = layers // text.count("full_attention_interval")
    return attention, layers - attention


def _weight_sizes(directory: Path, *, skip_head: bool) -> tuple[int, int]:
    """(elements, stored bytes) of every float tensor that the text model loads."""
    elements = stored_bytes = 0
    for shard in _shards(directory):
        for name, dtype, shape in _tensors(shard):
            if name.startswith(_NOT_LOADED) or (skip_head and name.startswith("lm_head.")):
                continue
            size = prod(shape)
            elements += size
            stored_bytes += size * _ELEMENT_BYTES.get(dtype, 1)
    return elements, stored_bytes


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    weight_map = read_json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        raise InputError(f"{index}: weight_map must be an object of tensor names and file names")
    names = {str(name) for name in weight_map.values()}
    if len(names) > MAX_SHARDS:
        raise InputError(f"{index}: names {len(names)} files, at most {MAX_SHARDS} are accepted")
    return [directory / name for name in sorted(names)]


def _tensors(shard: Path) -> Iterator[tuple[str, str, list[int]]]:
    """(name, dtype, shape) of a file's tensors; also checks that the file is as long as its header says."""
    try:
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise InputError(f"{shard}: is not a safetensors file: header of {length} bytes")
            header = json.loads(file.read(length))
        size = shard.stat().st_size
    except OSError as error:
        raise InputError(f"{shard}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shard}: is not a safetensors file: {error}") from error
    try:
        tensors = [(name, entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"{shard}: is not a safetensors file: broken header") from error
    if size < 8 + length + end:
        raise InputError(f"{shard}: is cut short: {size} bytes, its header needs {8 + length + end}")
    yield from tensors

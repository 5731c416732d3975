"""A Hugging Face model directory: its configuration and the tensors of all shards under canonical names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninferd.config.files import is_missing
from ninferd.errors import InputError
from ninferd.weights.artifact.text import plain, shown
from ninferd.weights.huggingface.safetensors import StoredTensor, read_header
from ninferd.weights.json_file import read_json_object

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_SHARDS = 10_000
MAX_FILE_NAME_BYTES = 255
TEXT_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")


@dataclass(frozen=True)
class CheckpointDirectory:
    """What a directory holds."""

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]  # by canonical name


def canonical_name(name: str) -> str:
    """Tensor name without the wrapper's prefix: ``layers.0...``, ``embed_tokens.weight``, ``lm_head.weight``."""
    for prefix in TEXT_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def read_directory(path: Path) -> CheckpointDirectory:
    """Read ``config.json``, the index if there is one, and the header of every shard; no weight is read.

    Raises InputError naming the file and what is wrong with it.
    """
    config = read_json_object(path / CONFIG_NAME, MAX_CONFIG_BYTES)
    tensors: dict[str, StoredTensor] = {}
    for tensor in _all_tensors(path):
        name = canonical_name(tensor.name)
        if name in tensors:
            other = tensors[name]
            raise InputError(f"{tensor.where} is the same as {plain(other.name)} in {other.span.path}")
        tensors[name] = tensor
    return CheckpointDirectory(path, config, tensors)


def _all_tensors(directory: Path) -> Iterator[StoredTensor]:
    index = directory / INDEX_NAME
    if not is_missing(index):
        yield from _from_index(index)
    elif not is_missing(directory / SINGLE_NAME):
        yield from read_header(directory / SINGLE_NAME).values()
    else:
        raise InputError(f"{directory}: holds neither {INDEX_NAME} nor {SINGLE_NAME}")


def _from_index(index: Path) -> Iterator[StoredTensor]:
    weight_map = read_json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: weight_map must be an object that maps tensor names to file names")
    expected: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or (shard not in expected and not _is_plain_file_name(shard)):
            raise InputError(f"{index}: the file of tensor {plain(name)} must be a plain file name, not {shown(shard)}")
        expected.setdefault(shard, set()).add(name)
        if len(expected) > MAX_SHARDS:
            raise InputError(f"{index}: names more than {MAX_SHARDS} files")
    for shard, names in sorted(expected.items()):
        tensors = read_header(index.parent / shard)
        for name in sorted(names - tensors.keys()):
            raise InputError(f"{index.parent / shard}: {index.name} puts tensor {plain(name)} here, but it is not")
        for name in sorted(tensors.keys() - names):
            raise InputError(f"{index.parent / shard}: tensor {plain(name)} is not in {index.name}")
        yield from tensors.values()


def _is_plain_file_name(name: str) -> bool:
    return (
        name not in ("", ".", "..")
        and not set(name) & set("/\\")
        and name.isprintable()
        and len(name.encode()) <= MAX_FILE_NAME_BYTES
    )

"""Thousands of damaged directories: each is read, or refused in one line."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninferd.errors import InputError
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.huggingface_config import component_configs
from ninferd.weights.parameters.registry import parameters
from tests.support.checkpoints import MOE, TEXT, write_random_checkpoint
from tests.support.quantised_checkpoints import write_quantised

CASES = 250  # of each kind of damage and checkpoint

Files = dict[str, bytes]
Damage = Callable[[random.Random, Files], None]

# fmt: off
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 16, 63, 64, 65, 128, 4096, 2**24, 2**31, 2**53, 2**63, 2**64, 10**30,
    0.0, -0.0, 0.5, 1e-45, 1e300, -1.5, "", "x", "weight", "F32", "BF16", "F8_E4M3", "U8", "I32", "\0", "\ud800", "é\n",
    [], {}, [0], [1, 1], [0, 64], [64, 0], [4, 2**62], [[]], {"a": 1}, ["full_attention"], ["linear_attention"] * 4,
]
# fmt: on


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Two layers, one of each kind."""
    return config | {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "vocab_size": 64,
        "linear_num_value_heads": 4,
    }


@pytest.fixture(scope="module", params=["dense", "moe"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A checkpoint in all quantised layouts, in two shards with an index."""
    plain, quantised = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("quantised")
    experts = {"num_experts": 2, "num_experts_per_tok": 1}
    write_random_checkpoint(plain, small(TEXT) if request.param == "dense" else small(MOE) | experts, 4)
    write_quantised(plain, quantised, "mixed")
    raw = (quantised / "model.safetensors").read_bytes()
    header, data = parsed(raw)
    names = [name for name in header if name != "__metadata__"]
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    found = {"config.json": (quantised / "config.json").read_bytes()}
    for shard, members in halves.items():
        part: dict[str, Any] = {}
        content = b""
        for name in members:
            begin, end = header[name]["data_offsets"]
            part[name] = header[name] | {"data_offsets": [len(content), len(content) + end - begin]}
            content += data[begin:end]
        found[shard] = assembled(part, content)
    weight_map = {name: shard for shard, members in halves.items() for name in members}
    found["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return found


def parsed(raw: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def assembled(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + data


def spoil(rng: random.Random, tree: Any) -> None:
    """Change, remove, add or rename one member, anywhere."""
    places = [tree]
    for node in places:
        children = node.values() if isinstance(node, dict) else node
        places += [child for child in children if isinstance(child, dict | list)]
    place = rng.choice([each for each in places if each] or [tree])
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not keys:
        return
    key, action = rng.choice(keys), rng.randrange(5)
    if action == 0:
        del place[key]
    elif action == 1 and isinstance(place, dict):
        place[rng.choice(["x", "", "mtp.fc.weight", "\ud800", str(key)[:-1], f"{key}_scale"])] = place.pop(key)
    elif action == 2 and type(place[key]) is int:
        place[key] += rng.choice([-1, 1, 2, -2, 16, 2**40])
    else:
        place[key] = rng.choice(VALUES) if action < 4 else place[rng.choice(keys)]


def damage_json(rng: random.Random, files: Files, name: str) -> None:
    tree = json.loads(files[name])
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        spoil(rng, tree)
    files[name] = json.dumps(tree).encode("utf-8", "surrogatepass")


def damage_config(rng: random.Random, files: Files) -> None:
    damage_json(rng, files, "config.json")


def damage_index(rng: random.Random, files: Files) -> None:
    damage_json(rng, files, "model.safetensors.index.json")


def damage_header(rng: random.Random, files: Files) -> None:
    name = rng.choice(["a.safetensors", "b.safetensors"])
    header, data = parsed(files[name])
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        spoil(rng, header)
    files[name] = assembled(header, data)


def damage_bytes(rng: random.Random, files: Files) -> None:
    """Bits, cuts, repeats and removals of whole files."""
    name = rng.choice(list(files))
    content = bytearray(files[name])
    limit = len(content) if rng.random() < 0.3 or name.endswith("json") else 8 + int.from_bytes(content[:8], "little")
    at = rng.randrange(limit)
    action = rng.randrange(6)
    if action == 0:
        content[at] ^= 1 << rng.randrange(8)
    elif action == 1:
        content[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
    elif action == 2:
        del content[at:]
    elif action == 3:
        content += content[at:]
    elif action == 4:
        content[rng.randrange(8)] = rng.randrange(256)
    else:
        del files[name]
        return
    files[name] = bytes(content)


@pytest.mark.parametrize("damage", [damage_config, damage_index, damage_header, damage_bytes])
def test_damaged_directories(tmp_path: Path, files: Files, damage: Damage) -> None:
    refused = 0
    for seed in range(CASES):
        damaged = dict(files)
        damage(random.Random(seed), damaged)
        for name in files:
            (tmp_path / name).unlink(missing_ok=True)
            if name in damaged:
                (tmp_path / name).write_bytes(damaged[name])
        try:
            message = refusal(tmp_path)
        except Exception as error:
            pytest.fail(f"seed {seed}: {error!r}")
        if message is not None:
            refused += 1
            assert message.startswith(str(tmp_path)), seed
            assert "\n" not in message, seed
            assert len(message) < 1000, seed
    assert refused > CASES / 3


def test_the_undamaged_directory_is_read(tmp_path: Path, files: Files) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    read_everything(tmp_path)


def refusal(directory: Path) -> str | None:
    """Why a directory is refused; None if it is read."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of numbers that damage made out of weights
            read_everything(directory)
    except InputError as error:
        return str(error)
    return None


def read_everything(directory: Path) -> None:
    """What a loader and a converter do with a directory, all values included."""
    source = HuggingFaceSource.open(directory)
    where = str(directory / "config.json")
    known = parameters(model_geometry(component_configs(source.config, where), where).without(["mtp"]))
    for parameter in known:
        if parameter.direct is None:
            source.matrix(parameter.name, parameter.shape[0], parameter.shape[1])
        source.array(parameter.name, parameter.shape)
    source.require_no_others(frozenset(parameter.name for parameter in known))

"""Artifacts whose directory was changed anywhere: the model layer answers with one line or with a model."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninferd.daemon.model_facts import ModelFacts
from ninferd.errors import InputError
from ninferd.weights.opening import open_model
from tests.weights.raw_artifact import RawArtifact, text_model

CASES = 400
ODD_VALUES: tuple[Any, ...] = (0, 1, -1, 7, 1 << 24, 1 << 40, 1.5, True, None, "", "x", "bf16", "nvfp4", [], {}, [1, 2])


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in a tree."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from places(value)


def mutated(raw: RawArtifact, generator: random.Random) -> RawArtifact:
    raw = copy.deepcopy(raw)
    tree = {"components": raw.components, "bindings": raw.bindings, "uses": raw.uses, "objects": raw.objects}
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        part = generator.choice(list(tree.values()))
        found = list(places(part))
        if not found:
            continue
        container, key = generator.choice(found)
        change = generator.random()
        if change < 0.2:
            del container[key]
        elif change < 0.4 and isinstance(container, dict):
            container[generator.choice(("", "text/new", "vision/new", "shape", "object"))] = container.pop(key)
        elif change < 0.6:
            other, other_key = generator.choice(found)
            container[key] = copy.deepcopy(other[other_key])
        else:
            container[key] = generator.choice(ODD_VALUES)
    return raw


@pytest.fixture(scope="module")
def sound() -> RawArtifact:
    """Formats of all kinds, fused rows and a divisor of activations."""
    raw = text_model(lambda name: "nvfp4" if "/mlp/" in name else "q5_g64_fp16" if "attention" in name else "bf16")
    raw.tensor("d_x", [], "fp32", np.float32(3).tobytes())
    raw.use("text/layers/0/mlp/gate", "text/layers/0/ffn_input", activation_input_divisor="d_x")
    whole = raw.bindings["text/layers/0/mlp/gate"]["object"]
    raw.bind("text/layers/0/mlp/gate", (whole, 0, 64 * 128), (whole, 64 * 128, 128 * 128))
    return raw


def test_the_sound_one_is_a_model(tmp_path: Path, sound: RawArtifact) -> None:
    facts = ModelFacts.of(open_model(sound.write(tmp_path / "m.ninfer")))
    assert facts.weights_bytes("<f4", on_cpu=True) > 0
    assert facts.weights.name == "custom"


def refusal(path: Path) -> str | None:
    """Why the main process refuses it; None for a model."""
    try:
        facts = ModelFacts.of(open_model(path))
        facts.weights_bytes("<f4", on_cpu=True)
        facts.lines()
        for parameter in facts.plan.arrays:
            facts.source.array(parameter.name, parameter.shape)
    except InputError as error:
        return str(error)
    return None


def test_changed_directories_give_one_line(tmp_path: Path, sound: RawArtifact) -> None:
    generator = random.Random(7)
    refusals = [refusal(mutated(sound, generator).write(tmp_path / "m.ninfer")) for _ in range(CASES)]
    lines = [each for each in refusals if each is not None]
    assert 0 < len(lines) < CASES
    assert all("m.ninfer: " in line and "\n" not in line for line in lines)

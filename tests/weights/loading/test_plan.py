"""The plan takes every parameter of the text model once, rows in the order that the ops want; no torch is needed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from ninferd.weights.loading.plan import text_plan
from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.presets import GEOMETRIES
from ninferd.weights.parameters.registry import text_parameters


@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_every_parameter_is_taken_once(name: str) -> None:
    text = GEOMETRIES[name].text
    plan = text_plan(text)
    taken = Counter(parameter.name for request in plan.matrices for parameter in request.parameters)
    taken.update(parameter.name for parameter in plan.arrays)
    assert set(taken.values()) == {1}
    assert taken.keys() == plan.parameters == {each.name for each in text_parameters(ModelGeometry(text))}
    assert len({request.key for request in plan.matrices}) == len(plan.matrices)


def test_the_order_of_rows() -> None:
    name = next(name for name, geometry in GEOMETRIES.items() if not geometry.text.is_moe)
    requests = {request.key: request for request in text_plan(GEOMETRIES[name].text).matrices}
    names = [parameter.name.rsplit("/", 1)[1] for parameter in requests["text/layers/3/attention/in"].parameters]
    assert names == ["query", "gate", "key", "value"]
    names = [parameter.name.rsplit("/", 1)[1] for parameter in requests["text/layers/0/gdn/in"].parameters]
    assert names == ["query", "key", "value", "z", "b_projection", "a_projection"]
    names = [parameter.name.rsplit("/", 1)[1] for parameter in requests["text/layers/0/mlp/gate_up"].parameters]
    assert names == ["gate", "up"]


def test_experts_are_stacks() -> None:
    name = next(name for name, geometry in GEOMETRIES.items() if geometry.text.is_moe)
    requests = {request.key: request for request in text_plan(GEOMETRIES[name].text).matrices}
    gate_up, down = requests["text/layers/5/moe/gate_up"], requests["text/layers/5/moe/down"]
    assert (gate_up.stack, down.stack) == (256, 256)
    assert [parameter.name for parameter in gate_up.matrices[7]] == [
        "text/layers/5/moe/experts/7/gate",
        "text/layers/5/moe/experts/7/up",
    ]
    assert [parameter.name for parameter in down.matrices[7]] == ["text/layers/5/moe/experts/7/down"]
    router = [parameter.name.rsplit("/", 1)[1] for parameter in requests["text/layers/5/moe/router"].parameters]
    assert router == ["router", "shared_score"]


def test_a_size_is_predicted_without_torch() -> None:
    code = (
        "import sys, ninferd.weights.loading.resolve, ninferd.weights.loading.plan\n"
        "print([name for name in ('torch', 'numba', 'pydantic') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

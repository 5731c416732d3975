"""The fast quantisers give the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_numba.cpu.quantise import CpuEncoders
from kernels_numba.quantise import quantiser
from kernels_numba.torch_ops.quantise import TorchEncoders
from ninferd.weights.formats.encoders import Encoders, Nvfp4Method
from tests.kernels_numba.quantise_cases import (
    CASES,
    SHAPES,
    assert_breaks_ties_the_same,
    assert_equals_the_reference,
    assert_has_the_same_limits,
    assert_refuses_the_same,
)
from tests.weights.formats.weights import WEIGHTS

BF16 = pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bf16"])


@pytest.fixture(params=[CpuEncoders(), TorchEncoders(torch.device("cpu"))], ids=["numba", "torch"])
def encoders(request: pytest.FixtureRequest) -> Encoders:
    found: Encoders = request.param
    return found


@BF16
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("format", "method"), CASES)
def test_bits(
    encoders: Encoders, format: str, method: Nvfp4Method, weights: str, shape: tuple[int, int], is_bf16: bool
) -> None:
    assert_equals_the_reference(encoders, format, method, weights, shape, is_bf16)


@BF16
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(encoders: Encoders, bad: float, is_bf16: bool) -> None:
    assert_refuses_the_same(encoders, bad, is_bf16)


def test_ties(encoders: Encoders) -> None:
    assert_breaks_ties_the_same(encoders)


def test_limits(encoders: Encoders) -> None:
    assert_has_the_same_limits(encoders)


def test_the_door() -> None:
    assert isinstance(quantiser(torch.device("cpu")), CpuEncoders)
    assert isinstance(quantiser(torch.device("meta")), TorchEncoders)

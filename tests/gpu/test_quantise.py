"""The quantisers on a CUDA device give the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_numba.quantise import quantiser
from ninferd.weights.formats.encoders import Nvfp4Method
from tests.kernels_numba.quantise_cases import (
    CASES,
    assert_breaks_ties_the_same,
    assert_equals_the_reference,
    assert_has_the_same_limits,
    assert_refuses_the_same,
)
from tests.weights.formats.weights import WEIGHTS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("shape", [(128, 256), (1024, 5120)], ids=str)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("format", "method"), CASES)
def test_bits(
    device: torch.device, format: str, method: Nvfp4Method, weights: str, shape: tuple[int, int], is_bf16: bool
) -> None:
    assert_equals_the_reference(quantiser(device), format, method, weights, shape, is_bf16)


@pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(device: torch.device, bad: float, is_bf16: bool) -> None:
    assert_refuses_the_same(quantiser(device), bad, is_bf16)


def test_ties(device: torch.device) -> None:
    assert_breaks_ties_the_same(quantiser(device))


def test_limits(device: torch.device) -> None:
    assert_has_the_same_limits(quantiser(device))

"""Tests on a CUDA device; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from tests.support.fixtures import saved

__all__ = ["saved"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The CUDA device under test."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return torch.device("cuda")

"""Fixtures of the model tests, on a CPU and on a GPU."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import write_random_checkpoint
from tests.support.models import CONFIGS, SavedModel


@pytest.fixture(scope="session", params=list(CONFIGS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """A randomly filled checkpoint of every configuration in turn."""
    directory = tmp_path_factory.mktemp(request.param)
    model = write_random_checkpoint(directory, CONFIGS[request.param], seed=list(CONFIGS).index(request.param))
    return SavedModel(directory, model)

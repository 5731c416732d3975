"""A small random checkpoint of the real architecture, shared by the tests that load one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.config.schema import Settings
from tests.support.checkpoints import TEXT, write_random_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dense golden configuration with random weights."""
    directory = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(directory, TEXT, seed=1)
    return directory


@pytest.fixture
def settings(checkpoint: Path) -> Settings:
    """Four lanes of 512 tokens on the CPU, all in float32."""
    return Settings.model_validate(
        {
            "model": {"artifact": str(checkpoint), "id": "tiny"},
            "engine": {
                "device": "cpu",
                "kv_dtype": "fp32",
                "max_context": 512,
                "max_concurrency": 4,
                "kv_capacity": 1024,
                "prefill_chunk": 128,
            },
        }
    )

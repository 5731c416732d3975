"""Models: from a checkpoint to logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from kernels_numba.selection import ops_for
from ninferd.models.qwen3_5.config import TextConfig
from ninferd.models.qwen3_5.load import load_text
from ninferd.models.qwen3_5.text import Qwen3_5Text
from ninferd.weights.checkpoint import Checkpoint


def load_text_model(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: Callable[[int, int], None],
) -> Qwen3_5Text:
    """Load a Hugging Face directory of the Qwen3.5 family, dense or MoE.

    ``dtype`` is float32 or bfloat16, for weights and activations; ``on_progress`` gets (bytes done, bytes in all).
    Raises InputError naming file, key or tensor if the checkpoint cannot be used.
    """
    checkpoint = Checkpoint(directory)
    config = TextConfig.from_json(checkpoint.config, directory / "config.json")
    return load_text(checkpoint, config, ops_for(device, dtype), device, dtype, on_progress)


__all__ = ["Qwen3_5Text", "TextConfig", "load_text_model"]

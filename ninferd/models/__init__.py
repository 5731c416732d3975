"""Models: from a source of weights to logits."""

from __future__ import annotations

from pathlib import Path

import torch

from kernels_numba.selection import ops_for
from ninferd.models.qwen3_5.config import TextConfig
from ninferd.models.qwen3_5.load import load_text
from ninferd.models.qwen3_5.text import Qwen3_5Text
from ninferd.weights.loading.matrices import OnProgress
from ninferd.weights.opening import open_model
from ninferd.weights.source import ModelSource


def text_config(source: ModelSource) -> TextConfig:
    """The configuration of a source's text model. Raises InputError naming file and key."""
    return TextConfig.from_json(source.config, source.path / "config.json" if source.path.is_dir() else source.path)


def load_text_model(
    source: ModelSource | Path,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: OnProgress,
    available_bytes: int | None = None,
    *,
    fp4_prefill: bool = False,
) -> Qwen3_5Text:
    """Load a model of the Qwen3.5 family, dense or MoE, in whatever formats ``source`` has its weights in.

    ``dtype`` is float32 or bfloat16, for activations and plain weights; ``on_progress`` gets (bytes done, bytes in all)
    of the files. Raises InputError naming file and parameter if the source cannot be used, and if its weights need more
    than ``available_bytes``. ``fp4_prefill``: see ``kernels_numba.selection.ops_for``.
    """
    opened = open_model(source) if isinstance(source, Path) else source
    config = text_config(opened)
    ops = ops_for(device, dtype, fp4_prefill=fp4_prefill)
    return load_text(opened, config, ops, device, dtype, on_progress, available_bytes)


__all__ = ["Qwen3_5Text", "TextConfig", "load_text_model", "text_config"]

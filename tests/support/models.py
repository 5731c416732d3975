"""Configurations that cover the family's head groupings, and loading them with a chosen op table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels_numba.ops import OpTable
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.opening import open_model
from tests.support.checkpoints import MOE, TEXT, nested


def _rope(head_dim: int, section: list[int]) -> dict[str, Any]:
    factor = 2 * sum(section) / head_dim
    rope: dict[str, Any] = TEXT["rope_parameters"]
    return rope | {"partial_rotary_factor": factor, "mrope_section": section}


ENDLESS = TEXT | {"eos_token_id": None}

CONFIGS: dict[str, dict[str, Any]] = {
    "dense": ENDLESS,
    "groups-of-3-and-6": ENDLESS
    | {
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    },
    "tied-group-of-3": ENDLESS
    | {
        "tie_word_embeddings": True,
        "vocab_size": 509,
        "hidden_size": 72,
        "intermediate_size": 100,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rope_parameters": _rope(24, [2, 1, 0]),
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 20,
    },
    "moe": MOE | {"eos_token_id": None},
    "nested": nested(ENDLESS | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}),
    "production-heads": ENDLESS
    | {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "rope_parameters": _rope(256, [11, 11, 10]),
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
"""By name; none ever ends a sequence by itself."""


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint on disk and the transformers model that wrote it."""

    directory: Path
    transformers_model: Any

    def load(self, ops: OpTable, device: torch.device, dtype: torch.dtype = torch.float32) -> Qwen3_5Text:
        """Our model of the same weights."""
        source = open_model(self.directory)
        return load_text(source, text_config(source), ops, device, dtype, lambda done, total: None)


def prompt_tokens(count: int) -> list[int]:
    """The prompt of the golden values, of any length."""
    return [(7 * i + 3) % 500 for i in range(count)]


def transformers_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits ``[T, vocab]`` of all positions."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([tokens])).logits[0]
    return logits


def transformers_greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], float]:
    """``count`` greedy tokens after ``prompt``, and the smallest gap between the best and the second logit."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.cat(result.logits).topk(2, -1).values
    return result.sequences[0, len(prompt) :].tolist(), float((best[:, 0] - best[:, 1]).min())

"""The model that is measured: from files, or synthetic and made on the device; and engines around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from kernels_numba.kv.codec import KV_CODECS
from ninferd.benchmarks.roofs import distinct_experts
from ninferd.config.schema import Settings
from ninferd.engine.build import engine_around, free_bytes, resolve_device, resolve_dtype
from ninferd.engine.engine import Engine
from ninferd.engine.messages import LoadProgress
from ninferd.errors import InputError
from ninferd.models import Qwen3_5Text, load_text_model, text_config
from ninferd.models.qwen3_5.moe import MoeLayer
from ninferd.weights.loading.matrices import OnProgress
from ninferd.weights.locate import artifact_path, default_name
from ninferd.weights.opening import open_model
from ninferd.weights.source import ModelSource
from ninferd.weights.stored import forget_maps
from ninferd.weights.token_domain import token_count

SYNTHETIC_PREFIX: Final = "synthetic:"
DEFAULT_RECIPE: Final = "nvfp4"
OTHER_COMPONENTS: Final = frozenset({"vision", "mtp", "dflash", "dflash2", "proposal"})
PAGE_SLACK_TOKENS: Final = 64


@dataclass(frozen=True)
class Subject:
    """A loaded model."""

    name: str
    artifact: str  # as it was asked for
    model: Qwen3_5Text
    token_count: int

    @property
    def device(self) -> torch.device:
        return self.model.device

    def engine(
        self,
        *,
        lanes: int,
        context_tokens: int,
        kv_dtype: str,
        prefill_chunk: int,
        graphs: bool = True,
        model: Qwen3_5Text | None = None,
    ) -> Engine:
        """The engine as the daemon builds it, with room for all lanes.

        ``model``: stands in for that of the subject. InputError for more tokens than the model was made for,
        CapacityError if the lanes do not fit.
        """
        longest = self.model.config.max_position_embeddings
        if context_tokens > longest:
            raise InputError(f"{context_tokens} tokens of context are too many, this model reaches {longest}")
        engine: dict[str, Any] = {
            "device": "cpu" if self.device.type == "cpu" else self.device.index,
            "max_context": context_tokens,
            "kv_capacity": lanes * (context_tokens + PAGE_SLACK_TOKENS),
            "max_concurrency": lanes,
            "kv_dtype": kv_dtype,
            "prefill_chunk": prefill_chunk,
            "cuda_graph": graphs,
        }
        settings = Settings.model_validate({"model": {"artifact": self.artifact}, "engine": engine})
        return engine_around(model or self.model, self.token_count, settings, "", _quietly)

    def storage_problem(self, kv_dtype: str) -> str | None:
        """Why keys and values of this model cannot be kept in that form, if so."""
        head_dim = self.model.config.attention.head_dim
        return None if KV_CODECS[kv_dtype].supports(head_dim) else f"heads of {head_dim} cannot be stored in it"

    def round_weight_bytes(self, rows: int) -> int:
        """Weights that a round of so many rows reads at least.

        Of an embedding that is not the head too it reads a few rows only, and of experts those that independent tokens
        choose on average.
        """
        weights = self.model.weights
        shared = any(segment is weights.embedding for segment in weights.head.segments)
        unread = 0.0 if shared else float(weights.embedding.size_bytes)
        moe = self.model.config.moe
        for layer in weights.layers:
            if moe is not None and isinstance(layer.feed_forward, MoeLayer):
                experts = layer.feed_forward.gate_up.size_bytes + layer.feed_forward.down.size_bytes
                read = distinct_experts(moe.num_experts, moe.experts_per_token, rows) / moe.num_experts
                unread += experts * (1 - read)
        return self.model.weights_bytes - round(unread)


def load_subject(artifact: str, device: str | int, on_progress: OnProgress) -> Subject:
    """The model of ``artifact``: a path, ``embedded:NAME`` or ``synthetic:GEOMETRY[:RECIPE]``.

    ``device`` is as ``engine.device``. InputError for a model or device that is not there or does not fit.
    """
    found = resolve_device(device)
    source = open_source(artifact, found)
    dtype = resolve_dtype("auto", source.config, found)
    model = load_text_model(source, found, dtype, on_progress, free_bytes(found))
    forget_maps()
    name = artifact.removeprefix(SYNTHETIC_PREFIX) if is_synthetic(artifact) else default_name(artifact)
    return Subject(name, artifact, model, token_count(source, model.config.vocab_size))


def is_synthetic(artifact: str) -> bool:
    """Whether a model is to be made rather than read."""
    return artifact.startswith(SYNTHETIC_PREFIX)


def open_source(artifact: str, device: torch.device) -> ModelSource:
    """The source of a model, opened; values of a synthetic one are made on ``device``."""
    if not is_synthetic(artifact):
        return open_model(artifact_path(artifact))
    from kernels_numba.quantise import quantiser
    from ninferd.weights.synthesis.model import plan_synthetic
    from ninferd.weights.synthesis.source import SyntheticSource

    geometry, _, recipe = artifact.removeprefix(SYNTHETIC_PREFIX).partition(":")
    return SyntheticSource(plan_synthetic(geometry, recipe or DEFAULT_RECIPE, 0, OTHER_COMPONENTS), quantiser(device))


def longest_context(artifact: str) -> int:
    """Positions that a model was made for; reads no weight."""
    return text_config(open_source(artifact, torch.device("cpu"))).max_position_embeddings


def _quietly(_progress: LoadProgress) -> None:
    """Progress of allocating caches is not shown."""

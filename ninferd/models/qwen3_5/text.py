"""The text model: embedding, decoder layers, final norm and head over a flat batch of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.matrices import Matrix
from kernels_numba.ops import OpTable
from kernels_numba.shapes import DenseBlockWeights, PackedLinear
from ninferd.models.batch import Batch, Caches
from ninferd.models.qwen3_5.attention import AttentionInputs, AttentionLayer, gated_attention
from ninferd.models.qwen3_5.config import TextConfig
from ninferd.models.qwen3_5.gated_delta import GatedDeltaLayer, gated_delta
from ninferd.models.qwen3_5.groups import SequenceGroups
from ninferd.models.qwen3_5.mlp import MlpLayer
from ninferd.models.qwen3_5.moe import MoeLayer, moe
from ninferd.models.qwen3_5.positions import RotaryAngles


@dataclass(frozen=True)
class DecoderLayer:
    """One block; norm weights are as multiplied (the checkpoint's plus one), float32 [hidden]."""

    mixer: AttentionLayer | GatedDeltaLayer
    feed_forward: MlpLayer | MoeLayer
    mixer_norm: torch.Tensor
    feed_forward_norm: torch.Tensor


@dataclass(frozen=True)
class TextWeights:
    """All weights of the text model."""

    embedding: Matrix  # [vocab, hidden]
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor  # float32 [hidden]
    head: PackedLinear


class Qwen3_5Text:  # noqa: N801  (the family's own spelling)
    """Qwen3.5, 3.6 and 3.8 text models, dense and MoE."""

    def __init__(
        self, config: TextConfig, weights: TextWeights, ops: OpTable, dtype: torch.dtype, weights_bytes: int
    ) -> None:
        self.config = config
        self.dtype = dtype
        """Type of activations."""
        self.weights_bytes = weights_bytes
        self._weights = weights
        self._ops = ops
        self._rotary = RotaryAngles(config.rope, weights.embedding.device)

    @property
    def device(self) -> torch.device:
        return self._weights.embedding.device

    @property
    def weights(self) -> TextWeights:
        """As packed for ``ops``."""
        return self._weights

    @property
    def ops(self) -> OpTable:
        """What computes."""
        return self._ops

    @torch.inference_mode()
    def forward(self, batch: Batch, caches: Caches) -> torch.Tensor:
        """Logits float32 ``[R, vocab]`` of the rows ``batch.logit_rows``; advances the caches by the whole batch."""
        return self.logits(self.forward_hidden(batch, caches)[batch.logit_rows])

    @torch.inference_mode()
    def forward_hidden(self, batch: Batch, caches: Caches) -> torch.Tensor:
        """Final-normed hidden states ``[N, hidden]``; advances the caches by the whole batch."""
        ops, eps = self._ops, self.config.rms_norm_eps
        groups = SequenceGroups.of(batch)
        cos, sin = self._rotary.cos_sin(batch.positions)
        attention_inputs = AttentionInputs(cos, sin, batch.slot_mapping, groups, caches.kv)
        residual = ops.embedding(batch.token_ids, self._weights.embedding, self.dtype)
        layers = self._weights.layers
        projected = ops.linear(ops.rms_norm(residual, layers[0].mixer_norm, eps), layers[0].mixer.in_proj)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if isinstance(layer.mixer, AttentionLayer):
                mixed = gated_attention(ops, self.config.attention, layer.mixer, projected, attention_inputs)
            else:
                mixed = gated_delta(ops, self.config.gated_delta, layer.mixer, projected, groups, caches)
            residual, projected = self._after_mixer(layer, following, residual, mixed)
        return projected

    def _after_mixer(
        self, layer: DecoderLayer, following: DecoderLayer | None, residual: torch.Tensor, mixed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The new residual, and the input of the following layer's mixer; after the last the final-normed residual."""
        ops, eps, feed_forward = self._ops, self.config.rms_norm_eps, layer.feed_forward
        next_norm = following.mixer_norm if following else self._weights.final_norm
        next_in_proj = following.mixer.in_proj if following else None
        if isinstance(feed_forward, MlpLayer):
            gate_up, down = feed_forward.gate_up, feed_forward.down
            weights = (layer.mixer.out_proj, layer.feed_forward_norm, gate_up, down, next_norm, next_in_proj)
            return ops.dense_block(residual, mixed, DenseBlockWeights(*weights, eps))
        mixed = ops.linear(mixed, layer.mixer.out_proj)
        residual, normed = ops.add_rms_norm(residual, mixed, layer.feed_forward_norm, eps)
        residual, normed = ops.add_rms_norm(residual, moe(ops, feed_forward, normed), next_norm, eps)
        return residual, normed if next_in_proj is None else ops.linear(normed, next_in_proj)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 ``[R, vocab]`` of final-normed hidden states ``[R, hidden]``."""
        return self._ops.linear(hidden, self._weights.head).float()

"""The text model: embedding, decoder layers, final norm and head over a flat batch of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_numba.matrices import Matrix
from kernels_numba.ops import OpTable
from kernels_numba.shapes import PackedLinear
from ninferd.models.batch import Batch, Caches
from ninferd.models.qwen3_5.attention import AttentionInputs, AttentionLayer, gated_attention
from ninferd.models.qwen3_5.config import TextConfig
from ninferd.models.qwen3_5.gated_delta import GatedDeltaLayer, gated_delta
from ninferd.models.qwen3_5.groups import SequenceGroups
from ninferd.models.qwen3_5.mlp import MlpLayer, mlp
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
        normed = ops.rms_norm(residual, self._weights.layers[0].mixer_norm, eps)
        next_norms = [layer.mixer_norm for layer in self._weights.layers[1:]] + [self._weights.final_norm]
        for layer, next_norm in zip(self._weights.layers, next_norms, strict=True):
            if isinstance(layer.mixer, AttentionLayer):
                mixed = gated_attention(ops, self.config.attention, layer.mixer, normed, attention_inputs)
            else:
                mixed = gated_delta(ops, self.config.gated_delta, layer.mixer, normed, groups, caches)
            residual, normed = ops.add_rms_norm(residual, mixed, layer.feed_forward_norm, eps)
            if isinstance(layer.feed_forward, MlpLayer):
                transformed = mlp(ops, layer.feed_forward, normed)
            else:
                transformed = moe(ops, layer.feed_forward, normed)
            residual, normed = ops.add_rms_norm(residual, transformed, next_norm, eps)
        return normed

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 ``[R, vocab]`` of final-normed hidden states ``[R, hidden]``."""
        return self._ops.linear(hidden, self._weights.head).float()

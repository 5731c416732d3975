"""From a source's parameters to the packed weights of the text model."""

from __future__ import annotations

import numpy as np
import torch

from kernels_numba.matrices import Matrix
from kernels_numba.ops import OpTable
from kernels_numba.shapes import AttentionNorms, GatedDeltaWeights, PackedLinear
from ninferd.errors import InputError
from ninferd.models.qwen3_5.attention import AttentionLayer
from ninferd.models.qwen3_5.config import TextConfig
from ninferd.models.qwen3_5.gated_delta import GatedDeltaLayer
from ninferd.models.qwen3_5.mlp import MlpLayer
from ninferd.models.qwen3_5.moe import MoeLayer
from ninferd.models.qwen3_5.text import DecoderLayer, Qwen3_5Text, TextWeights
from ninferd.weights.loading.layout import DenseDtype
from ninferd.weights.loading.matrices import OnProgress, load_matrices
from ninferd.weights.loading.plan import EMBEDDING, HEAD, text_plan
from ninferd.weights.loading.resolve import ResolvedPlan, resolve_plan
from ninferd.weights.loading.room import require_room, running_out_in_words
from ninferd.weights.parameters.geometry import (
    AttentionGeometry,
    GatedDeltaGeometry,
    MlpGeometry,
    MoeGeometry,
    TextGeometry,
)
from ninferd.weights.source import ModelSource


def load_text(
    source: ModelSource,
    config: TextConfig,
    ops: OpTable,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: OnProgress,
    available_bytes: int | None = None,
) -> Qwen3_5Text:
    """The text model on ``device``, packed for ``ops``; every matrix keeps the format that ``source`` has it in.

    Activations and plain weights are of ``dtype`` (float32 or bfloat16). Raises InputError if a parameter is missing,
    misshapen or left over, and if the weights need more than ``available_bytes`` or run out of memory.
    """
    dense: DenseDtype = "<f4" if dtype == torch.float32 else "<u2"
    plan = resolve_plan(source, text_plan(text_geometry(config)), dense)
    if available_bytes is not None:
        require_room(plan.device_bytes, available_bytes, device)
    with running_out_in_words(plan.device_bytes, device):
        weights = _Weights(source, plan, config, ops, device, on_progress)
        return Qwen3_5Text(config, weights.text(), ops, dtype, weights.resident_bytes)


def text_geometry(config: TextConfig) -> TextGeometry:
    """What the parameter registry needs to know of the text model."""
    attention, delta, moe = config.attention, config.gated_delta, config.moe
    feed_forward: MlpGeometry | MoeGeometry
    if moe is not None:
        feed_forward = MoeGeometry(
            moe.num_experts, moe.experts_per_token, moe.intermediate_size, moe.shared_intermediate_size
        )
    else:
        assert config.intermediate_size is not None
        feed_forward = MlpGeometry(config.intermediate_size)
    return TextGeometry(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layer_types=config.layer_types,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        attention=AttentionGeometry(
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            rope_theta=config.rope.theta,
            partial_rotary_factor=config.rope.rotary_dim / attention.head_dim,
            mrope_section=config.rope.mrope_section,
        ),
        gated_delta=GatedDeltaGeometry(
            key_heads=delta.key_heads,
            key_dim=delta.key_dim,
            value_heads=delta.value_heads,
            value_dim=delta.value_dim,
            conv_kernel=delta.conv_kernel,
        ),
        feed_forward=feed_forward,
    )


class _Weights:
    """Everything loaded and packed, and the layers made of it."""

    def __init__(
        self,
        source: ModelSource,
        plan: ResolvedPlan,
        config: TextConfig,
        ops: OpTable,
        device: torch.device,
        on_progress: OnProgress,
    ) -> None:
        self._config = config
        self._arrays = {
            each.name: torch.from_numpy(np.array(source.array(each.name, each.shape), np.float32)).to(device)
            for each in plan.arrays
        }
        self._packed: dict[str, PackedLinear] = {}
        generate = getattr(source, "generate", None)  # of a source without files, see weights.loading.assembly
        for key, matrices in load_matrices(plan.matrices, device, on_progress, generate):
            if key == EMBEDDING:
                self._embedding = _only(matrices, source)
            else:
                self._packed[key] = ops.pack_linear(*matrices)
        if HEAD not in self._packed:  # tied, or bound to the same rows
            self._packed[HEAD] = ops.pack_linear(self._embedding)

    @property
    def resident_bytes(self) -> int:
        """What the weights take on the device; a head that shares the embedding's tensors counts once."""
        arrays = sum(array.nbytes for array in self._arrays.values())
        packed = sum(packed.size_bytes for packed in self._packed.values())
        is_shared = any(segment is self._embedding for segment in self._packed[HEAD].segments)
        return arrays + packed + (0 if is_shared else self._embedding.size_bytes)

    def text(self) -> TextWeights:
        layers = []
        counts = {"full_attention": 0, "linear_attention": 0}
        for index, layer_type in enumerate(self._config.layer_types):
            prefix = f"text/layers/{index}/"
            mixer: AttentionLayer | GatedDeltaLayer
            if layer_type == "full_attention":
                mixer = self._attention(f"{prefix}attention/", counts[layer_type])
            else:
                mixer = self._gated_delta(f"{prefix}gdn/", counts[layer_type])
            counts[layer_type] += 1
            layers.append(
                DecoderLayer(
                    mixer,
                    self._moe(f"{prefix}moe/") if self._config.moe is not None else self._mlp(f"{prefix}mlp/"),
                    self._zero_centred(f"{prefix}input_norm"),
                    self._zero_centred(f"{prefix}post_attention_norm"),
                )
            )
        final_norm = self._zero_centred("text/final_norm")
        return TextWeights(self._embedding, tuple(layers), final_norm, self._packed[HEAD])

    def _attention(self, prefix: str, kv_layer: int) -> AttentionLayer:
        query_norm, key_norm = self._zero_centred(f"{prefix}query_norm"), self._zero_centred(f"{prefix}key_norm")
        norms = AttentionNorms(query_norm, key_norm, self._config.rms_norm_eps)
        return AttentionLayer(self._packed[f"{prefix}in"], self._packed[f"{prefix}output"], norms, kv_layer)

    def _gated_delta(self, prefix: str, state_layer: int) -> GatedDeltaLayer:
        weights = GatedDeltaWeights(
            conv=self._arrays[f"{prefix}convolution"],
            decay_rate=-self._arrays[f"{prefix}a_log"].exp(),
            dt_bias=self._arrays[f"{prefix}dt_bias"],
            norm=self._arrays[f"{prefix}norm"],
            eps=self._config.rms_norm_eps,
        )
        return GatedDeltaLayer(self._packed[f"{prefix}in"], self._packed[f"{prefix}output"], weights, state_layer)

    def _mlp(self, prefix: str) -> MlpLayer:
        return MlpLayer(self._packed[f"{prefix}gate_up"], self._packed[f"{prefix}down"])

    def _moe(self, prefix: str) -> MoeLayer:
        assert self._config.moe is not None
        return MoeLayer(
            self._packed[f"{prefix}router"],
            self._packed[f"{prefix}gate_up"],
            self._packed[f"{prefix}down"],
            self._mlp(f"{prefix}shared/"),
            self._config.moe.experts_per_token,
        )

    def _zero_centred(self, name: str) -> torch.Tensor:
        return self._arrays[name] + 1


def _only(matrices: tuple[Matrix, ...], source: ModelSource) -> Matrix:
    if len(matrices) > 1:
        kinds = ", ".join(f"{matrix.rows} rows as {type(matrix).__name__}" for matrix in matrices)
        raise InputError(f"{source.path}: parameter {EMBEDDING} must be stored in one format, found {kinds}")
    return matrices[0]

"""From a checkpoint's tensors to the fused and packed weights of the text model."""

from __future__ import annotations

import torch

from kernels_numba.matrices import DenseMatrix
from kernels_numba.ops import OpTable
from kernels_numba.shapes import AttentionNorms, GatedDeltaWeights, PackedLinear
from ninferd.models.qwen3_5.attention import AttentionLayer
from ninferd.models.qwen3_5.config import MoeConfig, TextConfig
from ninferd.models.qwen3_5.gated_delta import GatedDeltaLayer
from ninferd.models.qwen3_5.mlp import MlpLayer
from ninferd.models.qwen3_5.moe import MoeLayer
from ninferd.models.qwen3_5.text import DecoderLayer, Qwen3_5Text, TextWeights
from ninferd.weights.checkpoint import Checkpoint, OnProgress

IGNORED_PREFIXES = ("mtp.", "visual.")


def load_text(
    checkpoint: Checkpoint,
    config: TextConfig,
    ops: OpTable,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: OnProgress,
) -> Qwen3_5Text:
    """The text model in ``dtype`` on ``device``, packed for ``ops``.

    Raises InputError if a tensor of ``checkpoint`` is missing, misshapen or left over.
    """
    for prefix in IGNORED_PREFIXES:
        checkpoint.ignore(prefix)
    if config.tie_word_embeddings:
        checkpoint.ignore("lm_head.")
    reader = _Reader(checkpoint, device, dtype, on_progress)
    loader = _Loader(reader, config, ops)
    weights = loader.text_weights()
    checkpoint.require_all_taken()
    return Qwen3_5Text(config, weights, ops, dtype, reader.loaded_bytes)


class _Reader:
    """Takes tensors to the device and type they are wanted in, and counts bytes."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, on_progress: OnProgress
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._on_progress = on_progress
        self._total_bytes = checkpoint.total_bytes
        self._done_bytes = 0
        self.loaded_bytes = 0

    def has(self, name: str) -> bool:
        return name in self._checkpoint

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A weight matrix in the model's type."""
        return self._converted(name, shape, self._dtype)

    def take_float32(self, name: str, *shape: int) -> torch.Tensor:
        """A small weight that takes part in float32 arithmetic."""
        return self._converted(name, shape, torch.float32)

    def _converted(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        stored = self._checkpoint.take(name, shape)
        tensor = stored.to(self._device, dtype, copy=True)  # never an alias of the mapped file
        self._done_bytes += stored.nbytes
        self.loaded_bytes += tensor.nbytes
        self._on_progress(self._done_bytes, self._total_bytes)
        return tensor


class _Loader:
    """Builds the layers; every name and shape of the checkpoint is spelled here."""

    def __init__(self, reader: _Reader, config: TextConfig, ops: OpTable) -> None:
        self._ops = ops
        self._read = reader
        self._config = config

    def text_weights(self) -> TextWeights:
        config, hidden = self._config, self._config.hidden_size
        embedding = self._read.take("embed_tokens.weight", config.vocab_size, hidden)
        layers = []
        attention_layers = gdn_layers = 0
        for index, layer_type in enumerate(config.layer_types):
            prefix = f"layers.{index}."
            mixer: AttentionLayer | GatedDeltaLayer
            if layer_type == "full_attention":
                mixer = self._attention(f"{prefix}self_attn.", attention_layers)
                attention_layers += 1
            else:
                mixer = self._gated_delta(f"{prefix}linear_attn.", gdn_layers)
                gdn_layers += 1
            feed_forward = self._feed_forward(f"{prefix}mlp.")
            mixer_norm = self._zero_centred(f"{prefix}input_layernorm.weight", hidden)
            feed_forward_norm = self._zero_centred(f"{prefix}post_attention_layernorm.weight", hidden)
            layers.append(DecoderLayer(mixer, feed_forward, mixer_norm, feed_forward_norm))
        final_norm = self._zero_centred("norm.weight", hidden)
        tied = config.tie_word_embeddings
        head = embedding if tied else self._read.take("lm_head.weight", config.vocab_size, hidden)
        return TextWeights(DenseMatrix(embedding), tuple(layers), final_norm, self._packed(head))

    def _attention(self, prefix: str, kv_layer: int) -> AttentionLayer:
        shape, hidden = self._config.attention, self._config.hidden_size
        # Rows alternate per head: its queries, then its gates.
        query_gate = self._read.take(f"{prefix}q_proj.weight", 2 * shape.query_width, hidden)
        query, gate = query_gate.view(shape.heads, 2, shape.head_dim, hidden).unbind(1)
        key = self._read.take(f"{prefix}k_proj.weight", shape.kv_width, hidden)
        value = self._read.take(f"{prefix}v_proj.weight", shape.kv_width, hidden)
        out = self._read.take(f"{prefix}o_proj.weight", hidden, shape.query_width)
        norms = AttentionNorms(
            self._zero_centred(f"{prefix}q_norm.weight", shape.head_dim),
            self._zero_centred(f"{prefix}k_norm.weight", shape.head_dim),
            self._config.rms_norm_eps,
        )
        in_proj = self._packed(query.flatten(0, 1), gate.flatten(0, 1), key, value)
        return AttentionLayer(in_proj, self._packed(out), norms, kv_layer)

    def _gated_delta(self, prefix: str, state_layer: int) -> GatedDeltaLayer:
        shape, hidden = self._config.gated_delta, self._config.hidden_size
        conv_input = self._read.take(f"{prefix}in_proj_qkv.weight", shape.conv_channels, hidden)
        z = self._read.take(f"{prefix}in_proj_z.weight", shape.value_width, hidden)
        b = self._read.take(f"{prefix}in_proj_b.weight", shape.value_heads, hidden)
        a = self._read.take(f"{prefix}in_proj_a.weight", shape.value_heads, hidden)
        out = self._read.take(f"{prefix}out_proj.weight", hidden, shape.value_width)
        conv = self._read.take_float32(f"{prefix}conv1d.weight", shape.conv_channels, 1, shape.conv_kernel)
        weights = GatedDeltaWeights(
            conv=conv[:, 0].T.contiguous(),
            decay_rate=-self._read.take_float32(f"{prefix}A_log", shape.value_heads).exp(),
            dt_bias=self._read.take_float32(f"{prefix}dt_bias", shape.value_heads),
            norm=self._read.take_float32(f"{prefix}norm.weight", shape.value_dim),
            eps=self._config.rms_norm_eps,
        )
        return GatedDeltaLayer(self._packed(conv_input, z, b, a), self._packed(out), weights, state_layer)

    def _feed_forward(self, prefix: str) -> MlpLayer | MoeLayer:
        if self._config.moe is not None:
            return self._moe(prefix, self._config.moe)
        assert self._config.intermediate_size is not None
        return self._mlp(prefix, self._config.intermediate_size)

    def _mlp(self, prefix: str, intermediate: int) -> MlpLayer:
        hidden = self._config.hidden_size
        gate = self._read.take(f"{prefix}gate_proj.weight", intermediate, hidden)
        up = self._read.take(f"{prefix}up_proj.weight", intermediate, hidden)
        down = self._read.take(f"{prefix}down_proj.weight", hidden, intermediate)
        return MlpLayer(self._packed(gate, up), self._packed(down))

    def _moe(self, prefix: str, moe: MoeConfig) -> MoeLayer:
        hidden = self._config.hidden_size
        router = self._read.take(f"{prefix}gate.weight", moe.num_experts, hidden)
        shared_gate = self._read.take(f"{prefix}shared_expert_gate.weight", 1, hidden)
        gate_up, down = self._experts(f"{prefix}experts.", moe)
        shared = self._mlp(f"{prefix}shared_expert.", moe.shared_intermediate_size)
        return MoeLayer(self._packed(router, shared_gate), gate_up, down, shared, moe.experts_per_token)

    def _experts(self, prefix: str, moe: MoeConfig) -> tuple[PackedLinear, PackedLinear]:
        """Stacked as the official checkpoints have them, or one by one as transformers saves them."""
        hidden, intermediate = self._config.hidden_size, moe.intermediate_size
        if self._read.has(f"{prefix}gate_up_proj"):
            return (
                self._packed(self._read.take(f"{prefix}gate_up_proj", moe.num_experts, 2 * intermediate, hidden)),
                self._packed(self._read.take(f"{prefix}down_proj", moe.num_experts, hidden, intermediate)),
            )
        gate_up, down = [], []
        for expert in range(moe.num_experts):
            gate = self._read.take(f"{prefix}{expert}.gate_proj.weight", intermediate, hidden)
            up = self._read.take(f"{prefix}{expert}.up_proj.weight", intermediate, hidden)
            gate_up.append(torch.cat([gate, up]))
            down.append(self._read.take(f"{prefix}{expert}.down_proj.weight", hidden, intermediate))
        return self._packed(torch.stack(gate_up)), self._packed(torch.stack(down))

    def _packed(self, *weights: torch.Tensor) -> PackedLinear:
        return self._ops.pack_linear(*(DenseMatrix(weight) for weight in weights))

    def _zero_centred(self, name: str, size: int) -> torch.Tensor:
        return self._read.take_float32(name, size) + 1

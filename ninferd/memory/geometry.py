"""Sizes of the cached things of one model, as plain numbers.

The engine derives them from the model's configuration, so that memory needs neither models nor torch to plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from ninferd.errors import InputError

FLOAT32_BYTES: Final = 4


def pages_for(tokens: int) -> int:
    """Pages that hold ``tokens`` positions."""
    return -(-tokens // PAGE_TOKENS)


def kv_layout(kv_dtype: str, attention_layers: int, kv_heads: int, head_dim: int) -> KvLayout:
    """Pages of ``engine.kv_dtype``; InputError for a model whose heads it cannot store."""
    try:
        return KvLayout(KV_CODECS[kv_dtype], attention_layers, kv_heads, head_dim)
    except ValueError as error:
        raise InputError(f"engine.kv_dtype is {kv_dtype}, but {error}; bf16 stores heads of any size") from error


@dataclass(frozen=True)
class StateGeometry:
    """Recurrent part of a sequence over all gated-delta layers."""

    gdn_layers: int
    conv_channels: int
    conv_history: int
    conv_element_bytes: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    pending_rows: int = 0  # that a round may leave undecided

    @property
    def key_heads(self) -> int:
        """Heads of query and of key, which are channels of the conv beside the value's."""
        return (self.conv_channels - self.value_heads * self.value_head_dim) // (2 * self.key_head_dim)

    @property
    def conv_shape(self) -> tuple[int, int, int]:
        """[gated-delta layers, channels, kernel - 1]."""
        return (self.gdn_layers, self.conv_channels, self.conv_history)

    @property
    def recurrent_shape(self) -> tuple[int, int, int, int]:
        """[gated-delta layers, value heads, key head dim, value head dim], float32."""
        return (self.gdn_layers, self.value_heads, self.key_head_dim, self.value_head_dim)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state and pending rows."""
        update = self.key_heads * self.key_head_dim + self.value_heads * (self.value_head_dim + 1)
        row = self.conv_channels * self.conv_element_bytes + update * FLOAT32_BYTES
        return self.image_bytes + self.gdn_layers * self.pending_rows * row

    @property
    def image_bytes(self) -> int:
        """Bytes of one sequence's state when nothing is pending."""
        conv = self.gdn_layers * self.conv_channels * self.conv_history * self.conv_element_bytes
        recurrent = self.gdn_layers * self.value_heads * self.key_head_dim * self.value_head_dim * FLOAT32_BYTES
        return conv + recurrent

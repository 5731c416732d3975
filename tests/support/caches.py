"""The engine's caches for a given model."""

from __future__ import annotations

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from ninferd.memory.geometry import StateGeometry, pages_for
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateCache
from ninferd.models import Qwen3_5Text


def make_caches(
    model: Qwen3_5Text, lanes: int, pages: int, max_context: int, kv_dtype: str
) -> tuple[KVCache, StateCache]:
    """Caches for ``model``, as the engine's builder sizes them."""
    attention, delta = model.config.attention, model.config.gated_delta
    kv = KvLayout(KV_CODECS[kv_dtype], model.config.attention_layer_count, attention.kv_heads, attention.head_dim)
    state = StateGeometry(
        gdn_layers=model.config.gdn_layer_count,
        conv_channels=delta.conv_channels,
        conv_history=delta.conv_kernel - 1,
        conv_element_bytes=model.dtype.itemsize,
        value_heads=delta.value_heads,
        key_head_dim=delta.key_dim,
        value_head_dim=delta.value_dim,
    )
    columns = pages_for(max_context)
    return KVCache(kv, pages, lanes, columns, model.device), StateCache(state, lanes, model.device, model.dtype)

"""An engine around a given model, and what its clients receive."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ninferd.engine.engine import Engine
from ninferd.engine.graphs import Graphs
from ninferd.engine.messages import (
    EngineInfo,
    GenerationRequest,
    PromptIdentity,
    RequestFailed,
    SamplingParams,
    TokenLogprobs,
    TokensGenerated,
)
from ninferd.memory.geometry import PAGE_TOKENS, KVGeometry, StateGeometry, pages_for
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateCache
from ninferd.models import Qwen3_5Text

Answer = list[tuple[int, TokenLogprobs | None]]
"""Tokens of one request, with their log probabilities where it asked for them."""


def make_caches(
    model: Qwen3_5Text, lanes: int, pages: int, max_context: int, kv_dtype: torch.dtype
) -> tuple[KVCache, StateCache]:
    """Caches for ``model``, as the engine's builder sizes them."""
    attention, delta = model.config.attention, model.config.gated_delta
    kv = KVGeometry(model.config.attention_layer_count, attention.kv_heads, attention.head_dim, kv_dtype.itemsize)
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
    return KVCache(kv, pages, lanes, columns, model.device, kv_dtype), StateCache(
        state, lanes, model.device, model.dtype
    )


def make_engine(
    model: Qwen3_5Text, kv: KVCache, state: StateCache, graphs: Graphs | None, prefill_chunk: int = 128
) -> Engine:
    """An engine of as many lanes as ``state`` has slots."""
    info = EngineInfo(
        model_name="test",
        architecture=model.config.model_type,
        device=str(model.device),
        weights_dtype=str(model.dtype),
        kv_dtype=str(kv.tensor.dtype),
        vocab_size=model.config.vocab_size,
        max_context=kv.columns * PAGE_TOKENS,
        max_concurrency=state.capacity,
        kv_capacity_tokens=kv.pool.capacity * PAGE_TOKENS,
        page_tokens=PAGE_TOKENS,
        state_slots=state.capacity,
        weights_bytes=model.weights_bytes,
        kv_bytes=kv.tensor.nbytes,
        state_bytes=state.conv.nbytes + state.recurrent.nbytes,
        load_seconds=0.0,
    )
    return Engine(model, kv, state, info, prefill_chunk, graphs=graphs)


def request(name: str, prompt: list[int], tokens: int, sampling: SamplingParams) -> GenerationRequest:
    return GenerationRequest(name, PromptIdentity.from_token_ids(prompt), sampling, tokens, ())


def answers(engine: Engine, arrivals: Iterable[tuple[int, GenerationRequest]]) -> dict[str, Answer]:
    """Serve requests that arrive before the step they name; the books are checked after every step."""
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    found: dict[str, Answer] = {arrival.request_id: [] for _, arrival in waiting}
    step = 0
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= step:
            engine.submit(waiting.pop(0)[1])
        for event in engine.step():
            assert not isinstance(event, RequestFailed), event
            if isinstance(event, TokensGenerated):
                logprobs = event.logprobs or (None,)
                found[event.request_id] += zip(event.token_ids, logprobs, strict=True)
        engine.check()
        step += 1
    return found

"""An engine around a given model, requests for it, and what their clients receive."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kernels_numba.kv.codec import PAGE_TOKENS
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
from ninferd.memory.kv_cache import KVCache
from ninferd.memory.state import StateCache
from ninferd.models import Qwen3_5Text

Answer = list[tuple[int, TokenLogprobs | None]]
"""Tokens of one request, with their log probabilities where it asked for them."""


PREFILL_CHUNK = 128


def make_engine(model: Qwen3_5Text, kv: KVCache, state: StateCache, graphs: Graphs | None) -> Engine:
    """An engine of as many lanes as ``state`` has slots."""
    info = EngineInfo(
        model_name="test",
        architecture=model.config.model_type,
        device=str(model.device),
        weights_dtype=str(model.dtype),
        kv_dtype=kv.paged.layout.codec.name,
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
    return Engine(model, kv, state, info, PREFILL_CHUNK, graphs=graphs)


def request(name: str, prompt_length: int, tokens: int, sampling: SamplingParams) -> GenerationRequest:
    """One of a random prompt, which is its own for every name."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    prompt = torch.randint(0, 512, (prompt_length,), generator=generator).tolist()
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


GREEDY = SamplingParams(seed=0, temperature=0.0, top_logprobs=2)
SAMPLED = SamplingParams(seed=5, temperature=0.8, top_p=0.9, top_logprobs=0)
PENALISED = SamplingParams(seed=6, temperature=1.1, presence_penalty=0.7)
ARRIVALS: list[tuple[int, GenerationRequest]] = [
    (0, request("long", 60, 140, GREEDY)),  # crosses two pages
    (3, request("sampled", 130, 70, SAMPLED)),
    (9, request("brief", 3, 6, GREEDY)),
    (40, request("penalised", 20, 30, PENALISED)),
    (41, request("fourth", 63, 30, GREEDY)),
    (42, request("queued", 8, 12, SAMPLED)),
]
"""Lanes that join and leave, so that rounds of every width alternate."""
CHUNKS = sum(-(-len(each.prompt) // PREFILL_CHUNK) for _, each in ARRIVALS)
"""Steps that ``ARRIVALS`` take beside decode rounds."""

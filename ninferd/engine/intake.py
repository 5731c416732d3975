"""What can be said of a request before it waits: is it possible at all?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninferd.engine.messages import EngineInfo, FailureCode, GenerationRequest
from ninferd.engine.sequence import Entitlement, Sequence
from ninferd.memory.pages import PagePool

TOKEN_BYTES = 4


@dataclass(frozen=True)
class Refusal:
    """Why a request can never run."""

    code: FailureCode
    message: str


def prepare(request: GenerationRequest, info: EngineInfo, pool: PagePool, now_s: float) -> Sequence | Refusal:
    """The sequence of a possible request, else the refusal with its numbers."""
    prompt = _token_ids(request, info.vocab_size)
    if isinstance(prompt, Refusal):
        return prompt
    if request.max_tokens < 0:
        return Refusal("invalid_request", f"max_tokens is {request.max_tokens}, it must not be negative")
    if len(prompt) > info.max_context:
        return Refusal("prompt_too_long", f"the prompt has {len(prompt)} tokens, the context holds {info.max_context}")
    entitlement = Entitlement.of(len(prompt), request.max_tokens, info.max_context)
    if entitlement.pages > pool.capacity:
        return Refusal(
            "capacity_impossible",
            f"prompt and output of {entitlement.cache_tokens} tokens need {entitlement.pages} cache pages of "
            f"{info.page_tokens} tokens, there are {pool.capacity}",
        )
    timeout_ms = request.pending_timeout_ms
    deadline_s = None if timeout_ms is None else now_s + timeout_ms / 1e3
    return Sequence(request, prompt, entitlement, now_s, deadline_s)


def _token_ids(request: GenerationRequest, vocab_size: int) -> npt.NDArray[np.int64] | Refusal:
    """The prompt, int64 [n], every id inside the vocabulary: an embedding lookup must never see another."""
    raw = request.prompt.token_ids
    if not raw or len(raw) % TOKEN_BYTES:
        return Refusal("invalid_request", f"the prompt has {len(raw)} bytes of token ids, not one int32 or more")
    ids = np.frombuffer(raw, "<i4").astype(np.int64)
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        at = int(outside[0])
        return Refusal(
            "invalid_request", f"prompt token {at} has id {int(ids[at])}, the vocabulary holds 0 to {vocab_size - 1}"
        )
    return ids

"""Everything that crosses the socket between the main process and the engine child.

Plain, immutable and free of torch: ``api``, ``chat`` and ``daemon`` import this module.
"""

from __future__ import annotations

from array import array
from typing import Literal

import msgspec

from kernels_numba.report import OpsReport

FinishReason = Literal["stop", "length", "cancelled"]


class PromptIdentity(msgspec.Struct, frozen=True):
    """What the engine knows of a prompt; equality of prompts is decided on these values alone."""

    token_ids: bytes  # little-endian int32
    session_key: str = ""

    @classmethod
    def from_token_ids(cls, token_ids: list[int], session_key: str = "") -> PromptIdentity:
        return cls(array("i", token_ids).tobytes(), session_key)

    def to_list(self) -> list[int]:
        return array("i", self.token_ids).tolist()

    def __len__(self) -> int:
        return len(self.token_ids) // 4


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling of one request; values are validated by whoever builds it."""

    seed: int
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    top_logprobs: int | None = None  # None: no logprobs; n: the chosen token's and the n best


class GenerationRequest(msgspec.Struct, frozen=True, tag="submit"):
    """One sequence to generate."""

    request_id: str
    prompt: PromptIdentity
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    pending_timeout_ms: int | None = None
    model_identity: str = ""  # of the model whose tokenizer made the prompt


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    request_id: str


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """First frame to the child: the whole effective configuration as JSON."""

    settings_json: bytes


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Stop after the current step; whatever still runs is cancelled."""


Command = GenerationRequest | CancelRequest | Configure | Shutdown


class TokenLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities at one generated position, after temperature but before truncation and penalties."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


class RequestTimings(msgspec.Struct, frozen=True):
    """Phases of one request in milliseconds, measured by the engine."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0  # admission to first token
    decode_ms: float = 0.0  # first token to last token
    prefill_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class RequestAdmitted(msgspec.Struct, frozen=True, tag="admitted"):
    request_id: str
    cached_tokens: int
    queue_ms: float


class PrefillProgress(msgspec.Struct, frozen=True, tag="prefill"):
    request_id: str
    processed_tokens: int
    total_tokens: int
    cached_tokens: int
    elapsed_ms: float


class TokensGenerated(msgspec.Struct, frozen=True, tag="tokens"):
    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    timings: RequestTimings  # cumulative, as of these tokens


class RequestFinished(msgspec.Struct, frozen=True, tag="finished"):
    """Terminal. ``stop``: a stop token was produced (it is the last generated token)."""

    request_id: str
    reason: FinishReason
    timings: RequestTimings


FailureCode = Literal[
    "invalid_request",  # token ids outside the vocabulary, an empty prompt, a negative limit
    "queue_timeout",
    "prompt_too_long",
    "capacity_impossible",
    "engine_error",
    "engine_crashed",
    "unavailable",
]


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Terminal. ``message`` is fit for the client."""

    request_id: str
    code: FailureCode
    message: str


RequestEvent = RequestAdmitted | PrefillProgress | TokensGenerated | RequestFinished | RequestFailed


class EngineInfo(msgspec.Struct, frozen=True):
    """Facts of a loaded engine."""

    model_name: str
    architecture: str
    device: str
    weights_dtype: str
    kv_dtype: str
    vocab_size: int  # token ids are below it; the model may have more rows, as padding
    max_context: int
    max_concurrency: int
    kv_capacity_tokens: int
    page_tokens: int
    state_slots: int
    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    load_seconds: float  # weights, caches and probe
    model_identity: str = ""  # see ninferd.weights.identity
    ops: OpsReport = OpsReport("")  # who serves the model's ops


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and monotone counters of the engine loop."""

    steps: int
    waiting: int
    prefilling: int
    decoding: int
    pages_total: int
    pages_used: int
    state_slots_total: int
    state_slots_used: int
    requests_finished: int
    requests_failed: int
    requests_cancelled: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    graphs: tuple[str, ...] = ()  # decode rounds that are captured as CUDA graphs, e.g. "4 lanes with draws"
    graph_bytes: int = 0  # device memory of these graphs


class LoadProgress(msgspec.Struct, frozen=True, tag="loading"):
    stage: str
    done_bytes: int
    total_bytes: int


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded and has answered a probe."""

    info: EngineInfo


class EngineFailed(msgspec.Struct, frozen=True, tag="engine_failed"):
    """The child cannot go on and exits after this frame."""

    message: str


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Sent from the engine loop itself (at least every 0.5 s, busy or idle), so silence means a hang."""

    stats: EngineStats


class LogLine(msgspec.Struct, frozen=True, tag="log"):
    """A log record of the child, written by the main process."""

    level: int  # of the logging module
    logger: str
    message: str


EngineEvent = RequestEvent | LoadProgress | EngineReady | EngineFailed | Heartbeat | LogLine

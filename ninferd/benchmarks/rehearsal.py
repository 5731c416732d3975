"""Decode rounds at any context without computing its prompt: caches are filled with those of one short prompt.

Pages repeat that prompt's, at addresses of their own, so that no cache of the device helps; keys, values and states
are those of a real prompt in every codec, without a look inside a page.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kernels_numba.shapes import GatedDeltaPending, GatedDeltaShape
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import SUSTAINED_S, elapsed_s, replay_seconds, synchronize
from ninferd.engine.graphs import RoundShape
from ninferd.engine.messages import (
    GenerationRequest,
    PromptIdentity,
    RequestFailed,
    SamplingParams,
    TokensGenerated,
)
from ninferd.errors import InputError, NinferError
from ninferd.models import Qwen3_5Text
from ninferd.models.batch import MAX_ROWS, Batch, Caches

TEMPLATE_TOKENS: Final = 2048
LARGEST_CHUNK: Final = 1 << 20
"""Of ``engine.prefill_chunk``."""
WARM_ROUNDS: Final = 4
"""The first of a shape is observed, the second captured."""
GREEDY: Final = SamplingParams(seed=0, temperature=0.0)
SAMPLED: Final = SamplingParams(seed=0, temperature=0.7, top_p=0.8, top_k=20)


class AssumedPrompts(Qwen3_5Text):
    """A model whose prompts cost nothing once one was computed: the others get its pages and its state."""

    def __init__(self, model: Qwen3_5Text) -> None:
        super().__init__(model.config, model.weights, model.ops, model.dtype, model.weights_bytes)
        self._pages: Tensor | None = None
        self._state: tuple[Tensor, Tensor] | None = None
        self._pending_rows: GatedDeltaPending | None = None
        self.assumes = False

    @torch.inference_mode()
    def forward(self, batch: Batch, caches: Caches) -> Tensor:
        if batch.host_context_lengths is None:
            if batch.accepted is not None and caches.pending is None:
                caches = replace(caches, pending=self._pending(caches))
            return super().forward(batch, caches)
        slot = batch.state_slots
        if self._state is not None and self.assumes:
            caches.conv[slot], caches.recurrent[slot] = self._state
            return torch.zeros(len(batch.logit_rows), self.config.vocab_size, device=self.device)
        logits = super().forward(batch, caches)
        self._pages = batch.page_table[0].long()
        self._state = caches.conv[slot], caches.recurrent[slot]
        return logits

    def _pending(self, caches: Caches) -> GatedDeltaPending:
        """Made at the first round of several rows, which is not captured yet."""
        if self._pending_rows is None:
            self._pending_rows = pending_rows(self.config.gated_delta, caches.conv)
        return self._pending_rows

    @torch.inference_mode()
    def assume(self, pages: Tensor) -> None:
        """Fill all pages of the cache with those of the last prompt, which stands for all from now on."""
        assert self._pages is not None
        template = pages[self._pages]
        for begin in range(0, len(pages), len(template)):
            part = pages[begin : begin + len(template)]
            part.copy_(template[: len(part)])
        self.assumes = True


def pending_rows(shape: GatedDeltaShape, conv: Tensor) -> GatedDeltaPending:
    """Room for the rows of a round beside the states of ``conv [slots, layers, …]``; none is pending yet."""
    rows = (*conv.shape[:2], MAX_ROWS)
    return GatedDeltaPending(
        inputs=conv.new_zeros(*rows, shape.conv_channels),
        keys=torch.zeros(*rows, shape.key_heads, shape.key_dim, device=conv.device),
        deltas=torch.zeros(*rows, shape.value_heads, shape.value_dim, device=conv.device),
        log_decays=torch.zeros(*rows, shape.value_heads, device=conv.device),
    )


class Rehearsal:
    """An engine with room for ``lanes`` of ``context_tokens`` each, and lanes that decode in it."""

    def __init__(self, subject: Subject, lanes: int, context_tokens: int, kv_dtype: str, *, graphs: bool) -> None:
        """CapacityError if they do not fit."""
        self._subject = subject
        self._context_tokens = context_tokens
        model = AssumedPrompts(subject.model)
        self.engine = subject.engine(
            lanes=lanes,
            context_tokens=context_tokens,
            kv_dtype=kv_dtype,
            prefill_chunk=min(-(-context_tokens // 128) * 128, LARGEST_CHUNK),
            graphs=graphs,
            model=model,
        )
        self._generated: Counter[str] = Counter()
        self._submit("template", min(TEMPLATE_TOKENS, context_tokens - 1), 1, GREEDY)
        self._drain()
        model.assume(self.engine._kv.tensor)

    def start(self, lanes: int, rounds: int, sampling: SamplingParams) -> int:
        """Lanes that will reach the context after so many rounds; the tokens of their prompts."""
        slack = WARM_ROUNDS + lanes + MAX_ROWS
        prompt = self._context_tokens - rounds - slack
        if prompt < 1:
            raise InputError(f"{self._context_tokens} tokens of context are too few for {rounds} rounds")
        self._generated.clear()
        for lane in range(lanes):
            self._submit(str(lane), prompt, rounds + slack, sampling)
        while self.engine.stats().decoding < lanes:
            self._step()
        for _ in range(WARM_ROUNDS):
            self._step()
        return prompt

    def steps_seconds(self, rounds: int) -> float:
        """Of one step of the engine, events and all: the mean of so many."""
        synchronize(self._subject.device)

        def steps() -> None:
            for _ in range(rounds):
                self._step()

        return elapsed_s(steps) / rounds

    def round_seconds(self, lanes: int, rows: int, *, draws: bool) -> float:
        """Device seconds of one round of the lanes that decode, of ``rows`` each, repeated as it was loaded."""
        device, shape = self._subject.device, RoundShape(lanes, draws, rows)
        engine = self.engine
        if rows > 1:
            sequences = engine._scheduler.decoding
            tokens = np.arange(lanes * rows).reshape(lanes, rows)
            engine._batches.load_rows(sequences, tokens, np.ones(lanes, np.int64))

        @torch.inference_mode()
        def run() -> None:
            engine._rounds(shape)

        for _ in range(WARM_ROUNDS):
            run()
        synchronize(device)
        once = min(replay_seconds(run, 2, device))
        count = max(4, int(SUSTAINED_S / once)) if device.type == "cuda" else 4
        return float(np.median(replay_seconds(run, 2 * count, device)[count:]))

    def context_tokens(self, prompt_tokens: int) -> float:
        """Of a lane, on average, at this moment."""
        generated = [count for name, count in self._generated.items() if name != "template"]
        return prompt_tokens + sum(generated) / len(generated)

    def stop(self) -> None:
        """End all lanes."""
        self.engine.cancel_all()
        self._drain()

    def _submit(self, name: str, prompt_tokens: int, tokens: int, sampling: SamplingParams) -> None:
        ids = (7 * np.arange(prompt_tokens) + 31 * len(name) + 3) % self._subject.token_count
        prompt = PromptIdentity(ids.astype("<i4").tobytes())
        self.engine.submit(GenerationRequest(name, prompt, sampling, tokens, ()))

    def _drain(self) -> None:
        while self.engine.has_work:
            self._step()

    def _step(self) -> None:
        for event in self.engine.step():
            if isinstance(event, TokensGenerated):
                self._generated[event.request_id] += len(event.token_ids)
            elif isinstance(event, RequestFailed):
                raise NinferError(f"the engine failed: {event.message}")

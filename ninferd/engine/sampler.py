"""Chooses the next token of every lane of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ninferd.engine.counter_rng import uniforms
from ninferd.engine.draw_inputs import DrawInputs
from ninferd.engine.messages import SamplingParams, TokenLogprob, TokenLogprobs
from ninferd.engine.penalties import TokenCounts
from ninferd.engine.truncation import draw, softmax_weights, truncate, truncate_by_candidates


@dataclass(frozen=True)
class Sampled:
    """One token per row; ``usable`` is False where the logits had NaN or no finite maximum."""

    tokens: list[int]
    usable: list[bool]
    logprobs: list[TokenLogprobs | None]
    as_ranked: bool  # the tokens are those of the ranked answer


class Prepared(NamedTuple):
    """What has been sent to the device for the next tokens of some lanes."""

    draws: bool  # random numbers and truncation, as some have a temperature
    penalties: bool  # strengths, as some have any; the tokens are then counted there, too


NOTHING: Final = Prepared(draws=False, penalties=False)


@dataclass(frozen=True)
class Ranked:
    """Logits and what follows from them without a look at the device, so that it may be captured in a graph."""

    logits: torch.Tensor  # float32 [R, V], without the rows of padding
    penalised: torch.Tensor  # the same with the penalties that were prepared
    answer: torch.Tensor  # int64 [3, R]: tokens; whether the largest logit is finite; whether the token is certain
    prepared: Prepared  # what the tokens take into account; otherwise they are those of the largest logits


@dataclass(slots=True)
class _LaneSampling:
    """Sampling state of one running request."""

    params: SamplingParams
    seed: int
    drawn: int = 0  # counter of the request's random numbers: index of the token to draw

    @property
    def penalised(self) -> bool:
        p = self.params
        return p.presence_penalty != 0.0 or p.frequency_penalty != 0.0 or p.repetition_penalty != 1.0


class Sampler:
    """Sampling state per lane; results of a row depend on that row's logits and request only."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self._rows = rows
        self._vocab_size = vocab_size
        self._device = device
        self._lanes: dict[int, _LaneSampling] = {}
        self._inputs = DrawInputs(rows, device)
        self._counts: TokenCounts | None = None  # allocated by the first request with a penalty

    def start(self, row: int, params: SamplingParams, prompt: npt.NDArray[np.int64]) -> None:
        """Begin a request on a lane."""
        lane = _LaneSampling(params, params.seed % 2**64)
        self._lanes[row] = lane
        if lane.penalised:
            if self._counts is None:
                self._counts = TokenCounts(self._rows, self._vocab_size, self._device)
            self._counts.start(row, prompt)

    def stop(self, row: int) -> None:
        """The lane's request has ended."""
        del self._lanes[row]

    def prepare(self, rows: Sequence[int], ahead: int = 0) -> Prepared:
        """Send what ``rank`` needs to choose the next tokens of these lanes, if that is more than their logits.

        ``ahead``: of how many rounds the tokens are still to be sampled before.
        """
        lanes = [self._lanes[row] for row in rows]
        prepared = _wanted(lanes)
        if prepared != NOTHING:
            self._inputs.load([lane.params for lane in lanes], _uniforms(lanes, ahead), rows)
        return prepared

    def rank(self, logits: torch.Tensor, prepared: Prepared = NOTHING) -> Ranked:
        """The part of sampling that leaves nothing for the host to decide, of logits float32 [R, V].

        With anything prepared the rows are the lanes that it was for. Logits from ``vocab_size`` on are those of
        padding rows, which stand for no token: as if they were not there.
        """
        logits = penalised = logits[:, : self._vocab_size]
        best, tokens = logits.max(dim=-1)
        certain = torch.ones_like(tokens)
        if prepared == NOTHING:
            return Ranked(logits, logits, torch.stack((tokens, torch.isfinite(best).long(), certain)), prepared)
        lanes = self._inputs.columns(len(tokens))
        if prepared.penalties:
            assert self._counts is not None
            strengths = lanes.presence, lanes.frequency, lanes.repetition
            penalised = self._counts.penalise(logits, lanes.row.long(), *strengths)
            tokens = penalised.argmax(dim=-1)
        if prepared.draws:
            weights = softmax_weights(penalised, lanes.temperature)
            weights, settled = truncate_by_candidates(weights, lanes.top_k.long(), lanes.top_p, lanes.min_p)
            tokens = torch.where(lanes.temperature > 0.0, draw(weights, lanes.uniform), tokens)
            certain = settled.long()
        if prepared.penalties and self._counts is not None:  # also of lanes without, whose counts nobody reads
            self._counts.add(lanes.row.long(), tokens)
        return Ranked(logits, penalised, torch.stack((tokens, torch.isfinite(best).long(), certain)), prepared)

    def sample(self, ranked: Ranked, rows: Sequence[int]) -> Sampled:
        """One token per row; ``rows`` are the lanes they belong to."""
        lanes = [self._lanes[row] for row in rows]
        answer, prepared, as_ranked = ranked.answer, ranked.prepared, True
        if prepared == NOTHING != _wanted(lanes):
            penalised = self._penalise(ranked.logits, rows, lanes)
            tokens = answer[0] if penalised is ranked.logits else penalised.argmax(dim=-1)
            tokens = self._redraw(penalised, tokens, lanes)
            self._count(tokens, rows, lanes)
            answer, as_ranked = torch.stack((tokens, answer[1], torch.ones_like(tokens))), False
        chosen, usable, certain = answer.tolist()  # the one wait for the device, in most rounds
        if not all(certain):
            tokens = self._redraw(ranked.penalised, answer[0], lanes)
            self._count(answer[0], rows, lanes, by=-1)
            self._count(tokens, rows, lanes)
            chosen, as_ranked = tokens.tolist(), False
        for lane in lanes:
            lane.drawn += 1
        return Sampled(chosen, list(map(bool, usable)), _logprobs(ranked.logits, chosen, lanes), as_ranked)

    def _penalise(self, logits: torch.Tensor, rows: Sequence[int], lanes: list[_LaneSampling]) -> torch.Tensor:
        """Logits with the penalties of the lanes that have any; the argument is left as it is."""
        chosen = [index for index, lane in enumerate(lanes) if lane.penalised]
        if not chosen or self._counts is None:
            return logits
        strengths = self._tensor(
            [
                [lanes[index].params.presence_penalty for index in chosen],
                [lanes[index].params.frequency_penalty for index in chosen],
                [lanes[index].params.repetition_penalty for index in chosen],
            ]
        )
        where = torch.tensor(chosen, device=self._device)
        lane_rows = torch.tensor([rows[index] for index in chosen], device=self._device)
        return logits.index_copy(0, where, self._counts.penalise(logits[where], lane_rows, *strengths.unbind()))

    def _redraw(self, logits: torch.Tensor, greedy: torch.Tensor, lanes: list[_LaneSampling]) -> torch.Tensor:
        """The greedy tokens int64 [R], with a draw in place of those of lanes that have a temperature."""
        chosen = [index for index, lane in enumerate(lanes) if lane.params.temperature > 0.0]
        if not chosen:
            return greedy
        if len(chosen) == len(lanes):
            return self._draw(logits, lanes)
        where = torch.tensor(chosen, device=self._device)
        return greedy.index_copy(0, where, self._draw(logits[where], [lanes[index] for index in chosen]))

    def _draw(self, logits: torch.Tensor, lanes: list[_LaneSampling]) -> torch.Tensor:
        """Temperature, top-k, top-p, min-p, in this order, then one draw per row."""
        params = [lane.params for lane in lanes]
        temperature, top_k, top_p, min_p, uniform = self._tensor(
            [
                [p.temperature for p in params],
                [p.top_k for p in params],
                [p.top_p for p in params],
                [p.min_p for p in params],
                _uniforms(lanes).tolist(),
            ]
        ).unbind()
        weights = softmax_weights(logits, temperature)
        if any(p.top_k or p.top_p < 1.0 or p.min_p for p in params):
            sorts = any(p.top_k or p.top_p < 1.0 for p in params)
            weights = truncate(weights, top_k.long(), top_p, min_p, sorts=sorts)
        return draw(weights, uniform)

    def _count(self, tokens: torch.Tensor, rows: Sequence[int], lanes: list[_LaneSampling], by: int = 1) -> None:
        chosen = [index for index, lane in enumerate(lanes) if lane.penalised]
        if chosen and self._counts is not None:
            lane_rows = torch.tensor([rows[index] for index in chosen], device=self._device)
            self._counts.add(lane_rows, tokens[torch.tensor(chosen, device=self._device)], by)

    def _tensor(self, values: list[list[float]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def _wanted(lanes: list[_LaneSampling]) -> Prepared:
    return Prepared(
        draws=any(lane.params.temperature > 0.0 for lane in lanes), penalties=any(lane.penalised for lane in lanes)
    )


def _uniforms(lanes: list[_LaneSampling], ahead: int = 0) -> npt.NDArray[np.float64]:
    """The random number of each lane's next token, or of one ``ahead`` of it."""
    seeds, drawn = [lane.seed for lane in lanes], [lane.drawn + ahead for lane in lanes]
    return uniforms(np.array(seeds, np.uint64), np.array(drawn, np.uint64))


def _logprobs(logits: torch.Tensor, tokens: list[int], lanes: list[_LaneSampling]) -> list[TokenLogprobs | None]:
    """Of the lanes that want them: after temperature (1 where greedy), before penalties and truncation."""
    result: list[TokenLogprobs | None] = [None] * len(lanes)
    for index, lane in enumerate(lanes):
        wanted = lane.params.top_logprobs
        if wanted is None:
            continue
        log_p = (logits[index] / (lane.params.temperature or 1.0)).log_softmax(dim=-1)
        chosen = tokens[index]
        best = log_p.topk(min(wanted, len(log_p)))
        result[index] = TokenLogprobs(
            chosen=TokenLogprob(chosen, float(log_p[chosen])),
            top=tuple(map(TokenLogprob, best.indices.tolist(), best.values.tolist())),
        )
    return result

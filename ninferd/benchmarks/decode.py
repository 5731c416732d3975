"""Decode rounds of a whole model by lanes, rows and context, against reading their bytes once."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import torch

from ninferd.benchmarks.ceilings import Ceilings
from ninferd.benchmarks.rehearsal import GREEDY, SAMPLED, Rehearsal
from ninferd.benchmarks.results import Figure, Skipped, percent
from ninferd.benchmarks.subject import Subject
from ninferd.memory.errors import CapacityError


@dataclass(frozen=True)
class DecodeOptions:
    """Every combination is measured."""

    lanes: Sequence[int]
    rows: Sequence[int]
    contexts: Sequence[int]
    kv_dtypes: Sequence[str]
    rounds: int
    sampled: bool
    graphs: bool


class DecodeFigure(Figure, frozen=True):
    """One kind of round. The roof is what reading its bytes takes at the ceiling.

    A round of one row is measured as a step of the engine, and as its device part; one of more rows, as when drafts are
    verified, as its device part alone, and its tokens are those that it computes, accepted or not.
    """

    kv_dtype: str
    lanes: int
    rows: int
    context_tokens: int
    sampled: bool
    graphs: bool
    tokens_per_s: float
    step_ms: float | None
    device_ms: float
    weight_bytes: int
    kv_bytes: int
    state_bytes: int  # read and written
    roof_ms: float
    share_of_roof: float  # of the step, or of the device part where there is no step
    device_share_of_roof: float
    times_one_lane: float | None  # tokens per second, against one lane of the same

    COLUMNS: ClassVar = (
        ("kv", -6),
        ("lanes", 5),
        ("rows", 4),
        ("context", 7),
        ("draws", 5),
        ("tok/s", 8),
        ("step ms", 8),
        ("device ms", 9),
        ("roof ms", 8),
        ("of roof", 7),
        ("device", 7),
        ("x 1 lane", 8),
    )

    def cells(self) -> Sequence[str]:
        return (
            self.kv_dtype,
            str(self.lanes),
            str(self.rows),
            str(self.context_tokens),
            "yes" if self.sampled else "no",
            f"{self.tokens_per_s:.1f}",
            "-" if self.step_ms is None else f"{self.step_ms:.3f}",
            f"{self.device_ms:.3f}",
            f"{self.roof_ms:.3f}",
            percent(self.share_of_roof),
            percent(self.device_share_of_roof),
            "-" if self.times_one_lane is None else f"{self.times_one_lane:.2f}",
        )


def measure_decode(subject: Subject, options: DecodeOptions, ceilings: Ceilings) -> Iterator[DecodeFigure | Skipped]:
    """All figures, one after the other."""
    for kv_dtype in options.kv_dtypes:
        problem = subject.storage_problem(kv_dtype)
        if problem is not None:
            yield Skipped(kv_dtype, problem)
            continue
        for context in options.contexts:
            waiting = sorted(set(options.lanes))
            one_lane: dict[int, float] = {}  # tokens per second by rows
            rehearsal, most = _largest(subject, waiting, context, kv_dtype, options.graphs)
            if isinstance(most, CapacityError):
                yield Skipped(f"{kv_dtype}, {context} tokens", str(most))
                continue
            assert rehearsal is not None
            for lanes in waiting:
                if lanes > most:
                    yield Skipped(f"{kv_dtype}, {lanes} lanes of {context} tokens", "the caches do not fit")
                    continue
                for figure in _figures(subject, rehearsal, lanes, context, kv_dtype, options, ceilings):
                    if lanes == 1:
                        one_lane[figure.rows] = figure.tokens_per_s
                    yield _against(figure, one_lane.get(figure.rows))
            del rehearsal
            _free(subject.device)


def _largest(
    subject: Subject, lanes: Sequence[int], context: int, kv_dtype: str, graphs: bool
) -> tuple[Rehearsal | None, int | CapacityError]:
    """An engine for as many of the wanted lanes as fit, and how many those are; or why not even the fewest do."""
    error = CapacityError("")
    for most in reversed(lanes):
        try:
            return Rehearsal(subject, most, context, kv_dtype, graphs=graphs), most
        except CapacityError as found:
            error = found
        _free(subject.device)
    return None, error


def _figures(
    subject: Subject,
    rehearsal: Rehearsal,
    lanes: int,
    context: int,
    kv_dtype: str,
    options: DecodeOptions,
    ceilings: Ceilings,
) -> Iterator[DecodeFigure]:
    prompt = rehearsal.start(lanes, options.rounds, SAMPLED if options.sampled else GREEDY)
    before = rehearsal.context_tokens(prompt)
    step = rehearsal.steps_seconds(options.rounds)
    after = rehearsal.context_tokens(prompt)
    info = rehearsal.engine.info
    kv_token_bytes = info.kv_bytes / info.kv_capacity_tokens
    state = 2 * lanes * info.state_bytes // info.state_slots
    for rows in options.rows:
        draws = options.sampled and rows == 1
        device = rehearsal.round_seconds(lanes, rows, draws=draws)
        seconds = step if rows == 1 else device
        kv = round(lanes * kv_token_bytes * ((before + after) / 2 if rows == 1 else after + rows))
        weights = subject.round_weight_bytes(lanes * rows)
        roof = (weights + kv + state) / ceilings.read_bytes_per_s
        yield DecodeFigure(
            kv_dtype=kv_dtype,
            lanes=lanes,
            rows=rows,
            context_tokens=context,
            sampled=draws,
            graphs=options.graphs and subject.device.type == "cuda",
            tokens_per_s=lanes * rows / seconds,
            step_ms=1e3 * step if rows == 1 else None,
            device_ms=1e3 * device,
            weight_bytes=weights,
            kv_bytes=kv,
            state_bytes=state,
            roof_ms=1e3 * roof,
            share_of_roof=roof / seconds,
            device_share_of_roof=roof / device,
            times_one_lane=None,
        )
    rehearsal.stop()


def _against(figure: DecodeFigure, one_lane: float | None) -> DecodeFigure:
    return msgspec.structs.replace(figure, times_one_lane=None if one_lane is None else figure.tokens_per_s / one_lane)


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

"""Prompts through the engine, from submission to the first token, against the arithmetic that they need."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch

from ninferd.benchmarks.ceilings import Ceilings
from ninferd.benchmarks.results import Figure, Skipped, percent
from ninferd.benchmarks.roofs import attention_flops, prefill_flops
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import elapsed_s, synchronize
from ninferd.engine.engine import Engine
from ninferd.engine.messages import GenerationRequest, PromptIdentity, RequestFailed, SamplingParams
from ninferd.errors import NinferError
from ninferd.memory.errors import CapacityError

MOST_SECONDS: Final = 3.0
"""A prompt is repeated while its runs together take less."""
REPEATS: Final = 3


@dataclass(frozen=True)
class PrefillOptions:
    """Every combination is measured."""

    prompts: Sequence[int]
    chunks: Sequence[int]
    kv_dtypes: Sequence[str]


class PrefillFigure(Figure, frozen=True):
    """One length of prompt in chunks of one size."""

    kv_dtype: str
    prompt_tokens: int
    chunk_tokens: int
    seconds: float
    tokens_per_s: float
    flops: int
    attention_flops: int  # of these, exactly: every query with the keys and values that it sees
    flop_per_s: float
    share_of_gemm: float

    COLUMNS: ClassVar = (
        ("kv", -6),
        ("prompt", 8),
        ("chunk", 8),
        ("seconds", 9),
        ("tok/s", 9),
        ("TFLOP", 10),
        ("TFLOP/s", 9),
        ("of products", 11),
    )

    def cells(self) -> Sequence[str]:
        return (
            self.kv_dtype,
            str(self.prompt_tokens),
            str(self.chunk_tokens),
            f"{self.seconds:.3f}",
            f"{self.tokens_per_s:.0f}",
            f"{self.flops / 1e12:.4g}",
            f"{self.flop_per_s / 1e12:.4g}",
            percent(self.share_of_gemm),
        )


def measure_prefill(subject: Subject, options: PrefillOptions, ceilings: Ceilings) -> Iterator[PrefillFigure | Skipped]:
    """All figures, one after the other."""
    for kv_dtype in options.kv_dtypes:
        problem = subject.storage_problem(kv_dtype)
        if problem is not None:
            yield Skipped(kv_dtype, problem)
            continue
        for chunk in options.chunks:
            try:
                engine = subject.engine(
                    lanes=1, context_tokens=max(options.prompts) + 1, kv_dtype=kv_dtype, prefill_chunk=chunk
                )
            except CapacityError as error:
                yield Skipped(f"{kv_dtype}, {max(options.prompts)} tokens", str(error))
                continue
            for tokens in options.prompts:
                _run(engine, min(tokens, 2 * chunk))  # libraries choose their kernels
                yield _figure(subject, engine, kv_dtype, tokens, chunk, ceilings)
            del engine
            gc.collect()
            if subject.device.type == "cuda":
                torch.cuda.empty_cache()


def _figure(
    subject: Subject, engine: Engine, kv_dtype: str, tokens: int, chunk: int, ceilings: Ceilings
) -> PrefillFigure:
    runs: list[float] = []
    while len(runs) < REPEATS and sum(runs) < MOST_SECONDS:
        synchronize(subject.device)
        runs.append(elapsed_s(lambda: _run(engine, tokens)))
    seconds = statistics.median(runs)
    config = subject.model.config
    flops = prefill_flops(config, tokens)
    return PrefillFigure(
        kv_dtype=kv_dtype,
        prompt_tokens=tokens,
        chunk_tokens=chunk,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        flops=flops,
        attention_flops=attention_flops(config, tokens, tokens),
        flop_per_s=flops / seconds,
        share_of_gemm=flops / seconds / ceilings.gemm_flop_per_s,
    )


def _run(engine: Engine, tokens: int) -> None:
    """To the first token, which waits for the device."""
    ids = (7 * np.arange(tokens) + 3) % engine.info.vocab_size
    prompt = PromptIdentity(ids.astype("<i4").tobytes())
    engine.submit(GenerationRequest("prompt", prompt, SamplingParams(seed=0, temperature=0.0), 1, ()))
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, RequestFailed):
                raise NinferError(f"the engine failed: {event.message}")

"""Norms, the gate of the feed-forward block, and choosing tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ninferd.benchmarks.kernels import KernelOptions, Timing
from ninferd.benchmarks.rehearsal import SAMPLED
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import seconds_per_call
from ninferd.engine.sampler import Prepared, Sampler


def measure_norms(subject: Subject, options: KernelOptions) -> Iterator[Timing]:
    """Between products; their inputs and outputs stay in the cache, as they do in a round."""
    config, ops, weights = subject.model.config, subject.model.ops, subject.model.weights
    inner = config.intermediate_size or (config.moe.shared_intermediate_size if config.moe else 0)
    norms = [layer.mixer_norm for layer in weights.layers]
    item, eps = subject.model.dtype.itemsize, config.rms_norm_eps
    for rows in (*options.rows, *options.prefill_rows):
        x, residual = (_random(subject, rows, config.hidden_size) for _ in range(2))
        gate_up = _random(subject, rows, 2 * inner)
        for name, width, calls in (
            ("rms_norm", 2 * config.hidden_size, [partial(ops.rms_norm, x, norm, eps) for norm in norms]),
            (
                "add_rms_norm",
                4 * config.hidden_size,
                [partial(ops.add_rms_norm, residual, x, norm, eps) for norm in norms],
            ),
            ("silu_mul", 3 * inner, [partial(ops.silu_mul, gate_up)] * len(norms)),
        ):
            per_call = seconds_per_call(calls, subject.device)
            case = f"width {inner if name == 'silu_mul' else config.hidden_size}"
            yield Timing(name, case, rows, per_call, read_bytes=rows * width * item)


def measure_sampling(subject: Subject, options: KernelOptions) -> Iterator[Timing]:
    """The part of choosing tokens that a round captures: the likeliest, or a draw."""
    vocab = subject.model.config.vocab_size
    for lanes in options.lanes:
        sampler = Sampler(lanes, subject.token_count, subject.device)
        for lane in range(lanes):
            sampler.start(lane, SAMPLED, np.zeros(1, np.int64))
        sampler.prepare(range(lanes))
        logits = [_random(subject, lanes, vocab).float() for _ in range(4)]
        for case, draws in (("the likeliest", False), ("temperature, top-k, top-p", True)):
            calls = [partial(sampler.rank, each, Prepared(draws, False)) for each in logits]
            per_call = seconds_per_call(calls, subject.device)
            yield Timing("sampling", case, 1, per_call, lanes=lanes, read_bytes=logits[0].nbytes)


def _random(subject: Subject, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, device=subject.device).to(subject.model.dtype)

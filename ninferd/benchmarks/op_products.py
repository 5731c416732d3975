"""Products with the model's own weights: each kind of matrix, and all of a round one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from kernels_numba.shapes import PackedLinear
from ninferd.benchmarks.kernels import KernelOptions, Timing
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import PerCall, seconds_per_call
from ninferd.models.qwen3_5.attention import AttentionLayer
from ninferd.models.qwen3_5.mlp import MlpLayer


@dataclass
class _Kind:
    """The matrices of one place in the layers."""

    columns: int
    matrices: list[PackedLinear] = field(default_factory=list)


def measure_products(subject: Subject, options: KernelOptions) -> Iterator[Timing]:
    """Each kind at every number of rows; those of a round also as a chain, which is what a decode step does."""
    kinds = _kinds(subject)
    for name, kind in kinds.items():
        for rows in (*options.rows, *options.prefill_rows):
            x = _activations(subject, rows, kind.columns)
            calls = [_product(subject, x, packed) for packed in kind.matrices]
            size = sum(packed.size_bytes for packed in kind.matrices) // len(kind.matrices)
            outputs = kind.matrices[0].outputs
            yield Timing(
                op="linear",
                case=f"{name} {outputs} x {kind.columns}",
                rows=rows,
                per_call=seconds_per_call(calls, subject.device),
                read_bytes=size,
                flops=2 * rows * outputs * kind.columns if rows in options.prefill_rows else None,
            )
    chain = _chain(subject)
    size = sum(packed.size_bytes for packed, _ in chain)
    for rows in options.rows:
        inputs = {columns: _activations(subject, rows, columns) for _, columns in chain}
        calls = [_product(subject, inputs[columns], packed) for packed, columns in chain]
        each = seconds_per_call(calls, subject.device)
        whole = PerCall(each.seconds * len(calls), each.captured)
        yield Timing("linear", f"all {len(calls)} products of a round", rows, whole, read_bytes=size)


def _product(subject: Subject, x: Tensor, packed: PackedLinear) -> Callable[[], object]:
    return partial(subject.model.ops.linear, x, packed)


def _activations(subject: Subject, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, device=subject.device).to(subject.model.dtype)


def _chain(subject: Subject) -> list[tuple[PackedLinear, int]]:
    """The matrices of a round in its order, with their columns; of a mixture of experts without the routed ones."""
    return list(_placed(subject).values())


def _kinds(subject: Subject) -> dict[str, _Kind]:
    kinds: dict[str, _Kind] = {}
    for (_, name), (packed, columns) in _placed(subject).items():
        kinds.setdefault(name, _Kind(columns)).matrices.append(packed)
    return kinds


def _placed(subject: Subject) -> dict[tuple[int, str], tuple[PackedLinear, int]]:
    """Matrices and their columns by layer and name, in the order of a round."""
    config, weights = subject.model.config, subject.model.weights
    hidden, placed = config.hidden_size, {}
    for index, layer in enumerate(weights.layers):
        is_attention = isinstance(layer.mixer, AttentionLayer)
        mixer = "attention" if is_attention else "gated delta"
        width = config.attention.query_width if is_attention else config.gated_delta.value_width
        placed[index, f"{mixer} in"] = layer.mixer.in_proj, hidden
        placed[index, f"{mixer} out"] = layer.mixer.out_proj, width
        if isinstance(layer.feed_forward, MlpLayer):
            feed_forward, inner, which = layer.feed_forward, config.intermediate_size, ""
        else:
            assert config.moe is not None
            feed_forward, inner, which = layer.feed_forward.shared, config.moe.shared_intermediate_size, "shared "
            placed[index, "router"] = layer.feed_forward.router, hidden
        assert inner is not None
        placed[index, f"{which}gate and up"] = feed_forward.gate_up, hidden
        placed[index, f"{which}down"] = feed_forward.down, inner
    placed[len(weights.layers), "head"] = weights.head, hidden
    return placed

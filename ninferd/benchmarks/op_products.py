"""Products with the model's own weights: each kind of matrix, and all of a round one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from kernels_numba.shapes import DenseBlockWeights, PackedLinear
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
    yield from _blocks(subject, options)


def _blocks(subject: Subject, options: KernelOptions) -> Iterator[Timing]:
    """Everything between the mixers of a round: its products and what lies between them, as one op a layer."""
    config, weights = subject.model.config, subject.model.weights
    if config.moe is not None:
        return
    blocks = [_block(subject, index) for index in range(len(weights.layers))]
    for rows in options.rows:
        residual = _activations(subject, rows, config.hidden_size)
        mixed = {
            width: _activations(subject, rows, width)
            for width in (config.attention.query_width, config.gated_delta.value_width)
        }
        calls = [partial(subject.model.ops.dense_block, residual, mixed[width], block) for block, width in blocks]
        each = seconds_per_call(calls, subject.device)
        yield Timing(
            op="dense_block",
            case="every block of a round",
            rows=rows,
            per_call=PerCall(each.seconds * len(calls), each.captured),
            read_bytes=sum(_block_bytes(block) for block, _ in blocks),
        )


def _block(subject: Subject, index: int) -> tuple[DenseBlockWeights, int]:
    """From the mixer of a layer to the next, and how wide it begins."""
    config, weights = subject.model.config, subject.model.weights
    layer, following = weights.layers[index], weights.layers[index + 1 : index + 2]
    assert isinstance(layer.feed_forward, MlpLayer)
    block = DenseBlockWeights(
        out_proj=layer.mixer.out_proj,
        norm=layer.feed_forward_norm,
        gate_up=layer.feed_forward.gate_up,
        down=layer.feed_forward.down,
        next_norm=following[0].mixer_norm if following else weights.final_norm,
        next_in_proj=following[0].mixer.in_proj if following else None,
        eps=config.rms_norm_eps,
    )
    is_attention = isinstance(layer.mixer, AttentionLayer)
    return block, config.attention.query_width if is_attention else config.gated_delta.value_width


def _block_bytes(block: DenseBlockWeights) -> int:
    following = 0 if block.next_in_proj is None else block.next_in_proj.size_bytes
    return block.out_proj.size_bytes + block.gate_up.size_bytes + block.down.size_bytes + following


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

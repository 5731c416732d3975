"""Ops on memory that nobody wrote, and on rows that are not finite: what comes out of the other rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.matrices import Matrix
from kernels_numba.ops import OpTable
from kernels_numba.shapes import (
    AttentionNorms,
    AttentionShape,
    DenseBlockWeights,
    GatedDeltaPending,
    GatedDeltaShape,
    GatedDeltaWeights,
    PackedLinear,
)
from tests.kernels_numba.inputs import AttentionCase, GatedDeltaCase, Random, converted
from tests.kernels_numba.weights import RandomMatrices

ATTENTION = AttentionShape(heads=12, kv_heads=2, head_dim=256, rotary_dim=64)
GATED_DELTA = GatedDeltaShape(key_heads=2, value_heads=4, key_dim=128, value_dim=128, conv_kernel=4)
WIDTH = 512


@dataclass(frozen=True)
class Trial:
    """A call whose rows come in units that know nothing of each other."""

    x: Tensor  # [units * rows, ...]
    run: Callable[[Tensor], Sequence[Tensor]]
    """Results and what was written in place, each ``[units * rows, ...]`` or ``[units, ...]``."""
    rows: int = 1

    @property
    def units(self) -> int:
        return len(self.x) // self.rows


@dataclass(frozen=True)
class Place:
    """Where a trial runs."""

    ops: OpTable
    device: torch.device
    dtype: torch.dtype

    def moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype)

    def weights(self, weights: Any) -> Any:
        """Norms and the like, which stay float32."""
        found = converted(weights, torch.float32)
        tensors = {name: value.to(self.device) for name, value in vars(found).items() if isinstance(value, Tensor)}
        return replace(found, **tensors)


def linear(place: Place, kind: str, rows: int) -> Trial:
    packed = place.ops.pack_linear(_on(place.device, RandomMatrices().by_name(kind)(304, WIDTH)))
    return Trial(place.moved(Random(1).normal(rows, WIDTH)), lambda x: [place.ops.linear(x, packed)])


def rms_norm(place: Place, rows: int) -> Trial:
    weight = Random(0).normal(WIDTH).float().to(place.device)
    return Trial(place.moved(Random(1).normal(rows, WIDTH)), lambda x: [place.ops.rms_norm(x, weight, 1e-6)])


def add_rms_norm(place: Place, rows: int) -> Trial:
    weight = Random(0).normal(WIDTH).float().to(place.device)
    residual = place.moved(Random(2).normal(rows, WIDTH))
    x = place.moved(Random(1).normal(rows, WIDTH))
    return Trial(x, lambda x: place.ops.add_rms_norm(residual, x, weight, 1e-6))


def silu_mul(place: Place, rows: int) -> Trial:
    return Trial(place.moved(Random(1).normal(rows, 2 * WIDTH)), lambda x: [place.ops.silu_mul(x)])


def append_kv(place: Place, codec: str, rows: int) -> Trial:
    """Every row is written to a page of its own."""
    random, shape = Random(0), ATTENTION
    angles = 10 * random.normal(rows, shape.rotary_dim // 2).float().to(place.device)
    weights = AttentionNorms(1 + 0.2 * random.normal(256), 1 + 0.2 * random.normal(256), 1e-6)
    norms: AttentionNorms = place.weights(weights)
    slots = (PAGE_TOKENS * torch.arange(rows) + 7 * torch.arange(rows) % PAGE_TOKENS).to(place.device)
    layout = KvLayout(KV_CODECS[codec], 2, shape.kv_heads, shape.head_dim)

    def run(x: Tensor) -> Sequence[Tensor]:
        kv = PagedKv.zeros(layout, rows, place.device)
        return place.ops.append_kv(x, norms, angles.cos(), angles.sin(), kv, 1, slots, shape), kv.pages

    return Trial(place.moved(random.normal(rows, shape.projected_width)), run)


def attention_decode(place: Place, codec: str, contexts: Sequence[int], rows: int, spoiled: str) -> Trial:
    """Of queries, or of what carries the gate."""
    case = AttentionCase.random(ATTENTION, list(contexts), tokens=len(contexts) * rows)
    kv, table = _stored(place, case, codec), case.page_table.to(place.device)
    lengths = torch.tensor(contexts, device=place.device)
    query, projected = place.moved(case.query), place.moved(case.projected)
    gate = ATTENTION.gate_columns

    def run(x: Tensor) -> Sequence[Tensor]:
        whole = projected.clone()
        if spoiled == "gate":
            whole[:, gate] = x
        chosen = x if spoiled == "query" else query
        return [place.ops.attention_decode(chosen, whole, kv, 1, table, lengths, ATTENTION)]

    return Trial(query if spoiled == "query" else projected[:, gate].clone(), run, rows)


def attention_prefill(place: Place, codec: str, rows: int, context: int) -> Trial:
    case = AttentionCase.random(ATTENTION, [context], tokens=rows)
    kv, pages = _stored(place, case, codec), case.page_table[0].to(place.device)
    projected = place.moved(case.projected)

    def run(x: Tensor) -> Sequence[Tensor]:
        return [place.ops.attention_prefill(x, projected, kv, 1, pages, context, ATTENTION)]

    return Trial(place.moved(case.query), run)


def gated_delta_decode(place: Place, lanes: int) -> Trial:
    case = GatedDeltaCase.random(GATED_DELTA, lanes)
    slots = torch.tensor([4, 0, 5, 2, 1, 3][:lanes], device=place.device)
    weights: GatedDeltaWeights = place.weights(case.weights)

    def run(x: Tensor) -> Sequence[Tensor]:
        conv, recurrent = place.moved(case.conv), case.recurrent.float().to(place.device)
        out = place.ops.gated_delta_decode(x, weights, conv, recurrent, 1, slots, GATED_DELTA)
        return out, conv[slots], recurrent[slots]

    return Trial(place.moved(case.projected), run)


def gated_delta_round(place: Place, lanes: int, rows: int, accepted: int) -> Trial:
    """The rows of a first round stay pending, and so many of them enter the states with the next."""
    first, case = (
        GatedDeltaCase.random(GATED_DELTA, lanes * rows, seed=1),
        GatedDeltaCase.random(GATED_DELTA, lanes * rows),
    )
    slots = torch.tensor([4, 0, 5, 2, 1, 3][:lanes], device=place.device)
    weights: GatedDeltaWeights = place.weights(case.weights)
    shape = GATED_DELTA
    sizes = {
        "keys": (shape.key_heads, shape.key_dim),
        "deltas": (shape.value_heads, shape.value_dim),
        "log_decays": (shape.value_heads,),
    }

    def run(x: Tensor) -> Sequence[Tensor]:
        conv, recurrent = place.moved(case.conv), case.recurrent.float().to(place.device)
        pending = GatedDeltaPending(
            inputs=conv.new_zeros(6, 2, 16, shape.conv_channels),
            **{name: torch.zeros(6, 2, 16, *size, device=place.device) for name, size in sizes.items()},
        )
        for counts, projected in ((0, place.moved(first.projected)), (accepted, x)):
            kept = torch.full((lanes,), counts, device=place.device)
            out = place.ops.gated_delta_round(projected, weights, conv, recurrent, pending, 1, slots, kept, GATED_DELTA)
        left = (pending.inputs, pending.keys, pending.deltas, pending.log_decays)
        return out, conv[slots], recurrent[slots], *(each[slots, 1, :rows] for each in left)

    return Trial(place.moved(case.projected), run, rows)


def dense_block(place: Place, kind: str, rows: int) -> Trial:
    random, matrices = Random(0), RandomMatrices()

    def packed(rows: int, columns: int) -> PackedLinear:
        return place.ops.pack_linear(_on(place.device, matrices.by_name(kind)(rows, columns)))

    norms = (1 + 0.2 * random.normal(2, WIDTH)).float().to(place.device)
    weights = DenseBlockWeights(
        packed(WIDTH, 768), norms[0], packed(1536, WIDTH), packed(WIDTH, 768), norms[1], packed(640, WIDTH), 1e-6
    )
    residual = place.moved(random.normal(rows, WIDTH))
    return Trial(place.moved(random.normal(rows, 768)), lambda x: place.ops.dense_block(residual, x, weights))


def gated_delta_prefill(place: Place, rows: int) -> Trial:
    """One sequence, so one unit."""
    case = GatedDeltaCase.random(GATED_DELTA, rows)
    slots, weights = torch.tensor([2], device=place.device), place.weights(case.weights)

    def run(x: Tensor) -> Sequence[Tensor]:
        conv, recurrent = place.moved(case.conv), case.recurrent.float().to(place.device)
        out = place.ops.gated_delta_prefill(x, weights, conv, recurrent, 1, slots, GATED_DELTA)
        others = torch.tensor([0, 1, 3, 4, 5])
        assert torch.equal(conv[others], place.moved(case.conv)[others])
        assert torch.equal(recurrent[others], case.recurrent.float().to(place.device)[others])
        return out, conv[slots], recurrent[slots]

    return Trial(place.moved(case.projected), run, rows)


def moe_experts(place: Place, rows: int) -> Trial:
    random, matrices = Random(0), RandomMatrices()
    gate_up = place.ops.pack_linear(_on(place.device, matrices.nvfp4(4, 512, WIDTH)))
    down = place.ops.pack_linear(_on(place.device, matrices.nvfp4(4, WIDTH, 256)))
    routing, shared = place.moved(random.normal(rows, 5)), place.moved(random.normal(rows, WIDTH))
    x = place.moved(random.normal(rows, WIDTH))
    return Trial(x, lambda x: [place.ops.moe_experts(x, routing, gate_up, down, 2, shared)])


def _stored(place: Place, case: AttentionCase, codec: str) -> PagedKv:
    """Keys and values of a case as its codec stores them; what lies outside the contexts was never written."""
    layout = KvLayout(KV_CODECS[codec], 2, ATTENTION.kv_heads, ATTENTION.head_dim)
    kv = PagedKv(
        torch.full((case.kv.shape[0], layout.page_bytes), 0xFF, dtype=torch.uint8, device=place.device), layout
    )
    ones = AttentionNorms(torch.ones(256, device=place.device), torch.ones(256, device=place.device), 1e-6)
    for row, context in enumerate(case.context_lengths):
        positions = torch.arange(context)
        slots = case.page_table[row].long()[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS
        projected = place.moved(Random(row).normal(context, ATTENTION.projected_width))
        angles = torch.zeros(context, ATTENTION.rotary_dim // 2, device=place.device)
        place.ops.append_kv(projected, ones, angles.cos(), angles, kv, 1, slots.to(place.device), ATTENTION)
    return kv


def _on(device: torch.device, matrix: Matrix) -> Matrix:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    return replace(matrix, **planes)


@contextmanager
def memory(*, poisoned: bool) -> Iterator[None]:
    """Whether what torch allocates within holds NaN, or bytes of all ones, until somebody writes it.

    Either way with torch's deterministic algorithms, so that bits can be compared.
    """
    settings: Any = torch.utils.deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = poisoned
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


def check_every_element_is_written(trial: Trial) -> None:
    """The same bits whatever the memory held."""
    with memory(poisoned=False):
        clean = trial.run(trial.x)
    assert clean[0].isfinite().all()
    with memory(poisoned=True):
        found = trial.run(trial.x)
    for before, after in zip(clean, found, strict=True):
        assert torch.equal(_bits(before), _bits(after))


def check_rows_keep_to_themselves(trial: Trial, unit: int, value: float, *, shows_nan: bool = True) -> None:
    """One number that is not finite in a unit, and the bits of the others as they were; NaN is seen in its own."""
    clean = [_by_unit(trial, result).clone() for result in trial.run(trial.x)]
    x = trial.x.clone()
    x.view(trial.units, trial.rows, -1)[unit, -1, 3] = value
    found = [_by_unit(trial, result) for result in trial.run(x)]
    others = [each for each in range(trial.units) if each != unit]
    for before, after in zip(clean, found, strict=True):
        assert torch.equal(_bits(before[others]), _bits(after[others]))
    if math.isnan(value) and shows_nan:
        assert found[0][unit].isnan().any()
    assert not torch.equal(_bits(clean[0][unit]), _bits(found[0][unit]))


def _by_unit(trial: Trial, result: Tensor) -> Tensor:
    return result.reshape(trial.units, -1)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)

"""Mixtures of experts by CUDA kernels, without a look at the device; other stacks go expert by expert."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.nvidia.launch import Device, device_of
from kernels_numba.nvidia.linear import StreamSegment, linear, stream_segment
from kernels_numba.nvidia.linear_formats import (
    FORMATS,
    FURTHER_FORMATS,
    STEP_COLUMNS,
    TILE_ROWS,
    USUAL_FORMATS,
    StreamFormat,
)
from kernels_numba.nvidia.linear_kernels import LARGE_ARCHS, SMALL_ARCHS
from kernels_numba.nvidia.linear_packing import stream_format
from kernels_numba.nvidia.moe_kernels import (
    COLUMNS,
    COMBINE_THREADS,
    DOWN,
    FURTHER_KERNELS,
    MOST_CHOSEN,
    MOST_EXPERTS,
    ROUTE_THREADS,
    UP,
    USUAL_KERNELS,
    WARPS,
    product_name,
    shared_bytes,
)
from kernels_numba.nvidia.norms_ops import silu_mul
from kernels_numba.nvidia.self_test import OpGroup, Variant, assert_close
from kernels_numba.routing import routed_experts
from kernels_numba.shapes import PackedLinear

OVERLAPPED = True
"""Whether launches may begin before their predecessor ends (from sm_90)."""
ALONE_PAIRS = 128
"""Up to so many pairs of tokens and experts, few of them share an expert, and what do read it from the cache."""
WARP_STEPS = 4
"""Steps that a warp should have at least, when warps share a tile."""

_expert_by_expert = routed_experts(linear, silu_mul)


class _Routes(NamedTuple):
    """What the products read of the routing; P pairs of a token and one of its experts."""

    weights: Tensor  # float32 [P], by token and rank
    items: Tensor  # int32 [items, 4]
    tokens: Tensor  # int32 [P], of a slot
    slots: Tensor  # int32 [P], of a pair
    maxima: Tensor  # int32 [P], of a slot, 0
    halves: Tensor  # float16 [N, K], activations in fragment order
    scales: Tensor  # float32 [N]


def moe_experts(
    x: Tensor,
    routing: Tensor,
    gate_up: PackedLinear,
    down: PackedLinear,
    top_k: int,
    shared: Tensor,
    *,
    formats: Collection[StreamFormat] = tuple(FORMATS.values()),
) -> Tensor:
    """As ``kernels_numba.ops.MoeExperts``; stacks of other ``formats`` go expert by expert."""
    ups, downs = _stack(gate_up, formats), _stack(down, formats)
    if ups is None or downs is None or not _fits(x, routing, top_k, shared):
        return _expert_by_expert(x, routing, gate_up, down, top_k, shared)
    device = device_of(x.device)
    routes = _routed(device, x, routing, top_k)
    pairs = len(routes.weights)
    hidden = torch.empty(pairs, downs.columns, dtype=torch.bfloat16, device=x.device)
    _product(device, UP, ups, routes, routes.halves, routes.scales, hidden)
    products = torch.empty(pairs, downs.rows, device=x.device)
    _product(device, DOWN, downs, routes, hidden, routes.maxima, products)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    device.kernel("moe_combine")(
        (-(-x.shape[1] // (4 * COMBINE_THREADS)), x.shape[0], 1),
        products.data_ptr(),
        routes.weights.data_ptr(),
        routes.slots.data_ptr(),
        routing[:, -1].data_ptr(),
        shared.data_ptr(),
        out.data_ptr(),
        routing.stride(0),
        shared.stride(0),
        x.shape[1],
        top_k,
        programmatic=OVERLAPPED,
    )
    return out


def _stack(packed: PackedLinear, formats: Collection[StreamFormat]) -> StreamSegment | None:
    """The one stream of a stack of matrices; None if kernels cannot multiply it."""
    segment = packed.segments[0]
    if len(packed.segments) > 1 or not isinstance(segment, StreamSegment) or segment.stream.dim() != 2:
        return None
    if FORMATS[segment.format_name] not in formats:
        return None
    return segment if segment.stream.is_contiguous() and segment.stream.shape[0] <= MOST_EXPERTS else None


def _fits(x: Tensor, routing: Tensor, top_k: int, shared: Tensor) -> bool:
    return (
        x.dtype == routing.dtype == shared.dtype == torch.bfloat16
        and 0 < x.shape[0] < 1 << 16
        and top_k <= MOST_CHOSEN
        and x.stride(1) == routing.stride(1) == shared.stride(1) == 1
        and x.stride(0) % 8 == shared.stride(0) % 4 == 0
        and x.data_ptr() % 16 == shared.data_ptr() % 8 == 0
    )


def _routed(device: Device, x: Tensor, routing: Tensor, top_k: int) -> _Routes:
    tokens, experts = x.shape[0], routing.shape[1] - 1
    pairs = tokens * top_k
    alone = pairs <= ALONE_PAIRS
    most_items = pairs if alone else min(pairs, pairs // COLUMNS + experts)
    numbers = torch.empty(5 * pairs + 4 * most_items, dtype=torch.int32, device=x.device)
    items, chosen, order, slots, maxima, weights = torch.split(numbers, [4 * most_items, *[pairs] * 5])
    routes = _Routes(
        weights.view(torch.float32),
        items,
        order,
        slots,
        maxima,
        torch.empty(x.shape, dtype=torch.float16, device=x.device),
        torch.empty(tokens, device=x.device),
    )
    device.kernel("moe_route")(
        (tokens, 1, 1),
        x.data_ptr(),
        routing.data_ptr(),
        routes.halves.data_ptr(),
        routes.scales.data_ptr(),
        chosen.data_ptr(),
        routes.weights.data_ptr(),
        maxima.data_ptr(),
        items.data_ptr(),
        order.data_ptr(),
        slots.data_ptr(),
        x.stride(0),
        routing.stride(0),
        x.shape[1],
        experts,
        top_k,
        int(alone),
        shared_bytes=ROUTE_THREADS // 8 + 4 * experts,
        programmatic=OVERLAPPED,
    )
    if not alone:
        device.kernel("moe_group")(
            (1, 1, 1),
            chosen.data_ptr(),
            items.data_ptr(),
            order.data_ptr(),
            slots.data_ptr(),
            pairs,
            experts,
            top_k,
            most_items,
            shared_bytes=8 * experts,
            programmatic=OVERLAPPED,
        )
    return routes


def _product(
    device: Device, part: str, stack: StreamSegment, routes: _Routes, x: Tensor, scales: Tensor, out: Tensor
) -> None:
    weights = FORMATS[stack.format_name]
    tiles, steps = stack.rows // TILE_ROWS, stack.columns // STEP_COLUMNS
    most_split = 2 if part == UP else 3
    split = max(s for s in range(most_split + 1) if s == 0 or steps >> s >= WARP_STEPS)
    a_block = WARPS >> split
    device.kernel(product_name(part, weights.name))(
        (-(-tiles // a_block), len(routes.items) // 4, 1),
        stack.stream.data_ptr(),
        x.data_ptr(),
        scales.data_ptr(),
        stack.factors.data_ptr(),
        routes.items.data_ptr(),
        routes.tokens.data_ptr(),
        out.data_ptr(),
        routes.maxima.data_ptr(),
        tiles,
        steps // stack.slices,
        stack.slices,
        split,
        shared_bytes=shared_bytes(weights),
        programmatic=OVERLAPPED,
    )


EXPERTS, HIDDEN, INNER, TOP_K = 6, 256, 128, 3
TOLERANCE = 1e-2
"""Of hidden activations and of results that are rounded to bfloat16, by 2^-9 at most each."""


def check(device: torch.device, formats: Collection[StreamFormat] = USUAL_FORMATS) -> None:
    """Kernels of some formats on small stacks, of one slice and of two, few tokens and many. KernelMismatchError."""
    generator = torch.Generator().manual_seed(0)
    chosen = [each for each in _matrices(generator) if stream_format(each[0]) in formats]
    for slices, matrices in enumerate(chosen, 1):
        values = [torch.stack([reference.dequantised(each[i]) for i in range(EXPERTS)]) for each in matrices]
        stacks = [_packed(matrix, device, cut) for matrix, cut in zip(matrices, (1 + slices % 2, 1), strict=True)]
        for tokens in (1, ALONE_PAIRS // TOP_K + 1):
            x, shared = torch.randn(2, tokens, HIDDEN, generator=generator).bfloat16()
            routing = torch.randn(tokens, EXPERTS + 1, generator=generator).bfloat16()
            found = moe_experts(x.to(device), routing.to(device), stacks[0], stacks[1], TOP_K, shared.to(device))
            expected = reference.moe_experts(
                x.double(), routing.double(), values[0].double(), values[1].double(), TOP_K, shared.double()
            )
            assert_close(f"moe_{FORMATS[_format(matrices[0])].name}", found, expected, TOLERANCE)


def _format(matrix: Matrix) -> str:
    weights = stream_format(matrix)
    assert weights is not None
    return weights.name


def _packed(matrix: Matrix, device: torch.device, slices: int) -> PackedLinear:
    planes: dict[str, Any] = {name: plane.to(device) for name, plane in matrix.planes.items()}
    multiprocessors = device_of(device).multiprocessors
    segment = stream_segment(replace(matrix, **planes), FORMATS[_format(matrix)], slices, multiprocessors)
    return PackedLinear((segment,))


def _matrices(generator: torch.Generator) -> list[tuple[Matrix, Matrix]]:
    """Of every format that streams, ``gate | up`` and ``down``."""

    def words(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator).to(torch.uint8)

    def of(rows: int, columns: int) -> list[Matrix]:
        shape = EXPERTS, rows
        multiplier = torch.rand(*shape, generator=generator) + 0.5
        scales = torch.randn(*shape, columns // 32, generator=generator).half() / 64
        low, high, wide = words(256, *shape, columns // 2), words(256, *shape, columns // 4), scales[..., ::2]
        block_scales = (torch.rand(EXPERTS, 3, columns // 128, generator=generator) + 0.5) / 64
        block_of_row = torch.randint(0, 3, shape, generator=generator).int()
        return [
            Nvfp4Matrix(words(256, *shape, columns // 2), words(64, *shape, columns // 16), multiplier),
            Fp8RowMatrix(words(100, *shape, columns) | words(2, *shape, columns) << 7, multiplier / 64),
            GroupedMatrix(8, columns, words(256, *shape, columns), None, scales),
            GroupedMatrix(4, columns, low, None, wide.contiguous()),
            GroupedMatrix(5, columns, low, high[..., : columns // 8].contiguous(), wide.contiguous()),
            GroupedMatrix(6, columns, low, high, wide.contiguous()),
            Fp8BlockMatrix(words(100, *shape, columns) | words(2, *shape, columns) << 7, block_scales, block_of_row),
            DenseMatrix(torch.randn(*shape, columns, generator=generator).bfloat16() / 16),
        ]

    return list(zip(of(2 * INNER, HIDDEN), of(HIDDEN, INNER), strict=True))


GROUP = OpGroup(
    "moe",
    tuple(spec.name for spec in USUAL_KERNELS),
    {"moe_experts": partial(moe_experts, formats=USUAL_FORMATS)},
    check,
    variants=(
        Variant(
            "moe_q5_q6_fp8_block",
            (*LARGE_ARCHS, *SMALL_ARCHS),
            tuple(spec.name for spec in FURTHER_KERNELS),
            {"moe_experts": moe_experts},
            partial(check, formats=FURTHER_FORMATS),
        ),
    ),
)

"""The gated delta rule by CUDA kernels; torch takes what they do not: other head sizes, types and layouts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.nvidia.gated_delta_kernels import KERNELS
from kernels_numba.nvidia.gated_delta_layout import (
    CHUNK,
    CHUNK_SHARED_BYTES,
    DIM,
    OUT_TOKENS,
    ROW_BYTES,
    SCAN_COLUMNS,
    SCAN_SHARED_BYTES,
    TAPS,
    step_shared_bytes,
)
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import GatedDeltaShape, GatedDeltaWeights
from kernels_numba.torch_ops import gated_delta as torch_gated_delta

PROGRAMMATIC = True
"""Whether steps are launched so that they may begin before their predecessor ends."""
CHUNKED_FROM = 24
"""Tokens from which the chunked form is used; fewer go one by one."""
SPAN_TOKENS = 4096
"""Most tokens of a pass in the chunked form, which bounds its scratch to 38 KiB a token (27B)."""
PARTIAL_BYTES = 16 << 20
COUNTERS = 1 << 16
ROUNDING = 4e-3
"""Of results in bfloat16, by norm; 1.7e-3 is usual."""


@dataclass(frozen=True)
class _Workspace:
    """What blocks of the step kernel leave to each other. One per device: launches follow one another on one stream."""

    partial: Tensor  # outputs before the norm
    counters: Tensor  # zero between launches


@lru_cache
def _workspace(device: torch.device) -> _Workspace:
    partial = torch.empty(PARTIAL_BYTES // 4, dtype=torch.float32, device=device)
    return _Workspace(partial, torch.zeros(COUNTERS, dtype=torch.int32, device=device))


def gated_delta_decode(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    if not _fits(projected, weights, conv, recurrent, slots, shape):
        return torch_gated_delta.gated_delta_decode(projected, weights, conv, recurrent, layer, slots, shape)
    out = torch.empty((projected.shape[0], shape.value_width), dtype=projected.dtype, device=projected.device)
    most = min(PARTIAL_BYTES // (4 * shape.value_width), COUNTERS // (shape.key_heads + shape.value_heads))
    if projected.shape[0] <= most:
        _step(projected, 1, weights, conv, recurrent, layer, slots, shape, out, PROGRAMMATIC)
        return out
    for start in range(0, projected.shape[0], most):
        rows = slice(start, start + most)
        _step(projected[rows], 1, weights, conv, recurrent, layer, slots[rows], shape, out[rows], PROGRAMMATIC)
    return out


def gated_delta_prefill(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    if not _fits(projected, weights, conv, recurrent, slots, shape):
        return torch_gated_delta.gated_delta_prefill(projected, weights, conv, recurrent, layer, slots, shape)
    out = torch.empty((projected.shape[0], shape.value_width), dtype=projected.dtype, device=projected.device)
    for start in range(0, projected.shape[0], SPAN_TOKENS):
        rows = slice(start, start + SPAN_TOKENS)
        span = projected[rows]
        if span.shape[0] < CHUNKED_FROM:
            # not while the pass before still writes the states
            programmatic = PROGRAMMATIC and start == 0
            _step(span, span.shape[0], weights, conv, recurrent, layer, slots, shape, out[rows], programmatic)
        else:
            _chunked(span, weights, conv, recurrent, layer, slots, shape, out[rows])
    return out


def _fits(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> bool:
    return (
        (shape.key_dim, shape.value_dim, shape.conv_kernel) == (DIM, DIM, TAPS)
        and shape.value_heads % 2 == 0  # rows of whole words of 8 bytes
        and projected.dtype == conv.dtype == torch.bfloat16
        and projected.is_contiguous()
        and projected.data_ptr() % 8 == 0
        and weights.conv.is_contiguous()
        and weights.conv.data_ptr() % 16 == 0
        and weights.norm.data_ptr() % 16 == 0
        and slots.dtype == torch.int64
        and slots.is_contiguous()
        and slots.device == projected.device
        and conv.is_contiguous()
        and recurrent.is_contiguous()
    )


def step_splits(heads: int, multiprocessors: int) -> int:
    """Blocks that share a head, of so many in a launch."""
    return 1 if heads < 2 * multiprocessors else 2


def _step(
    projected: Tensor,
    tokens: int,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
    out: Tensor,
    programmatic: bool,
) -> None:
    """``tokens`` rows of each of the sequences in ``slots``, one after the other."""
    device = device_of(projected.device)
    workspace = _workspace(projected.device)
    sequences = slots.shape[0]
    if not sequences:
        return
    splits = step_splits(sequences * shape.value_heads, device.multiprocessors)
    device.kernel(f"gated_delta_step_{splits}")(
        (shape.value_heads * splits, sequences, 1),
        projected.data_ptr(),
        conv.data_ptr() + layer * 2 * conv.stride(1),
        recurrent.data_ptr() + layer * 4 * recurrent.stride(1),
        slots.data_ptr(),
        weights.conv.data_ptr(),
        weights.decay_rate.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.norm.data_ptr(),
        workspace.partial.data_ptr(),
        workspace.counters.data_ptr(),
        workspace.counters.data_ptr() + 4 * sequences * shape.key_heads,
        out.data_ptr(),
        2 * projected.stride(0),
        2 * conv.stride(0),
        4 * recurrent.stride(0),
        tokens,
        shape.key_heads,
        shape.value_heads,
        shape.value_heads // shape.key_heads,
        weights.eps,
        shared_bytes=step_shared_bytes(splits),
        programmatic=programmatic,
    )


def _chunked(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
    out: Tensor,
) -> None:
    """The rows of the one sequence in ``slots``, at least as many as the conv looks back."""
    device, tokens = device_of(projected.device), projected.shape[0]
    chunks = -(-tokens // CHUNK)
    padded = chunks * CHUNK
    key_heads, value_heads = shape.key_heads, shape.value_heads
    conv_heads, gate_bytes = 2 * key_heads + value_heads, 4 * value_heads * padded
    sizes = (
        conv_heads * padded * ROW_BYTES,  # heads: query, key, value; the latter then corrected, then the output
        value_heads * padded * ROW_BYTES,  # carried
        value_heads * padded * CHUNK * 2,  # within
        *[gate_bytes] * 3,  # log decay, its running sum, beta
    )
    scratch = torch.empty(sum(sizes), dtype=torch.uint8, device=projected.device)
    heads, carried, within, log_decay, decay, beta = (
        scratch.data_ptr() + offset for offset in accumulate(sizes[:-1], initial=0)
    )
    conv_at = conv.data_ptr() + layer * 2 * conv.stride(1)
    row_stride, conv_stride = 2 * projected.stride(0), 2 * conv.stride(0)
    device.kernel("gated_delta_conv")(
        (chunks, conv_heads, 1),
        projected.data_ptr(),
        conv_at,
        slots.data_ptr(),
        weights.conv.data_ptr(),
        weights.decay_rate.data_ptr(),
        weights.dt_bias.data_ptr(),
        heads,
        log_decay,
        beta,
        *(row_stride, conv_stride, tokens, padded, key_heads, value_heads),
    )
    device.kernel("gated_delta_chunk")(
        (chunks, value_heads, 1),
        *(heads, log_decay, beta, carried, within, decay, chunks, key_heads, value_heads // key_heads),
        shared_bytes=CHUNK_SHARED_BYTES,
    )
    device.kernel("gated_delta_scan")(
        (DIM // SCAN_COLUMNS, value_heads, 1),
        *(heads, carried, within, decay, recurrent.data_ptr() + layer * 4 * recurrent.stride(1), slots.data_ptr()),
        *(4 * recurrent.stride(0), chunks, key_heads, value_heads // key_heads),
        shared_bytes=SCAN_SHARED_BYTES,
    )
    device.kernel("gated_delta_out")(
        (-(-tokens // OUT_TOKENS), value_heads, 1),
        heads + 2 * key_heads * padded * ROW_BYTES,
        projected.data_ptr(),
        weights.norm.data_ptr(),
        conv_at,
        slots.data_ptr(),
        out.data_ptr(),
        *(row_stride, conv_stride, tokens, padded, key_heads, value_heads, weights.eps),
    )


def _check(device: torch.device) -> None:
    """Outputs and states against the reference in float64."""
    shape = GatedDeltaShape(key_heads=2, value_heads=6, key_dim=DIM, value_dim=DIM, conv_kernel=TAPS)
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    exact = GatedDeltaWeights(
        conv=0.5 * normal(TAPS, shape.conv_channels),
        decay_rate=-normal(shape.value_heads).exp(),
        dt_bias=normal(shape.value_heads),
        norm=1 + 0.2 * normal(DIM),
        eps=1e-6,
    )
    weights = GatedDeltaWeights(
        exact.conv.to(device), exact.decay_rate.to(device), exact.dt_bias.to(device), exact.norm.to(device), exact.eps
    )
    conv = normal(3, 2, shape.conv_channels, TAPS - 1).bfloat16()
    recurrent = normal(3, 2, shape.value_heads, DIM, DIM)
    found_conv, found_recurrent = conv.to(device), recurrent.to(device)
    conv, recurrent = conv.double(), recurrent.double()
    slots = torch.tensor([2, 0])
    for _ in range(2):
        projected = normal(2, shape.projected_width).bfloat16()
        out = gated_delta_decode(projected.to(device), weights, found_conv, found_recurrent, 1, slots.to(device), shape)
        expected = reference.gated_delta_decode(projected.double(), exact, conv, recurrent, 1, slots, shape)
        assert_close("gated_delta_step", out, expected, ROUNDING)
    assert_close("gated_delta_step", found_recurrent, recurrent, 1e-5)
    projected, slots = normal(CHUNK + 9, shape.projected_width).bfloat16(), torch.tensor([1])
    out = gated_delta_prefill(projected.to(device), weights, found_conv, found_recurrent, 1, slots.to(device), shape)
    expected = reference.gated_delta_prefill(projected.double(), exact, conv, recurrent, 1, slots, shape)
    assert_close("gated_delta_chunk and _scan", out, expected, ROUNDING)
    assert_close("gated_delta_chunk and _scan", found_recurrent, recurrent, 2e-3)
    assert_close("gated_delta_step and _out", found_conv, conv, 1e-9)


GROUP = OpGroup(
    "gated delta rule",
    tuple(spec.name for spec in KERNELS),
    {"gated_delta_decode": gated_delta_decode, "gated_delta_prefill": gated_delta_prefill},
    _check,
)

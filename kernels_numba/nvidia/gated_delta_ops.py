"""The gated delta rule by CUDA kernels; torch takes what they do not: other head sizes, types and layouts."""

from __future__ import annotations

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
    MOST_ROWS,
    OUT_TOKENS,
    SCAN_COLUMNS,
    STEP_SHARED_BYTES,
    TAPS,
    TILE_BYTES,
    rows_shared_bytes,
    scan_stage_bytes,
)
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import OpGroup, assert_close
from kernels_numba.shapes import GatedDeltaPending, GatedDeltaShape, GatedDeltaWeights
from kernels_numba.torch_ops import gated_delta as torch_gated_delta

PROGRAMMATIC = True
"""Whether steps are launched so that they may begin before their predecessor ends."""
CHUNKED_FROM = TAPS - 1
"""Tokens from which the chunked form is used; fewer go one by one."""
SPAN_TOKENS = 4096
"""Most tokens of a pass in the chunked form, which bounds its scratch to 52 KiB a token (27B)."""
COUNTERS = 1 << 16
"""Of sequences times key heads in a launch, at most."""
ROUNDING = 4e-3
"""Of results in bfloat16, by norm; 1.7e-3 is usual."""


_last_states: dict[torch.device, tuple[int, int]] = {}
"""By device: where the states begin that the last step or round writes, and the layer."""


@lru_cache
def _counters(device: torch.device) -> Tensor:
    """By which blocks find the last of them; zero between launches, which follow one another on one stream."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


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
    most = COUNTERS // shape.key_heads
    for start in range(0, projected.shape[0], most):
        rows = slice(start, start + most)
        _step(projected[rows], weights, conv, recurrent, layer, slots[rows], shape, out[rows])
    return out


def gated_delta_round(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    layer: int,
    slots: Tensor,
    accepted: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    sequences = slots.shape[0]
    if not (
        _fits(projected, weights, conv, recurrent, slots, shape)
        and _pending_fits(pending, accepted)
        and sequences * shape.key_heads <= COUNTERS
    ):
        return torch_gated_delta.gated_delta_round(
            projected, weights, conv, recurrent, pending, layer, slots, accepted, shape
        )
    device = device_of(projected.device)
    out = torch.empty((projected.shape[0], shape.value_width), dtype=projected.dtype, device=projected.device)
    device.kernel(_kernel_for(device.arch, "gated_delta_rows"))(
        (shape.value_heads, sequences, 1),
        projected.data_ptr(),
        *_at(layer, conv, recurrent, *_tensors(pending)),
        slots.data_ptr(),
        accepted.data_ptr(),
        weights.conv.data_ptr(),
        weights.decay_rate.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.norm.data_ptr(),
        _counters(projected.device).data_ptr(),
        out.data_ptr(),
        2 * projected.stride(0),
        *_slot_bytes(conv, recurrent, *_tensors(pending)),
        projected.shape[0] // sequences,
        pending.rows,
        shape.key_heads,
        shape.value_heads,
        shape.value_heads // shape.key_heads,
        weights.eps,
        shared_bytes=rows_shared_bytes(pending.rows),
        programmatic=_may_overlap(recurrent, layer),
    )
    return out


def gated_delta_commit(
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    slots: Tensor,
    accepted: Tensor,
    shape: GatedDeltaShape,
) -> None:
    if not (_states_fit(conv, recurrent, slots, shape) and _pending_fits(pending, accepted)):
        torch_gated_delta.gated_delta_commit(conv, recurrent, pending, slots, accepted, shape)
        return
    device_of(conv.device).kernel("gated_delta_commit")(
        (shape.value_heads, slots.shape[0], conv.shape[1]),
        *_at(0, conv, recurrent, *_tensors(pending)),
        slots.data_ptr(),
        accepted.data_ptr(),
        *_slot_bytes(conv, recurrent, *_tensors(pending)),
        pending.rows,
        shape.key_heads,
        shape.value_heads,
        shape.value_heads // shape.key_heads,
        shared_bytes=rows_shared_bytes(pending.rows),
    )


def _tensors(pending: GatedDeltaPending) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return pending.inputs, pending.keys, pending.deltas, pending.log_decays


def _at(layer: int, *states: Tensor) -> list[int]:
    """Where the layer of slot 0 begins in each of ``states [slots, layers, ...]``."""
    return [state.data_ptr() + layer * state.stride(1) * state.itemsize for state in states]


def _slot_bytes(*states: Tensor) -> list[int]:
    return [state.stride(0) * state.itemsize for state in states]


def _kernel_for(arch: str, module: str) -> str:
    """The one kernel that a module has for a target."""
    (name,) = (spec.name for spec in KERNELS if spec.module == module and arch in spec.archs)
    return name


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
        if projected[rows].shape[0] >= CHUNKED_FROM:
            _chunked(projected[rows], weights, conv, recurrent, layer, slots, shape, out[rows])
            continue
        for token in range(start, projected.shape[0]):
            row = slice(token, token + 1)
            _step(projected[row], weights, conv, recurrent, layer, slots, shape, out[row])
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
        _states_fit(conv, recurrent, slots, shape)
        and shape.value_heads % 2 == 0  # rows of whole words of 8 bytes
        and projected.dtype == torch.bfloat16
        and projected.is_contiguous()
        and projected.data_ptr() % 8 == 0
        and weights.conv.is_contiguous()
        and weights.conv.data_ptr() % 16 == 0
        and weights.norm.data_ptr() % 16 == 0
    )


def _states_fit(conv: Tensor, recurrent: Tensor, slots: Tensor, shape: GatedDeltaShape) -> bool:
    return (
        (shape.key_dim, shape.value_dim, shape.conv_kernel) == (DIM, DIM, TAPS)
        and conv.dtype == torch.bfloat16
        and slots.dtype == torch.int64
        and slots.is_contiguous()
        and slots.device == conv.device
        and conv.is_contiguous()
        and recurrent.is_contiguous()
    )


def _pending_fits(pending: GatedDeltaPending, accepted: Tensor) -> bool:
    return (
        pending.rows <= MOST_ROWS
        and pending.inputs.dtype == torch.bfloat16
        and all(tensor.is_contiguous() for tensor in _tensors(pending))
        and accepted.dtype == torch.int64
        and accepted.is_contiguous()
    )


def _step(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
    out: Tensor,
) -> None:
    """A row of each of the sequences in ``slots``."""
    device_of(projected.device).kernel("gated_delta_step")(
        (shape.value_heads, slots.shape[0], 1),
        projected.data_ptr(),
        *_at(layer, conv, recurrent),
        slots.data_ptr(),
        weights.conv.data_ptr(),
        weights.decay_rate.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.norm.data_ptr(),
        _counters(projected.device).data_ptr(),
        out.data_ptr(),
        2 * projected.stride(0),
        *_slot_bytes(conv, recurrent),
        shape.key_heads,
        shape.value_heads,
        shape.value_heads // shape.key_heads,
        weights.eps,
        shared_bytes=STEP_SHARED_BYTES,
        programmatic=_may_overlap(recurrent, layer),
    )


def _may_overlap(recurrent: Tensor, layer: int) -> bool:
    """Whether a step or round may be put in place while the launch in front of it runs.

    They read the states before they wait for it, so it must not be one that writes them: the step or round of the same
    layer, with nothing in between. What lies further back has ended, as they let nothing begin before they have waited.
    """
    states = (recurrent.data_ptr(), layer)
    before, _last_states[recurrent.device] = _last_states.get(recurrent.device), states
    return PROGRAMMATIC and before != states


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
    tile_bytes = chunks * TILE_BYTES
    sizes = (
        (2 * key_heads + value_heads) * tile_bytes,  # query, key and corrected values
        value_heads * tile_bytes,  # carried
        value_heads * padded * CHUNK * 2,  # within
        value_heads * tile_bytes,  # outputs
        value_heads * padded * 8,  # two factors of every token
        value_heads * chunks * 32,  # units of outputs
        value_heads * chunks * 4,  # units of corrected values
    )
    scratch = torch.empty(sum(sizes), dtype=torch.uint8, device=projected.device)
    heads, carried, within, outputs, factors, out_units, units = (
        scratch.data_ptr() + offset for offset in accumulate(sizes[:-1], initial=0)
    )
    (conv_at, state_at), slot_bytes = _at(layer, conv, recurrent), _slot_bytes(conv, recurrent)
    row_stride = 2 * projected.stride(0)
    device.kernel(_kernel_for(device.arch, "gated_delta_chunk"))(
        (chunks, key_heads, 1),
        projected.data_ptr(),
        conv_at,
        slots.data_ptr(),
        weights.conv.data_ptr(),
        weights.decay_rate.data_ptr(),
        weights.dt_bias.data_ptr(),
        *(heads, carried, within, factors, units),
        *(row_stride, slot_bytes[0], tokens, chunks, key_heads, value_heads),
        shared_bytes=CHUNK_SHARED_BYTES,
    )
    stages = 2 if device.shared_bytes_per_block >= 2 * scan_stage_bytes(SCAN_COLUMNS) else 1
    device.kernel("gated_delta_scan")(
        (DIM // SCAN_COLUMNS, value_heads, 1),
        *(heads, carried, within, factors, units, state_at, slots.data_ptr(), outputs, out_units),
        *(slot_bytes[1], chunks, key_heads, value_heads // key_heads, stages),
        shared_bytes=stages * scan_stage_bytes(SCAN_COLUMNS),
    )
    device.kernel("gated_delta_out")(
        (-(-tokens // OUT_TOKENS), value_heads, 1),
        *(outputs, out_units),
        projected.data_ptr(),
        weights.norm.data_ptr(),
        conv_at,
        slots.data_ptr(),
        out.data_ptr(),
        *(row_stride, slot_bytes[0], tokens, padded, key_heads, value_heads, weights.eps),
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
    pending = GatedDeltaPending(
        inputs=torch.zeros(3, 2, 4, shape.conv_channels),
        keys=torch.zeros(3, 2, 4, shape.key_heads, DIM),
        deltas=torch.zeros(3, 2, 4, shape.value_heads, DIM),
        log_decays=torch.zeros(3, 2, 4, shape.value_heads),
    )
    inputs, keys, deltas, log_decays = (tensor.to(device) for tensor in _tensors(pending))
    found_pending = GatedDeltaPending(inputs.bfloat16(), keys, deltas, log_decays)
    for accepted in ([0, 0], [3, 1]):
        counts, projected = torch.tensor(accepted), normal(2 * 4, shape.projected_width).bfloat16()
        out = gated_delta_round(
            *(projected.to(device), weights, found_conv, found_recurrent, found_pending, 1),
            *(slots.to(device), counts.to(device), shape),
        )
        expected = reference.gated_delta_round(
            projected.double(), exact, conv, recurrent, pending, 1, slots, counts, shape
        )
        assert_close("gated_delta_rows", out, expected, ROUNDING)
    counts = torch.tensor([2, 4])
    gated_delta_commit(found_conv, found_recurrent, found_pending, slots.to(device), counts.to(device), shape)
    reference.gated_delta_commit(conv, recurrent, pending, slots, counts, shape)
    assert_close("gated_delta_commit", found_recurrent, recurrent, 1e-5)
    projected, slots = normal(CHUNK + 9, shape.projected_width).bfloat16(), torch.tensor([1])
    out = gated_delta_prefill(projected.to(device), weights, found_conv, found_recurrent, 1, slots.to(device), shape)
    expected = reference.gated_delta_prefill(projected.double(), exact, conv, recurrent, 1, slots, shape)
    assert_close("gated_delta_chunk and _scan", out, expected, ROUNDING)
    assert_close("gated_delta_chunk and _scan", found_recurrent, recurrent, 2e-3)
    assert_close("gated_delta_step and _out", found_conv, conv, 1e-9)


GROUP = OpGroup(
    "gated delta rule",
    tuple(spec.name for spec in KERNELS),
    {
        "gated_delta_decode": gated_delta_decode,
        "gated_delta_prefill": gated_delta_prefill,
        "gated_delta_round": gated_delta_round,
        "gated_delta_commit": gated_delta_commit,
    },
    _check,
)

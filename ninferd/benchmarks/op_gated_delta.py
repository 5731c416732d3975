"""The gated delta rule: a round's step of one row and of several, and prefill chunks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ninferd.benchmarks.kernels import KernelOptions, Timing
from ninferd.benchmarks.rehearsal import pending_rows
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import seconds_per_call
from ninferd.models.qwen3_5.gated_delta import GatedDeltaLayer


def measure_gated_delta(subject: Subject, options: KernelOptions) -> Iterator[Timing]:
    """With convolution, gates and gated norm; states of all layers take turns."""
    config, ops = subject.model.config, subject.model.ops
    shape, layers = config.gated_delta, config.gdn_layer_count
    mixers = (layer.mixer for layer in subject.model.weights.layers)
    weights = [mixer.weights for mixer in mixers if isinstance(mixer, GatedDeltaLayer)]
    most = max(options.lanes)
    device, dtype = subject.device, subject.model.dtype
    conv = torch.randn(most, layers, shape.conv_channels, shape.conv_kernel - 1, device=device).to(dtype)
    recurrent = torch.randn(most, layers, shape.value_heads, shape.key_dim, shape.value_dim, device=device)
    state_bytes = 2 * (recurrent[0, 0].nbytes + conv[0, 0].nbytes)  # read and written
    for lanes in options.lanes:
        projected = torch.randn(lanes, shape.projected_width, device=device).to(dtype)
        slots = torch.arange(lanes, device=device)
        calls = [
            partial(ops.gated_delta_decode, projected, weights[layer], conv, recurrent, layer, slots, shape)
            for layer in range(layers)
        ]
        per_call = seconds_per_call(calls, device)
        size = lanes * (state_bytes + projected[0].nbytes)
        yield Timing("gated_delta_decode", "conv, gates, rule, norm", 1, per_call, lanes=lanes, read_bytes=size)
        pending = pending_rows(shape, conv[:lanes])
        accepted = torch.ones(lanes, dtype=torch.int64, device=device)
        for rows in (rows for rows in options.rows if rows > 1):
            projected = torch.randn(lanes * rows, shape.projected_width, device=device).to(dtype)
            calls = [
                partial(
                    ops.gated_delta_round,
                    *(projected, weights[layer], conv, recurrent, pending, layer, slots, accepted, shape),
                )
                for layer in range(layers)
            ]
            per_call = seconds_per_call(calls, device)
            size = lanes * (state_bytes + rows * projected[0].nbytes)
            yield Timing("gated_delta_round", "rows that stay pending", rows, per_call, lanes=lanes, read_bytes=size)
    for rows in options.prefill_rows:
        projected = torch.randn(rows, shape.projected_width, device=device).to(dtype)
        slots = torch.zeros(1, dtype=torch.int64, device=device)
        calls = [
            partial(ops.gated_delta_prefill, projected, weights[layer], conv, recurrent, layer, slots, shape)
            for layer in range(min(4, layers))
        ]
        size = state_bytes + projected.nbytes + rows * shape.value_width * dtype.itemsize
        per_call = seconds_per_call(calls, device)
        yield Timing("gated_delta_prefill", "conv, gates, rule, norm", rows, per_call, read_bytes=size)

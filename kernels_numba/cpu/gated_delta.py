"""The gated delta rule as a token recurrence, for decode and prefill alike.

On a CPU the recurrence needs fewer operations than the chunked form, and its result is the same bits however a
sequence is cut into chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_numba.cpu.jit import ORDERED, REORDERED, compiled
from kernels_numba.cpu.products import add_products_of_one
from kernels_numba.cpu.rows import rms_norm_row
from kernels_numba.cpu.scalar import sigmoid, silu
from kernels_numba.cpu.storage import load32, store32, stored
from kernels_numba.shapes import L2_EPS, GatedDeltaShape, GatedDeltaWeights


def gated_delta_decode(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    return _run(projected, 1, weights, conv, recurrent, layer, slots, shape)


def gated_delta_prefill(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    return _run(projected, projected.shape[0], weights, conv, recurrent, layer, slots, shape)


def _run(
    projected: Tensor,
    tokens_each: int,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    out = torch.empty(projected.shape[0], shape.value_width)
    _sequences(
        projected.numpy(),
        tokens_each,
        weights.conv.numpy(),
        weights.decay_rate.numpy(),
        weights.dt_bias.numpy(),
        weights.norm.numpy(),
        weights.eps,
        stored(conv),
        recurrent.numpy(),
        layer,
        slots.numpy(),
        shape.key_heads,
        out.numpy(),
    )
    return out


@compiled(ORDERED)
def _sequences(
    projected: Any,
    tokens_each: Any,
    conv_weight: Any,
    decay_rate: Any,
    dt_bias: Any,
    norm: Any,
    eps: Any,
    conv: Any,
    recurrent: Any,
    layer: Any,
    slots: Any,
    key_heads: Any,
    out: Any,
) -> None:
    taps, channels = conv_weight.shape
    value_heads, key_dim, value_dim = recurrent.shape[2:]
    key_width = key_heads * key_dim
    group = value_heads // key_heads
    mixed = np.empty(channels, np.float32)
    scratch = np.empty(value_dim, np.float32)
    window = np.empty((2 * (taps - 1), channels), np.float32)
    for sequence in range(slots.shape[0]):
        first = sequence * tokens_each
        rows = projected[first : first + tokens_each]
        state = recurrent[slots[sequence], layer]
        _fill_window(conv[slots[sequence], layer], rows, window)
        for token in range(tokens_each):
            row, out_row = rows[token], out[first + token]
            _convolve(rows, window, token, conv_weight, mixed)
            for head in range(key_heads):
                _normalise(mixed[head * key_dim : (head + 1) * key_dim], np.float32(1 / np.sqrt(key_dim)))
                start = key_width + head * key_dim
                _normalise(mixed[start : start + key_dim], np.float32(1))
            gates = row[channels + value_heads * value_dim :]
            for head in range(value_heads):
                beta = sigmoid(gates[head])
                decay = np.float32(np.exp(decay_rate[head] * _softplus(gates[value_heads + head] + dt_bias[head])))
                shared = head // group * key_dim
                query, key = mixed[shared : shared + key_dim], mixed[key_width + shared : key_width + shared + key_dim]
                columns = slice(head * value_dim, (head + 1) * value_dim)
                read = out_row[columns]
                _advance(state[head], query, key, mixed[2 * key_width :][columns], decay, beta, scratch, read)
                rms_norm_row(read, norm, eps, read)
                _gate(read, row[channels:][columns])
        _save_window(conv[slots[sequence], layer], rows, window)


@compiled(ORDERED)
def _fill_window(history: Any, rows: Any, window: Any) -> None:
    """``window`` = the conv inputs of the ``taps - 1`` tokens before this chunk and of as many of its first tokens."""
    channels, past = history.shape
    for step in range(past):
        for c in range(channels):
            window[step, c] = load32(history[c, step])
    for step in range(min(past, rows.shape[0])):
        window[past + step] = rows[step, :channels]


@compiled(ORDERED)
def _save_window(history: Any, rows: Any, window: Any) -> None:
    """Keep the conv inputs of the last ``taps - 1`` tokens, of this chunk or before it."""
    channels, past = history.shape
    tokens = rows.shape[0]
    for step in range(past):
        token = tokens - past + step
        source = rows[token, :channels] if token >= 0 else window[past + token]
        for c in range(channels):
            store32(history, (c, step), source[c])


@compiled(ORDERED)
def _convolve(rows: Any, window: Any, token: Any, weight: Any, mixed: Any) -> None:
    """``mixed`` = silu of the causal convolution at ``token``; ``weight [taps, channels]``."""
    taps, channels = weight.shape
    past = taps - 1
    mixed[:] = 0
    for tap in range(taps):
        source = window[token + tap] if token < past else rows[token - past + tap, :channels]
        for c in range(channels):
            mixed[c] = mixed[c] + weight[tap, c] * source[c]
    for c in range(channels):
        mixed[c] = silu(mixed[c])


@compiled(ORDERED)
def _gate(x: Any, z: Any) -> None:
    for c in range(x.shape[0]):
        x[c] = x[c] * silu(z[c])


@compiled(REORDERED)
def _normalise(x: Any, scale: Any) -> None:
    """Scale to length ``scale`` in place."""
    squares = np.float32(0)
    for c in range(x.shape[0]):
        squares += x[c] * x[c]
    factor = np.float32(scale / np.sqrt(squares + L2_EPS))
    for c in range(x.shape[0]):
        x[c] = x[c] * factor


@compiled(ORDERED)
def _softplus(x: Any) -> Any:
    return x if x > 20 else np.log1p(np.exp(x))


@compiled(ORDERED)
def _advance(state: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any, delta: Any, read: Any) -> None:
    """One token: ``state [DK, DV] = decay * state + key * delta``, ``read = query @ state``."""
    key_dim, value_dim = state.shape
    delta[:] = 0
    add_products_of_one(key, state, delta)
    for j in range(value_dim):
        delta[j] = beta * (value[j] - decay * delta[j])
    for i in range(key_dim):
        k, line = key[i], state[i]
        for j in range(value_dim):
            line[j] = decay * line[j] + k * delta[j]
    read[:] = 0
    add_products_of_one(query, state, read)

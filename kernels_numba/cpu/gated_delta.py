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
from kernels_numba.shapes import L2_EPS, GatedDeltaPending, GatedDeltaShape, GatedDeltaWeights


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
    out = torch.empty(projected.shape[0], shape.value_width)
    _round(
        projected.numpy(),
        weights.conv.numpy(),
        weights.decay_rate.numpy(),
        weights.dt_bias.numpy(),
        weights.norm.numpy(),
        weights.eps,
        stored(conv),
        recurrent.numpy(),
        *_arrays(pending),
        layer,
        slots.numpy(),
        accepted.numpy(),
        out.numpy(),
    )
    return out


def gated_delta_commit(
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    slots: Tensor,
    accepted: Tensor,
    shape: GatedDeltaShape,  # noqa: ARG001  (the tensors tell)
) -> None:
    _commit(stored(conv), recurrent.numpy(), *_arrays(pending), slots.numpy(), accepted.numpy())


def _arrays(pending: GatedDeltaPending) -> tuple[Any, Any, Any, Any]:
    return stored(pending.inputs), pending.keys.numpy(), pending.deltas.numpy(), pending.log_decays.numpy()


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
    window = np.empty((2 * (taps - 1), channels), np.float32)
    keys = np.empty((0, key_heads, key_dim), np.float32)  # nobody wants them
    deltas = np.empty((0, value_heads, value_dim), np.float32)
    log_decays = np.empty((0, value_heads), np.float32)
    for sequence in range(slots.shape[0]):
        rows = projected[sequence * tokens_each : (sequence + 1) * tokens_each]
        out_rows = out[sequence * tokens_each : (sequence + 1) * tokens_each]
        state, history = recurrent[slots[sequence], layer], conv[slots[sequence], layer]
        _fill_window(history, rows, window)
        _tokens(rows, window, conv_weight, decay_rate, dt_bias, norm, eps, state, keys, deltas, log_decays, out_rows)
        _save_window(history, rows, window)


@compiled(ORDERED)
def _round(
    projected: Any,
    conv_weight: Any,
    decay_rate: Any,
    dt_bias: Any,
    norm: Any,
    eps: Any,
    conv: Any,
    recurrent: Any,
    inputs: Any,
    keys: Any,
    deltas: Any,
    log_decays: Any,
    layer: Any,
    slots: Any,
    accepted: Any,
    out: Any,
) -> None:
    taps, channels = conv_weight.shape
    tokens = projected.shape[0] // slots.shape[0]
    window = np.empty((2 * (taps - 1), channels), np.float32)
    state = np.empty(recurrent.shape[2:], np.float32)
    for sequence in range(slots.shape[0]):
        rows, slot = projected[sequence * tokens : (sequence + 1) * tokens], slots[sequence]
        history = conv[slot, layer]
        row_keys, row_deltas, row_decays = keys[slot, layer], deltas[slot, layer], log_decays[slot, layer]
        _fold(
            history, recurrent[slot, layer], inputs[slot, layer], row_keys, row_deltas, row_decays, accepted[sequence]
        )
        state[:] = recurrent[slot, layer]
        _fill_window(history, rows, window)
        out_rows = out[sequence * tokens : (sequence + 1) * tokens]
        _tokens(
            rows, window, conv_weight, decay_rate, dt_bias, norm, eps, state, row_keys, row_deltas, row_decays, out_rows
        )
        for token in range(tokens):
            for c in range(channels):
                store32(inputs[slot, layer], (token, c), rows[token, c])


@compiled(ORDERED)
def _commit(
    conv: Any, recurrent: Any, inputs: Any, keys: Any, deltas: Any, log_decays: Any, slots: Any, accepted: Any
) -> None:
    for sequence in range(slots.shape[0]):
        slot, count = slots[sequence], accepted[sequence]
        for layer in range(conv.shape[1]):
            _fold(
                conv[slot, layer],
                recurrent[slot, layer],
                inputs[slot, layer],
                keys[slot, layer],
                deltas[slot, layer],
                log_decays[slot, layer],
                count,
            )


@compiled(ORDERED)
def _fold(history: Any, state: Any, inputs: Any, keys: Any, deltas: Any, log_decays: Any, count: Any) -> None:
    """The first ``count`` pending rows become part of conv state and state."""
    channels, past = history.shape
    value_heads, key_dim, value_dim = state.shape
    group = value_heads // keys.shape[1]
    for token in range(count):
        for c in range(channels):
            for step in range(past - 1):
                store32(history, (c, step), load32(history[c, step + 1]))
            store32(history, (c, past - 1), load32(inputs[token, c]))
        for head in range(value_heads):
            before = log_decays[token - 1, head] if token else np.float32(0)
            decay = np.float32(np.exp(log_decays[token, head] - before))
            key, delta = keys[token, head // group], deltas[token, head]
            for i in range(key_dim):
                k, line = key[i], state[head, i]
                for j in range(value_dim):
                    line[j] = decay * line[j] + k * delta[j]


@compiled(ORDERED)
def _tokens(
    rows: Any,
    window: Any,
    conv_weight: Any,
    decay_rate: Any,
    dt_bias: Any,
    norm: Any,
    eps: Any,
    state: Any,
    keys: Any,
    deltas: Any,
    log_decays: Any,
    out: Any,
) -> None:
    """Tokens of one sequence; advances ``state``, and keeps what each adds to it in as many rows as there are."""
    channels = conv_weight.shape[1]
    value_heads, key_dim, value_dim = state.shape
    key_heads = keys.shape[1]
    key_width, group = key_heads * key_dim, value_heads // key_heads
    mixed = np.empty(channels, np.float32)
    scratch = np.empty(value_dim, np.float32)
    for token in range(rows.shape[0]):
        row, out_row, kept = rows[token], out[token], token < keys.shape[0]
        _convolve(rows, window, token, conv_weight, mixed)
        for head in range(key_heads):
            _normalise(mixed[head * key_dim : (head + 1) * key_dim], np.float32(1 / np.sqrt(key_dim)))
            key = mixed[key_width + head * key_dim : key_width + (head + 1) * key_dim]
            _normalise(key, np.float32(1))
            if kept:
                keys[token, head] = key
        gates = row[channels + value_heads * value_dim :]
        for head in range(value_heads):
            beta = sigmoid(gates[head])
            log_decay = np.float32(decay_rate[head] * _softplus(gates[value_heads + head] + dt_bias[head]))
            decay = np.float32(np.exp(log_decay))
            shared = head // group * key_dim
            query, key = mixed[shared : shared + key_dim], mixed[key_width + shared : key_width + shared + key_dim]
            columns = slice(head * value_dim, (head + 1) * value_dim)
            read = out_row[columns]
            _advance(state[head], query, key, mixed[2 * key_width :][columns], decay, beta, scratch, read)
            if kept:
                deltas[token, head] = scratch
                log_decays[token, head] = log_decay + (log_decays[token - 1, head] if token else np.float32(0))
            rms_norm_row(read, norm, eps, read)
            _gate(read, row[channels:][columns])


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

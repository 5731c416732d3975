"""What every op computes, written to be obviously right: one token and one head at a time, in the widest type given.

The oracle of all other implementations. Formulas: Qwen3.5 as in Hugging Face transformers; the gated delta rule is the
token recurrence, the chunked form is only an implementation of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_numba.kv.access import load, store
from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.hadamard import hadamard
from kernels_numba.kv.paged import PagedKv
from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.shapes import (
    L2_EPS,
    AttentionNorms,
    AttentionShape,
    GatedDeltaPending,
    GatedDeltaShape,
    GatedDeltaWeights,
)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x [N, K]`` times ``weight [M, K]`` transposed, ``[N, M]``."""
    return x @ weight.T


def dequantised(matrix: Matrix) -> Tensor:
    """Float64 weights ``[N, K]`` of one matrix, by the formula of its kind."""
    match matrix:
        case DenseMatrix():
            return matrix.values.double()
        case Nvfp4Matrix():
            codes = torch.stack([matrix.codes & 15, matrix.codes >> 4], -1).flatten(1)
            magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[(codes & 7).long()]
            scales = _e4m3(matrix.scales).repeat_interleave(16, 1)
            values: Tensor = torch.where(codes < 8, magnitude, -magnitude)
            return values * scales * matrix.multiplier.double()[:, None]
        case Fp8RowMatrix():
            return _e4m3(matrix.codes) * matrix.multiplier.double()[:, None]
        case Fp8BlockMatrix():
            scales = matrix.scales.double()[matrix.block_of_row.long()].repeat_interleave(128, 1)
            return _e4m3(matrix.codes) * scales[:, : matrix.columns]
        case GroupedMatrix():
            codes = _unpacked(matrix.codes, min(matrix.bits, 4) if matrix.bits < 8 else 8)
            if matrix.high is not None:
                codes = codes + 16 * _unpacked(matrix.high, matrix.bits - 4)
            signed = codes - (codes >= 1 << (matrix.bits - 1)) * (1 << matrix.bits)
            scales = matrix.scales.double().repeat_interleave(matrix.group_columns, 1)
            return (signed * scales)[:, : matrix.columns]


def _e4m3(words: Tensor) -> Tensor:
    """E4M3FN: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, all ones is NaN."""
    exponent, mantissa = (words.int() >> 3) & 15, (words & 7).double()
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7).double()
    magnitude = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    magnitude = magnitude.masked_fill((words & 0x7F) == 0x7F, torch.nan)
    return torch.where(words < 128, magnitude, -magnitude)


def _unpacked(plane: Tensor, bits: int) -> Tensor:
    """Unsigned codes of ``bits`` bits, the lowest of a byte first."""
    shifts = torch.arange(0, 8, bits)
    return ((plane.int()[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x²) + eps)`` over the last axis."""
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum of both, and its rms_norm."""
    total = residual + x
    return total, rms_norm(total, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[N, 2 I]`` = ``gate | up``."""
    gate, up = gate_up.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (j, j + R/2) of the first R dimensions of ``x [..., D]`` by the angles of ``cos, sin [R/2]``."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def append_kv(
    projected: Tensor,
    norms: AttentionNorms,
    cos: Tensor,
    sin: Tensor,
    kv: PagedKv,
    layer: int,
    slot_mapping: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """Normed and rotated queries ``[N, H, D]``; writes normed, rotated keys and raw values to the cache."""
    queries = []
    for row in range(projected.shape[0]):
        query, _, key, value = torch.split(
            projected[row], [shape.query_width, shape.query_width, shape.kv_width, shape.kv_width]
        )
        query = rotate(rms_norm(query.view(shape.heads, -1), norms.query, norms.eps), cos[row], sin[row])
        key = rotate(rms_norm(key.view(shape.kv_heads, -1), norms.key, norms.eps), cos[row], sin[row])
        store(kv, layer, slot_mapping[row : row + 1], key[None], value.view(1, shape.kv_heads, -1))
        queries.append(hadamard(query) if kv.layout.codec.rotates_keys else query)
    return torch.stack(queries)


def attention_decode(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """Gated causal attention of the last T positions of each sequence, one sequence after the other."""
    rows = query.shape[0] // len(context_lengths)
    outputs = []
    for s, context in enumerate(context_lengths.tolist()):
        own = slice(s * rows, (s + 1) * rows)
        outputs.append(attention_prefill(query[own], projected[own], kv, layer, page_table[s], context, shape))
    return torch.cat(outputs)


def attention_prefill(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    pages: Tensor,
    context_length: int,
    shape: AttentionShape,
) -> Tensor:
    """Gated causal attention of the last T positions of one sequence: softmax(q·k/sqrt(D))·v·sigmoid(gate).

    Keys and values are those that are stored, quantised or not, the new tokens' too.
    """
    tokens = query.shape[0]
    gate = torch.sigmoid(projected[:, shape.gate_columns])
    out = torch.zeros_like(query)
    # [pages, KV, PAGE_TOKENS, D] -> [KV, positions, D]
    cached = load(kv, layer, pages[: -(-context_length // PAGE_TOKENS)], query.dtype)
    keys, values = (part.transpose(0, 1).flatten(1, 2) for part in cached)
    for row in range(tokens):
        visible = context_length - tokens + row + 1
        for head in range(shape.heads):
            kv_head = head // (shape.heads // shape.kv_heads)
            weights = torch.softmax(keys[kv_head, :visible] @ query[row, head] * shape.softmax_scale, 0)
            out[row, head] = weights @ values[kv_head, :visible]
    return out.flatten(1) * gate


def gated_delta_decode(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    """One token of each of S sequences through conv, recurrence and gated norm; updates their states in place."""
    rows = [
        gated_delta_prefill(projected[s : s + 1], weights, conv, recurrent, layer, slots[s : s + 1], shape)
        for s in range(projected.shape[0])
    ]
    return torch.cat(rows)


def gated_delta_prefill(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slot: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    """T tokens of one sequence through conv, recurrence and gated norm; updates its state in place."""
    window = conv[int(slot), layer].to(projected.dtype)
    state = recurrent[int(slot), layer].to(projected.dtype)
    out = []
    for row in projected:
        window, state, read, *_ = _gated_delta_token(row, window, state, weights, shape)
        out.append(read)
    conv[int(slot), layer] = window.to(conv.dtype)
    recurrent[int(slot), layer] = state.to(recurrent.dtype)
    return torch.stack(out)


def _gated_delta_token(
    row: Tensor, window: Tensor, state: Tensor, weights: GatedDeltaWeights, shape: GatedDeltaShape
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One token: the conv window and state after it, the output, and the key, delta and log decay of the update."""
    group = shape.value_heads // shape.key_heads
    conv_input, z, b, a = torch.split(
        row, [shape.conv_channels, shape.value_width, shape.value_heads, shape.value_heads]
    )
    window = torch.cat([window, conv_input[:, None]], 1)
    mixed = (window * weights.conv.T).sum(1)
    mixed = mixed * torch.sigmoid(mixed)
    query, key, value = torch.split(mixed, [shape.key_width, shape.key_width, shape.value_width])
    query = _l2_normalised(query.view(shape.key_heads, -1)) * shape.key_dim**-0.5
    key = _l2_normalised(key.view(shape.key_heads, -1))
    value = value.view(shape.value_heads, -1)
    log_decay = weights.decay_rate * torch.log1p(torch.exp(a + weights.dt_bias))
    decay, beta, gate = torch.exp(log_decay), torch.sigmoid(b), z.view(shape.value_heads, -1)
    out, delta, state = torch.zeros_like(value), torch.zeros_like(value), state.clone()
    for head in range(shape.value_heads):
        q, k = query[head // group], key[head // group]
        decayed = decay[head] * state[head]
        delta[head] = beta[head] * (value[head] - k @ decayed)
        state[head] = decayed + k[:, None] * delta[head]
        out[head] = rms_norm(q @ state[head], weights.norm, weights.eps)
    out = out * gate * torch.sigmoid(gate)
    return window[:, 1:], state, out.flatten(), key, delta, log_decay


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
    """Takes what was accepted of the pending rows into the states, then T rows of each sequence that become pending."""
    out = []
    for rows, slot, count in zip(projected.chunk(slots.shape[0]), slots.tolist(), accepted.tolist(), strict=True):
        _commit(conv, recurrent, pending, layer, slot, count, shape)
        window, state = (states[slot, layer].to(projected.dtype) for states in (conv, recurrent))
        total = torch.zeros(shape.value_heads, dtype=projected.dtype)
        for t, row in enumerate(rows):
            window, state, read, key, delta, log_decay = _gated_delta_token(row, window, state, weights, shape)
            total = total + log_decay
            out.append(read)
            pending.inputs[slot, layer, t] = row[: shape.conv_channels].to(conv.dtype)
            pending.keys[slot, layer, t], pending.deltas[slot, layer, t] = key, delta
            pending.log_decays[slot, layer, t] = total
    return torch.stack(out)


def gated_delta_commit(
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    slots: Tensor,
    accepted: Tensor,
    shape: GatedDeltaShape,
) -> None:
    """Takes what was accepted of the pending rows into the states of all layers."""
    for layer in range(conv.shape[1]):
        for slot, count in zip(slots.tolist(), accepted.tolist(), strict=True):
            _commit(conv, recurrent, pending, layer, slot, count, shape)


def _commit(
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    layer: int,
    slot: int,
    count: int,
    shape: GatedDeltaShape,
) -> None:
    group, before = shape.value_heads // shape.key_heads, torch.zeros(shape.value_heads)
    for t in range(count):
        conv[slot, layer] = torch.cat([conv[slot, layer, :, 1:], pending.inputs[slot, layer, t, :, None]], 1)
        decay = torch.exp(pending.log_decays[slot, layer, t] - before)
        before = pending.log_decays[slot, layer, t]
        for head in range(shape.value_heads):
            key, delta = pending.keys[slot, layer, t, head // group], pending.deltas[slot, layer, t, head]
            recurrent[slot, layer, head] = decay[head] * recurrent[slot, layer, head] + key[:, None] * delta


def _l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def moe_experts(x: Tensor, routing: Tensor, gate_up: Tensor, down: Tensor, top_k: int, shared: Tensor) -> Tensor:
    """The ``top_k`` experts of each row of ``x [N, K]``, weighted by their renormalised softmax probabilities.

    ``routing [N, E + 1]`` ends with the gate of ``shared [N, K]``, which is added times its sigmoid. Of experts with
    equal logits the first are chosen.
    """
    out = torch.sigmoid(routing[:, -1:]) * shared
    for row in range(x.shape[0]):
        probabilities, order = torch.softmax(routing[row, :-1], -1).sort(descending=True, stable=True)
        probabilities = probabilities[:top_k]
        for weight, expert in zip(probabilities / probabilities.sum(), order[:top_k].tolist(), strict=True):
            hidden = silu_mul(linear(x[row], gate_up[expert]))
            out[row] += weight * linear(hidden, down[expert])
    return out

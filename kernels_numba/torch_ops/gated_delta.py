"""The gated delta rule: batched recurrence for decode, chunked form for prefill."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels_numba.shapes import L2_EPS, GatedDeltaPending, GatedDeltaShape, GatedDeltaWeights

CHUNK_TOKENS = 64


@dataclass(frozen=True)
class _Inputs:
    """What the recurrence reads, float32; one row per token."""

    query: Tensor  # [N, HV, DK], normalised and scaled
    key: Tensor  # [N, HV, DK], normalised
    value: Tensor  # [N, HV, DV]
    log_decay: Tensor  # [N, HV]
    beta: Tensor  # [N, HV]


def gated_delta_decode(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    conv_input, z, b, a = _split(projected, shape)
    window = torch.cat([conv[slots, layer].to(projected.dtype), conv_input[:, :, None]], 2)
    conv[slots, layer] = window[:, :, 1:].to(conv.dtype)
    mixed = functional.silu((window.float() * weights.conv.T).sum(2))
    x = _inputs(mixed, b, a, weights, shape)
    state = recurrent[slots, layer] * x.log_decay.exp()[:, :, None, None]
    predicted = (x.key[:, :, None] @ state).squeeze(2)
    delta = x.beta[:, :, None] * (x.value - predicted)
    state = state + x.key[:, :, :, None] * delta[:, :, None]
    recurrent[slots, layer] = state
    return _gated_norm((x.query[:, :, None] @ state).squeeze(2), z, weights, projected.dtype)


def gated_delta_prefill(
    projected: Tensor,
    weights: GatedDeltaWeights,
    conv: Tensor,
    recurrent: Tensor,
    layer: int,
    slots: Tensor,
    shape: GatedDeltaShape,
) -> Tensor:
    conv_input, z, b, a = _split(projected, shape)
    history = shape.conv_kernel - 1
    window = torch.cat([conv[slots, layer][0].to(projected.dtype).T, conv_input])
    conv[slots, layer] = window[window.shape[0] - history :].T[None].to(conv.dtype)
    tokens = projected.shape[0]
    mixed = sum(
        (window[tap : tap + tokens].float() * weights.conv[tap] for tap in range(shape.conv_kernel)),
        start=torch.zeros((), device=projected.device),
    )
    x = _inputs(functional.silu(mixed), b, a, weights, shape)
    out, state = chunked_delta_rule(x, recurrent[slots, layer][0])
    recurrent[slots, layer] = state[None]
    return _gated_norm(out, z, weights, projected.dtype)


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
    sequences, tokens = slots.shape[0], projected.shape[0] // slots.shape[0]
    _commit(conv, recurrent, pending, layer, slots, accepted, shape)
    conv_input, z, b, a = _split(projected, shape)
    rows = conv_input.view(sequences, tokens, -1).mT
    window = torch.cat([conv[slots, layer].to(projected.dtype), rows], 2).unfold(2, shape.conv_kernel, 1)
    mixed = functional.silu((window.float() * weights.conv.T[:, None]).sum(3)).mT
    x = _inputs(mixed.flatten(0, 1), b, a, weights, shape)
    query, key, value, log_decay, beta = (
        field.view(sequences, tokens, *field.shape[1:]) for field in (x.query, x.key, x.value, x.log_decay, x.beta)
    )
    state, outputs = recurrent[slots, layer], []
    for t in range(tokens):
        state = state * log_decay[:, t].exp()[:, :, None, None]
        predicted = (key[:, t, :, None] @ state).squeeze(2)
        delta = beta[:, t, :, None] * (value[:, t] - predicted)
        state = state + key[:, t, :, :, None] * delta[:, :, None]
        outputs.append((query[:, t, :, None] @ state).squeeze(2))
        pending.deltas[slots, layer, t] = delta
    pending.inputs[slots, layer, :tokens] = rows.mT.to(conv.dtype)
    pending.keys[slots, layer, :tokens] = key[:, :, :: shape.value_heads // shape.key_heads]
    pending.log_decays[slots, layer, :tokens] = log_decay.cumsum(1)
    return _gated_norm(torch.stack(outputs, 1).flatten(0, 1), z, weights, projected.dtype)


def gated_delta_commit(
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    slots: Tensor,
    accepted: Tensor,
    shape: GatedDeltaShape,
) -> None:
    for layer in range(conv.shape[1]):
        _commit(conv, recurrent, pending, layer, slots, accepted, shape)


def _commit(
    conv: Tensor,
    recurrent: Tensor,
    pending: GatedDeltaPending,
    layer: int,
    slots: Tensor,
    accepted: Tensor,
    shape: GatedDeltaShape,
) -> None:
    window = torch.cat([conv[slots, layer], pending.inputs[slots, layer].mT], 2)
    places = accepted[:, None] + torch.arange(shape.conv_kernel - 1, device=conv.device)
    conv[slots, layer] = window.gather(2, places[:, None].expand(-1, window.shape[1], -1))
    counts = (torch.arange(pending.rows, device=conv.device) < accepted[:, None])[:, :, None]
    log_decays = pending.log_decays[slots, layer].masked_fill(~counts, 0)
    last = log_decays.amin(1, keepdim=True)  # sums only fall
    # what does not count may be anything, also NaN
    deltas = pending.deltas[slots, layer].masked_fill(~counts[..., None], 0) * (last - log_decays).exp()[..., None]
    keys = pending.keys[slots, layer].masked_fill(~counts[..., None], 0)
    keys = keys.repeat_interleave(shape.value_heads // shape.key_heads, 2)
    update = keys.permute(0, 2, 3, 1) @ deltas.transpose(1, 2)
    recurrent[slots, layer] = recurrent[slots, layer] * last.squeeze(1).exp()[:, :, None, None] + update


def _split(projected: Tensor, shape: GatedDeltaShape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    conv_input, z, b, a = torch.split(
        projected, [shape.conv_channels, shape.value_width, shape.value_heads, shape.value_heads], 1
    )
    return conv_input, z.reshape(-1, shape.value_heads, shape.value_dim), b, a


def _inputs(mixed: Tensor, b: Tensor, a: Tensor, weights: GatedDeltaWeights, shape: GatedDeltaShape) -> _Inputs:
    tokens = mixed.shape[0]
    query, key, value = torch.split(mixed, [shape.key_width, shape.key_width, shape.value_width], 1)
    group = shape.value_heads // shape.key_heads
    query = _l2_normalised(query.reshape(tokens, shape.key_heads, shape.key_dim)) * shape.key_dim**-0.5
    key = _l2_normalised(key.reshape(tokens, shape.key_heads, shape.key_dim))
    return _Inputs(
        query.repeat_interleave(group, 1),
        key.repeat_interleave(group, 1),
        value.reshape(tokens, shape.value_heads, shape.value_dim),
        weights.decay_rate * functional.softplus(a.float() + weights.dt_bias),
        torch.sigmoid(b.float()),
    )


def _l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _gated_norm(out: Tensor, z: Tensor, weights: GatedDeltaWeights, dtype: torch.dtype) -> Tensor:
    normed = functional.rms_norm(out, (out.shape[-1],), weights.norm, weights.eps)
    return (normed * functional.silu(z.float())).to(dtype).flatten(1)


def chunked_delta_rule(x: _Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[T, HV, DV]`` and the state after T tokens, from the state ``[HV, DK, DV]`` before them.

    Within a chunk of C tokens, with inclusive cumulative log decays G, D_ij = exp(G_i - G_j) for j <= i and
    B = diag(beta):
    A = I + strict_lower(B K Kᵀ ∘ D); U = A⁻¹ B V; W = A⁻¹ B diag(e^G) K; V' = U - W S;
    O = diag(e^G) Q S + lower(Q Kᵀ ∘ D) V'; S ← e^{G_C} S + (diag(e^{G_C - G}) K)ᵀ V'.
    (Yang et al., Gated Delta Networks, 2024.) All exponents are masked before exp, so none is positive.
    """
    tokens = x.query.shape[0]
    padding = -tokens % CHUNK_TOKENS
    query, key, value = (_chunked(t, padding) for t in (x.query, x.key, x.value))
    # A padded token has zero key, value, beta and log decay: it leaves the state as it is.
    log_decay = _chunked(x.log_decay[:, :, None], padding).squeeze(-1).cumsum(-1)
    beta = _chunked(x.beta[:, :, None], padding)
    growth = log_decay.exp()[..., None]
    lower = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=state.device).tril()
    relative = (log_decay[..., :, None] - log_decay[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    # solve_triangular with unitriangular=True takes the diagonal as ones without reading it
    system = (beta * key) @ key.mT * relative
    solved = torch.linalg.solve_triangular(
        system, torch.cat([beta * value, beta * growth * key], -1), upper=False, unitriangular=True
    )
    corrected, carried = torch.split(solved, [value.shape[-1], key.shape[-1]], -1)
    within = query @ key.mT * relative
    grown_query = growth * query
    last = log_decay[..., -1:]
    decayed_key = (last - log_decay).exp()[..., None] * key
    chunk_decay = last.exp()[..., None]
    outputs = []
    for chunk in range(query.shape[0]):
        fresh = corrected[chunk] - carried[chunk] @ state
        outputs.append(grown_query[chunk] @ state + within[chunk] @ fresh)
        state = chunk_decay[chunk] * state + decayed_key[chunk].mT @ fresh
    return torch.cat([out.transpose(0, 1) for out in outputs])[:tokens], state


def _chunked(x: Tensor, padding: int) -> Tensor:
    """``[T, H, D]`` as chunks ``[T/C, H, C, D]``, zero-padded."""
    padded = functional.pad(x, (0, 0, 0, 0, 0, padding))
    return padded.view(-1, CHUNK_TOKENS, *x.shape[1:]).transpose(1, 2)

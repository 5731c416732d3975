"""The element-wise parts of the model as plain functions over flattened tokens: one compilation serves every length.

All token axes are the flattened ``T = rows * length``; ``length`` is a multiple of the chunk. fp32 inside, inputs as
given.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64
L2_EPSILON = 1e-6


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Zero-centred RMSNorm ``x / rms(x) * (1 + w)`` in fp32; returns fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * (1.0 + weight)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` computed in fp32, returned in the input dtype."""
    return (functional.silu(gate.float()) * up.float()).to(gate.dtype)


def conv_silu(u: Tensor, weight: Tensor, history: Tensor) -> Tensor:
    """Depthwise causal convolution as shifted multiply-adds, then silu.

    ``u [T, C]``, ``weight [C, 1, K]`` (last tap = current token), ``history [T]`` = number of earlier tokens in the
    row, so that no tap reaches into another row. Returns ``[T, C]`` fp32.
    """
    u = u.float()
    taps = weight.shape[-1]
    y = u * weight[:, 0, taps - 1]
    for shift in range(1, taps):
        earlier = functional.pad(u, (0, 0, shift, 0))[: u.shape[0]]
        y = y + torch.where((history >= shift)[:, None], earlier, 0.0) * weight[:, 0, taps - 1 - shift]
    return functional.silu(y)


def chunk_gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (G, beta), both ``[T/64, heads, 64]`` fp32: cumulative log decay in each chunk, and write strength."""
    g = -a_log.exp() * functional.softplus(a.float() + dt_bias)
    beta = torch.sigmoid(b.float())

    def split(t: Tensor) -> Tensor:
        return t.view(-1, CHUNK, t.shape[-1]).transpose(1, 2).contiguous()

    return split(g).cumsum(-1), split(beta)


def chunk_heads(y: Tensor, key_heads: int, value_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the convolution output into unit q (scaled), unit k, and v, each ``[T/64, value heads, 64, dim]`` fp32."""
    q, k, v = torch.split(y, [key_heads * dim, key_heads * dim, value_heads * dim], -1)

    def split(t: Tensor, heads: int) -> Tensor:
        return t.reshape(-1, CHUNK, heads, dim).transpose(1, 2)

    def unit(t: Tensor) -> Tensor:
        t = t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + L2_EPSILON)
        return t.repeat_interleave(value_heads // key_heads, 1)

    q, k = unit(split(q, key_heads)) * dim**-0.5, unit(split(k, key_heads))
    return q.contiguous(), k.contiguous(), split(v, value_heads).contiguous()


def delta_inputs(
    u: Tensor, weight: Tensor, history: Tensor, key_heads: int, value_heads: int, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolution and head split in one function, so that compilation may fuse them."""
    return chunk_heads(conv_silu(u, weight, history), key_heads, value_heads, dim)


def chunk_decay(g: Tensor, beta: Tensor, kk: Tensor, qk: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the chunk's (strictly lower ``B·KKᵀ ⊙ D``, lower ``QKᵀ ⊙ D``), both ``[T/64, heads, 64, 64]``."""
    rows = torch.arange(CHUNK, device=g.device)
    lower = rows[:, None] >= rows[None, :]
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], float("-inf")).exp()
    strict = rows[:, None] > rows[None, :]
    return torch.where(strict, beta[..., None] * kk * decay, 0.0), qk * decay


def chunk_operands(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns (``B·V``, ``B·e^G·K``, ``e^G·Q``, ``e^(G_C - G)·K``)."""
    grown = g.exp()[..., None]
    strength = beta[..., None]
    return strength * v, strength * grown * k, grown * q, (g[..., -1:] - g).exp()[..., None] * k


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """GDN output norm ``w * o / rms(o) * silu(z)``; ``o [T/64, heads, 64, dim]``, ``z`` and result ``[T, all]``."""
    o = o.float().transpose(1, 2).reshape(z.shape[0], -1, weight.shape[0])
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + epsilon) * weight
    return (o * functional.silu(z.float().view_as(o))).to(z.dtype).view_as(z)


def rope_head_norm(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, epsilon: float) -> Tensor:
    """Per-head RMSNorm, then rotation of the first dims; ``x [T, heads, dim]``, ``cos, sin [T, rotary]``."""
    y = rms_norm(x, weight, epsilon)
    rotary = cos.shape[-1]
    head, rest = y[..., :rotary], y[..., rotary:]
    half = torch.cat([-head[..., rotary // 2 :], head[..., : rotary // 2]], -1)
    return torch.cat([head * cos[:, None] + half * sin[:, None], rest], -1).to(x.dtype)


def gate_output(o: Tensor, gate: Tensor) -> Tensor:
    """Attention output gate ``o * sigmoid(gate)``."""
    return (o.float() * torch.sigmoid(gate.float())).to(o.dtype)


def weighted_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Mean cross-entropy over tokens weighted by ``weight [T]``; ``logits [T, V]``, fp32 inside."""
    logits = logits.float()
    picked = logits.gather(1, target[:, None])[:, 0]
    return ((torch.logsumexp(logits, -1) - picked) * weight).sum() / weight.sum().clamp(min=1.0)


def round_e4m3(x: Tensor) -> Tensor:
    """Rounds fp32 ``0 <= x <= 448`` to E4M3, ties to even.

    In integers on the bits, because compilers leave out a cast to a small type and back.
    """
    bits = x.view(torch.int32)
    normal = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    return torch.where(x < 2.0**-6, torch.round(x * 512.0) / 512.0, normal.view(torch.float32))


def nvfp4_values(x: Tensor, divisor: Tensor) -> Tensor:
    """Rounds bf16 ``x [B, 16]`` to ``E2M1 * E4M3 scale / divisor``; ``divisor [B, 1]`` and the result are fp32.

    The largest magnitude of a block becomes 6 times its scale; magnitudes between E2M1's 0, 0.5, 1, 1.5, 2, 3, 4, 6 go
    to the nearer one, ties to the even code.
    """
    y = x.float() * divisor
    magnitude = y.abs()
    scale = round_e4m3((magnitude.amax(-1, keepdim=True) / 6.0).clamp(max=448.0))
    share = torch.where(scale > 0.0, magnitude / torch.where(scale > 0.0, scale, 1.0), 0.0)
    spacing = torch.where(share < 2.0, 0.5, torch.where(share < 4.0, 1.0, 2.0))
    code = (torch.round(share / spacing) * spacing).clamp(max=6.0)
    return torch.copysign(code * scale, y) / divisor


_COMPILED = (
    rms_norm,
    swiglu,
    delta_inputs,
    chunk_gates,
    chunk_decay,
    chunk_operands,
    gated_norm,
    rope_head_norm,
    gate_output,
    weighted_loss,
    nvfp4_values,
)


def enable_compile(backend: str = "inductor") -> None:
    """Replaces this module's functions by compiled ones, before graphs are built; shapes must not vary afterwards."""
    for function in _COMPILED:
        compiled: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True, backend=backend)
        globals()[function.__name__] = compiled

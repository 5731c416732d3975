"""Chunk-parallel gated delta rule with a linear-recurrence scan, both with hand-written backward passes where it pays.

Within a chunk (UT transform): ``A = I + strict(B·KKᵀ ⊙ D)``, ``U = A⁻¹·B·V``, ``W = A⁻¹·B·e^G·K``. Between chunks the
state follows ``S' = α·S + b - P·S`` with ``P = (e^(G_C-G)·K)ᵀ·W`` and ``b = (e^(G_C-G)·K)ᵀ·U``: one small product per
chunk is sequential, everything else is batched over all chunks.
"""

from typing import Any

import torch
from torch import Tensor

from tools.train_tiny import pointwise


class UnitLowerInverse(torch.autograd.Function):
    """``(I + L)⁻¹`` of strictly lower ``L [..., 64, 64]`` by forward substitution; its gradient is two products."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """Returns the inverse, fp32."""
        identity = torch.eye(lower.shape[-1], device=lower.device, dtype=lower.dtype)
        inverse: Tensor = torch.linalg.solve_triangular(
            lower + identity, identity.expand_as(lower), upper=False, unitriangular=True
        )
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """``dL = -strict(Xᵀ·dX·Xᵀ)`` with ``X`` the inverse."""
        inverse: Tensor = ctx.saved_tensors[0]
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grads[0] @ transposed).tril(-1)


class StateScan(torch.autograd.Function):
    """States before each chunk of ``S' = α·S + b - P·S`` from ``S = 0``.

    ``alpha [N, M]``, ``p [N, M, D, D]``, ``b [N, M, D, Dv]`` with N chunks in order and M independent rows × heads.
    """

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, p: Tensor, b: Tensor) -> Tensor:
        """Returns ``[N, M, D, Dv]``: element n is the state that chunk n starts from."""
        states = torch.cat([torch.zeros_like(b[:1]), b[:-1]])
        for n in range(b.shape[0] - 1):
            states[n + 1].baddbmm_(p[n], states[n], alpha=-1.0).addcmul_(alpha[n][:, None, None], states[n])
        ctx.save_for_backward(alpha, p, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the adjoint recurrence ``d = dS + α·d' - Pᵀ·d'`` from the last chunk to the first."""
        alpha, p, states = ctx.saved_tensors
        after = torch.cat([grads[0][1:], torch.zeros_like(states[:1])])
        for n in range(states.shape[0] - 2, 0, -1):
            after[n - 1].baddbmm_(p[n].transpose(-1, -2), after[n], alpha=-1.0)
            after[n - 1].addcmul_(alpha[n][:, None, None], after[n])
        grad_p = -(after @ states.transpose(-1, -2))
        return (after * states).sum((-1, -2)), grad_p, after


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, rows: int) -> Tensor:
    """Applies the rule to ``rows`` independent sequences.

    ``q, k, v [C, heads, 64, dim]`` (k and q unit norm, q scaled), ``g, beta [C, heads, 64]``, ``C = rows * chunks`` in
    row order. Returns ``[C, heads, 64, dim]`` fp32.
    """
    count, heads, _, dim = v.shape
    chunks = count // rows
    lower, attention = pointwise.chunk_decay(g, beta, k @ k.transpose(-1, -2), q @ k.transpose(-1, -2))
    bv, bk, gq, dk = pointwise.chunk_operands(q, k, v, g, beta)
    inverse: Tensor = UnitLowerInverse.apply(lower)  # type: ignore[no-untyped-call]
    u, w = inverse @ bv, inverse @ bk
    erased, written = dk.transpose(-1, -2) @ w, dk.transpose(-1, -2) @ u

    def ordered(t: Tensor) -> Tensor:
        rest = t.shape[2:]
        return t.view(rows, chunks, heads, *rest).transpose(0, 1).reshape(chunks, rows * heads, *rest)

    alpha = g[..., -1].exp()
    states: Tensor = StateScan.apply(ordered(alpha), ordered(erased), ordered(written))  # type: ignore[no-untyped-call]
    states = states.view(chunks, rows, heads, dim, dim).transpose(0, 1).reshape(count, heads, dim, dim)
    return gq @ states + attention @ (u - w @ states)

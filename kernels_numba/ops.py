"""The op table: the only door through which the models reach a kernel.

Every implementation of an op has the signature of its field here and computes what ``kernels_numba.reference``
computes. Tensors are row-major; N is the tokens of the batch, S its sequences, T the tokens of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from kernels_numba.kv.paged import PagedKv
from kernels_numba.matrices import Matrix
from kernels_numba.report import OpsReport
from kernels_numba.shapes import (
    AttentionNorms,
    AttentionShape,
    DenseBlockWeights,
    GatedDeltaPending,
    GatedDeltaShape,
    GatedDeltaWeights,
    PackedLinear,
)


class PackLinear(Protocol):
    def __call__(self, *matrices: Matrix) -> PackedLinear:
        """The rows of all ``matrices``, one after the other, in the order that ``linear`` of the same table wants.

        Each keeps its format, and what it is packed from may be let go. All have the same columns, and the same
        leading dimension if they are stacks; ValueError otherwise.
        """


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: PackedLinear, /) -> Tensor:
        """``x [N, K]`` times the transpose of the packed rows: ``[N, M]``."""


class Embedding(Protocol):
    def __call__(self, token_ids: Tensor, matrix: Matrix, dtype: torch.dtype, /) -> Tensor:
        """Rows ``token_ids [N]`` of ``matrix`` as ``[N, K]`` in ``dtype``; decodes no others."""


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float, /) -> Tensor:
        """``weight * x / sqrt(mean(x²) + eps)`` of ``[N, K]``, inside in float32; ``weight`` is float32 [K]."""


class AddRmsNorm(Protocol):
    def __call__(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float, /) -> tuple[Tensor, Tensor]:
        """``residual + x`` and its rms_norm, both ``[N, K]``."""


class SiluMul(Protocol):
    def __call__(self, gate_up: Tensor, /) -> Tensor:
        """``silu(gate) * up`` of ``[N, 2 I]`` = ``gate | up``."""


class DenseBlock(Protocol):
    def __call__(self, residual: Tensor, mixed: Tensor, weights: DenseBlockWeights, /) -> tuple[Tensor, Tensor]:
        """From one mixer to the next, ``residual [N, K]`` and ``mixed [N, I]`` to a new residual and the next input.

        ``h = residual + out_proj(mixed); r = h + down(silu(gate) * up)`` with ``gate | up = gate_up(rms_norm(h))``; r
        and ``next_in_proj(rms_norm(r))``, or the normed r itself where nothing follows.
        """


class AppendKv(Protocol):
    def __call__(
        self,
        projected: Tensor,
        norms: AttentionNorms,
        cos: Tensor,
        sin: Tensor,
        kv: PagedKv,
        layer: int,
        slot_mapping: Tensor,
        shape: AttentionShape,
        /,
    ) -> Tensor:
        """Queries ``[N, H, D]`` as attention wants them; appends keys and values to layer ``layer`` of the cache.

        Queries and keys are normed and rotated by position; where ``kv.layout.codec.rotates_keys``, both are then
        turned by the Hadamard matrix. Values are as projected. Keys and values are stored by the rule of
        ``kernels_numba.kv.encode``.

        ``projected [N, shape.projected_width]``; ``cos, sin`` float32 ``[N, R/2]``;
        ``slot_mapping`` int64 ``[N]``, page * 64 + offset.
        """


class AttentionDecode(Protocol):
    def __call__(
        self,
        query: Tensor,
        projected: Tensor,
        kv: PagedKv,
        layer: int,
        page_table: Tensor,
        context_lengths: Tensor,
        shape: AttentionShape,
        /,
    ) -> Tensor:
        """Gated causal attention ``[S * T, H * D]`` of the last T positions of each sequence over its cached context.

        ``query [S * T, H, D]`` as ``append_kv`` returned it, the T rows of a sequence back to back, T from 1 to 16;
        ``projected`` carries the gate; ``page_table`` int32 ``[S, P]``, of which only the pages of the context are
        read; ``context_lengths`` int64 ``[S]`` counts the T rows, so that row t sees ``length - T + t + 1`` positions.
        """


class AttentionPrefill(Protocol):
    def __call__(
        self,
        query: Tensor,
        projected: Tensor,
        kv: PagedKv,
        layer: int,
        pages: Tensor,
        context_length: int,
        shape: AttentionShape,
        /,
    ) -> Tensor:
        """Gated causal attention ``[T, H * D]`` of the last T of ``context_length`` cached positions.

        ``query [T, H, D]`` as ``append_kv`` returned it; ``pages`` int32 ``[P]``.
        """


class GatedDelta(Protocol):
    def __call__(
        self,
        projected: Tensor,
        weights: GatedDeltaWeights,
        conv: Tensor,
        recurrent: Tensor,
        layer: int,
        slots: Tensor,
        shape: GatedDeltaShape,
        /,
    ) -> Tensor:
        """Causal conv, gated delta rule and gated norm, ``[N, HV * DV]``; updates the states of ``slots`` in place.

        ``projected [N, shape.projected_width]``; ``conv [slots, layers, C, kernel - 1]``;
        ``recurrent`` float32 ``[slots, layers, HV, DK, DV]``. Decode: row s is the next token of slot ``slots[s]``.
        Prefill: the rows are the next tokens of the one slot in ``slots``.
        """


class GatedDeltaRound(Protocol):
    def __call__(
        self,
        projected: Tensor,
        weights: GatedDeltaWeights,
        conv: Tensor,
        recurrent: Tensor,
        pending: GatedDeltaPending,
        layer: int,
        slots: Tensor,
        accepted: Tensor,
        shape: GatedDeltaShape,
        /,
    ) -> Tensor:
        """``gated_delta_prefill`` of T rows of each sequence, of which nothing is decided yet: ``[S * T, HV * DV]``.

        ``projected [S * T, shape.projected_width]``, row t of sequence s in s * T + t; T at most ``pending.rows`` and
        16. First the oldest ``accepted[s]`` (int64 [S]) of the rows that are pending for slot ``slots[s]`` go into its
        states, and the others are forgotten; then T rows follow on those states, which they leave alone, and become
        pending.
        So a round of rows that is rejected costs nothing, and the states are read and written once a round.
        """


class GatedDeltaCommit(Protocol):
    def __call__(
        self,
        conv: Tensor,
        recurrent: Tensor,
        pending: GatedDeltaPending,
        slots: Tensor,
        accepted: Tensor,
        shape: GatedDeltaShape,
        /,
    ) -> None:
        """The first half of ``gated_delta_round``, in all layers: states that may be copied, or read by other ops.

        What was accepted is pending no longer: ``accepted`` of these slots is 0 until the next round.
        """


class MoeExperts(Protocol):
    def __call__(
        self, x: Tensor, routing: Tensor, gate_up: PackedLinear, down: PackedLinear, top_k: int, shared: Tensor, /
    ) -> Tensor:
        """The ``top_k`` routed experts of each row of ``x [N, K]``, weighted by renormalised probabilities, and
        ``shared [N, K]``, the output of the shared expert, times the sigmoid of its gate.

        ``routing [N, E + 1]`` is the logits of the experts, then the gate; ``gate_up`` packs ``[E, 2 I, K]``, ``down``
        packs ``[E, K, I]``.
        """


@dataclass(frozen=True)
class OpTable:
    """One implementation of every op."""

    name: str
    report: OpsReport
    pack_linear: PackLinear
    linear: Linear
    embedding: Embedding
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    silu_mul: SiluMul
    dense_block: DenseBlock
    append_kv: AppendKv
    attention_decode: AttentionDecode
    attention_prefill: AttentionPrefill
    gated_delta_decode: GatedDelta
    gated_delta_prefill: GatedDelta
    gated_delta_round: GatedDeltaRound
    gated_delta_commit: GatedDeltaCommit
    moe_experts: MoeExperts

    @classmethod
    def op_names(cls) -> tuple[str, ...]:
        """All ops, by field."""
        return tuple(field.name for field in fields(cls) if field.name not in ("name", "report"))

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
from kernels_numba.shapes import AttentionNorms, AttentionShape, GatedDeltaShape, GatedDeltaWeights, PackedLinear


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
    append_kv: AppendKv
    attention_decode: AttentionDecode
    attention_prefill: AttentionPrefill
    gated_delta_decode: GatedDelta
    gated_delta_prefill: GatedDelta
    moe_experts: MoeExperts

    @classmethod
    def op_names(cls) -> tuple[str, ...]:
        """All ops, by field."""
        return tuple(field.name for field in fields(cls) if field.name not in ("name", "report"))

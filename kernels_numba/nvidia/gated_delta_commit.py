"""The gated delta rule's pending rows become part of the states of any number of sequences, in all layers."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia.gated_delta_layout import DIM, HISTORY
from kernels_numba.nvidia.gated_delta_state import (
    fold_pending,
    load_history,
    load_pending,
    load_state,
    places,
    store_history,
)
from kernels_numba.nvidia.text import Source

PARAMETERS = """conv state inputs keys deltas log_decays slots accepted conv_stride state_stride inputs_stride
    keys_stride deltas_stride decays_stride room key_heads value_heads group"""


def source() -> str:
    """Grid (value heads, sequences, layers); 8 warps; slot strides in bytes; everything points at layer 0 of slot 0."""
    w = Source("kernel", PARAMETERS)
    places(w)
    w(f"""
        layer = i64(P.cta_z()); channels_ = i64(channels)
        conv += layer * channels_ * {2 * HISTORY}; state += layer * value_heads * {4 * DIM * DIM}
        inputs += layer * room * channels_ * 2; keys += layer * room * key_heads * {4 * DIM}
        deltas += layer * room * value_heads * {4 * DIM}; log_decays += layer * room * value_heads * 4
    """)
    load_pending(w)
    load_state(w)
    for c in "kv":
        load_history(w, c)
    fold_pending(w)
    with w.block(f"if tid < {DIM}:"):
        store_history(w, "v")
    with w.block("if h == hk * group:"):
        store_history(w, "k")
    return str(w)


def make() -> Any:
    return P.function_of(source(), "kernel", P=P, copies_done=P.cp_wait(0))

"""The torch op table."""

from dataclasses import replace

from kernels_numba.dense_block import composed_dense_block
from kernels_numba.ops import OpTable
from kernels_numba.report import GroupReport, OpsReport
from kernels_numba.routing import routed_experts
from kernels_numba.torch_ops import attention, dense, gated_delta, linear


def _report(reason: str = "") -> OpsReport:
    return OpsReport("torch", groups=(GroupReport("all", OpTable.op_names(), "torch", fallback_reason=reason),))


TORCH_OPS = OpTable(
    name="torch",
    report=_report(),
    pack_linear=linear.pack_linear,
    linear=linear.linear,
    embedding=linear.embedding,
    rms_norm=dense.rms_norm,
    add_rms_norm=dense.add_rms_norm,
    silu_mul=dense.silu_mul,
    dense_block=composed_dense_block(linear.linear, dense.add_rms_norm, dense.silu_mul),
    append_kv=attention.append_kv,
    attention_decode=attention.attention_decode,
    attention_prefill=attention.attention_prefill,
    gated_delta_decode=gated_delta.gated_delta_decode,
    gated_delta_prefill=gated_delta.gated_delta_prefill,
    gated_delta_round=gated_delta.gated_delta_round,
    gated_delta_commit=gated_delta.gated_delta_commit,
    moe_experts=routed_experts(linear.linear, dense.silu_mul),
)


def torch_ops_because(reason: str) -> OpTable:
    """This table, in place of one that cannot serve."""
    return replace(TORCH_OPS, report=_report(reason))

"""The CPU op table."""

from kernels_numba.cpu import attention, gated_delta, linear, rows
from kernels_numba.dense_block import composed_dense_block
from kernels_numba.ops import OpTable
from kernels_numba.report import GroupReport, OpsReport
from kernels_numba.routing import routed_experts
from kernels_numba.torch_ops.linear import embedding

_BY_TORCH = ("embedding",)

CPU_OPS = OpTable(
    name="cpu",
    report=OpsReport(
        "cpu",
        groups=(
            GroupReport("compiled", tuple(op for op in OpTable.op_names() if op not in _BY_TORCH), "cpu"),
            GroupReport("others", _BY_TORCH, "torch"),
        ),
    ),
    pack_linear=linear.pack_linear,
    linear=linear.linear,
    embedding=embedding,
    rms_norm=rows.rms_norm,
    add_rms_norm=rows.add_rms_norm,
    silu_mul=rows.silu_mul,
    dense_block=composed_dense_block(linear.linear, rows.add_rms_norm, rows.silu_mul),
    append_kv=attention.append_kv,
    attention_decode=attention.attention_decode,
    attention_prefill=attention.attention_prefill,
    gated_delta_decode=gated_delta.gated_delta_decode,
    gated_delta_prefill=gated_delta.gated_delta_prefill,
    gated_delta_round=gated_delta.gated_delta_round,
    gated_delta_commit=gated_delta.gated_delta_commit,
    moe_experts=routed_experts(linear.linear, rows.silu_mul),
)

"""Writes of keys and values to the paged cache by CUDA kernels; torch takes other types and sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from kernels_numba.nvidia.append_kernels import APPEND_WARPS, APPENDED, KERNELS, append_name
from kernels_numba.nvidia.launch import device_of
from kernels_numba.nvidia.self_test import KernelMismatchError, OpGroup, assert_close
from kernels_numba.shapes import AttentionNorms, AttentionShape
from kernels_numba.torch_ops import attention

ROUNDING = 4e-3
"""Of results in bfloat16, by norm; 1.7e-3 is usual."""
PROGRAMMATIC = True
"""Whether a kernel may be put in place while the one before it still runs."""


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
    tokens, half_rotary = cos.shape
    layout = kv.layout
    if (
        (layout.codec.name, shape.head_dim) not in APPENDED
        or projected.dtype != torch.bfloat16
        or projected.stride(1) != 1
        or projected.stride(0) % 8
        or projected.data_ptr() % 16
        or not kv.pages.is_contiguous()
        or half_rotary % (shape.head_dim // 32)
        or not all(t.dtype == torch.float32 and t.is_contiguous() for t in (cos, sin, norms.query, norms.key))
        or slot_mapping.dtype != torch.int64
        or not slot_mapping.is_cuda
        or not slot_mapping.is_contiguous()
    ):
        return attention.append_kv(projected, norms, cos, sin, kv, layer, slot_mapping, shape)
    query = torch.empty((tokens, shape.heads, shape.head_dim), dtype=projected.dtype, device=projected.device)
    if tokens:
        device_of(projected.device).kernel(append_name(layout.codec.name, shape.head_dim))(
            (tokens, -(-(shape.heads + 2 * shape.kv_heads) // APPEND_WARPS), 1),
            projected.data_ptr(),
            norms.query.data_ptr(),
            norms.key.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            kv.pages.data_ptr(),
            slot_mapping.data_ptr(),
            query.data_ptr(),
            2 * projected.stride(0),
            shape.heads,
            shape.kv_heads,
            half_rotary,
            layout.page_bytes,
            layout.layer_bytes * layer,
            norms.eps,
            programmatic=PROGRAMMATIC,
        )
    return query


def _check(device: torch.device) -> None:
    """Queries and plain caches against the reference in float64, quantised ones to the byte."""
    for codec, head_dim in APPENDED:
        shape = AttentionShape(heads=6, kv_heads=2, head_dim=head_dim, rotary_dim=head_dim // 4)
        _check_codec(device, KvLayout(KV_CODECS[codec], 2, shape.kv_heads, head_dim), shape)


def _check_codec(device: torch.device, layout: KvLayout, shape: AttentionShape) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).bfloat16()

    kv, there = PagedKv.zeros(layout, 3), PagedKv.zeros(layout, 3, device)
    projected, slots = normal(3, shape.projected_width), torch.tensor([130, 63, 64])
    norms = AttentionNorms(1 + normal(shape.head_dim).float() / 8, 1 + normal(shape.head_dim).float() / 8, 1e-6)
    angles = 3 * normal(3, shape.rotary_dim // 2).float()
    if not layout.codec.is_plain:  # keys that are the same however norm and rope round
        keys = projected[:, 2 * shape.query_width :][:, : shape.kv_width]
        keys.copy_(torch.where(keys < 0, -1, 1))
        norms, angles = AttentionNorms(norms.query, norms.key.bfloat16().float(), 0.0), torch.zeros_like(angles)
    cos, sin = angles.cos(), angles.sin()
    norms_there = AttentionNorms(norms.query.to(device), norms.key.to(device), norms.eps)
    query = append_kv(
        projected.to(device), norms_there, cos.to(device), sin.to(device), there, 1, slots.to(device), shape
    )
    expected = reference.append_kv(projected.double(), norms, cos.double(), sin.double(), kv, 1, slots, shape)
    name = f"append_kv, {layout.codec.name}"
    assert_close(name, query, expected, ROUNDING)
    if layout.codec.is_plain:
        assert_close(name, there.plain, kv.plain.double(), ROUNDING)
    elif not torch.equal(there.pages.cpu(), kv.pages):
        raise KernelMismatchError(f"{name} stores other bytes than its reference")


GROUP = OpGroup("append", tuple(spec.name for spec in KERNELS), {"append_kv": append_kv}, _check)

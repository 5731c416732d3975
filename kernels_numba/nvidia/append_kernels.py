"""Kernels of the writes to the cache, one for each codec and size of head."""

from __future__ import annotations

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.nvidia.kernel import KernelSpec

APPEND_WARPS = 4
APPENDED = (("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp8", 256), ("int8", 256), ("nvfp4", 256), ("k8v4", 256))
"""Codecs and sizes of heads that have a kernel."""


def append_name(codec: str, head_dim: int) -> str:
    return f"append_{codec}_{head_dim}"


def append_arguments(codec: str, head_dim: int) -> tuple[int | bool | str, ...]:
    """Of the generator: formats, and where the parts of a head run are."""
    layout = KvLayout(KV_CODECS[codec], 1, 1, head_dim)
    return (
        layout.codec.key.name,
        layout.codec.value.name,
        layout.codec.rotates_keys,
        head_dim,
        layout.key_scales_offset,
        layout.value_codes_offset,
        layout.value_scales_offset,
        layout.head_bytes,
    )


KERNELS = tuple(
    KernelSpec(
        append_name(codec, head_dim),
        "append",
        "make",
        append_arguments(codec, head_dim),
        "l" * 8 + "i" * 5 + "lf",
        threads=32 * APPEND_WARPS,
        min_blocks=4,
        registers=72,
    )
    for codec, head_dim in APPENDED
)

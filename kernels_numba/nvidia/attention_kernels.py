"""Sizes that all attention over the cache shares, and the kernels of prefill beside the libraries'."""

from __future__ import annotations

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.nvidia.kernel import KernelSpec

HEAD_DIMS = (64, 128, 256)
PAGE_TOKENS = 64
COMBINE_WARPS = 8
PREFILL_HEAD_DIM = 256
EXPANDED = ("bf16", "fp8", "int8", "nvfp4", "k8v4")
"""Codecs that prefill reads."""
EXPAND_WARPS = 4
"""Warps that share a page."""
MERGE_WARPS = 4
MERGED = 6
"""Stretches of a context that one launch merges."""


def expand_name(codec: str) -> str:
    return f"attention_expand_{codec}"


def run_arguments(codec: str) -> tuple[int | str, ...]:
    """Of a generator: formats, and where the parts of a head run are."""
    layout = KvLayout(KV_CODECS[codec], 1, 1, PREFILL_HEAD_DIM)
    return (
        layout.codec.key.name,
        layout.codec.value.name,
        layout.key_scales_offset,
        layout.value_codes_offset,
        layout.value_scales_offset,
        layout.head_bytes,
    )


KERNELS = (
    *(
        KernelSpec(
            expand_name(codec),
            "attention_expand",
            "make",
            run_arguments(codec),
            "llliil",
            threads=32 * EXPAND_WARPS,
            min_blocks=4,
            registers=128,
        )
        for codec in EXPANDED
    ),
    KernelSpec(
        "attention_merge",
        "attention_merge",
        "make",
        (),
        "l" * (2 * MERGED + 4) + "iii",
        threads=32 * MERGE_WARPS,
        min_blocks=8,
        registers=64,
    ),
)

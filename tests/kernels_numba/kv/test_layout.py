"""Sizes and offsets of pages against spec/memory §1.2."""

from __future__ import annotations

import pytest

from kernels_numba.kv.codec import KV_CODECS, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv

OF_27B = {
    "fp32": (2048, 8_388_608),
    "bf16": (1024, 4_194_304),
    "int8": (528, 2_162_688),
    "fp8": (516, 2_113_536),
    "k8v4": (402, 1_646_592),
    "nvfp4": (288, 1_179_648),
}
"""Bytes of keys and values of a token and kv head, and of a page."""


def test_every_codec_has_a_size_here() -> None:
    assert set(OF_27B) == set(KV_CODECS)


@pytest.mark.parametrize("codec", OF_27B)
def test_sizes_of_the_27b(codec: str) -> None:
    token_bytes, page_bytes = OF_27B[codec]
    layout = KvLayout(KV_CODECS[codec], layers=16, kv_heads=4, head_dim=256)
    assert layout.head_bytes == PAGE_TOKENS * token_bytes
    assert layout.layer_bytes == 4 * layout.head_bytes
    assert layout.page_bytes == page_bytes
    assert PagedKv.zeros(layout, 2).pages.shape == (2, page_bytes)
    assert PagedKv.zeros(layout, 2).runs.shape == (2, 16, 4, layout.head_bytes)


@pytest.mark.parametrize(
    ("codec", "offsets"),
    [
        ("bf16", (32768, 32768, 65536)),
        ("int8", (16384, 16384 + 512, 16384 + 512 + 16384)),
        ("fp8", (16384, 16384 + 128, 16384 + 128 + 16384)),
        ("k8v4", (16384, 16384 + 128, 16384 + 128 + 8192)),
        ("nvfp4", (8192, 9216, 17408)),
    ],
)
def test_parts_of_a_head_run(codec: str, offsets: tuple[int, int, int]) -> None:
    """Those of nvfp4 are the prototype's."""
    layout = KvLayout(KV_CODECS[codec], layers=1, kv_heads=1, head_dim=256)
    assert (layout.key_scales_offset, layout.value_codes_offset, layout.value_scales_offset) == offsets


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("codec", KV_CODECS)
def test_parts_can_be_copied_in_16_bytes(codec: str, head_dim: int) -> None:
    layout = KvLayout(KV_CODECS[codec], 3, 5, head_dim)
    for offset in (layout.key_scales_offset, layout.value_codes_offset, layout.value_scales_offset, layout.head_bytes):
        assert offset % 16 == 0


@pytest.mark.parametrize("head_dim", [1, 32, 96, 192])
def test_heads_that_no_hadamard_matrix_fits_are_refused(head_dim: int) -> None:
    assert KvLayout(KV_CODECS["bf16"], 1, 1, head_dim).head_bytes == 64 * 2 * 2 * head_dim
    for name in ("fp8", "int8", "nvfp4", "k8v4"):
        with pytest.raises(ValueError, match=f"{name} keys and values need a head_dim .* not {head_dim}"):
            KvLayout(KV_CODECS[name], 1, 1, head_dim)


def test_who_turns_keys() -> None:
    assert {name for name, codec in KV_CODECS.items() if codec.rotates_keys} == {"fp8", "int8", "nvfp4", "k8v4"}

"""Where the parts of a page lie: arithmetic of offsets, free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_numba.kv.codec import PAGE_TOKENS, KvCodec


@dataclass(frozen=True)
class KvLayout:
    """A page: 64 positions of every attention layer and kv head as one contiguous run of bytes.

    ``[layer][kv head]`` of head runs, each ``key codes | key scales | value codes | value scales`` of its 64 tokens.
    All offsets and sizes are bytes. Raises ValueError for heads that the codec cannot store.
    """

    codec: KvCodec
    layers: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if not self.codec.supports(self.head_dim):
            raise ValueError(
                f"{self.codec.name} keys and values need a head_dim that is a power of two of at least 64, "
                f"not {self.head_dim}"
            )

    @property
    def key_scales_offset(self) -> int:
        """Of the scales of the keys in a head run, which begins with their codes."""
        return PAGE_TOKENS * self.codec.key.code_bytes(self.head_dim)

    @property
    def value_codes_offset(self) -> int:
        """Of the codes of the values in a head run."""
        return PAGE_TOKENS * self.codec.key.vector_bytes(self.head_dim)

    @property
    def value_scales_offset(self) -> int:
        """Of the scales of the values in a head run."""
        return self.value_codes_offset + PAGE_TOKENS * self.codec.value.code_bytes(self.head_dim)

    @property
    def head_bytes(self) -> int:
        """Of a head run."""
        return self.value_codes_offset + PAGE_TOKENS * self.codec.value.vector_bytes(self.head_dim)

    @property
    def layer_bytes(self) -> int:
        """Of one layer of a page."""
        return self.kv_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Of a page."""
        return self.layers * self.layer_bytes

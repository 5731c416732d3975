"""The cache as ops get it: pages of bytes and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels_numba.kv.codec import BF16, FP32, PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout

_PLAIN_DTYPES = {FP32: torch.float32, BF16: torch.bfloat16}


@dataclass(frozen=True)
class PagedKv:
    """Keys and values of all pages of a cache; ops write them in place."""

    pages: Tensor  # uint8 [pages, layout.page_bytes], contiguous
    layout: KvLayout

    @classmethod
    def zeros(cls, layout: KvLayout, pages: int, device: torch.device | str = "cpu") -> PagedKv:
        """All bytes zero: every codec decodes them to zeros."""
        return cls(torch.zeros(pages, layout.page_bytes, dtype=torch.uint8, device=device), layout)

    @property
    def runs(self) -> Tensor:
        """The head runs, uint8 ``[pages, layers, kv heads, layout.head_bytes]``; a view."""
        layout = self.layout
        return self.pages.view(-1, layout.layers, layout.kv_heads, layout.head_bytes)

    @property
    def plain(self) -> Tensor:
        """``[pages, layers, kv heads, 2 (K, V), page tokens, head dim]`` of a codec that keeps numbers as they are.

        A view. KeyError for any other codec.
        """
        layout, dtype = self.layout, _PLAIN_DTYPES[self.layout.codec.key]
        return self.pages.view(dtype).view(-1, layout.layers, layout.kv_heads, 2, PAGE_TOKENS, layout.head_dim)

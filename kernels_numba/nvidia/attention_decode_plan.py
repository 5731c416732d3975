"""Sizes of the kernels of decode attention: what their source text and their launches agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout

PAGED_HEAD_DIM: Final = 256
PAGED_WARPS: Final = 4
SCORE_SCALES: Final = {"nvfp4": 7, "fp8": 8, "int8": 4, "k8v4": 8, "bf16": 0}
"""By codec: scores are true scores times 2 ** -this, as codes and scales are read times powers of two."""


@dataclass(frozen=True)
class PagedPlan:
    """One variant of ``attention_paged`` and its shared memory.

    Which is: ring | queries | probabilities | statistics.
    """

    codec: str
    tiles: int  # of 8 columns
    step_pages: int
    entries: int  # of the ring
    warpgroup: bool = False  # products of a whole warpgroup, with B in shared memory (sm_90a)

    @property
    def layout(self) -> KvLayout:
        return KvLayout(KV_CODECS[self.codec], 1, 1, PAGED_HEAD_DIM)

    @property
    def head_bytes(self) -> int:
        return self.layout.head_bytes

    @property
    def key_bytes(self) -> int:
        """Codes and scales of a page's keys."""
        return self.layout.value_codes_offset

    @property
    def value_bytes(self) -> int:
        return self.head_bytes - self.key_bytes

    @property
    def entry_bytes(self) -> int:
        return self.step_pages * max(self.key_bytes, self.value_bytes)

    @property
    def queries(self) -> int:
        return self.entries * self.entry_bytes

    @property
    def probabilities(self) -> int:
        return self.queries + 8 * self.tiles * PAGED_HEAD_DIM * 2

    @property
    def statistics(self) -> int:
        return self.probabilities + self.step_pages * 2 * self.tiles * 512

    @property
    def shared_bytes(self) -> int:
        return self.statistics + PAGED_WARPS * self.tiles * 32

"""``attention_paged`` over NVFP4 pages with scores of FP4 tensor cores (sm_120a). Never run there."""

from __future__ import annotations

from typing import Any

from kernels_numba.nvidia import fp4_tiles as F4
from kernels_numba.nvidia import ptx as P
from kernels_numba.nvidia import tiles as F
from kernels_numba.nvidia.attention_codec_fp4 import Fp4Plan, Nvfp4Scores
from kernels_numba.nvidia.attention_paged import Paged


class PagedFp4(Paged):
    def __init__(self, plan: Fp4Plan) -> None:
        super().__init__(plan)
        self.codec = Nvfp4Scores(plan)


def source(tiles: int, step_pages: int, entries: int) -> str:
    return PagedFp4(Fp4Plan("nvfp4", tiles, step_pages, entries)).source()


def waits(tiles: int, step_pages: int, entries: int) -> dict[str, int]:
    """As of ``attention_paged``."""
    return {"WAIT": Fp4Plan("nvfp4", tiles, step_pages, entries).entries - 2}


def make(tiles: int, step_pages: int, entries: int) -> Any:
    names = {name: P.cp_wait(groups) for name, groups in waits(tiles, step_pages, entries).items()}
    return P.function_of(source(tiles, step_pages, entries), "kernel", P=P, F=F, F4=F4, **names)

"""Which weights of a dense block its kernel takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.matrices import Matrix
from kernels_numba.nvidia.linear import StreamSegment, stream_segment
from kernels_numba.nvidia.linear_block_layout import Sizes
from kernels_numba.nvidia.linear_block_ops import _parts_of
from kernels_numba.nvidia.linear_packing import stream_format
from kernels_numba.shapes import DenseBlockWeights, PackedLinear
from tests.kernels_numba.weights import RandomMatrices

RANDOM = RandomMatrices()


def stream(matrix: Matrix, slices: int = 1) -> StreamSegment:
    weights = stream_format(matrix)
    assert weights is not None
    return stream_segment(matrix, weights, slices, 4)


def nvfp4(rows: int, columns: int) -> StreamSegment:
    return stream(RANDOM.nvfp4(rows, columns))


NORM = torch.ones(256)
BLOCK = DenseBlockWeights(
    out_proj=PackedLinear((nvfp4(256, 384),)),
    norm=NORM,
    gate_up=PackedLinear((nvfp4(1024, 256),)),
    down=PackedLinear((nvfp4(256, 512),)),
    next_norm=NORM,
    next_in_proj=PackedLinear((nvfp4(128, 256), stream(RANDOM.bfloat16(32, 256)))),
    eps=1e-6,
)


@pytest.mark.parametrize(
    ("following", "rows"),
    [(BLOCK.next_in_proj, (128, 32)), (PackedLinear((nvfp4(64, 256),)), (64, 0)), (None, (0, 0))],
    ids=["with plain rows", "alone", "nothing"],
)
def test_sizes(following: PackedLinear | None, rows: tuple[int, int]) -> None:
    parts = _parts_of(replace(BLOCK, next_in_proj=following))
    assert parts is not None
    assert parts.sizes == Sizes(384, 256, 512, *rows)


@pytest.mark.parametrize(
    "weights",
    [
        replace(BLOCK, out_proj=PackedLinear((stream(RANDOM.fp8_row(256, 384)),))),
        replace(BLOCK, gate_up=PackedLinear((RANDOM.nvfp4(1024, 256),))),
        replace(BLOCK, down=PackedLinear((stream(RANDOM.nvfp4(256, 512), slices=2),))),
        replace(BLOCK, down=PackedLinear((nvfp4(128, 512), nvfp4(128, 512)))),
        replace(BLOCK, next_in_proj=PackedLinear((stream(RANDOM.bfloat16(32, 256)), nvfp4(128, 256)))),
    ],
    ids=["FP8", "not packed", "in slices", "two of one", "plain rows first"],
)
def test_what_goes_one_after_the_other(weights: DenseBlockWeights) -> None:
    assert _parts_of(weights) is None

"""The order of NVFP4 scales in artifacts against the closed formula."""

from __future__ import annotations

import pytest
import torch

from kernels_numba.swizzle import unswizzle_scales


def offset(row: int, block: int, columns: int) -> int:
    """Where the scale of a row and a block of 16 columns is stored."""
    return (row // 128 * (columns // 64) + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


@pytest.mark.parametrize(("rows", "columns"), [(128, 64), (256, 64), (128, 320), (384, 192)], ids=str)
def test_every_place(rows: int, columns: int) -> None:
    stored = torch.randint(0, 127, (rows * columns // 16,), generator=torch.Generator().manual_seed(0)).byte()
    natural = unswizzle_scales(stored, rows, columns)
    expected = [[stored[offset(row, block, columns)] for block in range(columns // 16)] for row in range(rows)]
    assert torch.equal(natural, torch.tensor(expected, dtype=torch.uint8))


def test_published_samples() -> None:
    stored = torch.zeros(256 * 320, dtype=torch.uint8)
    samples = {
        (0, 0): 0,
        (1, 0): 16,
        (32, 0): 4,
        (31, 3): 499,
        (127, 3): 511,
        (0, 4): 512,
        (128, 0): 40960,
        (200, 319): 81547,
    }
    for value, place in enumerate(samples.values()):
        stored[place] = value + 1
    natural = unswizzle_scales(stored, 256, 5120)
    assert [int(natural[place]) for place in samples] == list(range(1, 9))
    assert int(natural.count_nonzero()) == 8


def test_stacks() -> None:
    stored = torch.randint(0, 127, (3, 256 * 8), generator=torch.Generator().manual_seed(0)).byte()
    natural = unswizzle_scales(stored, 256, 128)
    assert natural.shape == (3, 256, 8)
    assert all(torch.equal(natural[index], unswizzle_scales(stored[index], 256, 128)) for index in range(3))


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 32)], ids=str)
def test_shapes_without_whole_tiles(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} x {columns}"):
        unswizzle_scales(torch.zeros(rows * columns // 16, dtype=torch.uint8), rows, columns)

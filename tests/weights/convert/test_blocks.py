"""Blocks of rows: how they are cut, and that their values are those of the formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ninferd.weights.convert.blocks import BlockReader, block_rows, split
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.loading.files import OpenFiles
from ninferd.weights.stored import RowRun
from tests.weights.convert.matrices import random_matrix


@pytest.fixture
def reader() -> Iterator[BlockReader]:
    with OpenFiles() as files:
        yield BlockReader(files)


KINDS = (
    "bf16",
    "fp16",
    "fp32",
    "fp64",
    "nvfp4",
    "nvfp4 swizzled",
    "fp8 rows",
    "fp8 tensor",
    "fp8 float32 rows",
    "fp8 blocks",
    "fp8 blocks, bfloat16",
    "q6",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("begin", "end"), [(0, 384), (0, 1), (100, 300), (383, 384)], ids=str)
def test_values_of_rows(tmp_path: Path, reader: BlockReader, kind: str, begin: int, end: int) -> None:
    matrix = random_matrix(tmp_path, kind)
    values = reader.values([RowRun(matrix, begin, end)])
    if kind == "bf16":
        assert values.dtype == np.uint16
        values = (values.astype(np.uint32) << 16).view(np.float32)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, decode_rows(matrix, begin, end))


def test_a_block_of_several_matrices(tmp_path: Path, reader: BlockReader) -> None:
    bf16, nvfp4 = random_matrix(tmp_path, "bf16"), random_matrix(tmp_path, "nvfp4")
    values = reader.values([RowRun(bf16, 3, 5), RowRun(nvfp4, 7, 8), RowRun(bf16, 0, 1)])
    expected = [decode_rows(bf16, 3, 5), decode_rows(nvfp4, 7, 8), decode_rows(bf16, 0, 1)]
    np.testing.assert_array_equal(values, np.concatenate(expected))


def test_split_keeps_all_rows_in_order(tmp_path: Path) -> None:
    first, second = random_matrix(tmp_path, "bf16"), random_matrix(tmp_path, "fp32")
    runs = [RowRun(first, 0, 100), RowRun(second, 50, 250), RowRun(first, 100, 384)]
    blocks = list(split(runs, 128))
    assert [sum(run.rows for run in block) for block in blocks] == [128, 128, 128, 128, 72]
    flat = [(run.matrix.name, row) for block in blocks for run in block for row in range(run.begin, run.end)]
    assert flat == [(run.matrix.name, row) for run in runs for row in range(run.begin, run.end)]


@pytest.mark.parametrize(("columns", "rows"), [(5120, 768), (256, 16384), (1 << 23, 128)])
def test_blocks_are_whole_tiles_of_rows(columns: int, rows: int) -> None:
    assert block_rows(columns) == rows

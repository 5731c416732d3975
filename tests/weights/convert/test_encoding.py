"""Blocks to planes: kept bytes stay the same, encoded ones are near, broken ones are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ninferd.errors import InputError
from ninferd.weights.convert.blocks import BlockReader
from ninferd.weights.convert.encoding import BlockEncoder, Deviation, divisor_of
from ninferd.weights.formats.encode import NumpyEncoders
from ninferd.weights.loading.files import OpenFiles
from ninferd.weights.stored import RowRun, StoredMatrix
from tests.weights.convert.matrices import COLUMNS, ROWS, random_matrix, stored


@pytest.fixture
def encoder() -> Iterator[BlockEncoder]:
    with OpenFiles() as files:
        yield BlockEncoder(BlockReader(files), NumpyEncoders(), "max_abs")


def whole(matrix: StoredMatrix) -> tuple[RowRun, ...]:
    return (RowRun(matrix, 0, matrix.rows),)


def test_kept_nvfp4_has_the_codes_and_the_swizzled_scales(tmp_path: Path, encoder: BlockEncoder) -> None:
    matrix = random_matrix(tmp_path, "nvfp4")
    kept = encoder.keep(whole(matrix), "nvfp4")
    np.testing.assert_array_equal(kept.planes["codes"], matrix.planes["codes"].array())
    scales = matrix.planes["scales"].array()
    stored_scales = kept.planes["scales"].reshape(-1)
    tiles = COLUMNS // 64
    for row, block in ((0, 0), (1, 0), (32, 0), (31, 3), (127, 3), (0, 4), (128, 0), (383, 15)):
        offset = (row // 128 * tiles + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
        assert stored_scales[offset] == scales[row, block]


def test_modelopt_divisor_is_the_float32_of_the_inverse(tmp_path: Path, encoder: BlockEncoder) -> None:
    matrix = random_matrix(tmp_path, "nvfp4")
    (run,) = whole(matrix)
    assert divisor_of(run) == float(np.float32(1 / np.float64(np.float32(0.37))))
    assert encoder.keep((run,), "nvfp4").deviation.relative_rms < 1e-7


def test_rows_of_several_divisors_have_no_common_one(tmp_path: Path) -> None:
    matrix = random_matrix(tmp_path, "nvfp4 swizzled")
    assert divisor_of(RowRun(matrix, 0, ROWS)) is None
    assert divisor_of(RowRun(matrix, 128, 256)) == 3.5


def test_kept_fp8_rows_are_the_same_bytes(tmp_path: Path, encoder: BlockEncoder) -> None:
    matrix = random_matrix(tmp_path, "fp8 rows")
    kept = encoder.keep(whole(matrix), "fp8_e4m3fn_row_bf16")
    for name in ("codes", "scales"):
        np.testing.assert_array_equal(kept.planes[name], matrix.planes[name].array())
    assert kept.deviation == Deviation(16, 0.0, kept.deviation.squared_value)


def test_the_scale_of_an_fp8_tensor_becomes_that_of_every_row(tmp_path: Path, encoder: BlockEncoder) -> None:
    matrix = random_matrix(tmp_path, "fp8 tensor")
    kept = encoder.keep(whole(matrix), "fp8_e4m3fn_row_bf16")
    word = int(torch.tensor(0.011).bfloat16().view(torch.int16).item())
    assert set(kept.planes["scales"].tolist()) == {word}
    rounding = abs(float(torch.tensor(0.011).bfloat16()) / float(np.float32(0.011)) - 1)
    assert kept.deviation.relative_rms == pytest.approx(rounding, rel=1e-3)


@pytest.mark.parametrize("format", ["bf16", "fp32", "q8_g32_fp16", "q4_g64_fp16", "fp8_e4m3fn_row_bf16", "nvfp4"])
def test_the_reported_error_is_that_of_the_first_rows(tmp_path: Path, encoder: BlockEncoder, format: str) -> None:
    encoded = encoder.encode(whole(random_matrix(tmp_path, "bf16")), format, 2688 / 4)
    bounds = {"bf16": 0, "fp32": 0, "q8_g32_fp16": 0.008, "q4_g64_fp16": 0.12, "fp8_e4m3fn_row_bf16": 0.03}
    assert encoded.deviation.rows == 16
    bound = bounds.get(format, 0.12)
    assert bound / 4 <= encoded.deviation.relative_rms <= bound


def test_deviations_add_up() -> None:
    total = Deviation(3, 1.0, 10.0) + Deviation(2, 3.0, 6.0)
    assert total.rows == 5
    assert total.relative_rms == 0.5
    assert Deviation().relative_rms == 0


@pytest.mark.parametrize(("word", "row"), [(0x80, 200), (0x7F, 5)])
def test_block_scales_must_be_numbers(tmp_path: Path, encoder: BlockEncoder, word: int, row: int) -> None:
    scales = np.full((ROWS, COLUMNS // 16), 0x30, np.uint8)
    scales[row, 3] = word
    matrix = stored(tmp_path, "nvfp4", {"codes": np.zeros((ROWS, COLUMNS // 2), np.uint8), "scales": scales})
    with pytest.raises(InputError, match=rf"nvfp4\.bin: nvfp4: row {row}: a block scale is negative or not a number"):
        encoder.keep([RowRun(matrix, 0, 128), RowRun(matrix, 128, 384)], "nvfp4")


@pytest.mark.parametrize(("code", "scale"), [(0x7F, 0x3F80), (0, 0x7F80), (0, 0xBF80)])
def test_fp8_values_and_scales_must_be_numbers(tmp_path: Path, encoder: BlockEncoder, code: int, scale: int) -> None:
    codes, scales = np.zeros((ROWS, COLUMNS), np.uint8), np.full(ROWS, 0x3F80, "<u2")
    codes[300, 1], scales[300] = code, scale
    matrix = stored(tmp_path, "fp8_e4m3fn_row_bf16", {"codes": codes, "scales": scales})
    with pytest.raises(InputError, match=r"fp8_e4m3fn_row_bf16: row 300: the scale is .*, or a value is not a number"):
        encoder.keep([RowRun(matrix, 0, 100), RowRun(matrix, 100, 384)], "fp8_e4m3fn_row_bf16")


def test_values_that_are_not_finite_name_file_and_tensor(tmp_path: Path, encoder: BlockEncoder) -> None:
    values = np.zeros((ROWS, COLUMNS), "<f4")
    values[7, 7] = np.nan
    matrix = stored(tmp_path, "fp32", {"values": values})
    with pytest.raises(InputError, match=r"fp32\.bin: fp32: in the block from row 0: cannot be stored as q8_g32_fp16"):
        encoder.encode(whole(matrix), "q8_g32_fp16", 1.0)

"""Every format, whole and in parts, from odd offsets and split files: the loaded values are exactly the stored ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from ninferd.errors import InputError
from ninferd.weights.formats.registry import execution_bytes
from ninferd.weights.loading.layout import MatrixLayout
from ninferd.weights.loading.matrices import load_matrices
from ninferd.weights.stored import RowRun
from tests.support.matrix_values import formula_values, matrix_values
from tests.support.stored_matrices import FORMATS, Encoded, Store, bf16, fp8_rows, nvfp4, nvfp4_swizzled, plain
from tests.weights.loading.support import CPU, allocated_bytes, loaded, resolved, whole

ROWS, COLUMNS = 384, 192
every_format = pytest.mark.parametrize("format", list(FORMATS))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(params=[32 << 20, 4096], ids=["batch=32M", "batch=4K"])
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Many batches as well as one."""
    for module in ("transfer", "matrices", "assembly"):
        monkeypatch.setattr(f"ninferd.weights.loading.{module}.BATCH_BYTES", request.param)
    size: int = request.param
    return size


def encoded(format: str, rows: int = ROWS, seed: int = 0) -> Encoded:
    return FORMATS[format](np.random.default_rng(seed), rows, COLUMNS)


@every_format
@pytest.mark.usefixtures("batch_bytes")
def test_a_whole_matrix(format: str, store: Store) -> None:
    content = encoded(format)
    request = resolved(whole(store.matrix(content)))
    (matrix,) = loaded(request)["some"]
    expected = content.values.astype(np.float32) if format == "fp64" else content.values
    np.testing.assert_array_equal(matrix_values(matrix), expected)
    assert request.device_bytes == allocated_bytes([matrix]) == execution_bytes(content.format, ROWS, COLUMNS, 4)
    assert request.file_bytes == sum(plane.nbytes for plane in content.planes.values())
    formula = formula_values(store.matrix(content), 0, ROWS)
    np.testing.assert_allclose(formula, content.values, rtol=2**-24 if "nvfp4" in format else 0, atol=0)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 128), (256, 384)],
        [(128, 256), (0, 128)],
        [(7, 131), (140, 141), (100, 384)],
        [(128, 129), (0, 128), (128, 200), (128, 384), (383, 384)],
    ],
    ids=str,
)
@every_format
@pytest.mark.usefixtures("batch_bytes")
def test_rows_in_any_order(format: str, rows: list[tuple[int, int]], store: Store) -> None:
    content = encoded(format)
    stored = store.matrix(content)
    request = resolved([RowRun(stored, begin, end) for begin, end in rows])
    (matrix,) = loaded(request)["some"]
    expected = np.concatenate([content.values[begin:end] for begin, end in rows])
    np.testing.assert_array_equal(matrix_values(matrix), expected.astype(np.float32) if format == "fp64" else expected)
    assert request.device_bytes == allocated_bytes([matrix])


@pytest.mark.parametrize("cut_bytes", [4, 20001, 36867])
@every_format
@pytest.mark.usefixtures("batch_bytes")
def test_planes_that_straddle_files(format: str, cut_bytes: int, store: Store) -> None:
    content = encoded(format)
    (matrix,) = loaded(resolved([RowRun(store.matrix(content, cut_bytes=cut_bytes), 128, 384)]))["some"]
    expected = content.values[128:]
    np.testing.assert_array_equal(matrix_values(matrix), expected.astype(np.float32) if format == "fp64" else expected)


@every_format
@pytest.mark.usefixtures("batch_bytes")
def test_several_matrices_of_one_format_become_one(format: str, store: Store) -> None:
    contents = [encoded(format, rows, seed) for seed, rows in enumerate((128, 384, 256))]
    request = resolved(*(whole(store.matrix(content)) for content in contents))
    (matrix,) = loaded(request)["some"]
    expected = np.concatenate([content.values for content in contents])
    np.testing.assert_array_equal(matrix_values(matrix), expected.astype(np.float32) if format == "fp64" else expected)
    assert request.device_bytes == allocated_bytes([matrix])


@pytest.mark.parametrize("is_one_bank", [True, False], ids=["bank", "single"])
@every_format
@pytest.mark.usefixtures("batch_bytes")
def test_stacks(format: str, is_one_bank: bool, store: Store) -> None:
    """Experts of 96 + 96 rows (so that blocks of 128 rows straddle them), in one parent or each by itself."""
    per_expert, experts = 192, 4
    if is_one_bank:
        content = encoded(format, experts * per_expert)
        bank, values = store.matrix(content), content.values
        parts = [[RowRun(bank, begin, begin + 96)] for begin in range(0, experts * per_expert, 96)]
    else:
        contents = [encoded(format, 128, seed) for seed in range(2 * experts)]
        parts = [[RowRun(store.matrix(content), 16, 112)] for content in contents]
        values = np.concatenate([content.values[16:112] for content in contents])
    request = resolved(*parts, stack=experts)
    (matrix,) = loaded(request)["some"]
    assert (matrix.stack, matrix.rows) == ((experts,), per_expert)
    assert request.device_bytes == allocated_bytes([matrix])
    expected = values.astype(np.float32) if format == "fp64" else values
    for expert in range(experts):
        rows = slice(expert * per_expert, (expert + 1) * per_expert)
        np.testing.assert_array_equal(matrix_values(matrix[expert]), expected[rows])


@pytest.mark.parametrize("format", ["bf16", "fp16", "fp32", "fp64"])
@pytest.mark.usefixtures("batch_bytes")
def test_plain_values_in_bfloat16(format: str, store: Store) -> None:
    content = encoded(format)
    request = resolved(whole(store.matrix(content)), dense="<u2")
    (matrix,) = loaded(request)["some"]
    expected = torch.from_numpy(content.values).float().bfloat16().double().numpy()
    np.testing.assert_array_equal(matrix_values(matrix), expected)
    assert request.device_bytes == allocated_bytes([matrix]) == 2 * ROWS * COLUMNS


def test_a_divisor_is_inverted_with_one_rounding(store: Store) -> None:
    generator = np.random.default_rng(0)
    for divisor in (0.1, 2.7, 1e-30, 3e5):
        content = nvfp4(generator, 128, 64, divisors=(float(np.float32(divisor)),), is_swizzled=True)
        (matrix,) = loaded(resolved(whole(store.matrix(content))))["some"]
        multiplier = float(matrix.planes["multiplier"][0])
        assert multiplier == np.float32(1 / float(np.float32(divisor)))


def test_neighbours_of_another_format_become_another_matrix(store: Store) -> None:
    generator = np.random.default_rng(1)
    kinds = [fp8_rows, fp8_rows, bf16, plain("fp32", "<f4"), nvfp4_swizzled]
    contents = [kind(generator, 128, COLUMNS) for kind in kinds]
    request = resolved(*(whole(store.matrix(content)) for content in contents))
    matrices = loaded(request)["some"]
    assert [matrix.rows for matrix in matrices] == [256, 256, 128]
    values = np.concatenate([matrix_values(matrix) for matrix in matrices])
    np.testing.assert_array_equal(values, np.concatenate([content.values for content in contents]))
    assert request.device_bytes == allocated_bytes(matrices)


def test_fp8_rows_with_scales_and_with_factors_become_one(store: Store) -> None:
    generator = np.random.default_rng(1)
    kinds = [FORMATS[format] for format in ("fp8-tensor", "fp8-row", "fp8-channel", "fp8-row", "fp8-tensor")]
    contents = [kind(generator, 128, COLUMNS) for kind in kinds]
    (matrix,) = loaded(resolved(*(whole(store.matrix(content)) for content in contents)))["some"]
    np.testing.assert_array_equal(matrix_values(matrix), np.concatenate([content.values for content in contents]))


def test_requests_come_in_the_order_of_the_files(store: Store) -> None:
    stored = [store.matrix(encoded("bf16", seed=seed)) for seed in range(3)]
    requests = [resolved(whole(stored[index]), key=str(index)) for index in (2, 0, 1)]
    seen: list[tuple[int, int]] = []
    keys = [key for key, _ in load_matrices(requests, CPU, lambda done, total: seen.append((done, total)))]
    assert keys == ["0", "1", "2"]
    size = 2 * ROWS * COLUMNS
    assert seen[-1] == (3 * size, 3 * size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_experts_in_different_formats_are_refused(store: Store) -> None:
    parts = [whole(store.matrix(encoded(format))) for format in ("q4", "q4", "q4", "q5")]
    with pytest.raises(
        InputError, match=r"some/model: some: matrix 3 of the stack is stored as 384 rows of q5_g64_fp16, "
    ):
        resolved(*parts, stack=4)


def test_a_format_that_is_no_matrix_is_refused(store: Store) -> None:
    content = Encoded("int32", {"values": np.zeros((4, 4), "<i4")}, np.zeros((4, 4)), {})
    with pytest.raises(InputError, match=r"0\.bin: ids is stored as int32, which no matrix can be loaded from"):
        resolved(whole(store.matrix(content, "ids")))


def test_a_file_that_became_shorter(store: Store) -> None:
    stored = store.matrix(encoded("q4"))
    request = resolved(whole(stored))
    with stored.path.open("r+b") as file:
        file.truncate(30_000)
    with pytest.raises(InputError, match=r"0\.bin: ends at byte 30000, bytes 3 to \d+ are needed: the file changed"):
        loaded(request)


def test_a_file_that_went_away(store: Store) -> None:
    stored = store.matrix(encoded("q4"))
    stored.path.unlink()
    with pytest.raises(InputError, match=r"0\.bin: cannot be read: No such file"):
        loaded(resolved(whole(stored)))


def test_a_caller_that_stops_early_leaves_no_thread(store: Store) -> None:
    requests = [resolved(whole(store.matrix(encoded("q4"))), key=str(index)) for index in range(8)]
    matrices = load_matrices(requests, CPU, lambda done, total: None)
    next(matrices)
    del matrices
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_a_source_without_files_generates(store: Store) -> None:
    content = encoded("q4")
    stored = store.matrix(content)
    planes = {name: type(plane)(plane.dtype, plane.shape, ()) for name, plane in stored.planes.items()}
    request = resolved(whole(type(stored)("made", Path("made"), stored.format, stored.rows, stored.columns, planes)))

    def generate(layout: MatrixLayout, tensors: Mapping[str, torch.Tensor]) -> None:
        for name in layout.tensors:
            tensors[name].copy_(torch.from_numpy(content.planes[name]))

    made = dict(load_matrices([request], CPU, lambda done, total: None, generate))
    np.testing.assert_array_equal(matrix_values(made["some"][0]), content.values)

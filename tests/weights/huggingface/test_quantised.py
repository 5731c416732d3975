"""Single weights: what their tensors say, and every way in which they can contradict each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ninferd.errors import InputError
from ninferd.weights.formats.decode import decode_rows
from ninferd.weights.huggingface.quantised import is_stored, parts_of, stored_matrix
from ninferd.weights.huggingface.safetensors import read_header
from ninferd.weights.parameters.huggingface_names import SourceTensor
from ninferd.weights.stored import StoredMatrix
from tests.support.quantised_checkpoints import (
    compressed_tensors_nvfp4,
    fp8_block,
    fp8_row,
    fp8_tensor,
    modelopt_nvfp4,
)

Tensors = dict[str, torch.Tensor]

ROWS, COLUMNS = 200, 304  # neither is a multiple of 128
E4M3 = torch.float8_e4m3fn


def weight() -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    values = torch.randn(ROWS, COLUMNS, generator=generator)
    values[:, 16:32] *= 1e-4  # scales far apart
    values[3] = 0
    values[5, 48:64] = 0
    return values


def read(directory: Path, tensors: Tensors, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> StoredMatrix:
    path = directory / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    source = SourceTensor("x.weight", shape, shape[-1], ((0, shape[0]),))
    return stored_matrix(read_header(path), source)


@pytest.mark.parametrize(
    ("made", "format"),
    [
        (compressed_tensors_nvfp4("x", weight()), "nvfp4"),
        (modelopt_nvfp4("x", weight()), "nvfp4"),
        (fp8_tensor("x", weight()), "fp8_e4m3fn_row_bf16"),
        (fp8_tensor("x", weight(), torch.bfloat16), "fp8_e4m3fn_row_bf16"),
        (fp8_row("x", weight() + 1e-3), "fp8_e4m3fn_row_bf16"),
        (fp8_row("x", weight() + 1e-3, torch.float32), "fp8_e4m3fn_row_bf16"),
        (fp8_block("x", weight()), "fp8_e4m3fn_block128"),
        (fp8_block("x", weight(), torch.bfloat16), "fp8_e4m3fn_block128"),
    ],
    ids=["ct", "modelopt", "fp8 f32", "fp8 bf16", "row bf16", "row f32", "block f32", "block bf16"],
)
def test_values(tmp_path: Path, made: tuple[Tensors, torch.Tensor], format: str) -> None:
    tensors, exact = made
    matrix = read(tmp_path, tensors)
    assert (matrix.format, matrix.rows, matrix.columns) == (format, ROWS, COLUMNS)
    assert not matrix.is_swizzled
    np.testing.assert_allclose(decode_rows(matrix, 0, ROWS), exact.numpy(), rtol=2**-22)


def test_a_vector_of_row_scales(tmp_path: Path) -> None:
    tensors, exact = fp8_row("x", weight() + 1e-3)
    matrix = read(tmp_path, tensors | {"x.weight_scale": tensors["x.weight_scale"].reshape(ROWS)})
    np.testing.assert_allclose(decode_rows(matrix, 0, ROWS), exact.numpy(), rtol=2**-22)


def test_block_scales_under_the_other_name(tmp_path: Path) -> None:
    """compressed-tensors calls scales of blocks ``weight_scale``."""
    tensors, exact = fp8_block("x", weight())
    tensors["x.weight_scale"] = tensors.pop("x.weight_scale_inv")
    matrix = read(tmp_path, tensors)
    assert matrix.format == "fp8_e4m3fn_block128"
    np.testing.assert_allclose(decode_rows(matrix, 0, ROWS), exact.numpy(), rtol=2**-22)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_of_any_rank(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors, exact = fp8_tensor("x", weight())
    matrix = read(tmp_path, tensors | {"x.weight_scale": tensors["x.weight_scale"].reshape(shape)})
    assert matrix.factors == (float(tensors["x.weight_scale"]),)
    np.testing.assert_allclose(decode_rows(matrix, 0, ROWS), exact.numpy(), rtol=2**-22)


def test_calibration_of_both_conventions(tmp_path: Path) -> None:
    """One convention divides, the other multiplies: the divisor of activations is the same number."""
    tensors = compressed_tensors_nvfp4("x", weight())[0] | {"x.input_global_scale": torch.tensor([12.0])}
    assert (read(tmp_path, tensors).activation_divisor, read(tmp_path, tensors).activation_problem) == (12.0, "")
    tensors = modelopt_nvfp4("x", weight())[0] | {"x.input_scale": torch.tensor(1 / 12)}
    assert read(tmp_path, tensors).activation_divisor == float(np.float32(1 / float(np.float32(1 / 12))))
    del tensors["x.input_scale"]
    assert (read(tmp_path, tensors).activation_divisor, read(tmp_path, tensors).activation_problem) == (None, "")


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), 1e-45])
def test_calibration_without_sense_is_none(tmp_path: Path, value: float) -> None:
    tensors = modelopt_nvfp4("x", weight())[0] | {"x.input_scale": torch.tensor(value)}
    matrix = read(tmp_path, tensors)
    assert matrix.activation_divisor is None
    assert re.fullmatch(
        rf"{tmp_path}/\S+: tensor x\.input_scale is {re.escape(str(torch.tensor(value).item()))}, which no activations "
        "can be scaled by: they stay in 16 bits",
        matrix.activation_problem,
    )


def test_names() -> None:
    assert is_stored({"x.weight_packed": None}, "x.weight")  # type: ignore[dict-item]
    assert is_stored({"x": None}, "x")  # type: ignore[dict-item]
    assert not is_stored({"x.weight_scale": None}, "x.weight")  # type: ignore[dict-item]
    assert parts_of("x.weight")[0] == "x.weight"
    assert {"x.weight_packed", "x.weight_scale_2", "x.input_global_scale"} <= set(parts_of("x.weight"))


def without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def plus(**changes: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {f"x.{name}": tensor for name, tensor in changes.items()}


CT, MODELOPT = compressed_tensors_nvfp4("x", weight())[0], modelopt_nvfp4("x", weight())[0]
TENSOR, ROW, BLOCKS = fp8_tensor("x", weight())[0], fp8_row("x", weight() + 1e-3)[0], fp8_block("x", weight())[0]
PLAIN = {"x.weight": weight()}
ONE = torch.ones(1)
FOREIGN = "in a layout that cannot be read; readable: BF16, F16, F32, F64, FP8"


@pytest.mark.parametrize(
    ("tensors", "change", "problem"),
    [
        (CT, without("x.weight_scale"), "x.weight_packed has type U8, but its x.weight_scale is missing"),
        (CT, without("x.weight_global_scale"), "but its x.weight_global_scale is missing"),
        (CT, plus(weight_global_scale=torch.zeros(1)), "x.weight_global_scale is 0.0; a global scale must be"),
        (CT, plus(weight_global_scale=torch.tensor([-1.0])), "x.weight_global_scale is -1.0; a global scale must"),
        (CT, plus(weight_global_scale=torch.tensor([torch.inf])), "x.weight_global_scale is inf"),
        (CT, plus(weight_global_scale=torch.tensor([torch.nan])), "x.weight_global_scale is nan"),
        (CT, plus(weight_global_scale=torch.ones(2)), r"x.weight_global_scale has shape \[2\], expected one number"),
        (CT, plus(weight_global_scale=torch.ones(1, dtype=torch.int32)), "has type I32, expected F32 or BF16"),
        (CT, plus(weight_scale=torch.ones(ROWS, COLUMNS // 16)), "x.weight_scale has type F32, expected F8_E4M3"),
        (CT, plus(weight_scale=torch.ones(ROWS, 3).to(E4M3)), r"has shape \[200, 3\], expected \[200, 19\]"),
        (CT, plus(weight_packed=torch.zeros(ROWS, 9, dtype=torch.uint8)), r"shape \[200, 9\], expected \[200, 152\]"),
        (CT, plus(weight_packed=torch.zeros(ROWS, 38, dtype=torch.int32)), "x.weight_packed has type I32, expected U8"),
        (CT, plus(weight_shape=torch.ones(2, dtype=torch.int64)), "x.weight_shape does not belong to a weight with"),
        (CT, plus(weight=weight()), "the same weight is also there as x.weight"),
        (CT, plus(weight_scale_2=ONE), "x.weight_scale_2 does not belong to a weight with weight_packed and"),
        (CT, plus(input_global_scale=torch.ones(3)), r"x.input_global_scale has shape \[3\], expected one number"),
        (MODELOPT, without("x.weight_scale"), "x.weight has type U8, but its x.weight_scale is missing"),
        (MODELOPT, without("x.weight_scale_2"), f"x.weight has type U8 {FOREIGN}"),
        (MODELOPT, plus(weight_scale_2=torch.tensor(0.0)), "x.weight_scale_2 is 0.0; a global scale must be finite"),
        (
            MODELOPT,
            plus(weight_global_scale=ONE),
            "x.weight_global_scale does not belong to a weight with weight_scale",
        ),
        (MODELOPT, plus(weight=torch.zeros(ROWS, COLUMNS, dtype=torch.uint8)), r"expected \[200, 152\]"),
        (TENSOR, without("x.weight_scale"), "x.weight has type F8_E4M3, but its x.weight_scale is missing"),
        (TENSOR, plus(weight_scale=torch.tensor(0.0)), "x.weight_scale is 0.0; a global scale must be finite"),
        (TENSOR, plus(weight_scale=torch.ones(1).to(E4M3)), "x.weight_scale has type F8_E4M3, expected F32 or BF16"),
        (TENSOR, plus(weight_scale_inv=torch.ones(2, 3)), "x.weight_scale does not belong to a weight with"),
        (
            TENSOR,
            plus(weight=torch.zeros(ROWS, 300).to(E4M3)),
            r"x.weight has shape \[200, 300\], expected \[200, 304\]",
        ),
        (TENSOR, plus(weight=weight().to(torch.float8_e5m2)), f"x.weight has type F8_E5M2 {FOREIGN}"),
        (TENSOR, plus(weight=weight().to(torch.int8)), f"x.weight has type I8 {FOREIGN}"),
        (ROW, plus(weight_scale=torch.full((ROWS, 1), torch.nan)), "x.weight_scale: element 0 is nan; scales must be"),
        (ROW, plus(weight_scale=-torch.ones(ROWS)), "x.weight_scale: element 0 is -1.0; scales must be finite and not"),
        (
            ROW,
            plus(weight_scale=torch.ones(7)),
            r"x.weight_scale has shape \[7\]; one scale, 200 \(one per row\) or \[2, 3\]",
        ),
        (BLOCKS, plus(weight_scale_inv=torch.ones(3, 2)), r"x.weight_scale_inv has shape \[3, 2\]; .* \[2, 3\]"),
        (BLOCKS, plus(weight_scale_inv=torch.ones(2, 3).half()), "has type F16, expected F32 or BF16"),
        (BLOCKS, plus(weight_scale_inv=torch.full((2, 3), torch.inf)), "element 0 is inf; scales must be finite"),
        (PLAIN, plus(weight_scale=ONE), "x.weight_scale does not belong to a plain weight of type F32"),
        (PLAIN, plus(weight_scale_inv=ONE), "x.weight_scale_inv does not belong to a plain weight"),
        (PLAIN, plus(weight_zero_point=ONE), "x.weight_zero_point does not belong to a plain weight"),
        (PLAIN, plus(weight=torch.ones(2, 3)), r"x.weight has shape \[2, 3\], expected \[200, 304\]"),
        (PLAIN, plus(weight=torch.ones(ROWS, COLUMNS).to(torch.int32)), f"x.weight has type I32 {FOREIGN}"),
    ],
)
def test_contradictions(tmp_path: Path, tensors: Tensors, change: Callable[[Tensors], Tensors], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read(tmp_path, change(tensors))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/model.safetensors: tensor x.")
    assert "\n" not in message


def test_what_is_no_matrix_cannot_be_quantised(tmp_path: Path) -> None:
    tensors = {"x.weight": torch.ones(8, 1, 4).to(E4M3), "x.weight_scale": torch.ones(1)}
    with pytest.raises(InputError, match=r"x.weight has type F8_E4M3: \[8, 1, 4\] must not be quantised"):
        read(tmp_path, tensors, (8, 1, 4))


def test_columns_that_nvfp4_does_not_divide(tmp_path: Path) -> None:
    tensors = {
        "x.weight_packed": torch.zeros(4, 12, dtype=torch.uint8),
        "x.weight_scale": torch.ones(4, 1).to(E4M3),
        "x.weight_global_scale": torch.ones(1),
    }
    with pytest.raises(InputError, match=r"x.weight_packed: NVFP4 needs columns in multiples of 16, not 24"):
        read(tmp_path, tensors, (4, 24))

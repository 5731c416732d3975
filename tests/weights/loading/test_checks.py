"""Values that cannot be end a load, and are named; those that only look odd do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninferd.errors import InputError
from ninferd.weights.loading.checks import ValueChecks
from ninferd.weights.loading.layout import DenseDtype
from ninferd.weights.loading.matrices import load_matrices
from ninferd.weights.loading.transfer import TORCH_DTYPES
from tests.support.matrix_values import matrix_values
from tests.support.stored_matrices import (
    Encoded,
    Store,
    bf16,
    fp8_blocks,
    fp8_rows,
    grouped,
    nvfp4,
    nvfp4_swizzled,
    plain,
)
from tests.weights.loading.support import CPU, loaded, resolved, whole

ROWS, COLUMNS = 256, 192
DENSE_DTYPES: tuple[DenseDtype, ...] = ("<f4", "<u2")
MAKERS = {
    "nvfp4": lambda generator: nvfp4(generator, ROWS, COLUMNS, divisors=(2.0,)),
    "nvfp4-swizzled": lambda generator: nvfp4_swizzled(generator, ROWS, COLUMNS),
    "fp8-row": lambda generator: fp8_rows(generator, ROWS, COLUMNS),
    "fp8-block-bf16": lambda generator: fp8_blocks(True)(generator, ROWS, COLUMNS),
    "fp8-block-fp32": lambda generator: fp8_blocks(False)(generator, ROWS, COLUMNS),
    "q8": lambda generator: grouped("q8_g32_fp16")(generator, ROWS, COLUMNS),
    "t2": lambda generator: grouped("t2_g128_fp16")(generator, ROWS, COLUMNS),
}


def with_scale(kind: str, at: int, word: Any) -> Encoded:
    """A matrix of the kind whose stored scale number ``at`` has this bit pattern or value."""
    content: Encoded = MAKERS[kind](np.random.default_rng(4))
    scales = content.planes["scales"].copy()
    scales.reshape(-1)[at] = word
    return replace(content, planes={**content.planes, "scales": scales})


@pytest.mark.parametrize(
    ("kind", "word", "found"),
    [
        ("nvfp4", 0x7F, "0x7f; it must be finite and not negative"),
        ("nvfp4", 0xFF, "0xff; it must be finite and not negative"),
        ("nvfp4", 0x80, "0x80; it must be finite and not negative"),
        ("nvfp4-swizzled", 0x7F, "0x7f; it must be finite and not negative"),
        ("fp8-row", 0x7FC0, "nan; it must be finite and not negative"),
        ("fp8-row", 0x7F80, "inf; it must be finite and not negative"),
        ("fp8-row", 0xBF80, "-1.0; it must be finite and not negative"),
        ("fp8-block-bf16", 0x7FC0, "nan; it must be finite"),
        ("fp8-block-fp32", np.float32("-inf"), "-inf; it must be finite"),
        ("q8", np.float16("nan"), "nan; it must be finite"),
        ("t2", np.float16("inf"), "inf; it must be finite"),
    ],
)
@pytest.mark.parametrize("at", [0, -1])
def test_a_scale_that_cannot_be(kind: str, word: Any, found: str, at: int, tmp_path: Path) -> None:
    content = with_scale(kind, at, word)
    matrix = Store(tmp_path).matrix(content)
    (span,) = matrix.planes["scales"].spans
    size = content.planes["scales"].size
    byte = span.offset + at % size * (span.size_bytes // size)
    with pytest.raises(InputError) as refused:
        loaded(resolved(whole(matrix), key="text/layers/3/mlp/down"))
    assert str(refused.value) == (
        f"{span.path}: byte {byte}: weights text/layers/3/mlp/down: 1 of {size} scales are wrong, the first is {found}"
    )


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("nvfp4", 0x7E),
        ("nvfp4", 0),
        ("fp8-row", 0),
        ("fp8-row", 0x7F7F),
        ("fp8-block-bf16", 0xBF80),
        ("q8", np.float16(-1)),
        ("q8", np.float16(65504)),
    ],
)
def test_a_scale_that_can_be(kind: str, word: Any, tmp_path: Path) -> None:
    loaded(resolved(whole(Store(tmp_path).matrix(with_scale(kind, 5 % (2 if "block" in kind else 100), word)))))


@pytest.mark.parametrize("at", [0, 777, -1])
@pytest.mark.parametrize(
    ("make", "dense", "word", "found"),
    [
        (bf16, "<f4", 0x7FC0, "nan; it must be finite in float32"),
        (bf16, "<u2", 0xFF80, "-inf; it must be finite in bfloat16"),
        (plain("fp16", "<f2"), "<u2", np.float16("inf"), "inf; it must be finite in bfloat16"),
        (plain("fp32", "<f4"), "<f4", np.float32("nan"), "nan; it must be finite in float32"),
        (plain("fp32", "<f4"), "<u2", np.finfo("<f4").max, f"{float(np.finfo('<f4').max)}; it must be finite in bf"),
        (plain("fp64", "<f8"), "<f4", 1e39, "1e+39; it must be finite in float32"),
    ],
)
def test_plain_values_that_cannot_be(
    make: Any, dense: DenseDtype, word: Any, found: str, at: int, tmp_path: Path
) -> None:
    content: Encoded = make(np.random.default_rng(4), ROWS, COLUMNS)
    values = content.planes["values"].copy()
    values.reshape(-1)[at] = word
    matrix = Store(tmp_path).matrix(replace(content, planes={"values": values}))
    (span,) = matrix.planes["values"].spans
    byte = span.offset + at % values.size * values.itemsize
    with pytest.raises(InputError) as refused:
        loaded(resolved(whole(matrix), dense=dense, key="text/token_embedding"))
    assert str(refused.value).startswith(
        f"{span.path}: byte {byte}: weights text/token_embedding: 1 of {values.size} values are wrong, the first is "
        f"{found}"
    )


@pytest.mark.parametrize("chunk", [1 << 24, 1000])
@pytest.mark.parametrize("word", [0x7F, 0xFF])
@pytest.mark.parametrize("kind", ["fp8-row", "fp8-block-bf16"])
def test_fp8_codes_of_nan(kind: str, word: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninferd.weights.loading.checks.CHUNK_CODES", chunk)
    content: Encoded = MAKERS[kind](np.random.default_rng(4))
    codes = content.planes["codes"].copy()
    codes[:3] = 0x7E
    codes[2, 4] = word
    matrix = Store(tmp_path).matrix(replace(content, planes={**content.planes, "codes": codes}))
    (span,) = matrix.planes["codes"].spans
    with pytest.raises(InputError) as refused:
        loaded(resolved(whole(matrix)))
    assert str(refused.value) == (
        f"{span.path}: byte {span.offset + 2 * COLUMNS + 4}: weights some: 1 of {codes.size} codes are wrong, the "
        f"first is 0x{word:02x}; it must be a number"
    )


def test_the_largest_values_of_their_type(tmp_path: Path) -> None:
    content = bf16(np.random.default_rng(4), ROWS, COLUMNS)
    values = content.planes["values"].copy()
    values[3, 4:6] = 0x7F7F, 0xFF7F
    matrix = Store(tmp_path).matrix(replace(content, planes={"values": values}))
    for dense in DENSE_DTYPES:
        loaded(resolved(whole(matrix), dense=dense))


def test_scales_of_part_of_a_tile_are_counted_too(tmp_path: Path) -> None:
    """Rows that begin inside a tile of scales are brought by the host."""
    content = with_scale("nvfp4-swizzled", 0, 0x7F)  # row 0, block 0
    matrix = Store(tmp_path).matrix(content)
    loaded(resolved((replace(whole(matrix)[0], begin=32),)))
    with pytest.raises(InputError, match=rf"{tmp_path}/.*: weights some: 1 of {100 * 12} scales are wrong, .* 0x7f;"):
        loaded(resolved((replace(whole(matrix)[0], end=100),)))


def test_the_first_of_several_wrong_matrices_is_named_when_all_are_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kinds = ("q8", "fp8-row", "nvfp4")
    words = (1, 0x7FC0, 0x7F)
    requests = [
        resolved(whole(store.matrix(with_scale(kind, 0, word))), key=kind)
        for kind, word in zip(kinds, words, strict=True)
    ]
    load = load_matrices(requests, CPU, lambda done, total: None)
    assert [next(load)[0] for _ in kinds] == list(kinds)
    with pytest.raises(InputError, match="weights fp8-row: "):
        next(load)


@pytest.mark.parametrize("kind", [*MAKERS, "bf16"])
def test_asking_does_not_wait_for_the_device(kind: str, tmp_path: Path) -> None:
    """Tensors of the device "meta" have no values: whoever wants one fails."""
    generator = np.random.default_rng(0)
    content = MAKERS[kind](generator) if kind in MAKERS else bf16(generator, ROWS, COLUMNS)
    (layout,) = resolved(whole(Store(tmp_path).matrix(content))).layouts
    tensors = {
        name: torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device="meta")
        for name, spec in layout.tensors.items()
    }
    checks = ValueChecks()
    checks.ask("some", layout, tensors)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        checks.require()


def test_room_that_no_matrix_of_a_stack_uses_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One expert lies across three rows of blocks, the other in one: memory that nobody wrote holds anything."""
    content = fp8_blocks(False)(np.random.default_rng(0), 512, COLUMNS)
    matrix = Store(tmp_path).matrix(content)
    runs = [(replace(whole(matrix)[0], begin=begin, end=begin + 256),) for begin in (64, 256)]

    def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(shape, float("nan") if dtype.is_floating_point else 0, dtype=dtype, device=device)

    monkeypatch.setattr("ninferd.weights.loading.assembly.torch.empty", empty)
    (stack,) = loaded(resolved(*runs, stack=2))["some"]
    np.testing.assert_array_equal(matrix_values(stack[0]), content.values[64:320])
    np.testing.assert_array_equal(matrix_values(stack[1]), content.values[256:])

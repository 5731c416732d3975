"""Scales that cannot be end a load, and are named; those that only look odd do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninferd.errors import InputError
from tests.support.matrix_values import matrix_values
from tests.support.stored_matrices import Encoded, Store, fp8_blocks, fp8_rows, grouped, nvfp4, nvfp4_swizzled
from tests.weights.loading.support import loaded, resolved, whole

ROWS, COLUMNS = 256, 192
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
    with pytest.raises(InputError) as refused:
        loaded(resolved(whole(matrix), key="text/layers/3/mlp/down"))
    assert str(refused.value) == (
        f"{span.path}: bytes {span.offset} to {span.offset + span.size_bytes}: weights text/layers/3/mlp/down: "
        f"1 of {content.planes['scales'].size} scales are wrong, the first is {found}"
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

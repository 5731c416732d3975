"""The building blocks of the CPU kernels, and how they are chosen and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels_numba.cpu.jit import ORDERED, SOURCES, compiled, fingerprint
from kernels_numba.cpu.scalar import exp32, sigmoid, silu
from kernels_numba.cpu.storage import load32, store32, stored
from kernels_numba.selection import ops_for


@compiled(ORDERED)
def _apply(function: Any, x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = function(x[i])


@compiled(ORDERED)
def _copy(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        store32(target, i, load32(source[i]))


def applied(function: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty_like(x)
    _apply(function, x, out)
    return out


def test_exp32() -> None:
    x = np.linspace(-86, 87, 200_003, dtype=np.float32)
    np.testing.assert_allclose(applied(exp32, x), np.exp(x.astype(np.float64)), rtol=2e-7)


def test_exp32_at_the_edges() -> None:
    x = np.array([0, np.nan, -np.inf, -1000, np.inf, 1000], np.float32)
    one, nan, *rest = applied(exp32, x)
    assert one == 1
    assert np.isnan(nan)
    assert rest[0] == rest[1] < 1e-37
    assert rest[2] == rest[3] > 1e38


def test_sigmoid_and_silu() -> None:
    x = np.linspace(-80, 80, 10_001, dtype=np.float32)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(applied(sigmoid, x), exact, rtol=5e-7)
    np.testing.assert_allclose(applied(silu, x), x * exact, rtol=5e-7)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (300_000,), generator=random, dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4e38, 1e-45, 1 + 2**-8, 1 + 3 * 2**-8])
    x = torch.cat([x, special])
    ours = torch.empty(len(x), dtype=torch.bfloat16)
    _copy(x.numpy(), stored(ours))
    torch.testing.assert_close(ours, x.bfloat16(), atol=0, rtol=0, equal_nan=True)
    back = torch.empty(len(x))
    _copy(stored(ours), back.numpy())
    torch.testing.assert_close(back, ours.float(), atol=0, rtol=0, equal_nan=True)


def test_kernels_work_without_a_place_for_the_cache() -> None:
    namespace: dict[str, Any] = {}
    exec("def twice(x):\n    return x + x", namespace)  # no file, so numba finds no cache directory
    assert compiled(ORDERED)(namespace["twice"])(21) == 42


def test_kernels_are_kept_per_version_of_all_sources(tmp_path: Path) -> None:
    assert f"kernels-{fingerprint(SOURCES)}" in _copy_kernel_path()
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b.py").write_text("")
    before = fingerprint(tmp_path)
    (tmp_path / "b.py").write_text("y = 2")
    fingerprint.cache_clear()
    assert fingerprint(tmp_path) != before


def _copy_kernel_path() -> str:
    kernel: Any = _copy
    path: str = kernel.stats.cache_path
    return path


@pytest.mark.parametrize(
    ("device", "dtype", "name"),
    [("cpu", torch.float32, "cpu"), ("cpu", torch.bfloat16, "torch"), ("cuda", torch.float32, "torch")],
)
def test_who_serves_what(device: str, dtype: torch.dtype, name: str) -> None:
    assert ops_for(torch.device(device), dtype).name == name

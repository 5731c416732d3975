from __future__ import annotations

import pytest
import torch

from kernels_numba.kv.hadamard import hadamard


def matrix(dim: int) -> torch.Tensor:
    """Entry (i, j) is (-1)^popcount(i & j) / sqrt(dim)."""
    signs = [[1 - 2 * (bin(i & j).count("1") % 2) for j in range(dim)] for i in range(dim)]
    return torch.tensor(signs, dtype=torch.float64).mul(dim**-0.5)


@pytest.mark.parametrize("dim", [1, 2, 64, 128, 256])
def test_is_the_product_with_the_matrix(dim: int) -> None:
    x = torch.randn(3, 2, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(hadamard(x), x @ matrix(dim), atol=1e-14, rtol=0)
    torch.testing.assert_close(hadamard(x.float()).double(), x @ matrix(dim), atol=2e-6, rtol=0)


def test_the_first_unit_vector_becomes_all_sixteenths() -> None:
    unit = torch.zeros(256)
    unit[0] = 1
    assert torch.equal(hadamard(unit), torch.full((256,), 1 / 16))


def test_is_its_own_inverse() -> None:
    x = torch.randn(100, 256, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(hadamard(hadamard(x)), x, atol=1e-6, rtol=0)


def test_butterflies_ascend() -> None:
    """The last bits are those of strides 1, 2, 4, ... 128 in this order."""
    x = torch.randn(50, 256, generator=torch.Generator().manual_seed(2))
    expected = x.clone()
    for stage in range(8):
        stride = 1 << stage
        for low in (i for i in range(256) if not i & stride):
            first, second = expected[:, low].clone(), expected[:, low + stride].clone()
            expected[:, low], expected[:, low + stride] = first + second, first - second
    assert torch.equal(hadamard(x), expected / 16)


def test_the_input_stays_as_it_is() -> None:
    x = torch.ones(4)
    hadamard(x)
    assert torch.equal(x, torch.ones(4))

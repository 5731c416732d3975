"""Weights that do not fit are refused with numbers, before and while they are loaded."""

from __future__ import annotations

import pytest
import torch

from ninferd.weights.loading.room import WeightsDoNotFitError, require_room, running_out_in_words

CPU = torch.device("cpu")
GIB = 1 << 30


def test_what_fits_exactly() -> None:
    require_room(5 * GIB, 5 * GIB, CPU)


def test_what_does_not_fit() -> None:
    message = r"the weights do not fit on the host: they need 20480\.0 MiB, free are 12800\.0 MiB; choose"
    with pytest.raises(WeightsDoNotFitError, match=message):
        require_room(20 * GIB, 25 * GIB // 2, CPU)
    with pytest.raises(WeightsDoNotFitError, match="do not fit on cuda:1: "):
        require_room(2, 1, torch.device("cuda", 1))


def test_memory_that_runs_out_on_the_way() -> None:
    with (
        pytest.raises(WeightsDoNotFitError, match=r"memory of the host ran out while .* they need 3072\.0 MiB"),
        running_out_in_words(3 * GIB, CPU),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(WeightsDoNotFitError, match="ran out"), running_out_in_words(3 * GIB, CPU):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), running_out_in_words(1, CPU):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))

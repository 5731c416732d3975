"""Weights and caches as numpy arrays, in float32 or in the bits of bfloat16, which numpy has no type for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

BFLOAT16_NAN = np.uint16(0x7FC0)


def stored(tensor: Tensor) -> Any:
    """A view of a float32 tensor, or of the bits of a bfloat16 one."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def load32(value: Any) -> Any:
    """A stored number (float32, or bfloat16 as its uint16 bits) as float32."""
    raise NotImplementedError("compiled code only")


@overload(load32)
def _load32(value: Any) -> Any:
    def load_bfloat16(value: Any) -> Any:
        return np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)

    def load_float32(value: Any) -> Any:
        return value

    return load_bfloat16 if value == types.uint16 else load_float32


def store32(array: Any, index: Any, value: Any) -> None:
    """Write a float32 to ``array[index]``; rounds to nearest even if that holds bfloat16 bits."""
    raise NotImplementedError("compiled code only")


@overload(store32)
def _store32(array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001  (numba matches the names)
    def store_bfloat16(array: Any, index: Any, value: Any) -> None:
        bits = np.float32(value).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        array[index] = np.uint16(rounded) if value == value else BFLOAT16_NAN

    def store_float32(array: Any, index: Any, value: Any) -> None:
        array[index] = value

    return store_bfloat16 if array.dtype == types.uint16 else store_float32

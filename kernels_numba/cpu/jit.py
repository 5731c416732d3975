"""How CPU kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])

ORDERED = frozenset({"contract"})
"""Products and sums may fuse, but every sum is taken in the order written."""

REORDERED = frozenset({"contract", "reassoc", "nsz"})
"""Sums may be taken in another order (the same on every call); infinities and NaNs keep their meaning."""


def compiled(flags: frozenset[str]) -> Callable[[_Function], _Function]:
    """Compile on first call, without the interpreter lock, and keep the machine code on disk where that is possible.

    Kernels run on the calling thread: at these sizes a team of threads loses more to waiting for each other than it
    wins, as soon as anything else runs on the machine.
    """

    def decorate(function: _Function) -> _Function:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(flags), "error_model": "numpy"}
        try:
            kernel: _Function = njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no directory that it may write its cache to
            kernel = njit(**options)(function)
        return kernel

    return decorate

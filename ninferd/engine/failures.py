"""Which failures of a step end one request, and which end the engine."""

from __future__ import annotations

from typing import Final

import torch

from ninferd.errors import NinferError
from ninferd.memory.errors import InvariantError

_MAX_CONSECUTIVE: Final = 3
_WINDOW_S: Final = 30.0


class EngineBroken(NinferError):  # noqa: N818 - a state, like a broken pipe
    """The engine cannot go on; its process must be replaced."""


def is_fatal(error: Exception) -> bool:
    """Whether nothing on the device or in the bookkeeping can be trusted after ``error``.

    Running out of memory is not. Any other device error is, as it poisons the context, and so is a broken invariant.
    """
    if is_out_of_memory(error):
        return False
    return isinstance(error, (InvariantError, torch.AcceleratorError)) or "CUDA error" in str(error)


def is_out_of_memory(error: Exception) -> bool:
    """Device or host memory ran out; torch's CPU allocator says so in the text of a RuntimeError only."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


class FailureLatch:
    """Broken is: three failing steps within 30 s of each other without a finished request (serving §17.2)."""

    def __init__(self) -> None:
        self._times_s: list[float] = []

    def finished(self) -> None:
        """A request ended well."""
        self._times_s.clear()

    def failed(self, now_s: float) -> bool:
        """Record a failing step; True when it was one too many."""
        if self._times_s and now_s - self._times_s[-1] > _WINDOW_S:
            self._times_s.clear()
        self._times_s.append(now_s)
        return len(self._times_s) >= _MAX_CONSECUTIVE

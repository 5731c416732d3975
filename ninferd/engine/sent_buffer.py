"""Numbers that the host sends to the device at every step, to the same addresses."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


class SentBuffer:
    """A pinned host buffer and the device buffer that it is copied to, without waiting; on a CPU both are one."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._host = torch.zeros(size, dtype=dtype).pin_memory()
            self.device = self._host.to(device)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            self._host = self.device = torch.zeros(size, dtype=dtype)
        self._numbers: npt.NDArray[Any] = self._host.numpy()

    def host(self, count: int) -> npt.NDArray[Any]:
        """The first ``count`` numbers, to be written and then sent; waits until what was sent before is there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._numbers[:count]

    def send(self, count: int, begin: int = 0) -> None:
        """Copy the first ``count`` numbers, from ``begin`` on; they must not change until the next ``host``."""
        if self._copied is not None:
            self.device[begin:count].copy_(self._host[begin:count], non_blocking=True)
            self._copied.record()

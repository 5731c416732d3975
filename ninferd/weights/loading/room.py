"""Whether weights fit, said with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ninferd.errors import InputError

_MIB = 1 << 20


class WeightsDoNotFitError(InputError):
    """The weights take more memory than there is."""


def require_room(needed_bytes: int, available_bytes: int, device: torch.device) -> None:
    """Raises WeightsDoNotFitError unless ``needed_bytes`` are free on ``device``."""
    if needed_bytes > available_bytes:
        raise WeightsDoNotFitError(
            f"the weights do not fit on {_named(device)}: they need {_mib(needed_bytes)}, free are "
            f"{_mib(available_bytes)}; choose a smaller format or free memory"
        )


@contextmanager
def running_out_in_words(needed_bytes: int, device: torch.device) -> Iterator[None]:
    """Turns what torch raises when memory runs out into one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _ran_out(needed_bytes, device) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # the CPU allocator has no exception of its own
            raise
        raise _ran_out(needed_bytes, device) from error


def _ran_out(needed_bytes: int, device: torch.device) -> WeightsDoNotFitError:
    free = f", now free are {_mib(torch.cuda.mem_get_info(device)[0])}" if device.type == "cuda" else ""
    return WeightsDoNotFitError(
        f"memory of {_named(device)} ran out while the weights were loaded: they need {_mib(needed_bytes)}{free}"
    )


def _named(device: torch.device) -> str:
    return "the host" if device.type == "cpu" else str(device)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.1f} MiB"

"""Values of the small parameters, which are read on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.errors import InputError


def require_finite(values: NDArray[Any], where: str, first: int = 0) -> None:
    """InputError counting the numbers that are NaN or infinite; ``first`` is the number of the first element."""
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"{where}: {len(wrong)} of {values.size} values are not finite, the first is {values.reshape(-1)[at]} at "
            f"element {first + at}"
        )

"""Numbers of the quantised formats, and the refusal of what they cannot hold."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ninferd.errors import InputError

Nvfp4Method = Literal["max_abs", "max_abs_lifted", "least_error"]

FLOAT32_LARGEST = float(np.finfo(np.float32).max)
FLOAT16_LARGEST = 65504.0

GROUP_OF_BITS = {2: 128, 4: 64, 5: 64, 6: 64, 8: 32}
COLUMN_MULTIPLE = 128  # columns of grouped formats are padded to it
NVFP4_BLOCK = 16
NVFP4_STEPS = (-1, 1, -2, 2, 3, 4, 5, 6)
"""Scale words that the least error is searched among, relative to the usual one, which wins if equal."""


def code_range(bits: int) -> tuple[int, int]:
    """Smallest and largest code that an encoder writes; the largest magnitude of a group becomes the latter."""
    largest = (1 << (bits - 1)) - 1
    return (-largest if bits in (2, 8) else -largest - 1), largest


def require_no_bad_row(row: int, limit: float) -> None:
    """InputError if ``row`` is not negative: it holds a magnitude that is not finite or above ``limit``."""
    if row >= 0:
        raise InputError(f"row {row} of the block holds a value that is not finite, or above {limit:.4g}")

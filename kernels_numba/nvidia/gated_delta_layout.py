"""Sizes that kernels of the gated delta rule and their launches share."""

from __future__ import annotations

DIM = 128
"""Of keys and of values."""
TAPS = 4
"""Of the conv."""
HISTORY = TAPS - 1

STEP_WARPS = 8
STEP_SPLITS = (2, 4)
"""Blocks that share a head, where there are many heads and where there are few."""


def step_shared_bytes(splits: int) -> int:
    """Query, key and value with what is summed of them per warp, then two sums per warp and column."""
    return STEP_SUMS + STEP_WARPS * 2 * 4 * (DIM // splits)


# query and key | sums of their squares per warp | value | q·k per warp | what the counters told | sums
STEP_QUERY_KEY = 0
STEP_SQUARES = STEP_QUERY_KEY + 2 * DIM * 4
STEP_VALUE = STEP_SQUARES + STEP_WARPS * 4
STEP_DOTS = STEP_VALUE + DIM * 4
STEP_COUNTED = STEP_DOTS + STEP_WARPS * 4
STEP_SUMS = STEP_COUNTED + 16

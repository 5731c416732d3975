"""Sizes that kernels of the gated delta rule and their launches share."""

from __future__ import annotations

DIM = 128
"""Of keys and of values."""
TAPS = 4
"""Of the conv."""
HISTORY = TAPS - 1

CHUNK = 64
"""Tokens that the chunked form takes at once."""
ROW_BYTES = 2 * DIM
"""Of a token and head, in halves."""
TILE_BYTES = CHUNK * ROW_BYTES
"""Of a chunk and head."""

OUT_TOKENS = 8
"""Of a block of the gated norm, one a warp."""

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

# Rows of halves in shared memory are 16 bytes longer than they need be, so that ldmatrix meets no bank twice.
PITCH = ROW_BYTES + 16
HALF_PITCH = ROW_BYTES // 2 + 16

# key | query, then the inverse in float32 | value | system in float32, then the inverse in halves, twice | running sum
# of the log decay | beta
CHUNK_KEY = 0
CHUNK_QUERY = CHUNK_KEY + CHUNK * PITCH
CHUNK_VALUE = CHUNK_QUERY + CHUNK * PITCH
CHUNK_SYSTEM = CHUNK_VALUE + CHUNK * PITCH
CHUNK_DECAY = CHUNK_SYSTEM + 2 * CHUNK * HALF_PITCH
CHUNK_BETA = CHUNK_DECAY + CHUNK * 4
CHUNK_SHARED_BYTES = CHUNK_BETA + CHUNK * 4

SCAN_COLUMNS = 64
"""Of the state, in a block of the scan."""
# carried | query | key | products of query and key | corrected values | fresh values | state, then decayed fresh values
# | running sum of the log decay
SCAN_CARRIED = 0
SCAN_QUERY = SCAN_CARRIED + CHUNK * PITCH
SCAN_KEY = SCAN_QUERY + CHUNK * PITCH
SCAN_WITHIN = SCAN_KEY + CHUNK * PITCH
SCAN_VALUE = SCAN_WITHIN + CHUNK * HALF_PITCH
SCAN_FRESH = SCAN_VALUE + CHUNK * HALF_PITCH
SCAN_STATE = SCAN_FRESH + CHUNK * HALF_PITCH
SCAN_DECAY = SCAN_STATE + DIM * HALF_PITCH
SCAN_SHARED_BYTES = SCAN_DECAY + CHUNK * 4

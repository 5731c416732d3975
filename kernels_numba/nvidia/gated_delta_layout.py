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

LARGEST = 2.0**10
"""About the most that becomes a half as it is. What is larger is first divided by a power of two."""

OUT_TOKENS = 8
"""Of a block of the gated norm, one a warp."""

BLOCK_WARPS = 8
"""Of a block that takes tokens one by one."""
# A block of one row: query and key | value | weight of the norm | sums of the squares of the outputs per warp | decay
# and beta | what the counter told
STEP_QUERY_KEY = 0
STEP_VALUE = STEP_QUERY_KEY + 2 * DIM * 4
STEP_NORM = STEP_VALUE + DIM * 4
STEP_SQUARES = STEP_NORM + DIM * 4
STEP_GATES = STEP_SQUARES + 8 * 4
STEP_COUNTED = STEP_GATES + 2 * 4
STEP_SHARED_BYTES = STEP_COUNTED + 4

MOST_ROWS = 16
"""Of a sequence in a round."""
# A block of several rows. Bytes for each row that may be pending, and what comes after them.
# keys and deltas that were pending, then queries and keys | values | products with the key, then deltas, and with the
# query, then outputs | of every pair of rows, the products with the key before: key's and query's
ROWS_VALUE = 2 * DIM * 4
ROWS_PRODUCTS = ROWS_VALUE + DIM * 4
ROWS_DOTS = ROWS_PRODUCTS + 2 * DIM * 4
ROWS_SMALL = ROWS_DOTS + MOST_ROWS * 8
# log decays | betas | norms of keys, inverted | what the counter told
ROWS_LOG_DECAYS = 0
ROWS_BETAS = ROWS_LOG_DECAYS + MOST_ROWS * 4
ROWS_KEY_FACTORS = ROWS_BETAS + MOST_ROWS * 4
ROWS_COUNTED = ROWS_KEY_FACTORS + MOST_ROWS * 4


def rows_shared_bytes(room: int) -> int:
    """Of a block that takes up to ``room`` rows."""
    return room * ROWS_SMALL + ROWS_COUNTED + 4


# Rows of halves in shared memory are 16 bytes longer than they need be, so that ldmatrix meets no bank twice.
PITCH = ROW_BYTES + 16
HALF_PITCH = ROW_BYTES // 2 + 16

# key | query, then the inverse in float32 | value | system in float32, then the inverse in halves, twice | running sum
# of the log decay | beta | powers of two that values were divided by
CHUNK_KEY = 0
CHUNK_QUERY = CHUNK_KEY + CHUNK * PITCH
CHUNK_VALUE = CHUNK_QUERY + CHUNK * PITCH
CHUNK_SYSTEM = CHUNK_VALUE + CHUNK * PITCH
CHUNK_DECAY = CHUNK_SYSTEM + 2 * CHUNK * HALF_PITCH
CHUNK_BETA = CHUNK_DECAY + CHUNK * 4
CHUNK_POWER = CHUNK_BETA + CHUNK * 4
CHUNK_SHARED_BYTES = CHUNK_POWER + CHUNK * 4

# Of a chunk in a block of the scan: carried | query | key | products of query and key | by what the state's part has
# grown at every token | how much of a token is left at the end | corrected values, transposed
SCAN_CARRIED = 0
SCAN_QUERY = SCAN_CARRIED + CHUNK * PITCH
SCAN_KEY = SCAN_QUERY + CHUNK * PITCH
SCAN_WITHIN = SCAN_KEY + CHUNK * PITCH
SCAN_DECAY = SCAN_WITHIN + CHUNK * HALF_PITCH
SCAN_VALUE = SCAN_DECAY + 2 * CHUNK * 4


SCAN_COLUMNS = 64
"""Of a head's state, in a block of the scan."""


def scan_stage_bytes(columns: int) -> int:
    """Of a chunk in a block that takes so many columns of the state."""
    return SCAN_VALUE + columns * HALF_PITCH

"""Names that the command line knows before anything heavy is imported."""

from __future__ import annotations

from typing import Final

FAMILIES: Final = ("products", "attention", "append", "gated-delta", "norms", "sampling")
"""Of ``ninferd bench kernels --only``."""
MOST_ROWS: Final = 16
"""Of a sequence in a decode round."""

"""Random traces over the hash model; invariants after every step, answers equal to cold runs, nothing leaks.

What happens in them: new conversations, next turns, dropped and rewritten history, forks, cancels, failed units, held
transfers, transfers that fail or cannot begin, damaged host slabs, refused and failed growth, trimmed host pools.
"""

from __future__ import annotations

import pytest

from tests.memory.traces import Trace


@pytest.mark.parametrize("first", range(0, 240, 20), ids=lambda first: f"seeds {first}-{first + 19}")
def test_any_life_keeps_all_promises(first: int) -> None:
    for seed in range(first, first + 20):
        Trace(seed).live_on(45)

"""Costs and value density by hand."""

from __future__ import annotations

import pytest

from ninferd.memory.value import CostModel, ValueClock

ROUND = CostModel(
    h2d_batch_ns=1000.0,
    copy_op_ns=10.0,
    copy_byte_ns=0.5,
    prefill_chunk_ns=100.0,
    prefill_token_ns=2.0,
    prefill_pair_ns=0.25,
    prefill_chunk_tokens=64,
)


@pytest.mark.parametrize(
    ("size_bytes", "operations", "ns"),
    [(100, 3, 1030.0), (4000, 3, 2000.0), (0, 0, 0.0)],
    ids=["latency", "bandwidth", "nothing"],
)
def test_restore(size_bytes: int, operations: int, ns: float) -> None:
    assert ROUND.restore_ns(size_bytes, operations) == ns


@pytest.mark.parametrize(
    ("base", "tokens", "ns"),
    [
        (0, 64, 100 + 128 + 0.25 * (64 * 65 / 2)),
        (1000, 65, 200 + 130 + 0.25 * (65_000 + 65 * 66 / 2)),
        (1000, 0, 0.0),
    ],
)
def test_prefill(base: int, tokens: int, ns: float) -> None:
    assert ROUND.prefill_ns(base, tokens) == ns


def test_density_counts_hits_and_the_session_and_ages() -> None:
    clock = ValueClock()
    assert clock.density(0, 300.0, 100, "recent_private") == 3.0
    assert clock.density(2, 300.0, 100, "recent_private") == 9.0
    assert clock.density(0, 300.0, 100, "live_session") == 12.0
    assert clock.density(0, 300.0, 100, "disposable") == 0.75
    assert clock.density(0, -5.0, 100, "live_session") == 0.0
    clock.evicted(2.0)
    clock.evicted(1.0)
    assert clock.density(0, 300.0, 100, "recent_private") == 5.0

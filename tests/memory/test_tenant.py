"""What a running sequence may map and commit, and what a decode step costs it."""

from __future__ import annotations

import numpy as np
import pytest

from ninferd.memory.admission import Refused
from ninferd.memory.errors import InvariantError
from ninferd.memory.identity import Tokens
from ninferd.memory.taps import PromptOutline
from ninferd.memory.tenant import Request, Tenant
from tests.memory.hash_engine import HashEngine


def _tenant(engine: HashEngine, prompt: int, cache_tokens: int) -> Tenant:
    admitted = engine.memory.admit(Request(Tokens.of_text(np.ones(prompt, np.int32)), cache_tokens))
    assert not isinstance(admitted, Refused)
    return admitted


def test_pages_are_mapped_as_positions_come_and_never_beyond_the_entitlement() -> None:
    engine = HashEngine()
    tenant = _tenant(engine, 100, 200)
    assert tenant.reservation.remaining == 4
    assert len(engine.memory.map(tenant, 1)) == 1
    assert len(engine.memory.map(tenant, 64)) == 0
    assert len(engine.memory.map(tenant, 200)) == 3
    assert tenant.device_pages(engine.stores.pages).tolist() == [0, 1, 2, 3]
    with pytest.raises(InvariantError, match="1 pages wanted, 0 left"):
        engine.memory.map(tenant, 257)


def test_other_sequences_cannot_take_what_is_reserved() -> None:
    engine = HashEngine()
    tenant = _tenant(engine, 100, 30 * 64)
    assert engine.stores.pool.available == 2
    refused = engine.memory.admit(Request(Tokens.of_text(np.zeros(10, np.int32)), 129))
    assert isinstance(refused, Refused)
    engine.memory.map(tenant, 30 * 64)
    engine.memory.check()


@pytest.mark.parametrize(
    ("mapped", "frontier"), [(128, 101), (64, 65), (128, 63)], ids=["unknown token", "unmapped page", "backwards"]
)
def test_only_what_was_computed_can_be_committed(mapped: int, frontier: int) -> None:
    engine = HashEngine()
    tenant = _tenant(engine, 100, 200)
    engine.memory.map(tenant, mapped)
    engine.memory.commit(tenant, 64)
    with pytest.raises(InvariantError, match="a frontier of"):
        engine.memory.commit(tenant, frontier)


def test_taps_that_were_run_over_are_left_out() -> None:
    engine = HashEngine()
    outline = PromptOutline(client_markers=(64, 130, 200))
    admitted = engine.memory.admit(Request(Tokens.of_text(np.ones(300, np.int32)), 300, outline=outline))
    assert not isinstance(admitted, Refused)
    assert [tap.position for tap in admitted.taps] == [64, 130, 200]
    engine.memory.map(admitted, 300)
    assert engine.memory.commit(admitted, 150) is None
    assert [tap.position for tap in admitted.taps] == [200]
    tapped = engine.memory.commit(admitted, 200)
    assert tapped is not None
    assert (tapped.frontier, tapped.kind, admitted.taps) == (200, "shared_stable_prefix", ())


def test_a_failed_sequence_names_the_pages_to_scrub() -> None:
    engine = HashEngine()
    tenant = _tenant(engine, 100, 200)
    engine.memory.map(tenant, 100)
    engine.memory.commit(tenant, 64)
    assert engine.memory.fail(tenant).tolist() == [0, 1]
    assert (tenant.phase, engine.stores.pool.allocated, engine.stores.tree.live) == ("gone", 0, 0)
    engine.memory.check()

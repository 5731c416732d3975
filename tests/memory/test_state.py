"""State slots."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from ninferd.memory.errors import InvariantError
from ninferd.memory.geometry import StateGeometry
from ninferd.memory.state import StateCache, StateSlot

GEOMETRY = StateGeometry(
    gdn_layers=3, conv_channels=5, conv_history=3, conv_element_bytes=2, value_heads=2, key_head_dim=4, value_head_dim=6
)


def _cache(slots: int = 2) -> StateCache:
    return StateCache(GEOMETRY, slots, torch.device("cpu"), torch.bfloat16)


def _acquire(cache: StateCache) -> StateSlot:
    slot = cache.acquire()
    assert slot is not None
    return slot


def test_layout_and_size() -> None:
    cache = _cache()
    assert cache.conv.shape == (2, 3, 5, 3)
    assert cache.recurrent.shape == (2, 3, 2, 4, 6)
    assert cache.recurrent.dtype == torch.float32
    assert cache.conv[0].nbytes + cache.recurrent[0].nbytes == GEOMETRY.slot_bytes


def test_pending_rows() -> None:
    """Beside the states, where the geometry has room for them; key heads follow from the conv's channels."""
    geometry = replace(GEOMETRY, conv_channels=2 * 3 * 4 + 2 * 6, pending_rows=5)
    cache = StateCache(geometry, 2, torch.device("cpu"), torch.bfloat16)
    pending = cache.pending
    assert pending is not None
    assert pending.inputs.shape == (2, 3, 5, 36)
    assert pending.inputs.dtype == torch.bfloat16
    assert pending.keys.shape == (2, 3, 5, 3, 4)
    assert pending.deltas.shape == (2, 3, 5, 2, 6)
    assert pending.log_decays.shape == (2, 3, 5, 2)
    image = cache.conv[0].nbytes + cache.recurrent[0].nbytes
    rows = sum(getattr(pending, field.name)[0].nbytes for field in fields(pending))
    assert (geometry.image_bytes, geometry.slot_bytes) == (image, image + rows)
    assert _cache().pending is None


def test_slots_are_zeroed_when_acquired() -> None:
    cache = _cache(1)
    slot = _acquire(cache)
    cache.conv.fill_(float("nan"))
    cache.recurrent.fill_(7.0)
    cache.release(slot)
    again = _acquire(cache)
    assert not bool(cache.conv[again.index].any())
    assert not bool(cache.recurrent[again.index].any())
    assert again.generation == slot.generation + 1


def test_acquiring_leaves_other_slots_alone() -> None:
    cache = _cache(2)
    first = _acquire(cache)
    cache.recurrent[first.index] = 3.0
    _acquire(cache)
    assert bool((cache.recurrent[first.index] == 3.0).all())


def test_exhaustion_and_reuse() -> None:
    cache = _cache(2)
    slots = [_acquire(cache), _acquire(cache)]
    assert cache.acquire() is None
    assert cache.used == 2
    cache.release(slots[0])
    assert _acquire(cache).index == slots[0].index
    cache.check()


def test_stale_handles_are_refused() -> None:
    cache = _cache(1)
    slot = _acquire(cache)
    cache.release(slot)
    with pytest.raises(InvariantError, match="not held"):
        cache.release(slot)
    _acquire(cache)
    with pytest.raises(InvariantError, match="generation 0"):
        cache.release(slot)


def test_geometry_and_dtype_must_agree() -> None:
    with pytest.raises(ValueError, match="2 bytes per element"):
        StateCache(GEOMETRY, 1, torch.device("cpu"), torch.float32)

"""Address spaces and page tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels_numba.kv.access import load
from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from ninferd.memory.errors import InvariantError
from ninferd.memory.kv_cache import AddressSpace, KVCache

LAYOUT = KvLayout(KV_CODECS["fp32"], layers=2, kv_heads=1, head_dim=4)


def _cache(*, pages: int = 8, rows: int = 3, columns: int = 4) -> KVCache:
    return KVCache(LAYOUT, pages, rows, columns, torch.device("cpu"))


def _open(cache: KVCache, tokens: int) -> AddressSpace:
    space = cache.open(tokens)
    assert space is not None
    return space


def test_a_page_is_one_run_of_bytes() -> None:
    cache = _cache()
    assert (cache.tensor.dtype, cache.tensor.shape) == (torch.uint8, (8, LAYOUT.page_bytes))
    assert cache.paged.plain.shape == (8, 2, 1, 2, 64, 4)
    cache.paged.plain[3] = 1
    assert cache.tensor.any(1).tolist() == [False] * 3 + [True] + [False] * 4


def test_pages_are_mapped_as_positions_come() -> None:
    cache = _cache()
    space = _open(cache, 200)
    assert (len(space.pages), space.reserved_pages) == (0, 4)
    space.ensure_mapped(1)
    assert (len(space.pages), space.reserved_pages) == (1, 3)
    space.ensure_mapped(64)
    assert len(space.pages) == 1
    space.ensure_mapped(129)
    assert len(space.pages) == 3
    cache.check()


def test_mapping_beyond_the_entitlement_is_a_logic_error() -> None:
    space = _open(_cache(), 64)
    with pytest.raises(InvariantError):
        space.ensure_mapped(65)


def test_slot_mapping_and_page_table_agree_with_the_pages() -> None:
    cache = _cache()
    other = _open(cache, 64)
    other.ensure_mapped(64)
    space = _open(cache, 130)
    space.ensure_mapped(130)
    positions = np.array([0, 63, 64, 129])
    pages = space.pages.tolist()
    slots = cache.slot_mapping(np.array(space.row), positions)
    assert slots.tolist() == [pages[0] * 64, pages[0] * 64 + 63, pages[1] * 64, pages[2] * 64 + 1]
    table = cache.page_table(torch.tensor([space.row, other.row]), 3)
    assert table.dtype == torch.int32
    assert table.tolist() == [pages, [*other.pages.tolist(), 0, 0]]


def test_admission_needs_pages_and_a_row() -> None:
    cache = _cache(pages=5, rows=2)
    first = _open(cache, 256)
    assert cache.open(128) is None  # 1 page left
    second = _open(cache, 64)
    assert cache.open(0) is None  # no row left
    first.release()
    second.release()
    cache.check()
    assert cache.pool.available == 5


def test_longer_than_a_page_table_is_a_callers_error() -> None:
    with pytest.raises(ValueError, match="257 tokens need 5 pages, a page table has 4"):
        _cache().open(257)


def test_release_clears_the_table_and_scrub_the_bytes() -> None:
    cache = _cache()
    space = _open(cache, 128)
    space.ensure_mapped(128)
    cache.paged.plain[torch.from_numpy(space.pages.astype(np.int64))] = float("nan")
    row = space.row
    space.release(scrub=True)
    assert not bool(cache.tensor.any())
    assert cache.page_table(torch.tensor([row]), 4).tolist() == [[0, 0, 0, 0]]
    cache.check()


@pytest.mark.parametrize("codec", KV_CODECS)
def test_scrubbed_pages_read_as_zeros(codec: str) -> None:
    cache = KVCache(KvLayout(KV_CODECS[codec], 2, 2, 64), 4, 1, 4, torch.device("cpu"))
    space = _open(cache, 128)
    space.ensure_mapped(128)
    cache.tensor.fill_(0xFF)
    pages = torch.from_numpy(space.pages.astype(np.int64))
    others = [page for page in range(4) if page not in pages.tolist()]
    space.release(scrub=True)
    for part in load(cache.paged, 1, pages, torch.float32):
        assert not part.any()
    assert cache.tensor[others].eq(0xFF).all()


def test_a_space_cannot_be_released_twice() -> None:
    space = _open(_cache(), 64)
    space.release()
    with pytest.raises(InvariantError, match="row"):
        space.release()

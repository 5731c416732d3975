"""Paged key/value cache: its tensor, its page tables, and the address space of each sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from kernels_numba.kv.paged import PagedKv
from ninferd.memory.errors import InvariantError
from ninferd.memory.geometry import pages_for
from ninferd.memory.pages import PageIds, PagePool, PageReservation

Ints = npt.NDArray[np.int64]


class KVCache:
    """One tensor of pages, and ``rows`` page tables of ``columns`` logical pages each.

    The page tables live twice: the host copy is what bookkeeping reads, the device copy what kernels read. Entries
    that are not mapped are 0 and must not be read beyond a sequence's length.
    """

    def __init__(self, layout: KvLayout, pages: int, rows: int, columns: int, device: torch.device) -> None:
        self.pool = PagePool(pages)
        self.paged = PagedKv.zeros(layout, pages, device)
        self._tables = np.zeros((rows, columns), np.int32)
        host_tables = torch.from_numpy(self._tables)
        self._device_tables = host_tables if device.type == "cpu" else host_tables.to(device)
        self._free_rows = list(range(rows - 1, -1, -1))
        self._spaces: dict[int, AddressSpace] = {}

    @property
    def tensor(self) -> torch.Tensor:
        """The bytes of all pages, uint8 [pages, page bytes]."""
        return self.paged.pages

    @property
    def columns(self) -> int:
        """Logical pages of the longest sequence."""
        return self._tables.shape[1]

    def open(self, tokens: int) -> AddressSpace | None:
        """An empty address space entitled to ``tokens`` positions; None if pages or rows are short right now."""
        pages = pages_for(tokens)
        if pages > self.columns:
            raise ValueError(f"{tokens} tokens need {pages} pages, a page table has {self.columns}")
        if not self._free_rows:
            return None
        reservation = self.pool.reserve(pages)
        if reservation is None:
            return None
        space = AddressSpace(self, self._free_rows.pop(), reservation)
        self._spaces[space.row] = space
        return space

    def page_table(self, rows: torch.Tensor, columns: int) -> torch.Tensor:
        """The first ``columns`` logical pages of ``rows`` (int64 [S], on the device), int32 [S, columns]."""
        return self._device_tables[:, :columns].index_select(0, rows)

    def slot_mapping(self, rows: Ints, positions: Ints) -> Ints:
        """Flat cache index (page * page_tokens + offset) of ``positions`` of ``rows``, int64; shapes broadcast."""
        pages = self._tables[rows, positions // PAGE_TOKENS].astype(np.int64)
        return pages * PAGE_TOKENS + positions % PAGE_TOKENS

    def pages_of(self, row: int, mapped: int) -> PageIds:
        """The first ``mapped`` physical pages of a row, int32; a view."""
        return self._tables[row, :mapped]

    def publish(self, row: int, first: int, pages: PageIds) -> None:
        """Write table entries from logical page ``first`` on, host and device."""
        self._tables[row, first : first + len(pages)] = pages
        if self._device_tables.device.type != "cpu":  # on a CPU both are one memory
            self._device_tables[row, first : first + len(pages)] = torch.from_numpy(pages).to(self.tensor.device)

    def scrub(self, pages: PageIds) -> None:
        """Zero the bytes of pages, so that a NaN of a failed request cannot leak through masked positions.

        Every codec decodes zeros to zeros.
        """
        self.tensor[torch.from_numpy(pages.astype(np.int64)).to(self.tensor.device)] = 0

    def forget(self, space: AddressSpace) -> None:
        """Take back the row of a space that gave up its pages."""
        if self._spaces.pop(space.row, None) is not space:
            raise InvariantError(f"page table row {space.row} released by someone who does not hold it")
        self._free_rows.append(space.row)

    def check(self) -> None:
        """Raise InvariantError unless rows, spaces and pool agree."""
        self.pool.check()
        mapped = [page for space in self._spaces.values() for page in space.pages.tolist()]
        if len(set(mapped)) != len(mapped):
            raise InvariantError("a page is mapped by two sequences")
        if len(mapped) != self.pool.allocated:
            raise InvariantError(f"{len(mapped)} pages mapped, {self.pool.allocated} allocated")
        promised = sum(space.reserved_pages for space in self._spaces.values())
        if promised != self.pool.reserved:
            raise InvariantError(f"sequences hold {promised} reserved pages, the pool counts {self.pool.reserved}")
        held = sorted([*self._free_rows, *self._spaces])
        if held != list(range(self._tables.shape[0])):
            raise InvariantError(f"page table rows lost or doubled: {held}")


class AddressSpace:
    """The ordered logical pages of one sequence, bound to one page table row."""

    def __init__(self, cache: KVCache, row: int, reservation: PageReservation) -> None:
        self.row = row
        self._cache = cache
        self._reservation = reservation
        self._mapped = 0

    @property
    def pages(self) -> PageIds:
        """Physical pages in logical order, int32; a view."""
        return self._cache.pages_of(self.row, self._mapped)

    @property
    def reserved_pages(self) -> int:
        """Entitled but not yet mapped."""
        return self._reservation.remaining

    def ensure_mapped(self, end: int) -> None:
        """Map pages until position ``end - 1`` is covered; beyond the entitlement is a logic error."""
        wanted = pages_for(end) - self._mapped
        if wanted <= 0:
            return
        after = int(self.pages[-1]) if self._mapped else None
        pages = self._cache.pool.materialize(self._reservation, wanted, after)
        self._cache.publish(self.row, self._mapped, pages)
        self._mapped += wanted

    def release(self, *, scrub: bool = False) -> None:
        """Give everything back; ``scrub`` zeroes the pages first."""
        pages = self.pages.copy()
        if scrub and len(pages):
            self._cache.scrub(pages)
        self._cache.forget(self)
        self._cache.publish(self.row, 0, np.zeros_like(pages))
        self._cache.pool.release(pages)
        self._cache.pool.cancel(self._reservation)
        self._mapped = 0

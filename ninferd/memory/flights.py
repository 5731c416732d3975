"""Transfers under way: what they hold, and what happens when they land."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ninferd.memory.copies import Landed, StateCopy, Transfer
from ninferd.memory.page_columns import NO_HANDLES, Handles
from ninferd.memory.state_images import StateImage
from ninferd.memory.stores import Stores

AfterLanding = Callable[[Landed], None]


class Flight(Protocol):
    """One transfer under way."""

    def land(self, stores: Stores, landed: Landed) -> None:
        """Settle everything it holds, then tell who waits for it."""
        ...


@dataclass(eq=False)
class SpillFlight:
    """Device to host: pages and images get a second copy."""

    pages: Handles
    images: tuple[StateImage, ...]
    after: AfterLanding | None = None

    def land(self, stores: Stores, landed: Landed) -> None:
        arrived = not landed.failed
        stores.pages.end_spill(self.pages, landed=arrived)
        for image in self.images:
            stores.images.end_spill(image, landed=arrived)
        if arrived:
            stores.count("d2h", len(self.pages), len(self.images), landed.seconds)
            stores.counters.pressure.spill_pages += len(self.pages) * (2 if stores.sizes.backend_page_bytes else 1)
        if self.after is not None:
            self.after(landed)


@dataclass(eq=False)
class RestoreFlight:
    """Host to device: pages of a path come back, others are copied to private pages; who waits holds the pins."""

    pages: Handles
    copied_pages: int = 0
    images: int = 0
    after: AfterLanding | None = None

    def land(self, stores: Stores, landed: Landed) -> None:
        slabs = stores.pages.host[stores.pages.ids(self.pages)]
        bad = np.full(len(slabs), landed.failed) | np.isin(slabs, list(landed.bad_slabs))
        stores.pages.end_restore(self.pages[~bad], landed=True)
        stores.pages.end_restore(self.pages[bad], landed=False)
        if not landed.failed:
            stores.count("h2d", len(self.pages) + self.copied_pages, self.images, landed.seconds)
        if self.after is not None:
            self.after(landed)


def start_spill(
    stores: Stores, pages: Handles, images: tuple[StateImage, ...], after: AfterLanding | None = None
) -> bool:
    """Copy to slabs that must be free by now; False if the copy cannot begin, and nothing has changed then."""
    per_image = stores.images.slabs_per_image
    slabs = stores.slabs.take(len(pages) + per_image * len(images))
    if slabs is None:
        return False
    flight = SpillFlight(pages, images, after)
    sources = stores.pages.start_spill(pages, slabs[: len(pages)])
    states = []
    for index, image in enumerate(images):
        own = slabs[len(pages) + index * per_image :][:per_image]
        stores.images.start_spill(image, own)
        states.append(StateCopy(image.slot, own))
    try:
        ticket = stores.copies.start(Transfer("d2h", sources, slabs[: len(pages)], tuple(states)))
    except MemoryError:
        stores.pages.end_spill(pages, landed=False)
        for image in images:
            stores.images.end_spill(image, landed=False)
        return False
    stores.flights[ticket] = flight
    return True


def start_capture(stores: Stores, slot: int, after: AfterLanding) -> StateImage | None:
    """Copy the state of a running sequence to the host; its image is complete once that has landed."""
    slabs = stores.slabs.take(stores.images.slabs_per_image)
    if slabs is None:
        return None
    image = stores.images.start_capture(slabs)
    try:
        copy = Transfer("d2h", _NO_PAGES, _NO_PAGES, (StateCopy(slot, slabs),), holds_compute=True)
        ticket = stores.copies.start(copy)
    except MemoryError:
        stores.images.release(image)
        stores.images.end_spill(image, landed=False)
        return None
    stores.flights[ticket] = SpillFlight(NO_HANDLES, (image,), after)
    return image


def poll(stores: Stores) -> None:
    """Settle every transfer that has landed."""
    for landed in stores.copies.landed():
        stores.flights.pop(landed.ticket).land(stores, landed)


_NO_PAGES = np.zeros(0, np.int32)

"""Recurrent state of sequences at one position each: a device slot, host slabs, or both (spec/memory §3).

An image is either *active* (the state of a running sequence, on the device, written every step) or *frozen* (part of
a snapshot, never written again). Slots are interchangeable: freezing an active image copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import HostSlabs, Slabs

NO_SLOT: Final = -1


@dataclass(eq=False, slots=True)
class StateImage:
    """Made by ``StateImages`` only."""

    slot: int = NO_SLOT
    slabs: Slabs | None = None
    pending_slabs: Slabs | None = None  # destination of a copy in flight
    active: bool = False
    pins: int = 0  # plans and copies that will read a replica
    released: bool = False

    @property
    def on_device(self) -> bool:
        """Whether the device holds it."""
        return self.slot != NO_SLOT

    @property
    def settled(self) -> bool:
        """Whether a complete copy exists somewhere."""
        return self.on_device or self.slabs is not None

    @property
    def droppable(self) -> bool:
        """Whether the device copy is idle and a second copy exists."""
        return self.on_device and self.slabs is not None and not self.pins and not self.active


class StateImages:
    """All images over the device slots and the host slabs. Broken preconditions raise InvariantError."""

    def __init__(self, slots: int, slabs: HostSlabs, slabs_per_image: int) -> None:
        self.capacity = slots
        self.slabs_per_image = slabs_per_image
        self._slabs = slabs
        self._free = list(range(slots - 1, -1, -1))
        self._images: set[StateImage] = set()

    @property
    def free(self) -> int:
        """Free device slots."""
        return len(self._free)

    @property
    def on_host(self) -> int:
        """Images with a host copy."""
        return sum(image.slabs is not None for image in self._images)

    def acquire(self) -> StateImage | None:
        """An active image on a free slot, its content undefined; None if no slot is free."""
        if not self._free:
            return None
        return self._add(StateImage(slot=self._free.pop(), active=True))

    def take_over(self, image: StateImage) -> StateImage:
        """An active image on the device slot of a frozen one, which keeps its host copy; nothing is copied."""
        _require(image.droppable, "only an idle image that is on the host too can be taken over")
        slot, image.slot = image.slot, NO_SLOT
        return self._add(StateImage(slot=slot, active=True))

    def freeze(self, image: StateImage) -> None:
        """The sequence will not write it any more."""
        _require(image.active, "only an active image can be frozen")
        image.active = False

    def copy_to_slot(self) -> StateImage | None:
        """A frozen image on a free slot, for a copy of an active one that is made on the compute stream at once."""
        image = self.acquire()
        if image is not None:
            image.active = False
        return image

    def start_capture(self, slabs: Slabs) -> StateImage:
        """A frozen image that will exist on the host once the copy of an active one has landed."""
        image = self._add(StateImage())
        self.start_spill(image, slabs)
        return image

    def start_spill(self, image: StateImage, slabs: Slabs) -> None:
        """``slabs`` become the host copy; pins until it ends."""
        free = image.slabs is None and image.pending_slabs is None
        _require(free and not image.active, "only a frozen image without a host copy can be spilled")
        image.pending_slabs = slabs
        image.pins += 1

    def end_spill(self, image: StateImage, *, landed: bool) -> None:
        """The copy is complete, or failed and its slabs are free again."""
        pending = image.pending_slabs
        if pending is None:
            raise InvariantError("state images: no spill is in flight")
        if landed:
            image.slabs = pending
        else:
            self._slabs.give(pending)
        image.pending_slabs = None
        self.unpin(image)

    def pin(self, image: StateImage) -> None:
        """A plan or a copy will read it."""
        _require(image.settled and not image.active and not image.released, "only a settled frozen image can be pinned")
        image.pins += 1

    def unpin(self, image: StateImage) -> None:
        """The reader is done."""
        _require(image.pins > 0, "unpinned more often than pinned")
        image.pins -= 1
        self._reap(image)

    def drop_device(self, image: StateImage) -> None:
        """Free the slot of an image that lives on on the host."""
        _require(image.droppable, "only an idle device copy of an image that is on the host can be dropped")
        self._free.append(image.slot)
        image.slot = NO_SLOT

    def drop_host(self, image: StateImage) -> None:
        """Free the slabs of an image that lives on on the device."""
        _require(image.droppable, "only an idle host copy of an image that is on the device can be dropped")
        assert image.slabs is not None
        self._slabs.give(image.slabs)
        image.slabs = None

    def release(self, image: StateImage) -> None:
        """Nobody names it any more; it goes once no copy reads it."""
        _require(not image.released, "released twice")
        image.released, image.active = True, False
        self._reap(image)

    def check(self) -> None:
        """Raise InvariantError unless every slot is free or belongs to one image."""
        slots = sorted([*self._free, *(image.slot for image in self._images if image.on_device)])
        _require(slots == list(range(self.capacity)), f"slots lost or doubled: {slots}")
        for image in self._images:
            _require(image.on_device or not image.active, "an active image left the device")
            _require(image.settled or image.pins > 0, "an image without a copy")
            _require(not image.released or image.pins > 0, "an image that nobody needs")

    def held_slabs(self) -> int:
        """Slabs of all images, those in flight too."""
        return sum(
            self.slabs_per_image
            for image in self._images
            for held in (image.slabs, image.pending_slabs)
            if held is not None
        )

    def _add(self, image: StateImage) -> StateImage:
        self._images.add(image)
        return image

    def _reap(self, image: StateImage) -> None:
        if not image.released or image.pins:
            return
        if image.on_device:
            self._free.append(image.slot)
            image.slot = NO_SLOT
        if image.slabs is not None:
            self._slabs.give(image.slabs)
            image.slabs = None
        self._images.remove(image)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(f"state images: {rule}")

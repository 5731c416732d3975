"""State images: roles, replicas and slots."""

from __future__ import annotations

import pytest

from ninferd.memory.errors import InvariantError
from ninferd.memory.host_slabs import HostSlabs, Slabs
from ninferd.memory.state_images import StateImage, StateImages
from tests.memory.fakes import make_slabs

PER_IMAGE = 3


def _images(slots: int = 2) -> tuple[StateImages, HostSlabs]:
    slabs = make_slabs(48)
    return StateImages(slots, slabs, PER_IMAGE), slabs


def _acquire(images: StateImages) -> StateImage:
    image = images.acquire()
    assert image is not None
    return image


def _slabs(slabs: HostSlabs) -> Slabs:
    taken = slabs.take(PER_IMAGE)
    assert taken is not None
    return taken


def _backed(images: StateImages, slabs: HostSlabs) -> StateImage:
    """A frozen image on the device and on the host."""
    image = _acquire(images)
    images.freeze(image)
    images.start_spill(image, _slabs(slabs))
    images.end_spill(image, landed=True)
    return image


def test_slots_are_handed_out_until_none_is_free() -> None:
    images, _ = _images()
    first, second = _acquire(images), _acquire(images)
    assert {first.slot, second.slot} == {0, 1}
    assert images.acquire() is None
    images.release(first)
    assert images.free == 1
    images.check()


def test_freezing_copies_nothing() -> None:
    images, _ = _images()
    image = _acquire(images)
    slot = image.slot
    images.freeze(image)
    assert (image.slot, image.active, image.settled) == (slot, False, True)


def test_a_spilled_image_gives_its_slot_and_lives_on() -> None:
    images, slabs = _images()
    image = _backed(images, slabs)
    images.drop_device(image)
    assert (images.free, image.settled, images.on_host) == (2, True, 1)
    images.release(image)
    assert (slabs.taken, images.on_host) == (0, 0)
    images.check()


def test_take_over_moves_the_slot_and_leaves_the_host_copy() -> None:
    images, slabs = _images()
    image = _backed(images, slabs)
    slot = image.slot
    active = images.take_over(image)
    assert (active.slot, active.active, image.on_device, image.settled) == (slot, True, False, True)
    images.check()


def test_a_failed_spill_frees_the_slabs_and_keeps_the_device_copy() -> None:
    images, slabs = _images()
    image = _acquire(images)
    images.freeze(image)
    images.start_spill(image, _slabs(slabs))
    images.end_spill(image, landed=False)
    assert (slabs.taken, image.settled, image.slabs) == (0, True, None)


def test_a_capture_to_the_host_is_complete_when_it_lands() -> None:
    images, slabs = _images()
    image = images.start_capture(_slabs(slabs))
    before = image.settled
    images.end_spill(image, landed=True)
    assert (before, image.settled, image.on_device) == (False, True, False)


def test_released_while_a_copy_reads_it_goes_afterwards() -> None:
    images, slabs = _images()
    image = _acquire(images)
    images.freeze(image)
    images.start_spill(image, _slabs(slabs))
    images.release(image)
    assert images.free == 1
    images.check()
    images.end_spill(image, landed=True)
    assert (images.free, slabs.taken) == (2, 0)
    images.check()


@pytest.mark.parametrize("act", ["drop_device", "drop_host", "take_over"])
@pytest.mark.parametrize("state", ["active", "device only", "host only", "pinned"])
def test_an_image_that_is_needed_where_it_is_stays(act: str, state: str) -> None:
    images, slabs = _images()
    if state in ("active", "device only"):
        image = _acquire(images)
        if state == "device only":
            images.freeze(image)
    else:
        image = _backed(images, slabs)
        images.drop_device(image) if state == "host only" else images.pin(image)
    with pytest.raises(InvariantError):
        getattr(images, act)(image)


@pytest.mark.parametrize("act", ["pin", "freeze"])
def test_roles_are_checked(act: str) -> None:
    images, _ = _images()
    image = _acquire(images)
    if act == "freeze":
        images.freeze(image)
    with pytest.raises(InvariantError):
        getattr(images, act)(image)


def test_released_twice_is_an_error() -> None:
    images, _ = _images()
    image = _acquire(images)
    images.release(image)
    with pytest.raises(InvariantError, match="twice"):
        images.release(image)

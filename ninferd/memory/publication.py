"""How a running sequence leaves resumable points behind: at taps, and where it ends."""

from __future__ import annotations

from typing import Final

import numpy as np

from kernels_numba.kv.codec import PAGE_TOKENS
from ninferd.memory.copies import Landed
from ninferd.memory.eviction import carry_out, evict, forget, plan_with_growth
from ninferd.memory.flights import start_capture, start_spill
from ninferd.memory.page_columns import NO_HANDLES, NOWHERE, Handles
from ninferd.memory.pages import PageReservation
from ninferd.memory.reclaim import Demand, plan_reclaim
from ninferd.memory.snapshots import SHARED, Snapshot, SnapshotKind
from ninferd.memory.state_images import StateImage
from ninferd.memory.stores import Stores
from ninferd.memory.tenant import Tenant
from ninferd.memory.worth import density

MAX_SUPERSEDED: Final = 8  # points of one conversation that a deeper one made unlikely to be asked for


def capture(stores: Stores, tenant: Tenant, kind: SnapshotKind) -> Snapshot | None:
    """Publish the state of a running sequence at its frontier; None if it is known already or there is no room.

    The copies are ordered on the compute stream, so the sequence goes on at once. Nothing is lost for a tap: it takes
    what is free or exists twice, else it is skipped and counted.
    """
    pressure = stores.counters.pressure
    known = stores.tree.known(tenant.ledger.upto(tenant.frontier), tenant.frontier)
    if known is not None:
        pressure.capture_skips_nothing_to_publish += 1
        tenant.last_tap = known
        return None
    tail_pages = int(tenant.frontier % PAGE_TOKENS > 0)
    image = None
    if _make_room(stores, Demand(pages=tail_pages, slots=1, lossless=True)):
        image = _image_on_device(stores, tenant)
    elif _make_room(stores, Demand(pages=tail_pages, lossless=True)):
        image = _image_on_host(stores, tenant)
    if image is None:
        if stores.flights:
            pressure.capture_skips_transaction_or_fork += 1
        else:
            pressure.capture_skips_not_feasible_no_pressure += 1
        stores.counters.active_captures_aborted += 1
        return None
    tail = _tail_copy(stores, tenant) if tail_pages else NO_HANDLES
    snapshot = _publish(stores, tenant, kind, image, tail)
    _supersede(stores, tenant.last_tap or tenant.source, snapshot)
    tenant.last_tap = snapshot
    stores.counters.active_captures_completed += 1
    write_through(stores, snapshot)
    return snapshot


def publish_endpoint(stores: Stores, tenant: Tenant) -> Snapshot | None:
    """The state of a sequence that ended becomes a snapshot; nothing is copied. The caller releases the sequence.

    None if its frontier is known already.
    """
    known = stores.tree.known(tenant.ledger.upto(tenant.frontier), tenant.frontier)
    if known is not None:
        stores.tree.touch(known)
        return None
    image, tenant.image = tenant.image, None
    assert image is not None
    stores.images.freeze(image)
    tenant.freeze_blocks(stores.pages)
    blocks, columns = divmod(tenant.frontier, PAGE_TOKENS)
    tail = NO_HANDLES
    if columns:
        tail, tenant.handles = tenant.handles[blocks : blocks + 1], np.delete(tenant.handles, blocks)
        stores.pages.commit_columns(tail, columns)
        stores.pages.freeze(tail)
        stores.pages.deactivate(tail)
    snapshot = _publish(stores, tenant, "endpoint", image, tail)
    if tenant.source is not tenant.last_tap:
        _supersede(stores, tenant.source, snapshot)
    return snapshot


def write_through(stores: Stores, snapshot: Snapshot) -> None:
    """Copy to the host whatever of a snapshot is only on the device, if it is worth its place there."""
    snapshot.pins += 1  # room is not made at its own expense
    try:
        image = snapshot.image
        images = (image,) if image.slabs is None and image.pending_slabs is None else ()
        wanted = len(_lonely(stores, snapshot)) + len(images) * stores.images.slabs_per_image
        if not wanted:
            return
        stores.counters.extras.spill_attempted += 1
        plan = plan_with_growth(stores, Demand(slabs=wanted, worth=density(stores, snapshot)))
        if plan is not None and carry_out(stores, plan) and start_spill(stores, _lonely(stores, snapshot), images):
            stores.counters.extras.spill_done += 1
        else:
            stores.counters.extras.spill_skipped_host_blocked += 1
    finally:
        snapshot.pins -= 1


def _lonely(stores: Stores, snapshot: Snapshot) -> Handles:
    """Pages of a snapshot that are on the device alone, and on no way to the host."""
    handles = np.concatenate((snapshot.anchored.path_pages(), snapshot.tail_page))
    ids, pages = stores.pages.ids(handles), stores.pages
    alone = (pages.device[ids] != NOWHERE) & (pages.host[ids] == NOWHERE) & (pages.pending_host[ids] == NOWHERE)
    lonely: Handles = handles[alone]
    return lonely


def _make_room(stores: Stores, demand: Demand) -> bool:
    """Drop copies that exist twice until ``demand`` fits; False, and nothing is done, if that is not enough."""
    plan = plan_reclaim(stores, demand)
    return plan is not None and carry_out(stores, plan)


def _image_on_device(stores: Stores, tenant: Tenant) -> StateImage:
    image = stores.images.copy_to_slot()
    assert image is not None
    stores.copies.copy_state(tenant.state_slot, image.slot)
    stores.count("d2d", 0, 1, 0.0)
    return image


def _image_on_host(stores: Stores, tenant: Tenant) -> StateImage | None:
    """Where no device slot can be had: the image is complete, and its snapshot usable, once the copy has landed."""
    if not stores.slabs.grow_for(stores.images.slabs_per_image):
        return None

    def after(landed: Landed) -> None:
        if landed.failed:
            for snapshot in [each for each in stores.tree.snapshots() if each.image is image]:
                evict(stores, snapshot)

    image = start_capture(stores, tenant.state_slot, after)
    return image


def _tail_copy(stores: Stores, tenant: Tenant) -> Handles:
    """A private copy of the partial page, which the sequence goes on writing."""
    blocks, columns = divmod(tenant.frontier, PAGE_TOKENS)
    tail = copy_of_page(stores, tenant.handles[blocks : blocks + 1], columns)
    stores.pages.freeze(tail)
    stores.pages.deactivate(tail)
    return tail


def copy_of_page(stores: Stores, source: Handles, columns: int, reservation: PageReservation | None = None) -> Handles:
    """A new written page with the first ``columns`` of another; room for it must have been made."""
    if reservation is None:
        reservation = stores.pool.reserve(1)
        assert reservation is not None
    copy = stores.pages.create(1, reservation)
    devices = stores.pages.device[stores.pages.ids(np.concatenate((source, copy)))]
    stores.copies.copy_page(int(devices[0]), int(devices[1]))
    stores.pages.commit_columns(copy, columns)
    stores.count("d2d", 1, 0, 0.0)
    stores.counters.pressure.partial_tail_cow_pages += 2 if stores.sizes.backend_page_bytes else 1
    return copy


def _publish(stores: Stores, tenant: Tenant, kind: SnapshotKind, image: StateImage, tail: Handles) -> Snapshot:
    lineage = SHARED if kind == "shared_stable_prefix" else tenant.lineage
    tokens = tenant.ledger.upto(tenant.frontier)
    segment = stores.tree.insert(tokens, tenant.freeze_blocks(stores.pages))
    snapshot = Snapshot(
        frontier=tenant.frontier,
        tail=tokens.part(segment.end * PAGE_TOKENS, tenant.frontier),
        tail_page=tail,
        image=image,
        kind=kind,
        lineage=lineage,
        session=tenant.request.session,
        age=stores.values.age,
    )
    stores.tree.attach(segment, snapshot)
    if lineage != SHARED:
        stores.lineages[lineage] = stores.lineages.get(lineage, 0) + 1
        stores.sessions.publish(snapshot.session, tenant.order, lineage)
    return snapshot


def _supersede(stores: Stores, older: Snapshot | None, newer: Snapshot) -> None:
    """A deeper snapshot of the same conversation makes the one before it unlikely to be asked for."""
    if older is None or older.segment is None or older.lineage == SHARED or older.lineage != newer.lineage:
        return
    if not older.superseded and older.frontier < newer.frontier:
        older.superseded = True
        stores.counters.superseded += 1
        _thin(stores, newer)


def _thin(stores: Stores, newest: Snapshot) -> None:
    """Keep few superseded points of a conversation, ever sparser toward its beginning, for clients that rewind.

    Each costs an image, and a segment to walk in every match; of neighbours that are close for their distance from
    the end, one is enough.
    """
    old = [
        snapshot
        for segment in newest.anchored.path()
        for snapshot in segment.snapshots
        if snapshot.superseded and snapshot.lineage == newest.lineage and not snapshot.pins
    ]
    if len(old) <= MAX_SUPERSEDED:
        return
    old.sort(key=lambda snapshot: snapshot.frontier)
    around = [0, *(snapshot.frontier for snapshot in old), newest.frontier]
    gaps = [(around[i + 2] - around[i]) / (newest.frontier - around[i + 1]) for i in range(len(old))]
    forget(stores, old[gaps.index(min(gaps))])

"""Random lives of the memory system: what clients, the host and a failing device may do to it, in any order."""

from __future__ import annotations

import random

from ninferd.memory.eviction import evict
from ninferd.memory.host_budget import HostMemory
from ninferd.memory.identity import MediaItem, Tokens
from ninferd.memory.stores import BundleSizes
from ninferd.memory.taps import PromptOutline
from tests.memory.fakes import GIB
from tests.memory.hash_engine import SLAB, HashEngine, Job, low_memory

PICTURES = (b"cat!", b"dog!")


def _with_media(ids: list[int], media: list[tuple[int, int, bytes]]) -> Tokens:
    """Tokens with pictures (start, length, digest) where they fit; placeholders look alike."""
    tokens = Tokens.of_text(ids)
    kept: list[MediaItem] = []
    for start, length, digest in sorted(media):
        if start + length <= len(ids) and (not kept or kept[-1].end <= start):
            kept.append(MediaItem(digest, "image", (1, 1, length), start, start + length))
            tokens.ids[start : start + length] = 2
            tokens.types[start : start + length] = 1
    return Tokens(tokens.ids, tokens.types, tuple(kept))


class Trace:
    """One seeded life. Every step checks all invariants, every finished answer is compared with a cold run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.engine = HashEngine(
            pages=draw.choice([12, 24, 48]),
            lanes=draw.choice([1, 2, 3]),
            retained_images=draw.choice([0, 1, 2, 4]),
            host_slabs=draw.choice([0, 8, 24, 80, 200]),
            chunk=draw.choice([64, 100, 256]),
            start_full=draw.random() < 0.5,
            host_chunk_slabs=draw.choice([4, 16]),
            sizes=BundleSizes(4000, draw.choice([0, 96]), draw.choice([1, 3]) * SLAB),
            digest=draw.choice([hash, hash, lambda block: 0]),
        )
        self.system = [draw.randrange(3) for _ in range(draw.choice([0, 64, 100]))]
        self.ended: list[Job] = []
        self.live: list[Job] = []

    def live_on(self, actions: int) -> None:
        """That many random actions, then quiet until all is done, then an end without leaks."""
        acts = [self.submit] * 6 + [self.step] * 12 + [self.cancel, self.fail, self.hold, self.release, self.starve]
        acts += [self.trim, self.damage, self.break_a_copy, self.refuse_a_copy, self.fail_a_pin]
        for _ in range(actions):
            self.random.choice(acts)()
            self.reap()
        self.engine.device.hold = False
        self.engine.device.refuse = self.engine.device.fail = 0
        self.engine.drain()
        self.reap()
        self.end_without_leaks()

    def submit(self) -> None:
        draw = self.random
        longest = self.engine.device.pages * 64
        if len(self.engine.waiting) > 4:
            return
        media = [
            (draw.randrange(150), draw.choice([1, 20, 90]), draw.choice(PICTURES)) for _ in range(draw.choice([0, 2]))
        ]
        if self.ended and draw.random() < 0.75:
            before = draw.choice(self.ended[-6:])
            media = [(item.start, item.end - item.start, item.digest) for item in before.tokens.media]
            if media and draw.random() < 0.2:  # another picture in the same place
                media[0] = (*media[0][:2], draw.choice(PICTURES))
            ids = before.turn(self._words(draw.choice([1, 20, 64, 150])))
            act = draw.random()
            if act < 0.25:  # the client drops or rewrites part of the history
                cut = draw.randrange(1, len(ids))
                ids = ids[:cut] + self._words(draw.choice([1, 30]))
            elif act < 0.35:
                ids = before.tokens.ids.tolist()
            session = before.session if draw.random() < 0.8 else draw.choice(["", "x"])
        else:
            ids = self.system + self._words(draw.choice([1, 63, 64, 65, 200, 500]))
            session = draw.choice(["", "a", "b", "c"])
        outputs = draw.choice([0, 1, 5, 40, 90])
        ids = ids[: max(1, longest - outputs - draw.choice([0, 200]))]
        marks = [draw.randrange(len(ids) + 1) for _ in range(draw.choice([0, 0, 1, 3]))]
        outline = PromptOutline(
            client_markers=tuple(marks),
            opener=draw.choice([None, max(0, len(ids) - draw.choice([0, 5, 70]))]),
            opener_kind=draw.choice(["turn_closure", "response_replay"]),
            system_end=len(self.system) or None,
        )
        tokens = _with_media(ids, media)
        self.live.append(self.engine.submit(tokens, outputs, session, outline=outline, retain=draw.random() < 0.95))

    def step(self) -> None:
        self.engine.step()

    def cancel(self) -> None:
        if self.live:
            self.engine.cancel(self.random.choice(self.live))

    def fail(self) -> None:
        running = [job for job in self.engine.running if job.held.phase == "ready"]
        if running:
            self.engine.fail(self.random.choice(running))

    def hold(self) -> None:
        self.engine.device.hold = self.random.random() < 0.7

    def release(self) -> None:
        self.engine.device.release(self.random.choice([1, 2]))

    def starve(self) -> None:
        self.engine.host.memory = self.random.choice([None, low_memory(), HostMemory(5 * GIB, 4 * GIB + 9 * SLAB)])
        if self.random.random() < 0.6:
            self.engine.host.memory = HostMemory(64 * GIB, None)

    def trim(self) -> None:
        self.engine.memory.trim_host()
        self.engine.memory.check()

    def damage(self) -> None:
        stored = sorted(self.engine.device.host)
        if stored:
            self.engine.device.damaged.add(self.random.choice(stored))

    def break_a_copy(self) -> None:
        self.engine.device.fail = self.random.choice([0, 1])

    def refuse_a_copy(self) -> None:
        self.engine.device.refuse = self.random.choice([0, 1, 2])

    def fail_a_pin(self) -> None:
        self.engine.pinned.failures = self.random.choice([0, 1])

    def reap(self) -> None:
        for job in [each for each in self.live if each.ended]:
            self.live.remove(job)
            if len(job.made) == job.outputs and job.refused is None:
                self.ended.append(job)

    def end_without_leaks(self) -> None:
        stores = self.engine.stores
        assert not stores.flights
        assert not stores.pages.pins.any()
        assert stores.counters.pressure.evictions_demote_possible == 0
        for snapshot in list(stores.tree.snapshots()):
            evict(stores, snapshot)
            self.engine.memory.check()
        assert (stores.pages.live, stores.pool.allocated, stores.pool.reserved, stores.slabs.taken) == (0, 0, 0, 0)
        assert stores.images.free == stores.images.capacity
        assert stores.lineages == {}

    def _words(self, count: int) -> list[int]:
        return [self.random.randrange(3) for _ in range(count)]

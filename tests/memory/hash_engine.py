"""A small engine over the hash model: queue, lanes, chunked prefill, decode rounds, one unit per step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ninferd.memory.admission import Refused
from ninferd.memory.host_budget import HostLimits, HostMemory
from ninferd.memory.identity import IdentityTag, Tokens
from ninferd.memory.segment import BlockDigest
from ninferd.memory.stores import BundleSizes
from ninferd.memory.system import MemoryConfig, MemorySystem
from ninferd.memory.taps import PromptOutline
from ninferd.memory.tenant import Request, Tenant
from tests.memory.fakes import GIB, FakeHost, FakePinned
from tests.memory.hash_model import HashDevice, advance_state, cold_tokens, inputs, key_values, next_token

SLAB = 4096
SIZES = BundleSizes(main_page_bytes=4000, backend_page_bytes=0, image_bytes=2 * SLAB)


@dataclass(eq=False)
class Job:
    """One request and what became of it."""

    tokens: Tokens
    outputs: int
    session: str = ""
    outline: PromptOutline = field(default_factory=PromptOutline)
    retain: bool = True
    made: list[int] = field(default_factory=list)
    tenant: Tenant | None = None
    refused: Refused | None = None
    cached: int = -1
    computed: int = 0
    ended: bool = False

    @property
    def request(self) -> Request:
        cache_tokens = len(self.tokens) + max(0, self.outputs - 1)
        return Request(self.tokens, cache_tokens, self.session, self.outline, self.retain)

    @property
    def held(self) -> Tenant:
        assert self.tenant is not None
        return self.tenant

    def turn(self, more: list[int]) -> list[int]:
        """Token ids of the next prompt of an echoing client: this prompt, the answer, and ``more``."""
        return [*self.tokens.ids.tolist(), *self.made, *more]


class HashEngine:
    """Drives a MemorySystem; every step ends with all invariants checked, every answer is compared with a cold run."""

    def __init__(
        self,
        *,
        pages: int = 32,
        lanes: int = 2,
        retained_images: int = 2,
        host_slabs: int = 256,
        chunk: int = 256,
        start_full: bool = True,
        host_chunk_slabs: int = 16,
        sizes: BundleSizes = SIZES,
        digest: BlockDigest = hash,
        check_every: int = 1,
    ) -> None:
        self.host = FakeHost()
        self.pinned = FakePinned()
        self.device = HashDevice(pages, lanes + retained_images)
        self.lanes = lanes
        self.chunk = chunk
        config = MemoryConfig(
            sizes=sizes,
            tag=IdentityTag("hash", "words"),
            device_pages=pages,
            state_slots=lanes + retained_images,
            host=HostLimits(host_slabs * sizes.slab_bytes, reserve_bytes=4 * GIB),
            chunk_tokens=chunk,
            host_chunk_bytes=host_chunk_slabs * sizes.slab_bytes,
        )
        self.memory = MemorySystem(config, self.device, self.pinned, self.host.read, digest)
        if start_full:
            assert self.memory.stores.slabs.grow_for(host_slabs)
        self.stores = self.memory.stores
        self.counters = self.memory.stores.counters
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self._last_decoded = False
        self._refused_in: tuple[object, ...] = ()
        self._check_every, self._steps = check_every, 0

    def submit(self, ids: list[int] | Tokens, outputs: int, session: str = "", **options: object) -> Job:
        tokens = ids if isinstance(ids, Tokens) else Tokens.of_text(ids)
        job = Job(tokens, outputs, session, **options)  # type: ignore[arg-type]
        self.waiting.append(job)
        return job

    def run(self, ids: list[int] | Tokens, outputs: int, session: str = "", **options: object) -> Job:
        """One request from submission to its end, alone."""
        job = self.submit(ids, outputs, session, **options)
        self.drain()
        assert job.ended
        return job

    def run_until_ended(self, ids: list[int], outputs: int) -> None:
        """One request to its end; copies may still be under way."""
        job = self.submit(ids, outputs)
        while not job.ended:
            self.step()

    def drain(self, steps: int = 5000) -> None:
        """Step until nothing waits, runs or flies."""
        for _ in range(steps):
            if not (self.waiting or self.running or self.device.flying):
                return
            self.step()
        raise AssertionError(f"still busy: {[job.refused for job in self.waiting]}")

    def step(self) -> None:
        for tenant in self.memory.advance():
            self._settle(tenant)
        self._admit()
        self._unit()
        self._steps += 1
        if self._steps % self._check_every == 0:
            self.memory.check()

    def cancel(self, job: Job) -> None:
        job.ended = True
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.running:
            self.running.remove(job)
            self.memory.cancel(job.held)
        self.memory.check()

    def fail(self, job: Job) -> None:
        """Its unit of work failed: what it wrote is suspect and is scrubbed."""
        job.ended = True
        self.running.remove(job)
        self.device.kv[self.memory.fail(job.held)] = 0
        self.memory.check()

    def _settle(self, tenant: Tenant) -> None:
        job = next((each for each in self.running if each.tenant is tenant), None)
        if job is None:
            return
        if tenant.phase == "gone":
            self.running.remove(job)
            job.tenant = None
            self.waiting.appendleft(job)
        else:
            job.cached = tenant.reused_tokens

    def _admit(self) -> None:
        if not self.waiting or len(self.running) == self.lanes:
            return
        job = self.waiting[0]
        situation = (job, *self.running, len(self.device.log), self.device.flying)
        if situation == self._refused_in:
            return  # nothing has ended or landed since
        outcome = self.memory.admit(job.request)
        if isinstance(outcome, Refused):
            self._refused_in = situation
            job.refused = outcome
            self.memory.prefetch(job.request)
            if outcome.kind == "impossible":
                job.ended = True
                self.waiting.popleft()
            return
        self.waiting.popleft()
        job.tenant = outcome
        if outcome.phase == "gone":
            self.waiting.appendleft(job)
            return
        self.running.append(job)
        if outcome.phase == "ready":
            job.cached = outcome.reused_tokens

    def _unit(self) -> None:
        ready = [job for job in self.running if job.held.phase == "ready"]
        prefilling = [job for job in ready if job.held.frontier < len(job.tokens)]
        decoding = [job for job in ready if job not in prefilling]
        if decoding and not (prefilling and self._last_decoded):
            self._last_decoded = True
            for job in decoding:
                job.held.ledger.append(job.made[-1])
                self._forward(job, job.held.frontier + 1)
        elif prefilling:
            self._last_decoded = False
            job = prefilling[0]
            stops = [tap.position for tap in job.held.taps]
            end = min(job.held.frontier + self.chunk, len(job.tokens), *stops)
            job.computed += end - job.held.frontier
            self._forward(job, end)

    def _forward(self, job: Job, end: int) -> None:
        tenant, device = job.held, self.device
        start = tenant.frontier
        self.memory.map(tenant, end)
        table = tenant.device_pages(self.stores.pages)
        fed = inputs(tenant.ledger.upto(end))[start:end]
        positions = np.arange(start, end)
        device.kv[table[positions // 64], positions % 64] = key_values(fed, start)
        device.state[tenant.state_slot] = advance_state(device.state[tenant.state_slot], fed)
        self.memory.commit(tenant, end)
        if end < len(job.tokens):
            return
        if job.outputs:
            cached = device.kv[table].reshape(-1)[:end]
            job.made.append(next_token(device.state[tenant.state_slot], cached))
        if len(job.made) == job.outputs:
            self.running.remove(job)
            job.ended = True
            assert job.made == cold_tokens(job.tokens, job.outputs), "the answer differs from a cold run"
            self.memory.finish(tenant)


def low_memory() -> HostMemory:
    """A host that has nothing to spare beyond the reserve of 4 GiB."""
    return HostMemory(4 * GIB, None)

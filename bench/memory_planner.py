"""How long the memory system thinks: matching a long prompt, planning under pressure, and bookkeeping per decode step.

    python -m bench.memory_planner [--owners 16] [--tokens 400000] [--rounds 200]

Pure bookkeeping; copies are instant and no bytes are moved. Times are CPU time of the thread. Aims: match 10 ms, plan
5 ms (p99), decode step of 8 lanes 50 µs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ninferd.memory.admission import Refused, plan_admission, sources, unpin
from ninferd.memory.copies import Landed, Transfer
from ninferd.memory.host_budget import HostLimits, HostMemory
from ninferd.memory.identity import IdentityTag, Tokens
from ninferd.memory.stores import BundleSizes
from ninferd.memory.system import MemoryConfig, MemorySystem
from ninferd.memory.tenant import Request, Tenant

PAGE_TOKENS = 64
LANES = 8
SIZES = BundleSizes(main_page_bytes=1_179_648, backend_page_bytes=73_728, image_bytes=153_954_304)  # 27B, nvfp4, MTP


class InstantCopies:
    """Every transfer has landed at the next poll."""

    def __init__(self) -> None:
        self._tickets: list[int] = []
        self._count = 0

    def start(self, transfer: Transfer) -> int:
        del transfer
        self._count += 1
        self._tickets.append(self._count)
        return self._count

    def landed(self) -> list[Landed]:
        ended, self._tickets = self._tickets, []
        return [Landed(ticket, 0.0) for ticket in ended]

    def copy_page(self, source: int, destination: int) -> None: ...

    def copy_state(self, source: int, destination: int) -> None: ...

    def reset_state(self, slot: int) -> None: ...


class NoPinning:
    """Host memory that is not there."""

    def pin(self, chunk: int, size_bytes: int) -> bool:
        del chunk, size_bytes
        return True

    def unpin(self, chunk: int) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    system_prompt = rng.integers(0, 150_000, 20_000, dtype=np.int32)
    prompts = [
        np.concatenate((system_prompt, rng.integers(0, 150_000, args.tokens - 20_000, dtype=np.int32)))
        for _ in range(args.owners)
    ]
    for label, host_share in (("host has room for all", 1.5), ("host full", 0.5)):
        memory = _filled(prompts, host_share)
        print(f"{args.owners} owners x {args.tokens} tokens, {label}: {memory.stores.tree.live} snapshots in the tree")
        again = Tokens.of_text(np.concatenate((prompts[0], prompts[1][:500])))
        _print("match of a prompt that is known", _timed(partial(memory.stores.tree.match, again), args.rounds))
        new = Tokens.of_text(np.concatenate((system_prompt, prompts[0][: args.tokens - 20_000])))
        for name, tokens in (("next turn of a restored owner", again), ("new conversation", new)):
            request = Request(tokens, len(tokens) + 1000)
            _print(f"match and plan, {name}", _timed(partial(_plan, memory, request), args.rounds))
    _decode_steps(args.rounds)


def _filled(prompts: list[np.ndarray[tuple[int], np.dtype[np.int32]]], host_share: float) -> MemorySystem:
    """All conversations ran once on a device that holds one and a half of them."""
    pages = len(prompts[0]) // PAGE_TOKENS * 3 // 2 + 64
    host_bytes = int(
        host_share * len(prompts) * (len(prompts[0]) // PAGE_TOKENS * SIZES.slab_bytes + SIZES.image_bytes)
    )
    memory = _memory(pages, 4, host_bytes)
    for index, ids in enumerate(prompts):
        tenant = _admit(memory, Request(Tokens.of_text(ids), len(ids), f"session {index}"))
        memory.map(tenant, len(ids))
        for tap in list(tenant.taps):
            memory.commit(tenant, tap.position)
            memory.advance()
        memory.commit(tenant, len(ids))
        memory.finish(tenant)
        memory.advance()
    return memory


def _memory(pages: int, slots: int, host_bytes: int) -> MemorySystem:
    config = MemoryConfig(
        sizes=SIZES,
        tag=IdentityTag("bench", "nvfp4"),
        device_pages=pages,
        state_slots=slots,
        host=HostLimits(host_bytes, 0),
        chunk_tokens=1024,
    )
    return MemorySystem(config, InstantCopies(), NoPinning(), lambda: HostMemory(1 << 50, None))


def _admit(memory: MemorySystem, request: Request) -> Tenant:
    admitted = memory.admit(request)
    if isinstance(admitted, Refused):
        raise SystemExit(f"refused: {admitted.message}")
    while admitted.phase != "ready":
        memory.advance()
    return admitted


def _plan(memory: MemorySystem, request: Request) -> None:
    """What an admission decides, without carrying it out."""
    match = memory.stores.tree.match(request.prompt)
    planned = plan_admission(memory.stores, sources(memory.stores, request, match))
    if isinstance(planned, Refused):
        raise SystemExit(f"refused: {planned.message}")
    unpin(memory.stores, planned.source)


def _decode_steps(rounds: int) -> None:
    memory = _memory(LANES * 100, LANES, 0)
    prompt = Tokens.of_text(np.zeros(3000, np.int32))
    tenants = [_admit(memory, Request(prompt, 6000, retain=False)) for _ in range(LANES)]
    for tenant in tenants:
        memory.map(tenant, 3000)
        memory.commit(tenant, 3000)

    def step() -> None:
        for tenant in tenants:
            tenant.ledger.append(1)
            memory.map(tenant, tenant.frontier + 1)
            memory.commit(tenant, tenant.frontier + 1)

    _print(f"bookkeeping of a decode step of {LANES} lanes", _timed(step, max(rounds, 640)))


def _timed(act: Callable[[], object], rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        start = time.thread_time()
        act()
        seconds.append(time.thread_time() - start)
    return seconds


def _print(what: str, seconds: list[float]) -> None:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    print(f"  {what}: mean {np.mean(seconds) * 1e3:.3f} ms, p50 {p50:.3f} ms, p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()

"""How many pages and state slots fit: arithmetic only, free of torch so that preflight can use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.kv.layout import KvLayout
from ninferd.memory.errors import CapacityError
from ninferd.memory.geometry import StateGeometry, pages_for

HEADROOM_BYTES: Final = 1 << 30  # left free beside the caches: CUDA graphs (half of it), workspaces, fragmentation
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class CapacityRequest:
    """What the operator asked for."""

    max_context_tokens: int
    max_concurrency: int
    kv_capacity: int | Literal["auto"] | None  # tokens; None is max_context
    kv: KvLayout
    state: StateGeometry


@dataclass(frozen=True)
class CapacityPlan:
    """What will be allocated."""

    pages: int
    pages_per_sequence: int  # columns of the page table: pages of one sequence of max_context tokens
    state_slots: int
    kv_bytes: int
    state_bytes: int

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the pages hold."""
        return self.pages * PAGE_TOKENS


def plan_capacity(request: CapacityRequest, free_bytes: int, *, host: bool) -> CapacityPlan:
    """Pages and slots for ``request`` in ``free_bytes`` (what is free once the weights are loaded).

    Sizes follow spec/memory §2.1: at least one full-length sequence and one page per lane; ``auto`` takes the
    rest of a device less 1 GiB, and on a ``host``, whose memory others need too, at most what all lanes can fill.
    Raises CapacityError with the numbers if it does not fit.
    """
    columns = pages_for(request.max_context_tokens)
    fewest = max(columns, request.max_concurrency)
    state_bytes = request.max_concurrency * request.state.slot_bytes
    pages = _explicit_pages(request, fewest)
    if pages is None:
        spare = free_bytes - HEADROOM_BYTES - state_bytes - fewest * request.kv.page_bytes
        pages = fewest + max(0, spare) // request.kv.page_bytes
        if host:
            pages = max(fewest, min(pages, request.max_concurrency * columns))
    plan = CapacityPlan(pages, columns, request.max_concurrency, pages * request.kv.page_bytes, state_bytes)
    needed = plan.kv_bytes + plan.state_bytes + HEADROOM_BYTES
    if needed > free_bytes:
        raise CapacityError(
            f"caches do not fit: {pages} pages of {PAGE_TOKENS} tokens need {_mib(plan.kv_bytes)}, "
            f"{plan.state_slots} state slots need {_mib(state_bytes)}, headroom {_mib(HEADROOM_BYTES)}, "
            f"together {_mib(needed)}; free after the weights: {_mib(free_bytes)}. "
            "Lower engine.max_context, engine.kv_capacity or engine.max_concurrency."
        )
    return plan


def _explicit_pages(request: CapacityRequest, fewest: int) -> int | None:
    """Pages of a capacity given in tokens; None for ``auto``."""
    if request.kv_capacity is None:
        return fewest
    if request.kv_capacity == "auto":
        return None
    if request.kv_capacity < request.max_context_tokens:
        raise CapacityError(
            f"engine.kv_capacity is {request.kv_capacity} tokens, less than engine.max_context "
            f"({request.max_context_tokens}): one full-length request must fit"
        )
    pages = pages_for(request.kv_capacity)
    if pages < request.max_concurrency:
        raise CapacityError(
            f"engine.kv_capacity of {request.kv_capacity} tokens is {pages} pages of {PAGE_TOKENS}, fewer than "
            f"engine.max_concurrency ({request.max_concurrency}): every running request needs a page"
        )
    return pages


def free_host_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Host memory that can still be taken: the least of MemAvailable and what the control groups above us leave."""
    return min([_mem_available(proc), *cgroup_room(proc, cgroups)])


def _mem_available(proc: Path) -> int:
    path = proc / "meminfo"
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise CapacityError(f"{path} has no MemAvailable line: the kernel does not say how much memory is free")


def cgroup_room(proc: Path, cgroups: Path) -> list[int]:
    """Room in this process' control group (v2) and in every one above it that has a limit."""
    try:
        own = next(line for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = cgroups / own.removeprefix("0::").lstrip("/")
    room = []
    for directory in (group, *group.parents):
        if not directory.is_relative_to(cgroups):
            break
        try:
            limit = (directory / "memory.max").read_text().strip()
            used = int((directory / "memory.current").read_text())
        except OSError:
            continue
        if limit != "max":
            room.append(max(0, int(limit) - used + _page_cache_bytes(directory)))
    return room


def _page_cache_bytes(group: Path) -> int:
    """What the kernel takes back before anyone runs out: reading a checkpoint fills the group with it."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.1f} MiB"

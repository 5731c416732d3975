"""How much host memory this process may still take: the machine, its cgroup and its lock limit."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass
from pathlib import Path

from ninferd.errors import NinferError


class MemoryInfoError(NinferError):
    """The kernel's memory report cannot be read."""


@dataclass(frozen=True)
class HostMemory:
    """Bytes of host memory."""

    total_bytes: int
    available_bytes: int  # what can be taken without swapping, by every limit
    limited_by: str  # "machine" or the path of the cgroup with the least room
    memlock_bytes: int | None  # what may be locked (pinned); None is unlimited


@dataclass(frozen=True)
class _Room:
    total_bytes: int
    available_bytes: int
    limited_by: str


def read_host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> HostMemory:
    """The tightest of /proc/meminfo and every cgroup v2 limit from this process up to the root.

    Raises MemoryInfoError where /proc/meminfo has no MemTotal or MemAvailable.
    """
    rooms = [_machine(proc / "meminfo"), *_cgroup_limits(proc / "self" / "cgroup", cgroups)]
    tightest = min(rooms, key=lambda room: room.available_bytes)
    total = min(room.total_bytes for room in rooms)
    return HostMemory(total, tightest.available_bytes, tightest.limited_by, memlock_limit())


def memlock_limit() -> int | None:
    """Soft RLIMIT_MEMLOCK in bytes; None is unlimited."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _machine(meminfo: Path) -> _Room:
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE))
    try:
        return _Room(int(fields["MemTotal"]) * 1024, int(fields["MemAvailable"]) * 1024, "machine")
    except KeyError as error:
        raise MemoryInfoError(f"{meminfo} has no {error.args[0]} line") from None


def _cgroup_limits(membership: Path, root: Path) -> list[_Room]:
    """Limits on the path from this process's cgroup to the root; none without cgroup v2."""
    try:
        own = re.search(r"^0::/(.*)$", membership.read_text(), re.MULTILINE)
    except OSError:
        return []
    if own is None:
        return []
    folder = root / own[1]
    rooms = []
    for level in (folder, *folder.parents):
        room = _cgroup_limit(level, root)
        if room is not None:
            rooms.append(room)
        if level == root:
            break
    return rooms


def _cgroup_limit(folder: Path, root: Path) -> _Room | None:
    try:
        limit_text = (folder / "memory.max").read_text().strip()
        if limit_text == "max":
            return None
        limit, used = int(limit_text), int((folder / "memory.current").read_text())
        statistics = (folder / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    # Page cache counts as used, but the kernel gives it back before it kills anyone.
    cache = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
    reclaimable = int(cache[1]) if cache else 0
    name = f"cgroup /{folder.relative_to(root)}".replace("/.", "/")
    return _Room(limit, max(0, limit - used + reclaimable), name)

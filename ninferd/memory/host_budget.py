"""May pinned host memory grow? Decided from the kernel's own numbers, and refused whenever they cannot be read.

The rule is that of spec/memory §5.5: what a growth leaves of MemAvailable, and of every control group above this
process, must not fall below the reserve, and all pinned memory together must stay below its ceiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ninferd.memory.budget import cgroup_room

Veto = Literal["None", "NothingWanted", "InvalidReading", "Reserve", "MaxBytes"]
_WANTED: Final = ("MemAvailable", "Shmem", "SwapFree")


@dataclass(frozen=True)
class HostMemory:
    """One reading of the host's memory, in bytes."""

    available_bytes: int
    cgroup_room_bytes: int | None  # None: no control group limits this process

    @property
    def headroom_bytes(self) -> int:
        """What can be taken before the kernel or a control group runs out."""
        if self.cgroup_room_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, self.cgroup_room_bytes)


@dataclass(frozen=True)
class HostLimits:
    """What the operator allows."""

    ceiling_bytes: int
    reserve_bytes: int


def read_host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> HostMemory | None:
    """The host as the kernel tells it now; None if a line is missing or is no number."""
    values: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in _WANTED:
                values[name] = int(value.split()[0]) * 1024
        room = cgroup_room(proc, cgroups)
    except (OSError, ValueError, IndexError):
        return None
    if len(values) < len(_WANTED):
        return None
    return HostMemory(values["MemAvailable"], min(room, default=None))


def veto_growth(wanted_bytes: int, pinned_bytes: int, limits: HostLimits, reading: HostMemory | None) -> Veto:
    """Why ``wanted_bytes`` more may not be pinned; "None" if they may."""
    if wanted_bytes <= 0:
        return "NothingWanted"
    if reading is None:
        return "InvalidReading"
    if pinned_bytes + wanted_bytes > limits.ceiling_bytes:
        return "MaxBytes"
    if wanted_bytes > reading.headroom_bytes - limits.reserve_bytes:
        return "Reserve"
    return "None"

"""How much host memory this process may still take: the machine, its control group and its lock limit."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass
from pathlib import Path

from ninferd.memory.budget import free_host_bytes
from ninferd.memory.errors import CapacityError


@dataclass(frozen=True)
class HostMemory:
    """Bytes of host memory."""

    total_bytes: int  # of the machine
    machine_free_bytes: int  # what the machine can give without swapping
    available_bytes: int  # the same, or less under the limit of a control group
    memlock_bytes: int | None  # what may be locked (pinned); None is unlimited


def read_host_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> HostMemory:
    """Memory as the engine's own plan will see it. Raises CapacityError where the kernel does not report it."""
    path = proc / "meminfo"
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.MULTILINE))
    available = free_host_bytes(proc, cgroups)
    try:
        total, free = (int(fields[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except KeyError as error:
        raise CapacityError(f"{path} has no {error.args[0]} line") from None
    return HostMemory(total, free, available, memlock_limit())


def memlock_limit() -> int | None:
    """Soft RLIMIT_MEMLOCK in bytes; None is unlimited."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from ninferd.daemon.memory_info import HostMemory, memlock_limit, read_host_memory
from ninferd.memory.errors import CapacityError

MIB = 1 << 20


def fake_proc(root: Path, meminfo: str) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(meminfo)
    (proc / "self" / "cgroup").write_text("0::/service\n")
    return proc


MEMINFO = "MemTotal:        1024000 kB\nMemFree:           1000 kB\nMemAvailable:     819200 kB\nHugePages_Total:  0\n"


@pytest.fixture
def unlimited_memlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.usefixtures("unlimited_memlock")
def test_machine_alone(tmp_path: Path) -> None:
    memory = read_host_memory(fake_proc(tmp_path, MEMINFO), tmp_path / "cgroup")
    assert memory == HostMemory(1000 * MIB, 800 * MIB, 800 * MIB, None)


@pytest.mark.usefixtures("unlimited_memlock")
def test_control_group_limits_what_is_available(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{300 * MIB}\n")
    (group / "memory.current").write_text(f"{100 * MIB}\n")
    memory = read_host_memory(fake_proc(tmp_path, MEMINFO), tmp_path / "cgroup")
    assert memory == HostMemory(1000 * MIB, 800 * MIB, 200 * MIB, None)


@pytest.mark.parametrize("kept", ["MemTotal", "MemAvailable"])
def test_kernel_that_does_not_tell_is_an_error(tmp_path: Path, kept: str) -> None:
    lines = [line for line in MEMINFO.splitlines(keepends=True) if line.startswith(kept)]
    with pytest.raises(CapacityError, match="meminfo has no Mem"):
        read_host_memory(fake_proc(tmp_path, "".join(lines)), tmp_path)


@pytest.mark.parametrize(("soft", "expected"), [(8 * MIB, 8 * MIB), (resource.RLIM_INFINITY, None)])
def test_memlock_limit(monkeypatch: pytest.MonkeyPatch, soft: int, expected: int | None) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, resource.RLIM_INFINITY))
    assert memlock_limit() == expected

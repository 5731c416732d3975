from __future__ import annotations

import resource
from pathlib import Path

import pytest

from ninferd.daemon.memory_info import MemoryInfoError, memlock_limit, read_host_memory

MIB = 1 << 20


def fake_proc(root: Path, cgroup: str | None) -> Path:
    """1000 MiB, 800 MiB of it available."""
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    lines = [
        "MemTotal:        1024000 kB",
        "MemFree:           1000 kB",
        "MemAvailable:     819200 kB",
        "HugePages_Total:  0",
    ]
    (proc / "meminfo").write_text("\n".join(lines) + "\n")
    if cgroup is not None:
        (proc / "self" / "cgroup").write_text(cgroup)
    return proc


def limit(folder: Path, limit_mib: int | None, used_mib: int, inactive_file_mib: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text("max\n" if limit_mib is None else f"{limit_mib * MIB}\n")
    (folder / "memory.current").write_text(f"{used_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file_mib * MIB}\nactive_file 2\n")


def test_machine_without_cgroups(tmp_path: Path) -> None:
    memory = read_host_memory(fake_proc(tmp_path, None), tmp_path / "cgroup")
    assert (memory.total_bytes, memory.available_bytes, memory.limited_by) == (1000 * MIB, 800 * MIB, "machine")


def test_tightest_limit_on_the_way_up_wins(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    limit(root / "system.slice", 500, 300)
    limit(root / "system.slice" / "ninferd.service", 900, 100)
    memory = read_host_memory(fake_proc(tmp_path, "0::/system.slice/ninferd.service\n"), root)
    assert memory.available_bytes == 200 * MIB
    assert memory.total_bytes == 500 * MIB
    assert memory.limited_by == "cgroup /system.slice"


def test_limit_of_the_own_cgroup_root_counts(tmp_path: Path) -> None:
    """In a container the own cgroup is the root of the visible tree."""
    root = tmp_path / "cgroup"
    limit(root, 400, 100)
    memory = read_host_memory(fake_proc(tmp_path, "0::/\n"), root)
    assert memory.available_bytes == 300 * MIB
    assert memory.limited_by == "cgroup /"


def test_reclaimable_page_cache_is_available(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    limit(root / "service", 500, 490, inactive_file_mib=250)
    memory = read_host_memory(fake_proc(tmp_path, "0::/service\n"), root)
    assert memory.available_bytes == 260 * MIB


def test_use_above_a_lowered_limit_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    limit(root / "service", 100, 150)
    assert read_host_memory(fake_proc(tmp_path, "0::/service\n"), root).available_bytes == 0


@pytest.mark.parametrize("cgroup", ["0::/service\n", "12:memory:/legacy\n", "0::/gone\n"])
def test_unlimited_or_unknown_cgroups_do_not_limit(tmp_path: Path, cgroup: str) -> None:
    root = tmp_path / "cgroup"
    limit(root / "service", None, 100)
    assert read_host_memory(fake_proc(tmp_path, cgroup), root).limited_by == "machine"


def test_kernel_without_mem_available_is_an_error(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, None)
    (proc / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(MemoryInfoError, match="has no MemAvailable line"):
        read_host_memory(proc, tmp_path)


@pytest.mark.parametrize(("soft", "expected"), [(8 * MIB, 8 * MIB), (resource.RLIM_INFINITY, None)])
def test_memlock_limit(monkeypatch: pytest.MonkeyPatch, soft: int, expected: int | None) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, resource.RLIM_INFINITY))
    assert memlock_limit() == expected

"""Growth of pinned memory: fail-closed on what cannot be read, bounded by reserve, ceiling and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninferd.memory.host_budget import HostLimits, HostMemory, Veto, read_host_memory, veto_growth

MEMINFO = "MemTotal: 9000 kB\nMemAvailable:   1000 kB\nShmem:  5 kB\nSwapFree: 0 kB\n"


def _proc(root: Path, meminfo: str) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(meminfo)
    (proc / "self/cgroup").write_text("0::/service\n")
    return proc


def test_reading_without_a_limit(tmp_path: Path) -> None:
    assert read_host_memory(_proc(tmp_path, MEMINFO), tmp_path / "cgroup") == HostMemory(1_024_000, None)


def test_the_smaller_headroom_counts(tmp_path: Path) -> None:
    group = tmp_path / "cgroup/service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("700000\n")
    (group / "memory.current").write_text("300000\n")
    reading = read_host_memory(_proc(tmp_path, MEMINFO), tmp_path / "cgroup")
    assert reading == HostMemory(1_024_000, 400_000)
    assert reading.headroom_bytes == 400_000


@pytest.mark.parametrize("line", ["MemAvailable", "Shmem", "SwapFree"])
@pytest.mark.parametrize("damage", ["missing", "no number"])
def test_a_line_that_cannot_be_read_makes_no_reading(tmp_path: Path, line: str, damage: str) -> None:
    kept = [each for each in MEMINFO.splitlines() if not each.startswith(line)]
    if damage == "no number":
        kept.append(f"{line}: many kB")
    assert read_host_memory(_proc(tmp_path, "\n".join(kept)), tmp_path / "cgroup") is None


def test_no_meminfo_makes_no_reading(tmp_path: Path) -> None:
    assert read_host_memory(tmp_path, tmp_path) is None


@pytest.mark.parametrize(
    ("wanted", "pinned", "reading", "veto"),
    [
        (100, 0, HostMemory(1100, None), "None"),
        (101, 0, HostMemory(1100, None), "Reserve"),
        (0, 0, HostMemory(1 << 40, None), "NothingWanted"),
        (100, 0, None, "InvalidReading"),
        (100, 401, HostMemory(1 << 40, None), "MaxBytes"),
        (100, 400, HostMemory(1 << 40, None), "None"),
        (100, 0, HostMemory(1 << 40, 1099), "Reserve"),
    ],
    ids=[
        "to the reserve",
        "into the reserve",
        "nothing",
        "unreadable",
        "beyond the ceiling",
        "to the ceiling",
        "group",
    ],
)
def test_veto(wanted: int, pinned: int, reading: HostMemory | None, veto: Veto) -> None:
    assert veto_growth(wanted, pinned, HostLimits(500, 1000), reading) == veto

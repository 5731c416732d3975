"""Capacity planning against the golden values of spec/memory §1.2, §2.1, §3.1, and free host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from kernels_numba.kv.codec import KV_CODECS
from kernels_numba.kv.layout import KvLayout
from ninferd.memory.budget import HEADROOM_BYTES, CapacityRequest, free_host_bytes, plan_capacity
from ninferd.memory.errors import CapacityError
from ninferd.memory.geometry import StateGeometry, kv_layout

KV_27B = KvLayout(KV_CODECS["bf16"], layers=16, kv_heads=4, head_dim=256)
STATE_27B = StateGeometry(
    gdn_layers=48,
    conv_channels=10_240,
    conv_history=3,
    conv_element_bytes=2,
    value_heads=48,
    key_head_dim=128,
    value_head_dim=128,
)
HUGE = 1 << 50


def _request(max_context: int, lanes: int, capacity: int | Literal["auto"] | None) -> CapacityRequest:
    return CapacityRequest(max_context, lanes, capacity, KV_27B, STATE_27B)


def test_sizes_of_the_27b() -> None:
    assert KV_27B.page_bytes == 4_194_304
    assert STATE_27B.slot_bytes == 150_994_944 + 2_949_120


@pytest.mark.parametrize(
    ("kv_dtype", "page_bytes"),
    [("fp32", 8388608), ("bf16", 4194304), ("int8", 2162688), ("fp8", 2113536), ("k8v4", 1646592), ("nvfp4", 1179648)],
)
def test_capacity_counts_the_bytes_of_the_kv_dtype(kv_dtype: str, page_bytes: int) -> None:
    layout = kv_layout(kv_dtype, attention_layers=16, kv_heads=4, head_dim=256)
    plan = plan_capacity(CapacityRequest(262_144, 2, None, layout, STATE_27B), HUGE, host=False)
    assert (plan.pages, plan.kv_bytes) == (4096, 4096 * page_bytes)
    free_bytes = HEADROOM_BYTES + 2 * STATE_27B.slot_bytes + 5000 * page_bytes
    plan = plan_capacity(CapacityRequest(262_144, 2, "auto", layout, STATE_27B), free_bytes, host=False)
    assert (plan.pages, plan.kv_capacity_tokens) == (5000, 320_000)


@pytest.mark.parametrize(
    ("max_context", "lanes", "capacity", "columns", "pages"),
    [
        (420_000, 2, 420_000, 6563, 6563),
        (32_768, 3, 65_536, 512, 1024),
        (262_144, 2, 262_144, 4096, 4096),
        (8192, 1, None, 128, 128),
        (100, 8, None, 2, 8),  # every lane needs a page
        (64, 2, 1_000_000, 1, 15_625),  # more than all lanes can fill is allowed
    ],
)
def test_explicit_capacity(max_context: int, lanes: int, capacity: int | None, columns: int, pages: int) -> None:
    plan = plan_capacity(_request(max_context, lanes, capacity), HUGE, host=False)
    assert (plan.pages_per_sequence, plan.pages, plan.state_slots) == (columns, pages, lanes)
    assert plan.kv_bytes == pages * KV_27B.page_bytes
    assert plan.state_bytes == lanes * STATE_27B.slot_bytes
    assert plan.kv_capacity_tokens == pages * 64


def test_auto_takes_the_device_but_for_the_headroom() -> None:
    fixed = HEADROOM_BYTES + 2 * STATE_27B.slot_bytes
    spare = 1000 * KV_27B.page_bytes + KV_27B.page_bytes - 1
    assert plan_capacity(_request(8192, 2, "auto"), fixed + spare, host=False).pages == 1000


def test_auto_on_a_host_stops_at_what_all_lanes_can_fill() -> None:
    assert plan_capacity(_request(8192, 2, "auto"), HUGE, host=True).pages == 256


@pytest.mark.parametrize("capacity", [None, "auto"])
def test_too_little_memory_is_refused_with_the_numbers(capacity: Literal["auto"] | None) -> None:
    need = HEADROOM_BYTES + STATE_27B.slot_bytes + 128 * KV_27B.page_bytes
    assert plan_capacity(_request(8192, 1, capacity), need, host=False).pages == 128
    with pytest.raises(CapacityError, match=r"128 pages .* need 512\.0 MiB, 1 state slots need 146\.8 MiB"):
        plan_capacity(_request(8192, 1, capacity), need - 1, host=False)


def test_capacity_below_one_full_request_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"8191 tokens, less than engine.max_context \(8192\)"):
        plan_capacity(_request(8192, 1, 8191), HUGE, host=False)


def test_capacity_below_one_page_per_lane_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"2 pages of 64, fewer than engine.max_concurrency \(4\)"):
        plan_capacity(_request(100, 4, 128), HUGE, host=False)


def _proc(root: Path, available_kib: int, group: str | None) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available_kib} kB\n")
    if group is not None:
        (proc / "self/cgroup").write_text(f"0::{group}\n")
    return proc


def _limit(group: Path, limit: str, used: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")


def test_host_memory_without_control_groups(tmp_path: Path) -> None:
    assert free_host_bytes(_proc(tmp_path, 1000, None), tmp_path / "cgroup") == 1_024_000


def test_host_memory_under_limits_of_this_group_and_above(tmp_path: Path) -> None:
    proc, groups = _proc(tmp_path, 1000, "/system.slice/ninferd.service"), tmp_path / "cgroup"
    _limit(groups / "system.slice/ninferd.service", "max", 5)
    assert free_host_bytes(proc, groups) == 1_024_000
    _limit(groups / "system.slice", "500000", 100_000)
    assert free_host_bytes(proc, groups) == 400_000
    _limit(groups / "system.slice/ninferd.service", "90000", 100_000)
    assert free_host_bytes(proc, groups) == 0


def test_page_cache_of_a_limited_group_can_be_taken(tmp_path: Path) -> None:
    proc, groups = _proc(tmp_path, 1000, "/service"), tmp_path / "cgroup"
    _limit(groups / "service", "500000", 490_000)
    (groups / "service" / "memory.stat").write_text("anon 1\ninactive_file 250000\nactive_file 7\n")
    assert free_host_bytes(proc, groups) == 260_000


def test_a_kernel_that_does_not_tell_is_an_error(tmp_path: Path) -> None:
    proc = _proc(tmp_path, 1, None)
    (proc / "meminfo").write_text("MemTotal: 5 kB\n")
    with pytest.raises(CapacityError, match="no MemAvailable"):
        free_host_bytes(proc, tmp_path)

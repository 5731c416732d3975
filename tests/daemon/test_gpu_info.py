from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from ninferd.daemon.gpu_info import GpuDevice, GpuReport, read_gpus


class NVMLError(Exception):
    pass


@dataclass
class FakeNvml:
    """The calls of ``pynvml`` that are used; a handle is the index of a device."""

    NVMLError = NVMLError
    uuids: tuple[str, ...] = ("GPU-aaaa", "GPU-bbbb")
    broken: str = ""  # name of the call that fails
    calls: list[str] = field(default_factory=list)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.broken:
            raise NVMLError(f"{name} failed")

    def nvmlInit(self) -> None:
        self._call("init")

    def nvmlShutdown(self) -> None:
        self._call("shutdown")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "575.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"card {handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        self._call("memory")
        return SimpleNamespace(total=100 + handle, free=50 + handle)


def test_driver_and_devices() -> None:
    report = read_gpus({}, FakeNvml())
    assert report == GpuReport(
        "575.1", (GpuDevice(0, "card 0", (9, 0), 100, 50), GpuDevice(1, "card 1", (9, 1), 101, 51)), ""
    )


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ["card 1"]),
        ("1,0", ["card 1", "card 0"]),
        ("GPU-bb", ["card 1"]),
        ("0,7,1", ["card 0"]),
        ("", []),
        ("-1", []),
    ],
)
def test_numbering_follows_cuda_visible_devices(visible: str, names: list[str]) -> None:
    report = read_gpus({"CUDA_VISIBLE_DEVICES": visible}, FakeNvml())
    assert [device.name for device in report.devices] == names
    assert [device.index for device in report.devices] == list(range(len(names)))
    assert bool(report.problem) == (not names)


def test_no_device() -> None:
    assert read_gpus({}, FakeNvml(uuids=())).problem == "NVML: no device"


def test_absent_library_is_an_answer() -> None:
    nvml = FakeNvml(broken="init")
    assert read_gpus({}, nvml) == GpuReport(problem="NVML: init failed")
    assert nvml.calls == ["init"]


def test_failing_query_is_an_answer_and_the_library_is_closed() -> None:
    nvml = FakeNvml(broken="memory")
    assert read_gpus({}, nvml) == GpuReport(problem="NVML: memory failed")
    assert nvml.calls[-1] == "shutdown"

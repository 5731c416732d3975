"""NVIDIA devices as the driver's management library reports them; absent is a normal answer."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GpuDevice:
    """One device that CUDA would number ``index`` (in PCI order, after CUDA_VISIBLE_DEVICES)."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class GpuReport:
    """Driver and devices; ``problem`` says why there are none."""

    driver: str = ""
    devices: tuple[GpuDevice, ...] = ()
    problem: str = ""


def read_gpus(env: Mapping[str, str], nvml: Any = None) -> GpuReport:
    """Ask NVML. ``nvml`` is the ``pynvml`` module or a stand-in of a test."""
    library = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return GpuReport(problem=f"NVML: {error}")
    try:
        return _report(library, env.get("CUDA_VISIBLE_DEVICES"))
    except library.NVMLError as error:
        return GpuReport(problem=f"NVML: {error}")
    finally:
        library.nvmlShutdown()


def _report(library: Any, visible: str | None) -> GpuReport:
    handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    chosen = handles if visible is None else _visible(library, handles, visible)
    devices = tuple(_device(library, handle, index) for index, handle in enumerate(chosen))
    problem = "" if devices else "NVML: no device" if visible is None else f"CUDA_VISIBLE_DEVICES={visible} hides all"
    return GpuReport(str(library.nvmlSystemGetDriverVersion()), devices, problem)


def _visible(library: Any, handles: list[Any], visible: str) -> list[Any]:
    """Devices named by index or UUID (prefix), in that order; as CUDA does, stop at the first name that fits none."""
    chosen: list[Any] = []
    for name in visible.split(","):
        matches = (
            handles[int(name) : int(name) + 1]
            if name.strip().isdigit()
            else [handle for handle in handles if name and str(library.nvmlDeviceGetUUID(handle)).startswith(name)]
        )
        if not matches:
            break
        chosen.append(matches[0])
    return chosen


def _device(library: Any, handle: Any, index: int) -> GpuDevice:
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    capability = library.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuDevice(
        index=index,
        name=str(library.nvmlDeviceGetName(handle)),
        compute_capability=(int(capability[0]), int(capability[1])),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
    )

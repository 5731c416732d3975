"""Launches through a driver that writes down what it is told: arguments arrive in their types, at any launch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernels_numba.nvidia import launch
from kernels_numba.nvidia.kernel import KernelSpec
from kernels_numba.nvidia.launch import Device, Kernel

SPEC = KernelSpec("k", "k", "make", (), "lif", threads=64, min_blocks=1, registers=40)
TYPES: tuple[Any, ...] = ctypes.c_int64, ctypes.c_int32, ctypes.c_float
DONE = (0,)


@dataclass
class Driver:
    """The calls of cuda.bindings that a kernel makes; the last parameter of a launch is the address of addresses."""

    launches: list[tuple[Any, ...]] = field(default_factory=list)

    def launch(self, config: Any, function: str, address: int, extra: int) -> tuple[int]:
        cells = (ctypes.c_void_p * len(TYPES)).from_address(address)
        values = [each.from_address(cast(int, cell)).value for each, cell in zip(TYPES, cells, strict=True)]
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        overlaps = bool(getattr(config, "attrs", None))
        self.launches.append((grid, config.blockDimX, config.sharedMemBytes, config.hStream, overlaps, *values))
        return DONE

    def names(self) -> Any:
        attribute = SimpleNamespace(value=SimpleNamespace())
        return SimpleNamespace(
            cuModuleLoadData=lambda data: (0, data),
            cuModuleGetFunction=lambda module, name: (0, name),
            cuFuncSetAttribute=lambda *_: DONE,
            cuLaunchKernelEx=self.launch,
            CUlaunchConfig=SimpleNamespace,
            CUlaunchAttribute=lambda: attribute,
            CUlaunchAttributeID=SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=1),
            CUfunction_attribute=SimpleNamespace(
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=1,
                CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT=2,
            ),
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(launch, "_driver", found.names)
    monkeypatch.setattr(launch, "cubin", lambda spec, arch: b"")
    return found


def kernel(*, programmatic: bool) -> Kernel:
    streams = iter(range(100, 200))
    device = SimpleNamespace(
        arch="sm_90", programmatic=programmatic, shared_bytes_per_block=1, stream=lambda: next(streams)
    )
    return Kernel(SPEC, cast(Device, device))


def test_arguments_are_those_of_each_launch(driver: Driver) -> None:
    run = kernel(programmatic=True)
    run((1, 2, 3), 1 << 40, -5, 0.5, shared_bytes=7)
    run((4, 1, 1), 2, 3, 1, programmatic=True)
    run((1, 1, 1), 0, 0, 0)
    assert driver.launches == [
        ((1, 2, 3), 64, 7, 100, False, 1 << 40, -5, 0.5),
        ((4, 1, 1), 64, 0, 101, True, 2, 3, 1.0),
        ((1, 1, 1), 64, 0, 102, False, 0, 0, 0.0),
    ]


def test_no_overlap_where_the_device_has_none(driver: Driver) -> None:
    kernel(programmatic=False)((1, 1, 1), 1, 2, 3, programmatic=True)
    assert driver.launches == [((1, 1, 1), 64, 0, 100, False, 1, 2, 3.0)]


def test_a_bound_launch_keeps_its_arguments(driver: Driver) -> None:
    run = kernel(programmatic=True)
    bound = run.bound((2, 1, 1), 9, 8, 7.0, shared_bytes=6, programmatic=True)
    run((1, 1, 1), 1, 2, 3)
    bound()
    assert driver.launches[1] == ((2, 1, 1), 64, 6, 101, True, 9, 8, 7.0)


@pytest.mark.parametrize("arguments", [(), (1, 2), (1, 2, 3, 4)], ids=len)
def test_as_many_arguments_as_parameters(driver: Driver, arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="zip"):
        kernel(programmatic=False)((1, 1, 1), *arguments)
    assert not driver.launches

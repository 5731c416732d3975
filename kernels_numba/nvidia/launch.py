"""Kernels on a device: loaded from cubins once, launched on torch's current stream in a few microseconds.

A launch never allocates and never synchronises, and may be captured in a CUDA graph. The CUDA context is torch's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any

import torch

from kernels_numba.nvidia.cubins import cubin, ensure
from kernels_numba.nvidia.kernel import PDL_CAPABILITY, KernelSpec, arch_of
from kernels_numba.nvidia.registry import BY_NAME

Grid = tuple[int, int, int]
_C_TYPES: dict[str, Any] = {"l": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float}


class CudaError(Exception):
    """A driver call that failed, with its name and result."""


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _checked(call: str, result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise CudaError(f"{call}: {result[0].name}")
    return result[1] if len(result) == 2 else None


class Kernel:
    """One kernel on the current device."""

    def __init__(self, spec: KernelSpec, device: Device) -> None:
        driver = _driver()
        self.spec = spec
        self._device = device
        target = spec.target_on(device.arch) or device.arch
        self._module = _checked("cuModuleLoadData", driver.cuModuleLoadData(cubin(spec, target)))
        self._function = _checked("cuModuleGetFunction", driver.cuModuleGetFunction(self._module, spec.name.encode()))
        self._cells, self._pointers = self._argument_cells()
        self._arguments = ctypes.addressof(self._pointers)
        self._launch_ex = driver.cuLaunchKernelEx
        self._configurations = {overlaps: self._launch_configuration(overlaps) for overlaps in (False, True)}
        attribute = driver.CUfunction_attribute
        # one split of L1 and shared memory for all kernels: with different ones a multiprocessor drains in between
        for name, value in (
            ("MAX_DYNAMIC_SHARED_SIZE_BYTES", device.shared_bytes_per_block),
            ("PREFERRED_SHARED_MEMORY_CARVEOUT", 100),
        ):
            key = getattr(attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            _checked("cuFuncSetAttribute", driver.cuFuncSetAttribute(self._function, key, value))

    def __call__(self, grid: Grid, *arguments: int | float, shared_bytes: int = 0, programmatic: bool = False) -> None:
        """Launch on the current stream. Arguments in the order of the signature; ``tensor.data_ptr()`` for pointers.

        ``programmatic``: may begin before its predecessor in the stream ends, up to its ``pdl_wait`` (from sm_90).
        """
        for cell, value in zip(self._cells, arguments, strict=True):  # a launch copies them before it returns
            cell.value = value
        config = self._configurations[programmatic and self._device.programmatic]
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.sharedMemBytes = shared_bytes
        config.hStream = self._device.stream()
        _checked(self.spec.name, self._launch_ex(config, self._function, self._arguments, 0))

    def bound(
        self, grid: Grid, *arguments: int | float, shared_bytes: int = 0, programmatic: bool = False
    ) -> Callable[[], None]:
        """The same launch with everything bound, for launches that repeat with the same arguments."""
        cells, pointers = self._argument_cells()
        for cell, value in zip(cells, arguments, strict=True):
            cell.value = value
        config = self._launch_configuration(programmatic and self._device.programmatic)
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.sharedMemBytes = shared_bytes
        address, function, name = ctypes.addressof(pointers), self._function, self.spec.name
        launch_ex, stream = self._launch_ex, self._device.stream

        def launch(_alive: tuple[Any, ...] = (cells, pointers)) -> None:
            config.hStream = stream()
            _checked(name, launch_ex(config, function, address, 0))

        return launch

    def _argument_cells(self) -> tuple[list[Any], Any]:
        """Where arguments lie when a kernel is launched, and the addresses of them."""
        cells: list[Any] = [_C_TYPES[letter]() for letter in self.spec.signature]
        return cells, (ctypes.c_void_p * len(cells))(*[ctypes.addressof(cell) for cell in cells])

    def _launch_configuration(self, programmatic: bool) -> Any:
        driver = _driver()
        config = driver.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = self.spec.threads, 1, 1
        if programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        return config

    def blocks_per_multiprocessor(self, shared_bytes: int = 0) -> int:
        """How many blocks of this kernel one multiprocessor holds at once."""
        query = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
        found: int = _checked(query.__name__, query(self._function, self.spec.threads, shared_bytes))
        return found


class Device:
    """A CUDA device and the kernels loaded on it."""

    def __init__(self, index: int) -> None:
        properties = torch.cuda.get_device_properties(index)
        arch = arch_of((properties.major, properties.minor))
        if arch is None:
            raise CudaError(f"no kernels for compute capability {properties.major}.{properties.minor}")
        self.index = index
        self.arch: str = arch
        self.programmatic = properties.major >= PDL_CAPABILITY[0]
        self.multiprocessors: int = properties.multi_processor_count
        self.shared_bytes_per_block = _shared_bytes_per_block(index)
        self._kernels: dict[str, Kernel] = {}
        self._raw_stream = torch._C._cuda_getCurrentRawStream  # the public accessor takes 4 us

    def stream(self) -> int:
        """Handle of torch's current stream."""
        handle: int = self._raw_stream(self.index)
        return handle

    def load(self, names: Iterable[str]) -> None:
        """Build what the cache lacks and load those of the kernels ``names`` that are meant for this device.

        OSError or CudaError if that fails.
        """
        specs = [BY_NAME[name] for name in names if name not in self._kernels]
        wanted = {spec: target for spec in specs if (target := spec.target_on(self.arch))}
        for target in sorted(set(wanted.values())):
            ensure([spec for spec, own in wanted.items() if own == target], target)
        with torch.cuda.device(self.index):
            torch.zeros(1, device="cuda")  # torch makes the context, not the driver API
            for spec in wanted:
                self._kernels[spec.name] = Kernel(spec, self)

    def kernel(self, name: str) -> Kernel:
        """A kernel, loaded by now at the latest."""
        if name not in self._kernels:
            self.load([name])
        return self._kernels[name]

    @cached_property
    def label(self) -> str:
        return f"{torch.cuda.get_device_name(self.index)} ({self.arch})"


def _shared_bytes_per_block(index: int) -> int:
    driver = _driver()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    _checked("cuInit", driver.cuInit(0))
    device = _checked("cuDeviceGet", driver.cuDeviceGet(index))
    found: int = _checked("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, device))
    return found


@lru_cache
def _device(index: int) -> Device:
    return Device(index)


def device_of(device: torch.device) -> Device:
    """The device with its kernels; made once per index. CudaError if there is no code for it."""
    return _device(torch.cuda.current_device() if device.index is None else device.index)

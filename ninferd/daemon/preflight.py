"""Before anything is loaded: can this configuration run here, and what will it use where?"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ninferd.config.schema import Settings
from ninferd.daemon.gpu_info import GpuDevice, GpuReport, read_gpus
from ninferd.daemon.memory_info import HostMemory, read_host_memory
from ninferd.daemon.model_facts import ModelFacts, dense_dtype
from ninferd.daemon.units import format_bytes
from ninferd.errors import InputError, NinferError
from ninferd.memory.budget import HEADROOM_BYTES, CapacityPlan, CapacityRequest, plan_capacity
from ninferd.memory.errors import CapacityError

_DENSE_BYTES = {"<f4": 4, "<u2": 2}


class DoesNotFitError(NinferError):
    """There is not enough memory now. Unlike bad input this may pass: whoever holds the memory may let it go."""


@dataclass(frozen=True)
class Machine:
    """What there is to use."""

    host: HostMemory
    gpus: GpuReport
    torch_has_cuda: bool

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ) -> Machine:
        """This machine, now. Raises CapacityError where the kernel does not report memory."""
        return cls(read_host_memory(), read_gpus(env), torch_has_cuda())


@dataclass(frozen=True)
class PreflightReport:
    """A configuration that fits, and its plan. Bytes."""

    artifact: str
    model: ModelFacts
    device: GpuDevice | None  # None: the CPU
    machine: Machine
    weights_bytes: int
    capacity: CapacityPlan

    def lines(self) -> list[str]:
        """A table of what will be used where."""
        plan = self.capacity
        rows = [
            ("weights", self.weights_bytes),
            (f"KV cache, {plan.kv_capacity_tokens:,} tokens", plan.kv_bytes),
            (f"recurrent state, {plan.state_slots} slots", plan.state_bytes),
            ("headroom", HEADROOM_BYTES),
            ("in all", self.weights_bytes + plan.kv_bytes + plan.state_bytes + HEADROOM_BYTES),
            ("available", self.available_bytes),
        ]
        host, device = (True, False) if self.device is None else (False, True)
        table = [f"  {'':32}{'host':>12}{'device':>12}"]
        for label, size in rows:
            text = format_bytes(size)
            table.append(f"  {label:32}{text if host else '-':>12}{text if device else '-':>12}")
        title = f"{self.artifact} ({self.model.architecture}) on {self._where()}"
        return [title, *(f"  {line}" for line in self.model.lines()), *table, *self._machine_lines()]

    @property
    def available_bytes(self) -> int:
        """Where the model goes."""
        return self.machine.host.available_bytes if self.device is None else self.device.free_bytes

    def _where(self) -> str:
        if self.device is None:
            return f"the CPU ({len(os.sched_getaffinity(0))} threads)"
        major, minor = self.device.compute_capability
        return f"device {self.device.index}: {self.device.name}, sm_{major}{minor}, driver {self.machine.gpus.driver}"

    def _machine_lines(self) -> list[str]:
        host, gpus = self.machine.host, self.machine.gpus
        locked = "unlimited" if host.memlock_bytes is None else format_bytes(host.memlock_bytes)
        free = f"{format_bytes(host.machine_free_bytes)} of {format_bytes(host.total_bytes)} free"
        if host.available_bytes < host.machine_free_bytes:
            free += f", {format_bytes(host.available_bytes)} within the limit of the control group"
        lines = [f"  host: {free}, {locked} lockable"]
        lines += [
            f"  GPU {device.index} {device.name}: {format_bytes(device.free_bytes)} of "
            f"{format_bytes(device.total_bytes)} free"
            for device in gpus.devices
        ]
        return [*lines, f"  no GPU ({gpus.problem})"] if gpus.problem else lines


def run_preflight(settings: Settings, machine: Machine, reclaimable_bytes: int = 0) -> PreflightReport:
    """Check artifact, device and memory.

    ``reclaimable_bytes`` is what the engine that is to be replaced will give back. Raises InputError for an artifact,
    a context length or a device that cannot be used and DoesNotFitError, with the numbers.
    """
    model = ModelFacts.read(settings.model)
    require_suitable(settings, model)
    device = choose_device(settings, machine)
    available = (machine.host.available_bytes if device is None else device.free_bytes) + reclaimable_bytes
    dense = dense_dtype(settings.engine.dtype, model.source.config, on_cpu=device is None)
    weights_bytes = model.weights_bytes(dense, on_cpu=device is None)
    place = "host memory" if device is None else f"memory of device {device.index}"
    if weights_bytes > available:
        raise DoesNotFitError(
            f"model.artifact: the weights of {model.source.path} need {format_bytes(weights_bytes)} of {place}, "
            f"available: {format_bytes(available)}"
        )
    request = CapacityRequest(
        max_context_tokens=settings.engine.max_context,
        max_concurrency=settings.engine.max_concurrency,
        kv_capacity=settings.engine.kv_capacity,
        kv=model.kv_layout(settings.engine.kv_dtype),
        state=model.state_geometry(_DENSE_BYTES[dense]),
    )
    try:
        plan = plan_capacity(request, available - weights_bytes, host=device is None)
    except CapacityError as error:
        raise DoesNotFitError(str(error)) from error
    return PreflightReport(settings.model.artifact, model, device, machine, weights_bytes, plan)


def choose_device(settings: Settings, machine: Machine) -> GpuDevice | None:
    """The configured GPU, or None for the CPU. Raises InputError where the GPU is not usable."""
    wanted = settings.engine.device
    if wanted == "cpu" or (wanted == "auto" and not (machine.torch_has_cuda and machine.gpus.devices)):
        return None
    index = 0 if wanted == "auto" else wanted
    if not machine.torch_has_cuda:
        raise InputError(f'engine.device is {index}, but torch is a CPU build: install torch with CUDA, or set "cpu"')
    if index >= len(machine.gpus.devices):
        found = machine.gpus.problem or f"there are {len(machine.gpus.devices)} devices"
        raise InputError(f'engine.device is {index}, but {found}: set an existing device, "cpu" or "auto"')
    return machine.gpus.devices[index]


def torch_has_cuda() -> bool:
    """Whether the installed torch is not a CPU build, without importing it."""
    return not importlib.metadata.version("torch").endswith("+cpu")


def require_suitable(settings: Settings, model: ModelFacts) -> None:
    """Raises InputError for a context that the model does not reach, or a codec that cannot store its heads."""
    model.kv_layout(settings.engine.kv_dtype)
    longest = int(model.text.max_position_embeddings * settings.engine.rope_scaling_factor)
    if settings.engine.max_context > longest:
        raise InputError(
            f"engine.max_context is {settings.engine.max_context} tokens, this model reaches {longest} "
            f"({model.text.max_position_embeddings} positions x engine.rope_scaling_factor)"
        )

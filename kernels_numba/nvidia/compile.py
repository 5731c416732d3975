"""From a Python function to machine code, without a GPU: numba and NVVM make PTX, nvJitLink makes a cubin of it.

The front end takes most of the time and runs once per kernel: its PTX is for the lowest target, which every later one
takes as well, and is only retargeted for each.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from kernels_numba.nvidia.kernel import ARCHS, PDL_CAPABILITY, KernelSpec, compute_capability


class KernelBuildError(Exception):
    """A kernel that could not be built, with its name and the assembler's words."""


@dataclass(frozen=True)
class Resources:
    """What the assembler reports of a kernel."""

    registers: int
    stack_bytes: int
    spill_bytes: int  # stores and loads
    shared_bytes: int  # static


@lru_cache(maxsize=256)
def ptx_of(spec: KernelSpec) -> str:
    """PTX for ``ARCHS[0]``, or the kernel's own first target, with the kernel's name as its entry."""
    import numba.cuda.dispatcher as dispatcher

    from kernels_numba.nvidia import ptx

    module = importlib.import_module(f"kernels_numba.nvidia.{spec.module}")
    function = getattr(module, spec.generator)(*spec.arguments)
    signature = ptx.types.none(*[ptx.TYPES[letter][0] for letter in spec.signature])
    arch = ARCHS[0] if ARCHS[0] in spec.archs else spec.archs[0]
    capability = compute_capability(arch)
    current_device = dispatcher.get_current_device
    # a kernel that calls device functions would ask the GPU of this machine for its target
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        text, _ = ptx.cuda.compile_ptx(
            function, signature, cc=capability, fastmath=True, launch_bounds=(spec.threads, spec.min_blocks)
        )
    finally:
        dispatcher.get_current_device = current_device
    entry = re.search(r"\.visible \.entry (\w+)\(", text)
    if entry is None:
        raise KernelBuildError(f"{spec.name}: its PTX has no entry")
    text = text.replace(entry[1], spec.name)
    # a global of numba's that kernels do not use
    return re.sub(r"^\.common \.global .*NumbaEnv.*$", "", text, flags=re.MULTILINE)


def retargeted(ptx: str, arch: str) -> str:
    """The same PTX for a later target, without the instructions that it lacks."""
    ptx = re.sub(r"^\.target sm_\w+", f".target {arch}", ptx, count=1, flags=re.MULTILINE)
    if compute_capability(arch) < PDL_CAPABILITY:
        ptx = re.sub(r"\bgriddepcontrol\.\w+;", "", ptx)
    return ptx


def build(spec: KernelSpec, arch: str) -> tuple[bytes, Resources]:
    """The cubin of a kernel for one target, and what it uses. KernelBuildError names the kernel."""
    try:
        cubin, log = _linked(retargeted(ptx_of(spec), arch), arch)
    except KernelBuildError as error:
        raise KernelBuildError(f"{spec.name} for {arch}: {error}") from None
    return cubin, _resources(log)


def _linked(ptx: str, arch: str) -> tuple[bytes, str]:
    from cuda.bindings import nvjitlink

    options = [f"-arch={arch}", "-O3", "-Xptxas=-v"]
    handle = nvjitlink.create(len(options), options)
    try:
        source = ptx.encode() + b"\0"
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, source, len(source), "kernel.ptx")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            raise KernelBuildError(_text(nvjitlink, handle, "error_log") or str(error)) from None
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _text(nvjitlink, handle, "info_log")
    finally:
        nvjitlink.destroy(handle)


def _text(nvjitlink: Any, handle: Any, log: str) -> str:
    buffer = bytearray(cast(int, getattr(nvjitlink, f"get_{log}_size")(handle)))
    getattr(nvjitlink, f"get_{log}")(handle, buffer)
    return buffer.decode(errors="replace").strip("\0\n ")


def _resources(log: str) -> Resources:
    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, log))

    return Resources(
        registers=number(r"Used (\d+) registers"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        spill_bytes=number(r"(\d+) bytes spill (?:stores|loads)"),
        shared_bytes=number(r"(\d+) bytes smem"),
    )

"""Every CUDA kernel once, on small shapes, under compute-sanitizer: the self-tests that run at start.

    python -m tools.sanitize_gpu [--tools memcheck racecheck] [--groups linear …] [--timeout 150]
    python -m tools.sanitize_gpu --plain

Each tool runs the self-tests in a process of its own, without torch's caching allocator, so that every tensor is an
allocation whose ends the tool knows. Only our kernels are instrumented. Fails on what a tool finds, on a self-test that
fails, and on kernels of this device that no self-test launches. ``--plain`` runs them without a tool.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernels_numba.nvidia.registry import BY_NAME

PLACES = ("usr/local/cuda*/bin/compute-sanitizer", "opt/nvidia/*/compute-sanitizer")
"""Under the root directory."""
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND_STATUS = 97
OPTIONS = {
    # cuda-bindings asks the driver for entry points that it may lack, and each question would be reported
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "analysis"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=["memcheck", "racecheck"])
    parser.add_argument("--groups", nargs="+", help="families of ops (default: all)")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for each tool")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    if options.plain:
        return launch_all(options.groups)
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print(f"compute-sanitizer is not on the PATH, nor at /{', /'.join(PLACES)}", file=sys.stderr)
        return 2
    results = [sanitize(sanitizer, tool, options.groups, options.timeout) for tool in options.tools]
    return max(results)


def find_sanitizer() -> str | None:
    """The newest that there is."""
    found = shutil.which("compute-sanitizer")
    installed = (str(path) for place in PLACES for path in sorted(Path("/").glob(place), reverse=True))
    return found or next(installed, None)


def sanitize(sanitizer: str, tool: str, groups: list[str] | None, timeout_s: float) -> int:
    """Run one tool and print what it says; 0 if it found nothing."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND_STATUS), *OPTIONS.get(tool, ())]
    command += ["--kernel-name", f"regex=^({'|'.join(BY_NAME)})$"]
    command += [sys.executable, "-m", "tools.sanitize_gpu", "--plain", *(["--groups", *groups] if groups else [])]
    started = time.monotonic()
    print(f"== {' '.join(command)}", flush=True)
    try:
        status = subprocess.run(
            command, env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, timeout=timeout_s, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"== {tool}: not done after {timeout_s:.0f} s", flush=True)
        return 1
    print(f"== {tool}: status {status} after {time.monotonic() - started:.0f} s", flush=True)
    return status


def launch_all(groups: list[str] | None) -> int:
    """Run the self-tests; 0 if they pass and launch every kernel of theirs that is made for this device."""
    import torch

    from kernels_numba.nvidia.launch import device_of
    from kernels_numba.nvidia.table import GROUPS

    device = device_of(torch.device("cuda"))
    chosen = [group for group in GROUPS if groups is None or group.name in groups]
    failed = False
    with recorded_launches() as launched:
        for group in chosen:
            started = time.monotonic()
            try:
                device.load(group.kernels)
                group.check(torch.device("cuda", device.index))
                torch.cuda.synchronize()
            except Exception as error:  # the other groups are wanted all the same
                print(f"{group.name}: {type(error).__name__}: {error}", flush=True)
                failed = True
            else:
                print(f"{group.name}: passed in {time.monotonic() - started:.1f} s", flush=True)
    wanted = {name for group in chosen for name in group.kernels if BY_NAME[name].target_on(device.arch)}
    missing = sorted(wanted - launched)
    print(f"{len(launched)} of {len(wanted)} kernels were launched on {device.label}", flush=True)
    if missing:
        print(f"no self-test launches {', '.join(missing)}", flush=True)
    return 1 if failed or missing else 0


@contextmanager
def recorded_launches() -> Iterator[set[str]]:
    """The names of the kernels that are launched meanwhile."""
    from kernels_numba.nvidia.launch import Kernel

    launched: set[str] = set()
    call, bound = Kernel.__call__, Kernel.bound

    def recording_call(self: Kernel, *arguments: Any, **options: Any) -> None:
        launched.add(self.spec.name)
        call(self, *arguments, **options)

    def recording_bound(self: Kernel, *arguments: Any, **options: Any) -> Any:
        launched.add(self.spec.name)
        return bound(self, *arguments, **options)

    Kernel.__call__, Kernel.bound = recording_call, recording_bound  # type: ignore[method-assign]
    try:
        yield launched
    finally:
        Kernel.__call__, Kernel.bound = call, bound  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())

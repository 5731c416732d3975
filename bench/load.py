"""Loading a model against reading its files: throughput as a ratio, memory as predicted, host memory on the way.

    python bench/load.py PATH [--device cuda|cpu] [--rounds 2] [--direct]

PATH is a .ninfer file or a Hugging Face directory. Each round drops the files from the page cache and reads them once
from front to back in one thread (as ``dd`` does), drops them again and loads the model; the best round of each counts.
``--direct`` reads with O_DIRECT in the baseline. Then both are done once more with the files in the cache. What is not
root's may refuse to be dropped; the first figures then say so.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from kernels_numba.selection import ops_for
from ninferd.benchmarks.page_cache import drop, planned_load, read_seconds, weight_files
from ninferd.models import text_config
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.loading.resolve import ResolvedPlan
from ninferd.weights.opening import open_model

GB: Final = 1e9
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Load:
    """One load of the model."""

    seconds: float
    device_bytes: int
    host_peak_bytes: int  # anonymous memory beyond what was there before, and beyond the weights on a CPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--direct", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    load(args.path, device, dtype)  # the first use of a device takes memory and time of its own
    plan = planned_load(args.path, dtype)
    files = weight_files(plan)
    total = sum(path.stat().st_size for path in files)
    print(f"{len(files)} file(s) of {total / GB:.3f} GB, of which {plan.file_bytes / GB:.3f} GB are matrices to load")
    reads, loads = [], []
    for _ in range(args.rounds):
        drop(files)
        reads.append(read_seconds(files, direct=args.direct))
        drop(files)
        loads.append(load(args.path, device, dtype))
    report("not in the page cache", total, plan, min(reads), min(loads, key=lambda each: each.seconds))
    read_seconds(files)
    warm_read = min(read_seconds(files) for _ in range(args.rounds))
    warm_loads = [load(args.path, device, dtype) for _ in range(args.rounds)]
    report("in the page cache", total, plan, warm_read, min(warm_loads, key=lambda each: each.seconds))


def report(where: str, total: int, plan: ResolvedPlan, read_seconds: float, load: Load) -> None:
    read_rate, load_rate = total / read_seconds / GB, plan.file_bytes / load.seconds / GB
    print(
        f"{where}: read {read_rate:.2f} GB/s, load {load_rate:.2f} GB/s, ratio {load_rate / read_rate:.2f}; "
        f"device {load.device_bytes / MIB:.1f} MiB, predicted {plan.device_bytes / MIB:.1f} MiB "
        f"({load.device_bytes / plan.device_bytes - 1:+.2%}); host peak {load.host_peak_bytes / MIB:.0f} MiB"
    )


def load(path: Path, device: torch.device, dtype: torch.dtype) -> Load:
    """Open and load the model, and let it go."""
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    with HostPeak() as peak:
        started = time.perf_counter()
        source = open_model(path)
        model = load_text(source, text_config(source), ops_for(device, dtype), device, dtype, _quietly)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    if device.type == "cuda":
        return Load(seconds, torch.cuda.memory_allocated(device) - before, peak.bytes)
    return Load(seconds, model.weights_bytes, peak.bytes - model.weights_bytes)


def _quietly(_done: int, _total: int) -> None:
    """Progress is not shown."""


class HostPeak:
    """The most anonymous and pinned memory of this process while the context lasts, beyond what it had before."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> HostPeak:
        self._before = resident_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.bytes = max(self.bytes, resident_bytes() - self._before)


def resident_bytes() -> int:
    """Resident memory that maps no file; all resident memory where the kernel does not tell them apart."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    names = ("RssAnon", "RssShmem") if "RssAnon" in lines else ("VmRSS",)
    return sum(int(lines[name].split()[0]) * 1024 for name in names)


if __name__ == "__main__":
    main()

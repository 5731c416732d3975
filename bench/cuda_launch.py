"""What a launch costs the host: by tuple of arguments, with everything bound, and of torch beside them.

    python -m bench.cuda_launch [--launches 2000]

Median of ten runs, on an idle device; kernels of four and of twelve arguments that end at once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from kernels_numba.nvidia.launch import device_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=2000)
    launches = parser.parse_args().launches
    place = torch.zeros(1024, dtype=torch.int32, device="cuda")
    device, at = device_of(place.device), place.data_ptr()
    few, many = device.kernel("silu_mul"), device.kernel("moe_up_nvfp4")
    nothing = (at, at, 0, 0), (*[at] * 8, 2, 1, 1, 0)  # a width of 0; an item without slots
    x = torch.zeros(1, device="cuda")
    calls: dict[str, Callable[[], object]] = {
        "4 arguments": lambda: few((1, 1, 1), *nothing[0]),
        "4 arguments, overlapped": lambda: few((1, 1, 1), *nothing[0], programmatic=True),
        "12 arguments": lambda: many((1, 1, 1), *nothing[1]),
        "12 arguments, overlapped": lambda: many((1, 1, 1), *nothing[1], programmatic=True),
        "4 arguments, bound": few.bound((1, 1, 1), *nothing[0]),
        "12 arguments, bound": many.bound((1, 1, 1), *nothing[1]),
        "12 arguments, bound, overlapped": many.bound((1, 1, 1), *nothing[1], programmatic=True),
        "torch add_": lambda: x.add_(1),
        "torch.empty": lambda: torch.empty(1024, device="cuda"),
    }
    print(f"{torch.cuda.get_device_name()}: host time of a launch, us")
    for name, call in calls.items():
        print(f"{name:32} {statistics.median(us_each(call, launches) for _ in range(10)):6.2f}", flush=True)


def us_each(call: Callable[[], object], launches: int) -> float:
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(launches):
        call()
    elapsed = time.perf_counter() - started
    torch.cuda.synchronize()
    return 1e6 * elapsed / launches


if __name__ == "__main__":
    main()

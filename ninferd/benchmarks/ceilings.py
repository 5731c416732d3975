"""What this machine reaches at best in this run: the 100 % of every other figure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import torch
from torch import Tensor

from ninferd.benchmarks.timing import SUSTAINED_S, host_seconds, replay_seconds, seconds_per_call, synchronize

READ_BYTES: Final = {"cuda": 2 << 30, "cpu": 64 << 20}
"""Many times any cache."""
GEMM_SIZE: Final = {"cuda": 8192, "cpu": 512}
GEMM_S: Final = 10 * SUSTAINED_S
"""So long that the card is at its power limit."""


class Ceilings(msgspec.Struct, frozen=True):
    """Measured, not looked up. ``None``: there is no such thing on this device."""

    read_bytes_per_s: float
    read_by: Literal["stream_read", "torch sum"]
    copy_bytes_per_s: float  # read and written
    gemm_flop_per_s: float
    gemm_dtype: str
    launch_us: float | None  # of a kernel that does nothing, within a graph
    programmatic_launch_us: float | None  # of one that may begin before the one before it ends
    host_launch_us: float | None  # of the processor, arguments bound

    def lines(self) -> list[str]:
        """For people."""
        launches = [
            f"{name} {microseconds:.2f} us"
            for name, microseconds in (
                ("in a graph", self.launch_us),
                ("programmatic", self.programmatic_launch_us),
                ("host", self.host_launch_us),
            )
            if microseconds is not None
        ]
        reached = (
            f"read {self.read_bytes_per_s / 1e9:.0f} GB/s ({self.read_by})",
            f"copy {self.copy_bytes_per_s / 1e9:.0f} GB/s read and written",
            f"{self.gemm_dtype} products {self.gemm_flop_per_s / 1e12:.3g} TFLOP/s sustained",
        )
        return [f"ceilings: {', '.join(reached)}", *([f"launches: {', '.join(launches)}"] if launches else [])]


def measure_ceilings(device: torch.device) -> Ceilings:
    """Takes a second or two, and 4 GiB of a CUDA device while it lasts."""
    source = random_bytes(READ_BYTES[device.type], device)
    read, read_by = _read(source)
    launches = _launches(device) if read_by == "stream_read" else (None, None, None)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Ceilings(
        read_bytes_per_s=read,
        read_by=read_by,
        copy_bytes_per_s=_copy(source),
        gemm_flop_per_s=_gemm(device, dtype),
        gemm_dtype=str(dtype).removeprefix("torch."),
        launch_us=launches[0],
        programmatic_launch_us=launches[1],
        host_launch_us=launches[2],
    )


def random_bytes(size: int, device: torch.device) -> Tensor:
    """uint8 ``[size]``; ``size`` is a multiple of 8. Zeros would flatter: they take less power."""
    return torch.empty(size // 8, dtype=torch.int64, device=device).random_().view(torch.uint8)


def _read(source: Tensor) -> tuple[float, Literal["stream_read", "torch sum"]]:
    """Bytes a second of a kernel that only reads, the best of a few grids; of torch's sum where it cannot run."""
    if source.is_cuda and _can_launch():
        from kernels_numba.nvidia.launch import device_of
        from kernels_numba.nvidia.stream_read import CHUNK_BYTES

        device, chunks = device_of(source.device), source.nbytes // CHUNK_BYTES
        kernel, out = device.kernel("stream_read"), torch.zeros(4, device=source.device)

        def seconds(blocks: int) -> float:
            launch = kernel.bound((blocks, 1, 1), source.data_ptr(), out.data_ptr(), chunks)
            return seconds_per_call([launch], source.device).seconds

        grids = (2 * device.multiprocessors, 4 * device.multiprocessors, chunks)
        return source.nbytes / min(map(seconds, grids)), "stream_read"
    words = source.view(torch.float32)
    return source.nbytes / seconds_per_call([words.sum], source.device).seconds, "torch sum"


def _can_launch() -> bool:
    from kernels_numba.nvidia.launch import CudaError, device_of

    try:
        device_of(torch.device("cuda")).kernel("stream_read")
    except (CudaError, ImportError, OSError):
        return False
    return True


def _copy(source: Tensor) -> float:
    """Eager: the memcpy node that a captured copy becomes is a third slower."""
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / min(replay_seconds(lambda: target.copy_(source), 7, source.device))


def _gemm(device: torch.device, dtype: torch.dtype) -> float:
    size = GEMM_SIZE[device.type]
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    out = torch.empty_like(a)

    def multiply() -> Tensor:
        return torch.mm(a, b, out=out)

    multiply()
    once = min(replay_seconds(multiply, 2, device))
    count = max(4, int(GEMM_S / once)) if device.type == "cuda" else 4
    seconds = replay_seconds(multiply, count, device)[count // 2 :]
    synchronize(device)
    return 2 * size**3 * len(seconds) / sum(seconds)


def _launches(device: torch.device) -> tuple[float, float, float]:
    from kernels_numba.nvidia.launch import device_of

    kernel, out = device_of(device).kernel("stream_read"), torch.zeros(4, device=device)
    plain, programmatic = (
        kernel.bound((1, 1, 1), out.data_ptr(), out.data_ptr(), 0, programmatic=switch) for switch in (False, True)
    )
    in_graph = (1e6 * seconds_per_call([call] * 256, device).seconds for call in (plain, programmatic))
    return next(in_graph), next(in_graph), 1e6 * host_seconds(plain, device)

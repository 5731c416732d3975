"""Products with quantised weights on a CUDA device: bandwidth by shape and width, and a whole decode step's.

    python -m bench.cuda_linear [--kinds nvfp4 q8] [--widths 1 4 8 16] [--slices] [--prefill]

Prints what merely reading memory reaches first, and every figure as a share of it; launches overlap (``OVERLAPPED`` in
``kernels_numba.nvidia.linear``) unless it says plain. Weights are random and rotate over so many copies that the cache
does not help; all launches are replayed from CUDA graphs of at least 48, the median of several. ``--slices`` tries
every cut of each shape, ``--prefill`` many rows: decoding and cuBLAS against more passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_numba.nvidia import linear
from kernels_numba.nvidia.launch import Device, device_of
from kernels_numba.nvidia.linear import Activations, StreamSegment, decoded_product, stream_product
from kernels_numba.nvidia.linear_formats import FORMATS, STEP_COLUMNS, TILE_ROWS
from kernels_numba.nvidia.stream_read import CHUNK_BYTES

SHAPES = {
    "gate_up": (34816, 5120),
    "down": (5120, 17408),
    "attention in": (14336, 5120),
    "gated delta in": (16480, 5120),
    "out": (5120, 6144),
    "head": (248320, 5120),
}
LAYERS = 64
STEP = ("gated delta in", "out", "gate_up", "down")
"""Products of a layer of a 27B; all layers' and the head's are a decode step's."""
GRAPH_LAUNCHES, REPLAYS = 48, 7
CACHE_BYTES = 400 << 20
"""Copies of a matrix together: many times the cache."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["nvfp4", "q8"], choices=list(FORMATS))
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 4, 8, 16])
    parser.add_argument("--slices", action="store_true")
    parser.add_argument("--prefill", action="store_true")
    options = parser.parse_args()
    device = device_of(torch.device("cuda"))
    print(f"{device.label}, torch {torch.__version__}")
    ceiling = read_ceiling(device)
    for kind in options.kinds:
        for name, shape in SHAPES.items():
            print_shape(device, ceiling, kind, name, shape, options.widths)
            if options.slices:
                print_slices(device, ceiling, kind, name, shape, options.widths)
        if options.prefill:
            print_prefill(device, kind)
    print_decode_step(device, ceiling, options.widths)
    print_launch_cost(device)


def median_us(calls: Sequence[Callable[[], object]]) -> float:
    """Of one call, from graphs that repeat all of them."""
    repeated = list(calls) * max(1, -(-GRAPH_LAUNCHES // len(calls)))
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in repeated:
            call()
    graph.replay()
    times: list[float] = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / len(repeated))
    return statistics.median(times)


def random_bytes(size: int) -> Tensor:
    out = torch.empty(size, dtype=torch.uint8, device="cuda")
    words = out[: size // 8 * 8].view(torch.int64)
    words.random_()
    return out


def read_ceiling(device: Device) -> float:
    """GB/s of a kernel that only reads, the best of a few grids."""
    size = 2 << 30
    source, out = random_bytes(size), torch.zeros(4, device="cuda")
    kernel, chunks = device.kernel("stream_read"), size // CHUNK_BYTES

    def gigabytes_per_s(blocks: int) -> float:
        launch = kernel.bound((blocks, 1, 1), source.data_ptr(), out.data_ptr(), chunks)
        return size / median_us([launch]) / 1e3

    best = max(gigabytes_per_s(blocks) for blocks in (2 * device.multiprocessors, 4 * device.multiprocessors, chunks))
    print(f"reading 2 GiB: {best:.0f} GB/s, 100 %")
    return best


def segment(device: Device, kind: str, rows: int, columns: int, stream: Tensor, slices: int = 1) -> StreamSegment:
    return StreamSegment(
        stream=stream,
        factors=torch.rand(rows, device="cuda"),
        counters=torch.zeros(device.multiprocessors, dtype=torch.int32, device="cuda"),
        runs=(((0, rows, 1.0),),),
        format_name=kind,
        columns=columns,
        slices=slices,
    )


def stream_bytes(kind: str, rows: int, columns: int) -> int:
    return rows // TILE_ROWS * (columns // STEP_COLUMNS) * FORMATS[kind].step_bytes


def copies(device: Device, kind: str, shape: tuple[int, int], slices: int = 1) -> list[StreamSegment]:
    size = stream_bytes(kind, *shape)
    count = max(2, -(-CACHE_BYTES // size))
    return [segment(device, kind, *shape, random_bytes(size), slices) for _ in range(count)]


def product(x: Tensor, weights: StreamSegment) -> Callable[[], object]:
    out = torch.empty(x.shape[0], weights.rows, dtype=torch.bfloat16, device="cuda")
    return lambda: stream_product(Activations(x), weights, out)


def print_shape(
    device: Device, ceiling: float, kind: str, name: str, shape: tuple[int, int], widths: Sequence[int]
) -> None:
    segments = copies(device, kind, shape)
    size = segments[0].size_bytes
    dense = [torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    figures = []
    for width in widths:
        x = torch.randn(width, shape[1], device="cuda", dtype=torch.bfloat16)
        calls = [product(x, each) for each in segments]
        linear.OVERLAPPED = False
        plain = median_us(calls)
        linear.OVERLAPPED = True
        us = median_us(calls)
        cublas = median_us([partial(functional.linear, x, each) for each in dense])
        rate = size / us / 1e3
        figures.append(
            f"M={width} {us:.1f} us (plain {plain:.1f}) {rate:.0f} GB/s {100 * rate / ceiling:.0f} % "
            f"{cublas / us:.1f}x bf16"
        )
    print(f"{kind} {name} {shape[0]} x {shape[1]}, " + "; ".join(figures), flush=True)


def print_slices(
    device: Device, ceiling: float, kind: str, name: str, shape: tuple[int, int], widths: Sequence[int]
) -> None:
    if name == "head":
        return
    for slices in (1, 2, 4, 8):
        segments, figures = copies(device, kind, shape, slices), []
        for width in widths:
            x = torch.randn(width, shape[1], device="cuda", dtype=torch.bfloat16)
            try:
                us = median_us([product(x, each) for each in segments])
            except IndexError:  # no kernel has room
                figures.append("-")
                continue
            figures.append(f"{us:.1f} us {100 * segments[0].size_bytes / us / 1e3 / ceiling:.0f} %")
        print(f"  {name} in {slices} slices: " + "; ".join(figures), flush=True)


def print_prefill(device: Device, kind: str) -> None:
    for name in ("gate_up", "down"):
        shape = SHAPES[name]
        weights = segment(device, kind, *shape, random_bytes(stream_bytes(kind, *shape)))
        dense = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        for rows in (32, 64, 96, 128, 512, 2048):
            x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
            out = torch.empty(rows, shape[0], device="cuda", dtype=torch.bfloat16)
            decoding = median_us([partial(decoded_product, x, weights, out)])
            cublas = median_us([partial(functional.linear, x, dense)])
            passes = median_us([product(x, weights)]) if rows <= 128 else float("nan")
            tflops = 2 * rows * shape[0] * shape[1] / decoding / 1e6
            print(
                f"{kind} {name} M={rows}: decoded {decoding:.0f} us, {tflops:.0f} TFLOP/s; streamed {passes:.0f} us; "
                f"bf16 {cublas:.0f} us",
                flush=True,
            )


def print_decode_step(device: Device, ceiling: float, widths: Sequence[int]) -> None:
    """All products of a step in one graph, every matrix its own: NVFP4, and the head also as q8."""
    shapes = [SHAPES[name] for _ in range(LAYERS) for name in STEP] + [SHAPES["head"]]
    sizes = [stream_bytes("nvfp4", *shape) for shape in shapes]
    memory = random_bytes(sum(sizes))
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    segments = [
        segment(device, "nvfp4", *shape, memory[offset : offset + size])
        for shape, offset, size in zip(shapes, offsets, sizes, strict=True)
    ]
    floor = sum(sizes) / ceiling / 1e3
    print(f"decode step: {len(shapes)} products, {sum(sizes) / 1e9:.2f} GB, read in {floor / 1e3:.2f} ms at best")
    for width in widths:
        inputs = {
            columns: torch.randn(width, columns, device="cuda", dtype=torch.bfloat16) for columns in (5120, 6144, 17408)
        }
        calls, figures = [product(inputs[each.columns], each) for each in segments], []
        for linear.OVERLAPPED in (False, True):
            us = median_us(calls) * len(calls)
            launches = "overlapped" if linear.OVERLAPPED else "plain"
            figures.append(f"{launches} {us / 1e3:.2f} ms, {100 * floor / us:.0f} % of the ceiling")
        print(f"  M={width}: {'; '.join(figures)}", flush=True)


def print_launch_cost(device: Device) -> None:
    """Microseconds of the host."""
    out = torch.zeros(4, device="cuda")
    kernel = device.kernel("stream_read")
    bound = kernel.bound((1, 1, 1), out.data_ptr(), out.data_ptr(), 0)
    calls: dict[str, Callable[[], object]] = {
        "arguments each time": lambda: kernel((1, 1, 1), out.data_ptr(), out.data_ptr(), 0),
        "bound": bound,
    }
    for name, call in calls.items():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(1000):
            call()
        print(f"launch, {name}: {1e3 * (time.perf_counter() - begin):.1f} us")
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()

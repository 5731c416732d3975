"""Speed of the CPU products, for every kind of stored weight, in one run.

    python bench/linear_cpu.py [--shapes 256x256 1024x512 4096x1024] [--seconds 0.3]

Prints nanoseconds per weight, of one call, and the ratio to weights kept in bfloat16 (below 1 is faster). The kinds
take turns, and the best call of each counts, so that other work on the machine falls on all of them alike.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from torch import Tensor

from kernels_numba.cpu.linear import linear, pack_linear
from kernels_numba.matrices import DenseMatrix, Fp8BlockMatrix, Fp8RowMatrix, GroupedMatrix, Matrix, Nvfp4Matrix
from kernels_numba.shapes import PackedLinear

BASELINE = "bf16"
ROWS = (1, 4, 64)
GROUPS = {2: (128, 0), 4: (64, 0), 5: (64, 8), 6: (64, 16), 8: (32, 0)}
"""Columns of a group, and bytes of its high bits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["256x256", "1024x512", "4096x1024"], metavar="NxK")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kind, shape and number of rows")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for shape in args.shapes:
        outputs, inputs = (int(size) for size in shape.split("x"))
        compare(outputs, inputs, args.seconds)


def compare(outputs: int, inputs: int, seconds: float) -> None:
    """Print one table."""
    weights = {kind: pack_linear(matrix) for kind, matrix in matrices(outputs, inputs).items()}
    best = {rows: times(weights, torch.randn(rows, inputs), seconds) for rows in ROWS}
    print(f"\n{outputs} x {inputs}, ns per weight" + "".join(f"{f'M={rows}':>17}" for rows in ROWS))
    for kind, packed in weights.items():
        columns = [
            f"{1e9 * best[rows][kind] / (outputs * inputs):9.4f} {best[rows][kind] / best[rows][BASELINE]:6.2f}x"
            for rows in ROWS
        ]
        print(f"{kind:9s} {8 * packed.size_bytes / (outputs * inputs):5.2f} bits" + " " * 8 + "".join(columns))


def times(weights: dict[str, PackedLinear], x: Tensor, seconds: float) -> dict[str, float]:
    """Seconds of the best call by kind."""
    calls = {kind: partial(linear, x, packed) for kind, packed in weights.items()}
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for kind, call in calls.items():
            for _ in range(5):
                started = time.perf_counter()
                call()
                best[kind] = min(best[kind], time.perf_counter() - started)
    return best


def matrices(outputs: int, inputs: int) -> dict[str, Matrix]:
    """One of every kind; only sizes matter, and that no value is special."""
    ones = torch.ones(outputs)
    e4m3 = torch.randint(0x20, 0x50, (outputs, inputs)).byte()
    blocks = torch.ones(-(-outputs // 128), -(-inputs // 128))
    kinds: dict[str, Matrix] = {
        BASELINE: DenseMatrix(torch.randn(outputs, inputs).bfloat16()),
        "fp32": DenseMatrix(torch.randn(outputs, inputs)),
        "nvfp4": Nvfp4Matrix(some_bytes(outputs, inputs // 2), e4m3[:, : inputs // 16], ones),
        "fp8 row": Fp8RowMatrix(e4m3, ones),
        "fp8 block": Fp8BlockMatrix(e4m3, blocks, torch.arange(outputs, dtype=torch.int32) // 128),
    }
    return kinds | {f"{'t' if bits == 2 else 'q'}{bits}": grouped(bits, outputs, inputs) for bits in GROUPS}


def grouped(bits: int, outputs: int, inputs: int) -> GroupedMatrix:
    group_columns, high_bytes = GROUPS[bits]
    groups = -(-inputs // 128) * 128 // group_columns
    high = some_bytes(outputs, groups * high_bytes) if high_bytes else None
    scales = torch.ones(outputs, groups, dtype=torch.float16)
    return GroupedMatrix(bits, inputs, some_bytes(outputs, groups * 32), high, scales)


def some_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape).byte()


if __name__ == "__main__":
    main()

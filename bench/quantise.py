"""Speed of the quantisers on one core, as bytes of source per second and as a ratio to a copy of the same bytes.

    python bench/quantise.py [--rows 2048] [--columns 5120] [--rounds 3] [--device cpu]

The source is bfloat16, as checkpoints are. Every figure is the best of the rounds, into memory that is written for the
first time, for the copy as for the planes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from kernels_numba.quantise import quantiser
from ninferd.weights.formats.encoders import Nvfp4Method, encode_rows, nvfp4_divisor
from ninferd.weights.formats.minifloat import bf16_of_float32
from ninferd.weights.formats.registry import FP8_ROW, GROUPED, NVFP4

NVFP4_METHODS: tuple[Nvfp4Method, ...] = ("max_abs", "least_error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=5120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    generator = np.random.default_rng(0)
    weights = 0.02 * generator.standard_normal((args.rows, args.columns), np.float32)
    source = bf16_of_float32(weights.astype(np.float32))
    encoders = quantiser(torch.device(args.device))
    divisor = nvfp4_divisor(encoders.largest(source))
    copied = seconds(lambda: source.copy(), args.rounds)
    print(f"{'':24s}  MB/s of source  of a copy")
    report("numpy copy", source.nbytes, copied, copied)
    report("largest magnitude", source.nbytes, seconds(lambda: encoders.largest(source), args.rounds), copied)
    for format in (*GROUPED, FP8_ROW):
        report(format, source.nbytes, seconds(partial(encode_rows, source, format, encoders), args.rounds), copied)
    for method in NVFP4_METHODS:
        encode = partial(encode_rows, source, NVFP4, encoders, divisor=divisor, method=method)
        report(f"{NVFP4} {method}", source.nbytes, seconds(encode, args.rounds), copied)


def seconds(action: Callable[[], object], rounds: int) -> float:
    """The best of the rounds; the first, uncounted one compiles."""
    action()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return min(taken)


def report(name: str, size_bytes: int, taken: float, copied: float) -> None:
    print(f"{name:24s}  {size_bytes / taken / 1e6:14.0f}  {copied / taken:8.2f}x")


if __name__ == "__main__":
    main()

"""The CPU op table."""

from dataclasses import replace

from kernels_numba.torch_ops.table import TORCH_OPS

CPU_OPS = replace(TORCH_OPS, name="cpu")

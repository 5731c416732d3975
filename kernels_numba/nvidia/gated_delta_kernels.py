"""Kernels of the gated delta rule."""

from __future__ import annotations

from kernels_numba.nvidia.gated_delta_layout import SCAN_COLUMNS
from kernels_numba.nvidia.kernel import ARCHS, KernelSpec

_ROWS, _CHUNK = "l" * 15 + "i" * 12 + "f", "l" * 11 + "i" * 6
# for older targets the assembler keeps more around an exchange in a loop than so many blocks have registers for
_OLDER, _NEWER = ARCHS[:3], ARCHS[3:]

KERNELS = (
    KernelSpec("gated_delta_step", "gated_delta_step", "make", (), "l" * 10 + "i" * 6 + "f", 256, 2, registers=128),
    KernelSpec("gated_delta_rows", "gated_delta_rows", "make", (), _ROWS, 256, 2, registers=128, archs=_NEWER),
    KernelSpec("gated_delta_rows_older", "gated_delta_rows", "make", (), _ROWS, 256, 1, registers=232, archs=_OLDER),
    KernelSpec("gated_delta_commit", "gated_delta_commit", "make", (), "l" * 8 + "i" * 10, 256, 2, registers=128),
    KernelSpec("gated_delta_chunk", "gated_delta_chunk", "make", (), _CHUNK, 128, 3, registers=168, archs=_NEWER),
    KernelSpec("gated_delta_chunk_older", "gated_delta_chunk", "make", (), _CHUNK, 128, 2, registers=255, archs=_OLDER),
    KernelSpec(
        "gated_delta_scan", "gated_delta_scan", "make", (SCAN_COLUMNS,), "l" * 9 + "i" * 5, 128, 2, registers=255
    ),
    KernelSpec("gated_delta_out", "gated_delta_out", "make", (), "l" * 7 + "i" * 6 + "f", 256, 4, registers=64),
)

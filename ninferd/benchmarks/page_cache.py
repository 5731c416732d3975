"""The files of a model in the kernel's page cache, and out of it."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch

from ninferd.models import text_config
from ninferd.models.qwen3_5.load import text_geometry
from ninferd.weights.loading.layout import DenseDtype
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.loading.resolve import ResolvedPlan, resolve_plan
from ninferd.weights.opening import open_model

READ_BYTES: Final = 8 << 20


def planned_load(path: Path, dtype: torch.dtype) -> ResolvedPlan:
    """What loading the text model of a file or directory takes and reads, from headers alone."""
    source = open_model(path)
    dense: DenseDtype = "<f4" if dtype == torch.float32 else "<u2"
    return resolve_plan(source, text_plan(text_geometry(text_config(source))), dense)


def weight_files(plan: ResolvedPlan) -> list[Path]:
    """The files with the weights, in order."""
    copies = (copy for matrix in plan.matrices for layout in matrix.layouts for copy in layout.copies)
    return sorted({span.path for copy in copies for span in copy.spans})


def drop(files: Iterable[Path]) -> None:
    """Ask the kernel to forget the files' pages; what is not root's may refuse."""
    os.sync()
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_seconds(files: Iterable[Path], *, direct: bool = False) -> float:
    """For all bytes, one thread, from front to back; ``direct``: past the page cache."""
    buffer = mmap.mmap(-1, READ_BYTES)  # aligned to a page, as O_DIRECT needs it
    started = time.perf_counter()
    for path in files:
        descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)
    return time.perf_counter() - started

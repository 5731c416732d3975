"""How CPU kernels are compiled, and where their machine code is kept."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit

_Function = TypeVar("_Function", bound=Callable[..., Any])

ORDERED = frozenset({"contract"})
"""Products and sums may fuse, but every sum is taken in the order written."""

REORDERED = frozenset({"contract", "reassoc", "nsz"})
"""Sums may be taken in another order (the same on every call); infinities and NaNs keep their meaning."""

SOURCES = Path(__file__).parent


def compiled(flags: frozenset[str]) -> Callable[[_Function], _Function]:
    """Compile on first call, without the interpreter lock, and keep the machine code on disk where that is possible.

    Kernels run on the calling thread: at these sizes a team of threads loses more to waiting for each other than it
    wins, as soon as anything else runs on the machine. What they call is always inlined: a function that is compiled by
    itself, too, would stand for all calls in the process that compiled it, but not where kernels come from disk, and
    its sums may fuse otherwise: a first start would answer in other bits than the next one.
    """

    def decorate(function: _Function) -> _Function:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(flags), "error_model": "numpy", "forceinline": True}
        with _cache_directory():
            try:
                kernel: _Function = njit(cache=True, **options)(function)
            except RuntimeError:  # numba found no directory that it may write its cache to
                kernel = njit(**options)(function)
        return kernel

    return decorate


@contextmanager
def _cache_directory() -> Iterator[None]:
    """Keep what is compiled meanwhile in a directory of its own for each version of the sources.

    numba itself only looks at the file of a kernel, not at those of the functions it calls, and would go on using
    kernels with old callees. The directory lies in NUMBA_CACHE_DIR, if that is set, else beside the sources.
    """
    configured = config.CACHE_DIR
    base = Path(configured) if configured else SOURCES / "__pycache__"
    config.CACHE_DIR = str(base / f"kernels-{fingerprint(SOURCES)}")
    try:
        yield
    finally:
        config.CACHE_DIR = configured


@functools.cache
def fingerprint(directory: Path) -> str:
    """Digest of all Python files of a directory."""
    digest = hashlib.sha256()
    for file in sorted(directory.glob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]

"""Cubins on disk: built on first use, found again by the sources they come from.

They lie in ``NUMBA_CACHE_DIR`` where it is set, else beside the sources. The digest in a file's name covers the
declaration of the kernel and the modules it is generated from, not the versions of the compilers: a cubin runs wherever
the driver takes it, so a directory of them serves machines that have no compiler.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from kernels_numba.nvidia.kernel import KernelSpec

SOURCES = Path(__file__).parent
PACKAGE = "kernels_numba.nvidia"
BUILD_SECONDS = 900
"""After this long a build counts as hung."""
KERNELS_PER_PROCESS = 3
"""Built by one process, which takes a second or two to start."""

_log = logging.getLogger(__name__)


@cache
def cache_directory() -> Path:
    """Where cubins are kept; a new directory of this process's own if the usual one cannot be made."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    directory = (Path(configured) if configured else SOURCES / "__pycache__") / "cubins"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="ninferd-cubins-"))
    return directory


def path_of(spec: KernelSpec, arch: str, directory: Path) -> Path:
    return directory / f"{spec.name}-{fingerprint(spec)}.{arch}.cubin"


@cache
def fingerprint(spec: KernelSpec) -> str:
    """Digest of all that the machine code of a kernel is made from."""
    digest = hashlib.sha256(repr(spec).encode())
    for module in sorted(_modules_used(spec.module) | {"compile", "kernel"}):
        digest.update(f"{module} ".encode() + _source_of(module))
    return digest.hexdigest()[:16]


def _modules_used(module: str) -> set[str]:
    """A module of this package and those that it imports from here, directly or not."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports(name)
    return found


@cache
def _imports(module: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(_source_of(module))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}."):
            names.append(node.module.removeprefix(f"{PACKAGE}."))
    return names


@cache
def _source_of(module: str) -> bytes:
    return (SOURCES / f"{module}.py").read_bytes()


def cubin(spec: KernelSpec, arch: str) -> bytes:
    """Machine code of one kernel out of the cache, where ``ensure`` has put it."""
    return path_of(spec, arch, cache_directory()).read_bytes()


def ensure(specs: Iterable[KernelSpec], arch: str) -> None:
    """Build what the cache lacks, in processes of their own, and say so: the first time this takes minutes.

    What fails to build stays missing, with the reason in the journal.
    """
    directory = cache_directory()
    missing = [spec for spec in specs if not path_of(spec, arch, directory).exists()]
    if not missing:
        return
    groups = [missing[begin : begin + KERNELS_PER_PROCESS] for begin in range(0, len(missing), KERNELS_PER_PROCESS)]
    workers = max(1, min(len(os.sched_getaffinity(0)), len(groups)))
    _log.info("compiling %d CUDA kernels for %s in %d processes, once", len(missing), arch, workers)
    begin, done = time.monotonic(), 0
    with ThreadPoolExecutor(workers) as pool:
        for group, problems in pool.map(lambda group: _build_elsewhere(group, arch, directory), groups):
            done += len(group)
            for problem in problems:
                _log.warning("a CUDA kernel was not built: %s", problem)
            _log.info("compiled %d of %d CUDA kernels in %.0f s", done, len(missing), time.monotonic() - begin)


def _build_elsewhere(
    group: Sequence[KernelSpec], arch: str, directory: Path
) -> tuple[Sequence[KernelSpec], Sequence[str]]:
    """The kernels and what went wrong, in lines."""
    names = [spec.name for spec in group]
    command = [sys.executable, "-m", f"{PACKAGE}.build", "--arch", arch, "--directory", str(directory), *names]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return group, [str(error)]
    if not result.returncode:
        return group, []
    lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
    return group, [line for line in lines if line.startswith(tuple(names))] or lines[-1:]


def store(spec: KernelSpec, arch: str, directory: Path, content: bytes) -> None:
    """Put a cubin in place at once and whole, and drop what older sources left of the same kernel."""
    path = path_of(spec, arch, directory)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)
    for old in directory.glob(f"{spec.name}-*.{arch}.cubin"):
        if old != path and len(old.name) == len(path.name):
            old.unlink(missing_ok=True)

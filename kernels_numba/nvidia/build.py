"""``python -m kernels_numba.nvidia.build``: compile CUDA kernels ahead of time, without a GPU.

Writes cubins as the cache keeps them: copied into ``$NUMBA_CACHE_DIR/cubins`` they are used as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from kernels_numba.nvidia import compile as compiler
from kernels_numba.nvidia.cubins import cache_directory, path_of, store
from kernels_numba.nvidia.kernel import ARCHS
from kernels_numba.nvidia.registry import BY_NAME


def main(arguments: list[str] | None = None) -> int:
    """Build what ``directory`` lacks; exit status 1 if a kernel could not be built."""
    parser = argparse.ArgumentParser(prog="python -m kernels_numba.nvidia.build", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="KERNEL", help="kernels to build (default: all)")
    targets = sorted({*ARCHS, *(arch for spec in BY_NAME.values() for arch in spec.archs)})
    parser.add_argument("--arch", choices=targets, action="append", help="target, may be repeated (default: all)")
    parser.add_argument("--directory", type=Path, help="where the cubins go (default: the cache)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no kernel is called {unknown[0]!r}; there are {', '.join(BY_NAME)}")
    directory = options.directory or cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in options.names or BY_NAME:
        spec = BY_NAME[name]
        for arch in filter(None, map(spec.target_on, options.arch or ARCHS)):
            if path_of(spec, arch, directory).exists():
                continue
            begin = time.monotonic()
            try:
                content, resources = compiler.build(spec, arch)
            except Exception as error:  # whatever numba raises; the other kernels are wanted all the same
                print(f"{name} for {arch}: {type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
                failed = True
                continue
            store(spec, arch, directory, content)
            print(f"{name:32} {arch:8} {resources.registers:3} registers {time.monotonic() - begin:6.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

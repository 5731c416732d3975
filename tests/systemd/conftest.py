"""Every test here runs in a sandbox of its own: this process boots one and runs the same test again inside it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.process import NINFERD

SANDBOX = Path(__file__).with_name("sandbox.sh")
INSIDE = "NINFERD_INSIDE_SYSTEMD"
CANNOT_BOOT = 125  # exit status of the sandbox; the last line of stderr says why
LIMIT_S = 150.0


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Replace the call of a ``systemd`` test by a run of it in the sandbox; None lets pytest call it."""
    if os.environ.get(INSIDE) or pyfuncitem.get_closest_marker("systemd") is None:
        return None
    compile_kernels()
    result = subprocess.run(
        [SANDBOX, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, INSIDE: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if result.returncode == CANNOT_BOOT:
        pytest.skip(result.stderr.strip().splitlines()[-1])
    if result.returncode != 0:
        pytest.fail(f"inside the sandbox:\n{result.stdout}\n{result.stderr}", pytrace=False)
    return True


@functools.cache
def compile_kernels() -> None:
    """Once, outside: every sandbox starts from this machine's files and forgets what it compiled itself."""
    question = ["--prompt", "Hello", "--max-tokens", "1"]
    subprocess.run(
        [NINFERD, "generate", *question, "--set", "model.artifact=embedded:ninfer-tiny"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )

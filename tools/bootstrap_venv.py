"""Make a virtual environment with pip, also where the system's Python ships without ensurepip (bare Debian, Ubuntu).

Runs on the system's Python with the standard library alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import venv
from pathlib import Path
from typing import Any

DEFAULT_INDEX = "https://pypi.org/simple"
MAX_WHEEL_BYTES = 32 * 2**20


def fetch(url: str, accept: str = "*/*") -> bytes:
    """The body at ``url``, bounded."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as response:
        body: bytes = response.read(MAX_WHEEL_BYTES + 1)
    if len(body) > MAX_WHEEL_BYTES:
        raise SystemExit(f"bootstrap: {url} is larger than {MAX_WHEEL_BYTES} bytes")
    return body


def newest_pip(index: str) -> tuple[str, str]:
    """(url, sha256) of the newest release of pip on a simple index (PEP 691)."""
    page = f"{index.rstrip('/')}/pip/"
    listing: dict[str, Any] = json.loads(fetch(page, "application/vnd.pypi.simple.v1+json"))
    releases = []
    for entry in listing["files"]:
        match = re.fullmatch(r"pip-(\d+(?:\.\d+)*)-py3-none-any\.whl", entry["filename"])
        if match and not entry.get("yanked"):
            version = tuple(int(part) for part in match[1].split("."))
            releases.append((version, urllib.parse.urljoin(page, entry["url"]), entry["hashes"]["sha256"]))
    if not releases:
        raise SystemExit(f"bootstrap: no pip wheel on {page}")
    _, url, sha256 = max(releases)
    return url, sha256


def install_pip(python: Path, index: str) -> None:
    """Run pip out of its own wheel to install itself into the environment of ``python``."""
    url, sha256 = newest_pip(index)
    wheel = fetch(url)
    if hashlib.sha256(wheel).hexdigest() != sha256:
        raise SystemExit(f"bootstrap: {url} does not have the SHA-256 that the index states ({sha256})")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / url.rsplit("/", 1)[1].split("#")[0]
        path.write_bytes(wheel)
        command = [str(python), f"{path}/pip", "install", "--quiet", "--no-index", str(path)]
        subprocess.run(command, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - the system's Python runs this, before pip checks any pin
        raise SystemExit(f"ninferd needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
    target = Path(sys.argv[1])
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.create(target, with_pip=has_ensurepip, symlinks=True)
    if not has_ensurepip:
        install_pip(target / "bin" / "python", os.environ.get("PIP_INDEX_URL", DEFAULT_INDEX))


if __name__ == "__main__":
    main()

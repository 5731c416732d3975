"""The environment bootstrap where the system's Python has no ensurepip, against an index of our own."""

from __future__ import annotations

import hashlib
import http.server
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools import bootstrap_venv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def pip_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pip of this environment as a wheel again; bare systems have no other."""
    pip = importlib.metadata.distribution("pip")
    packed = [
        file
        for file in pip.files or []
        if file.parts[0] in ("pip", f"pip-{pip.version}.dist-info")
        and file.name not in ("RECORD", "INSTALLER", "REQUESTED")
        and file.suffix != ".pyc"
    ]
    path = tmp_path_factory.mktemp("wheel") / f"pip-{pip.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in packed:
            wheel.write(str(file.locate()), str(file))
        record = f"pip-{pip.version}.dist-info/RECORD"
        wheel.writestr(record, "".join(f"{file},,\n" for file in (*packed, record)))
    return path


@contextmanager
def simple_index(wheel: Path, sha256: str) -> Iterator[str]:
    """A PEP 691 index on loopback with one release of pip."""
    listing = {"files": [{"filename": wheel.name, "url": f"/files/{wheel.name}", "hashes": {"sha256": sha256}}]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(listing).encode() if self.path == "/simple/pip/" else wheel.read_bytes()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def no_ensurepip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def run_bootstrap(monkeypatch: pytest.MonkeyPatch, target: Path, index: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index)
    monkeypatch.setattr(sys, "argv", ["bootstrap_venv.py", str(target)])
    bootstrap_venv.main()


@pytest.mark.usefixtures("no_ensurepip")
def test_pip_comes_from_the_index(pip_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simple_index(pip_wheel, hashlib.sha256(pip_wheel.read_bytes()).hexdigest()) as index:
        run_bootstrap(monkeypatch, tmp_path / "venv", index)
    printed = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-m", "pip", "--version"], check=True, capture_output=True, text=True
    ).stdout
    assert printed.startswith(f"pip {pip_wheel.name.split('-')[1]} from {tmp_path / 'venv'}")


@pytest.mark.usefixtures("no_ensurepip")
def test_wheel_with_another_hash_is_refused(pip_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simple_index(pip_wheel, "0" * 64) as index, pytest.raises(SystemExit, match="does not have the SHA-256"):
        run_bootstrap(monkeypatch, tmp_path / "venv", index)


def test_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer"):
        bootstrap_venv.main()

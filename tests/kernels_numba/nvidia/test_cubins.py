"""The cache of cubins: what names a file, what builds it, what becomes of failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.nvidia import build, cubins, registry
from kernels_numba.nvidia.cubins import cubin, ensure, fingerprint, path_of, store
from kernels_numba.nvidia.registry import STREAM_READ


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    cubins.cache_directory.cache_clear()
    yield tmp_path / "cubins"
    cubins.cache_directory.cache_clear()


def test_what_is_missing_is_built_once(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ensure([STREAM_READ], "sm_90")
    assert cubin(STREAM_READ, "sm_90").startswith(b"\x7fELF")
    assert "compiling 1 CUDA kernels for sm_90" in caplog.text
    built = path_of(STREAM_READ, "sm_90", cache).stat().st_mtime_ns
    caplog.clear()
    ensure([STREAM_READ], "sm_90")
    assert path_of(STREAM_READ, "sm_90", cache).stat().st_mtime_ns == built
    assert not caplog.text


def test_a_failure_is_named_and_leaves_the_others(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cubins, "KERNELS_PER_PROCESS", 1)
    ensure([replace(STREAM_READ, name="unheard_of", module="norms"), STREAM_READ], "sm_80")
    assert "a CUDA kernel was not built" in caplog.text
    assert "no kernel is called 'unheard_of'" in caplog.text
    assert path_of(STREAM_READ, "sm_80", cache).exists()


def test_the_command_goes_on_after_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(STREAM_READ, name="broken", generator="unheard_of")
    monkeypatch.setattr(build, "BY_NAME", {"broken": broken, "stream_read": STREAM_READ})
    assert build.main(["--arch", "sm_80", "--directory", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("broken for sm_80: AttributeError: ")
    assert shown.out.startswith("stream_read ")


def test_old_builds_of_a_kernel_go(tmp_path: Path) -> None:
    old = path_of(replace(STREAM_READ, threads=256), "sm_90", tmp_path)
    others = [path_of(STREAM_READ, "sm_80", tmp_path), path_of(replace(STREAM_READ, name="stream"), "sm_90", tmp_path)]
    for path in (old, *others):
        path.write_bytes(b"")
    store(STREAM_READ, "sm_90", tmp_path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([*others, path_of(STREAM_READ, "sm_90", tmp_path)])


@pytest.mark.parametrize(
    "changed", [{"name": "b"}, {"arguments": (1,)}, {"min_blocks": 1}, {"signature": "ll"}], ids=str
)
def test_a_changed_declaration_is_another_cubin(changed: dict[str, Any]) -> None:
    assert fingerprint(replace(STREAM_READ, **changed)) != fingerprint(STREAM_READ)


def test_changed_sources_are_another_cubin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what a generator imports, and not of anything else."""
    linear = next(spec for spec in registry.KERNELS if spec.module == "linear_gemv")
    before = [fingerprint(spec) for spec in (linear, STREAM_READ)]
    source = cubins._source_of
    try:
        monkeypatch.setattr(cubins, "_source_of", lambda name: source(name) + b"\n# \n" * (name == "linear_formats"))
        _forget()
        after = [fingerprint(spec) for spec in (linear, STREAM_READ)]
    finally:
        monkeypatch.undo()
        _forget()
    assert after[0] != before[0]
    assert after[1] == before[1]


def _forget() -> None:
    cubins.fingerprint.cache_clear()
    cubins._imports.cache_clear()


def test_a_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    cubins.cache_directory.cache_clear()
    directory = cubins.cache_directory()
    cubins.cache_directory.cache_clear()
    assert directory.is_dir()
    assert directory.name.startswith("ninferd-cubins-")
    directory.rmdir()


def test_the_command_builds_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--arch", "sm_120a", "--directory", str(tmp_path), "stream_read"]) == 0
    assert "stream_read" in capsys.readouterr().out
    assert [path.suffixes[-2:] for path in tmp_path.iterdir()] == [[".sm_120a", ".cubin"]]
    assert build.main(["--arch", "sm_120a", "--directory", str(tmp_path), "stream_read"]) == 0
    assert not capsys.readouterr().out
    with pytest.raises(SystemExit):
        build.main(["flash"])
    assert "no kernel is called 'flash'; there are stream_read" in capsys.readouterr().err


def test_kernels_in_the_cache_need_no_numba() -> None:
    code = "import sys, kernels_numba.nvidia.table; print(any(name.startswith('numba') for name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

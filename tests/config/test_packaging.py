"""What must be in the wheel for an installed daemon to find its profiles."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import ninferd
from ninferd.config.profiles import shipped_profiles_dir

_ROOT = Path(__file__).parents[2]


def test_every_package_is_listed() -> None:
    tool = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join(path.parent.relative_to(_ROOT).parts)
        for top in ("ninferd", "kernels_numba")
        for path in (_ROOT / top).glob("**/__init__.py")
    }
    assert set(tool["packages"]) == found | {
        "ninferd.profiles",
        "ninferd.assets.ninfer_tiny",
        "ninferd.assets.ninfer_tiny_nvfp4",
    }
    assert tool["package-dir"] == {"ninferd.profiles": "profiles"}


def test_profiles_are_found_in_the_source_tree_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped_profiles_dir() == _ROOT / "profiles"
    installed = tmp_path / "site-packages" / "ninferd"
    (installed / "profiles").mkdir(parents=True)
    monkeypatch.setattr(ninferd, "__file__", str(installed / "__init__.py"))
    assert shipped_profiles_dir() == installed / "profiles"

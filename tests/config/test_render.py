"""The committed files are what the schema says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ninferd.config.keys import KEYS
from ninferd.config.layers import load
from ninferd.config.profiles import shipped_profiles_dir
from ninferd.config.render import docs_page, etc_file
from tests.config.support import sources

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("what", "path", "text"),
    [("etc", "etc/ninferd.toml", etc_file()), ("docs", "docs/configuration.md", docs_page())],
)
def test_committed_files_are_generated(what: str, path: str, text: str) -> None:
    assert (_ROOT / path).read_text() == text, f"run: python -m ninferd.config.render {what} > {path}"


def test_the_base_file_sets_nothing(tmp_path: Path) -> None:
    resolved = load(sources(tmp_path, etc_file(), overrides=(("model.artifact", "m"),)))
    assert [name for name in KEYS if resolved.is_given(name)] == ["model.artifact"]


def test_uncommenting_every_default_changes_nothing(tmp_path: Path) -> None:
    """The values in the comments are TOML and are the defaults."""
    lines = [
        line.removeprefix("#") if line.startswith("#") and not line.startswith(("# ", "#\n")) else line
        for line in etc_file().split("\n")
    ]
    text = "\n".join(line for line in lines if "unset by default" not in line and "# required" not in line)
    override = (("model.artifact", "m"),)
    resolved = load(sources(tmp_path, text, overrides=override))
    assert resolved.settings == load(sources(tmp_path, "", overrides=override)).settings
    given = {name for name, spec in KEYS.items() if spec.default is not None}
    assert {name for name in KEYS if resolved.is_given(name)} == given | {"model.artifact"}


def test_every_key_is_in_both_files_with_its_facts() -> None:
    etc, docs = etc_file(), docs_page()
    for spec in KEYS.values():
        assert f"\n#{spec.path[-1]} = " in etc
        assert f"| `{spec.path[-1]}` |" in docs
        assert spec.help
        assert spec.flag is None or f"`{spec.flag}`" in docs


def test_what_the_build_lacks_is_said_once() -> None:
    """With the key, or with its table where nothing of the table is there."""
    etc, docs = etc_file(), docs_page()
    for page in (etc, docs):
        assert "Interval of throughput lines while something moves; 0 is off. Not in this build." in page
        assert "Speculative decoding. Not in this build: only the defaults are accepted." in page
        assert "Drafter; its weights must be in the artifact. Unset: off. Not in" not in page


def test_the_named_profiles_exist() -> None:
    for path in shipped_profiles_dir().iterdir():
        assert path.stem in etc_file()
        assert f"| `{path.stem}` |" in docs_page()


def test_the_generator_is_a_command() -> None:
    command = [sys.executable, "-m", "ninferd.config.render"]
    done = subprocess.run([*command, "etc"], capture_output=True, text=True, check=True)
    assert done.stdout == etc_file()
    wrong = subprocess.run([*command, "x"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "usage: python -m ninferd.config.render etc|docs\n")

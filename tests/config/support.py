"""Configuration directories in a temporary place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ninferd.config.layers import ConfigSources, load
from ninferd.config.origin import ConfigError

MODEL = '[model]\nartifact = "some-model"\n'


def sources(
    root: Path,
    base: str | None = MODEL,
    *,
    profile: str | None = None,
    profiles: Mapping[str, str] | None = None,
    conf_d: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    overrides: tuple[tuple[str, str], ...] = (),
) -> ConfigSources:
    """Write the given files below ``root`` and point at them; ``base=None`` writes no base file."""
    (root / "profiles").mkdir(exist_ok=True)
    (root / "conf.d").mkdir(exist_ok=True)
    if base is not None:
        (root / "ninferd.toml").write_text(base)
    for directory, files in (("profiles", profiles), ("conf.d", conf_d)):
        for name, text in (files or {}).items():
            (root / directory / f"{name}.toml").write_text(text)
    return ConfigSources(
        base_file=root / "ninferd.toml",
        profile=profile,
        profiles_dir=root / "profiles",
        conf_dir=root / "conf.d",
        env=env or {},
        overrides=overrides,
    )


def refusal(sources: ConfigSources) -> list[str]:
    """The problems of a configuration that must be refused, one line each."""
    with pytest.raises(ConfigError) as caught:
        load(sources)
    assert str(caught.value).split("\n") == [str(problem) for problem in caught.value.problems]
    assert caught.value.exit_status == 2
    return [str(problem) for problem in caught.value.problems]

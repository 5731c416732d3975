"""Keys of later features are refused by place, unless at their default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ninferd
from ninferd.config.availability import build_note, is_available, unavailable
from ninferd.config.keys import KEYS
from ninferd.config.layers import load
from tests.config.support import MODEL, sources


def test_a_later_feature_is_named_with_its_place(tmp_path: Path) -> None:
    config = sources(
        tmp_path,
        MODEL + "[engine]\nrope_scaling_factor = 2.0\n[tools]\ntolerant = true\n",
        env={"NINFERD_MONITOR_SAMPLES": "60"},
        overrides=(("sampling.post_thinking.top_k", "1"),),
    )
    assert [str(problem) for problem in unavailable(load(config))] == [
        f"{tmp_path}/ninferd.toml:4: engine.rope_scaling_factor = 2.0: not available in this build",
        f"{tmp_path}/ninferd.toml:6: tools.tolerant = true: not available in this build",
        "command line: sampling.post_thinking.top_k = 1: not available in this build",
        "NINFERD_MONITOR_SAMPLES: monitor.samples = 60: not available in this build",
    ]


def test_the_default_of_every_key_is_available(tmp_path: Path) -> None:
    assert unavailable(load(sources(tmp_path))) == []
    given = "[tools]\ntolerant = false\n[engine]\nrope_scaling_factor = 1.0\n[cache]\nhost_kv_mib = 8192\n"
    assert unavailable(load(sources(tmp_path, MODEL + given))) == []


_NOTHING_TO_DO = {"engine.prefix_reuse"}
"""Keys whose other value is what this build does anyway: it reuses no prefixes."""


def test_an_available_key_is_read_by_some_part() -> None:
    """A key that is accepted and does nothing would be worse than one that is refused."""
    package = Path(ninferd.__file__).parent
    parts = [path for path in package.rglob("*.py") if path.parts[len(package.parts)] != "config"]
    code = "\n".join(path.read_text() for path in [*parts, package / "config" / "secrets.py"])
    nothing_like_it = object()
    available = [spec for spec in KEYS.values() if is_available(spec, nothing_like_it)]
    ignored = {spec.name for spec in available if re.search(rf"\.{spec.path[-1]}\b", code) is None}
    assert ignored == _NOTHING_TO_DO


@pytest.mark.parametrize(
    ("key", "value", "available"),
    [
        ("engine.kv_dtype", "fp32", True),
        ("engine.kv_dtype", "nvfp4", True),
        ("engine.device", "cpu", True),
        ("engine.max_context", 64, True),
        ("engine.cuda_graph", False, True),
        ("engine.prefix_reuse", False, True),  # this build reuses none anyway
        ("engine.rope_scaling_factor", 2.0, False),
        ("spec.backend", "mtp", False),
        ("cache.host_kv_mib", 0, False),
        ("media.vision", True, False),
        ("server.stats_port", 9000, False),
        ("server.cors", True, True),
        ("compat.mode", "strict", True),
        ("server.drain_s", 5, True),
        ("responses.store_max_mib", 1, False),
        ("request_log.path", Path("/x"), False),
        ("tools.constraints", "auto", False),
        ("template.normalize", False, False),
        ("thinking.enabled", False, True),
        ("sampling.temperature", 0.0, True),
        ("sampling.post_thinking.temperature", 0.0, False),
        ("queue.max_pending", 1, True),
        ("limits.max_request_mib", 1, True),
        ("log.level", "debug", True),
        ("daemon.runtime_dir", Path("/x"), True),
    ],
)
def test_what_this_build_has(key: str, value: object, available: bool) -> None:
    assert is_available(KEYS[key], value) is available


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("spec.backend", "Not in this build."),
        ("log.stats_interval_ms", "Not in this build."),
        ("engine.kv_dtype", ""),
        ("engine.prefix_reuse", "No effect in this build."),
        ("engine.max_context", ""),
    ],
)
def test_the_documentation_says_what_is_not_here(key: str, note: str) -> None:
    assert build_note(KEYS[key]) == note


def test_a_key_without_a_note_takes_any_value() -> None:
    nothing_like_it = object()
    refused = {name for name, spec in KEYS.items() if not is_available(spec, nothing_like_it)}
    assert {name for name, spec in KEYS.items() if build_note(spec)} == refused | _NOTHING_TO_DO

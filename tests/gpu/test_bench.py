"""``ninferd bench`` on a CUDA device: what is captured, and what cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

pytest.importorskip("pydantic", reason="ninferd needs pydantic")
pytest.importorskip("msgspec", reason="ninferd needs msgspec")

from ninferd.benchmarks import ceilings
from ninferd.benchmarks.timing import replay_seconds, seconds_per_call
from ninferd.cli import main

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "READ_BYTES", {"cuda": 64 << 20})
    monkeypatch.setattr(ceilings, "GEMM_SIZE", {"cuda": 1024})


def test_calls_are_captured(device: torch.device) -> None:
    x = torch.zeros(1000, device=device)
    found = seconds_per_call([lambda: x.add_(1)], device)
    assert found.captured
    assert found.seconds > 0
    assert x[0] > 48


def test_calls_that_wait_are_timed_as_they_run(device: torch.device) -> None:
    x = torch.ones(1000, device=device)
    found = seconds_per_call([lambda: x.sum().item()], device)
    assert not found.captured
    assert found.seconds > 0


def test_every_replay_is_timed(device: torch.device) -> None:
    x = torch.zeros(1000, device=device)
    seconds = replay_seconds(lambda: x.add_(1), 5, device)
    assert len(seconds) == 5
    assert min(seconds) > 0
    assert x[0] == 5


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--model", "embedded:ninfer-tiny", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_decode(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    combinations = ("--lanes", "1", "2", "--rows", "1", "2", "--contexts", "512", "--kv-dtypes", "bf16", "nvfp4")
    figures = reported(capsys, "decode", *combinations, "--rounds", "4")["figures"]
    assert [(each["kv_dtype"], each["lanes"], each["rows"]) for each in figures] == [
        (kv_dtype, lanes, rows) for kv_dtype in ("bf16", "nvfp4") for lanes in (1, 2) for rows in (1, 2)
    ]
    assert all(each["graphs"] for each in figures)


def test_kernels(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--rows", "1", "4", "--prefill-rows", "32", "--lanes", "1", "2", "--contexts", "512")
    found = reported(capsys, "kernels", *sizes)
    assert min(found["ceilings"][name] for name in ("launch_us", "programmatic_launch_us", "host_launch_us")) > 0
    rounds = [each for each in found["figures"] if "prefill" not in each["op"]]
    assert [each["op"] for each in rounds if not each["captured"]] == []


def test_prefill(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    (figure,) = reported(capsys, "prefill", "--prompts", "300", "--chunks", "128")["figures"]
    assert figure["seconds"] > 0

"""Captured decode rounds: when they are captured, and that a replay is the round itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import torch

from kernels_numba.ops import OpTable
from ninferd.engine.engine import Engine
from ninferd.engine.graphs import Captured, CaptureError, DecodeRounds
from ninferd.engine.messages import SamplingParams
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.opening import open_model
from tests.support.caches import make_caches
from tests.support.engines import ARRIVALS, CHUNKS, GREEDY, answers, make_engine, request
from tests.support.recorded_graphs import CAPTURABLE_OPS, RecordedGraphs, masked_attention_decode

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass
class ScriptedGraphs:
    """Captures without recording; every captured call holds 10 bytes."""

    obstacle: str | None = None
    failing: bool = False
    log: list[str] = field(default_factory=list)
    held_bytes: int = 0

    def observe(self, call: Callable[[], T]) -> tuple[T, str | None]:
        self.log.append("observe")
        return call(), self.obstacle

    def capture(self, call: Callable[[], T]) -> Captured[T]:
        self.log.append("capture")
        if self.failing:
            raise CaptureError("out of ink")
        self.held_bytes += 10
        return Captured(lambda: self.log.append("replay"), call())

    def release(self) -> None:
        self.log.append("release")
        self.held_bytes = 0


def rounds_of(graphs: ScriptedGraphs | None, limit_bytes: int = 100) -> DecodeRounds[int, int]:
    def run(width: int) -> int:
        if graphs is not None:
            graphs.log.append(f"run {width}")
        return 10 * width

    return DecodeRounds(run, graphs, limit_bytes)


def test_every_width_is_observed_then_captured_then_replayed() -> None:
    graphs = ScriptedGraphs()
    rounds = rounds_of(graphs)
    assert [rounds(width) for width in (2, 2, 2, 3, 2, 3)] == [20, 20, 20, 30, 20, 30]
    first = ["observe", "run 2", "capture", "run 2", "replay", "replay"]
    assert graphs.log == [*first, "observe", "run 3", "replay", "capture", "run 3", "replay"]
    assert (rounds.captured, rounds.held_bytes) == ((2, 3), 20)


def test_without_graphs_rounds_run() -> None:
    rounds = rounds_of(None)
    assert [rounds(1), rounds(1), rounds(1)] == [10] * 3
    assert (rounds.captured, rounds.held_bytes) == ((), 0)
    rounds.release()


def test_an_obstacle_is_named_once_and_nothing_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    graphs = ScriptedGraphs(obstacle="routing.py:20 waits for the device")
    rounds = rounds_of(graphs)
    assert [rounds(width) for width in (1, 1, 1, 2, 2)] == [10, 10, 10, 20, 20]
    assert graphs.log == ["observe", "run 1", "observe", "run 1", "run 1", "run 2", "run 2"]
    assert caplog.messages == ["decode rounds run without further CUDA graphs: routing.py:20 waits for the device"]


def test_an_op_may_wait_at_its_first_call(caplog: pytest.LogCaptureFixture) -> None:
    graphs = ScriptedGraphs(obstacle="a table is made")
    rounds = rounds_of(graphs)
    rounds(1)
    graphs.obstacle = None
    assert [rounds(1) for _ in range(2)] == [10, 10]
    assert graphs.log[2:] == ["observe", "run 1", "capture", "run 1", "replay"]
    assert not caplog.messages


def test_a_failed_capture_leaves_the_graphs_there_are(caplog: pytest.LogCaptureFixture) -> None:
    graphs = ScriptedGraphs()
    rounds = rounds_of(graphs)
    assert (rounds(1), rounds(1)) == (10, 10)
    graphs.failing = True
    assert [rounds(width) for width in (2, 2, 2, 3, 1)] == [20, 20, 20, 30, 10]
    assert graphs.log[5:] == ["observe", "run 2", "capture", "run 2", "run 2", "run 3", "replay"]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == ("decode rounds run without further CUDA graphs: capturing 2 failed: out of ink")


def test_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    graphs = ScriptedGraphs()
    rounds = rounds_of(graphs, limit_bytes=15)
    for width in (1, 1, 2, 2, 3, 3, 3, 2):
        rounds(width)
    assert (rounds.captured, rounds.held_bytes) == ((1, 2), 20)
    assert graphs.log[-4:] == ["run 3", "run 3", "run 3", "replay"]
    assert "no more decode rounds are captured: 2 CUDA graph(s) hold 0.0 MiB, more than 0" in caplog.text


def test_released_graphs_are_captured_anew() -> None:
    graphs = ScriptedGraphs()
    rounds = rounds_of(graphs)
    assert (rounds(1), rounds(1)) == (10, 10)
    rounds.release()
    assert (rounds.captured, rounds.held_bytes) == ((), 0)
    rounds(1)
    assert graphs.log[-4:] == ["release", "capture", "run 1", "replay"]


def model_of(directory: Path, ops: OpTable) -> Qwen3_5Text:
    source = open_model(directory)
    return load_text(source, text_config(source), ops, CPU, torch.float32, lambda done, total: None)


def engine_of(model: Qwen3_5Text, *, recorded: bool) -> tuple[Engine, RecordedGraphs]:
    kv, state = make_caches(model, 4, 24, 320, "fp32")
    graphs = RecordedGraphs()
    return make_engine(model, kv, state, graphs if recorded else None), graphs


def test_replays_are_the_rounds_themselves(checkpoint: Path) -> None:
    model = model_of(checkpoint, CAPTURABLE_OPS)
    expected = answers(engine_of(model, recorded=False)[0], ARRIVALS)
    engine, graphs = engine_of(model, recorded=True)
    assert answers(engine, ARRIVALS) == expected
    stats = engine.stats()
    assert {"1 lane", "2 lanes with draws", "4 lanes with draws and penalties"} <= set(stats.graphs)
    assert stats.graph_bytes == graphs.held_bytes > 0
    rounds = stats.generated_tokens - len(ARRIVALS)  # at least one lane each
    assert rounds / 4 < graphs.replays < rounds
    at_once = [(0, each) for _, each in reversed(ARRIVALS)]
    expected = answers(engine_of(model, recorded=False)[0], at_once)
    assert answers(engine, at_once) == expected
    steps, replays = engine.stats().steps, graphs.replays
    assert answers(engine, at_once) == expected
    assert graphs.replays - replays == engine.stats().steps - steps - CHUNKS, "by now every round is replayed"


def test_a_round_that_uses_a_host_number_would_show(checkpoint: Path) -> None:
    """What this file compares with is able to differ: a number of the first round is used in all later ones."""
    seen: list[int] = []

    def forgetful(query: Any, projected: Any, kv: Any, layer: int, pages: Any, contexts: Any, shape: Any) -> Any:
        seen.append(1)
        contexts = contexts.clamp(max=61 + len(seen))  # Python's, so that a replay repeats that of the capture
        return masked_attention_decode(query, projected, kv, layer, pages, contexts, shape)

    model = model_of(checkpoint, replace(CAPTURABLE_OPS, attention_decode=forgetful))
    expected = answers(engine_of(model, recorded=False)[0], ARRIVALS[:1])
    seen.clear()
    assert answers(engine_of(model, recorded=True)[0], ARRIVALS[:1]) != expected


def test_an_op_that_waits_keeps_rounds_eager(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    def waiting(query: Any, projected: Any, kv: Any, layer: int, pages: Any, contexts: Any, shape: Any) -> Any:
        columns = -(-int(contexts.max()) // 64)
        return masked_attention_decode(query, projected, kv, layer, pages[:, :columns], contexts, shape)

    model = model_of(checkpoint, replace(CAPTURABLE_OPS, attention_decode=waiting))
    engine, graphs = engine_of(model, recorded=True)
    assert answers(engine, ARRIVALS[:3]) == answers(engine_of(model, recorded=False)[0], ARRIVALS[:3])
    assert (engine.stats().graphs, graphs.replays) == ((), 0)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith(
        "decode rounds run without further CUDA graphs: aten.item.default reads a number"
    )


def test_running_out_of_memory_gives_the_graphs_back(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(checkpoint, CAPTURABLE_OPS)
    expected = answers(engine_of(model, recorded=False)[0], ARRIVALS[:1])
    engine, _ = engine_of(model, recorded=True)
    answers(engine, ARRIVALS[:1])
    assert engine.stats().graphs == ("1 lane",)
    whole = model.forward

    def starved(batch: Any, caches: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "forward", starved)
    engine.submit(request("victim", 9, 4, GREEDY))
    while engine.has_work:
        engine.step()
    assert (engine.stats().graphs, engine.stats().graph_bytes) == ((), 0)
    monkeypatch.setattr(model, "forward", whole)
    assert answers(engine, ARRIVALS[:1]) == expected
    assert engine.stats().graphs == ("1 lane",)


def test_the_probe_captures_one_lane(checkpoint: Path) -> None:
    engine, graphs = engine_of(model_of(checkpoint, CAPTURABLE_OPS), recorded=True)
    engine.probe()
    assert (engine.stats().graphs, graphs.replays) == (("1 lane",), 1)


def test_replayed_rounds_leave_time_and_prepare_the_next(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two lanes, one ends early: rounds after the captured one of a set of lanes are loaded while it runs."""
    engine, graphs = engine_of(model_of(checkpoint, CAPTURABLE_OPS), recorded=True)
    engine.submit(request("a", 9, 12, GREEDY))
    engine.submit(request("b", 9, 7, GREEDY))
    log: list[str] = []
    whole = engine._batches.load_decode

    def load(sequences: Any) -> None:
        log.append("load")
        whole(sequences)

    monkeypatch.setattr(engine._batches, "load_decode", load)
    steps: list[tuple[str, ...]] = []
    while engine.has_work:
        log.clear()
        before = graphs.replays
        engine.step(lambda: log.append("late" if graphs.replays > before else "early"))  # noqa: B023
        steps.append(tuple(log))
    chunk, eager, replayed, following = ("early",), ("load", "early"), ("load", "late"), ("late",)
    both = [eager, eager, replayed, following, following, following]  # observed, captured, and from then on replayed
    assert steps == [chunk, eager, chunk, *both, eager, replayed, following, following]


def test_a_token_that_the_host_chooses_reaches_the_next_round(checkpoint: Path) -> None:
    """A penalty changes what the device drew; rounds are replayed all the same."""
    model = model_of(checkpoint, CAPTURABLE_OPS)
    wanted = SamplingParams(seed=6, temperature=0.0, frequency_penalty=1.5, repetition_penalty=1.3)
    arrivals = [(0, request("penalised", 20, 40, wanted))]
    expected = answers(engine_of(model, recorded=False)[0], arrivals)
    assert expected != answers(engine_of(model, recorded=False)[0], [(0, request("penalised", 20, 40, GREEDY))])
    engine, graphs = engine_of(model, recorded=True)
    assert answers(engine, arrivals) == expected
    assert graphs.replays > 30


def test_lanes_come_and_go_while_rounds_are_prepared(checkpoint: Path) -> None:
    """One stops by a token, one at the end of a page, and a long prompt arrives in between; all draw."""
    model = model_of(checkpoint, CAPTURABLE_OPS)
    few = SamplingParams(seed=3, temperature=0.8, top_k=8)  # which its candidates always settle
    full_page, stopping, late = (
        request("full", 9, 56, few),
        request("stopping", 12, 60, few),
        request("late", 170, 20, few),
    )
    plain = engine_of(model, recorded=False)[0]
    tokens = [token for token, _ in answers(plain, [(0, full_page), (0, stopping)])["stopping"]]
    stop = next(token for index, token in enumerate(tokens) if index >= 30 and token not in tokens[:index])
    stopping = msgspec.structs.replace(stopping, stop_token_ids=(stop,))
    arrivals = [(0, full_page), (0, stopping), (14, late)]
    expected = answers(plain, arrivals)
    assert 30 < len(expected["stopping"]) < 60
    engine, graphs = engine_of(model, recorded=True)
    for _ in range(2):
        assert answers(engine, arrivals) == expected
    assert graphs.replays > 80

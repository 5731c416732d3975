"""Decode rounds replayed as CUDA graphs against the same rounds run op by op: the same bits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels_numba.kv.codec import PAGE_TOKENS
from kernels_numba.ops import OpTable
from kernels_numba.selection import ops_for
from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.engine.cuda_graphs import CudaGraphs
from ninferd.engine.graphs import GRAPH_BYTES, CaptureError, DecodeRounds, Graphs
from ninferd.engine.step_inputs import StepInputs
from ninferd.memory.geometry import pages_for
from ninferd.memory.kv_cache import AddressSpace
from ninferd.memory.state import StateSlot
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.batch import Caches
from ninferd.models.qwen3_5.load import load_text
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import open_model
from tests.support.caches import make_caches
from tests.support.checkpoints import write_random_checkpoint
from tests.support.models import CONFIGS
from tests.support.recorded_graphs import CAPTURABLE_OPS, masked_attention_decode

pytestmark = pytest.mark.gpu

LANES = 8
PROMPTS = (60, 1, 127, 64, 30, 5, 190, 63)
"""Lengths of the lanes' prompts; some are at the end of a page, or a few tokens before it."""
MAX_CONTEXT = 512


@dataclass
class Lane:
    """A running sequence."""

    space: AddressSpace
    slot: StateSlot
    processed: int = 0
    token: int = 0


class Rig:
    """Lanes over one model, driven as the engine drives it."""

    def __init__(self, model: Qwen3_5Text, graphs: Graphs | None) -> None:
        self.model = model
        self.kv, self.state = make_caches(model, LANES, LANES * pages_for(MAX_CONTEXT), MAX_CONTEXT, "bf16")
        self.caches = Caches(self.kv.paged, self.state.conv, self.state.recurrent)
        self.inputs = StepInputs(self.kv, 256)
        self.rounds = DecodeRounds(self.round, graphs)
        self.running: dict[int, Lane] = {}

    @torch.inference_mode()
    def start(self, name: int) -> Tensor:
        """Prefill the prompt of lane ``name``; its logits."""
        space, slot = self.kv.open(MAX_CONTEXT), self.state.acquire()
        assert space is not None
        assert slot is not None
        lane = self.running[name] = Lane(space, slot)
        prompt = np.random.default_rng(name).integers(0, 500, PROMPTS[name])
        length = len(prompt)
        space.ensure_mapped(length)
        one = (np.array([space.row]), np.array([slot.index]), np.array([length]), np.array([length - 1]))
        self.inputs.load(prompt, np.arange(length), *one)
        logits = self.model.forward(self.inputs.prefill(length, length, want_logits=True), self.caches)
        lane.processed, lane.token = length, int(logits.argmax())
        return logits

    def stop(self, name: int) -> None:
        lane = self.running.pop(name)
        lane.space.release()
        self.state.release(lane.slot)

    @torch.inference_mode()
    def step(self) -> Tensor:
        """One greedy token of every lane; the logits."""
        self.load()
        logits, tokens = self.rounds(len(self.running))
        for lane, token in zip(self.running.values(), tokens.tolist(), strict=True):
            lane.processed, lane.token = lane.processed + 1, token
        return logits.clone()

    def load(self) -> None:
        lanes = list(self.running.values())
        for lane in lanes:
            lane.space.ensure_mapped(lane.processed + 1)
        positions = np.array([lane.processed for lane in lanes])
        self.inputs.load(
            np.array([lane.token for lane in lanes]),
            positions,
            np.array([lane.space.row for lane in lanes]),
            np.array([lane.slot.index for lane in lanes]),
            positions + 1,
            np.arange(len(lanes)),
        )

    def round(self, width: int) -> tuple[Tensor, Tensor]:
        logits = self.model.forward(self.inputs.decode(width), self.caches)
        return logits, logits.argmax(-1)


def script(rig: Rig) -> Iterator[Tensor]:
    """Every width, up, down and up again, with lanes that leave out of the middle; 70 rounds cross pages."""
    for name in range(LANES):
        yield rig.start(name)
        for _ in range(3):
            yield rig.step()
    for name in (3, 0, 6, 7, 1):
        rig.stop(name)
        for _ in range(4):
            yield rig.step()
    for name in (0, 7):
        yield rig.start(name)
        for _ in range(15):
            yield rig.step()


@pytest.fixture
def memory() -> Iterator[None]:
    """Graphs of other tests are gone before and after."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def served_ops(device: torch.device) -> OpTable:
    """What an engine in bfloat16 would take, but for torch's own attention, which waits for the device."""
    ops = ops_for(device, torch.bfloat16)
    if ops.attention_decode is TORCH_OPS.attention_decode:
        ops = replace(ops, attention_decode=masked_attention_decode)
    return ops


OPS: dict[str, Callable[[torch.device], OpTable]] = {"torch": lambda device: CAPTURABLE_OPS, "served": served_ops}


def embedded_model(name: str, ops: OpTable, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Qwen3_5Text:
    """The embedded models have the heads of the large ones."""
    source = open_model(artifact_path(name))
    return load_text(source, text_config(source), ops, device, dtype, lambda done, total: None)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("artifact", ["embedded:ninfer-tiny", "embedded:ninfer-tiny-bf16"])
@pytest.mark.parametrize("table", list(OPS))
def test_replays_have_the_bits_of_the_ops(table: str, artifact: str, device: torch.device) -> None:
    model = embedded_model(artifact, OPS[table](device), device)
    plain, replayed = Rig(model, None), Rig(model, CudaGraphs(device))
    for index, (expected, found) in enumerate(zip(script(plain), script(replayed), strict=True)):
        assert torch.equal(found, expected), f"logits {index} differ by {(found - expected).abs().max():.3e}"
    assert tuple(sorted(replayed.rounds.captured)) == tuple(range(1, LANES + 1))
    assert torch.equal(replayed.kv.tensor, plain.kv.tensor)
    for name in ("conv", "recurrent"):
        assert torch.equal(getattr(replayed.caches, name), getattr(plain.caches, name)), name
    print(f"{table} {artifact}: {replayed.rounds.held_bytes / 2**20:.1f} MiB in 8 graphs")


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("table", list(OPS))
def test_a_replayed_round_neither_waits_nor_allocates(table: str, device: torch.device) -> None:
    rig = Rig(embedded_model("embedded:ninfer-tiny", OPS[table](device), device), CudaGraphs(device))
    rig.start(0), rig.start(1)
    for _ in range(3):
        rig.step()
    rig.load()
    allocated = torch.cuda.memory_allocated(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            rig.rounds(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_allocated(device) == allocated


@pytest.mark.usefixtures("memory")
def test_memory_is_counted_and_given_back(device: torch.device) -> None:
    rig = Rig(embedded_model("embedded:ninfer-tiny", CAPTURABLE_OPS, device), CudaGraphs(device))
    rig.start(0)
    expected = [rig.step().clone() for _ in range(2)][1]
    torch.cuda.synchronize()
    held = rig.rounds.held_bytes
    assert 0 < held <= GRAPH_BYTES
    free_before = torch.cuda.mem_get_info(device)[0]
    rig.rounds.release()
    freed = torch.cuda.mem_get_info(device)[0] - free_before
    print(f"held {held / 2**20:.1f} MiB, freed {freed / 2**20:.1f} MiB")
    assert rig.rounds.held_bytes == 0
    assert freed >= held // 2, "the driver keeps some of its own"
    rig.stop(0)
    rig.start(0)
    rig.step()
    assert torch.equal(rig.step(), expected), "captured anew"


@pytest.mark.usefixtures("memory")
def test_waiting_ops_are_named(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(embedded_model("embedded:ninfer-tiny", TORCH_OPS, device), CudaGraphs(device))
    rig.start(0)
    for _ in range(3):
        rig.step()
    assert rig.rounds.captured == ()
    (message,) = caplog.messages
    assert message.startswith("decode rounds run without further CUDA graphs: torch_ops/attention.py:")
    assert message.endswith("waits for the device")


@pytest.mark.usefixtures("memory")
def test_a_mixture_of_experts_of_kernels_is_captured(device: torch.device, tmp_path: Path) -> None:
    """Sizes that stream; routing and experts change from round to round."""
    sizes = {"hidden_size": 128, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
    write_random_checkpoint(tmp_path, CONFIGS["moe"] | sizes, seed=0)
    source, served = open_model(tmp_path), served_ops(device)
    ops = replace(CAPTURABLE_OPS, pack_linear=served.pack_linear, linear=served.linear, moe_experts=served.moe_experts)
    model = load_text(source, text_config(source), ops, device, torch.bfloat16, lambda done, total: None)
    plain, replayed = Rig(model, None), Rig(model, CudaGraphs(device))
    for rig in (plain, replayed):
        rig.start(0), rig.start(1)
    for _ in range(8):
        assert torch.equal(plain.step(), replayed.step())
    assert replayed.rounds.captured == (2,)


@pytest.mark.usefixtures("memory")
def test_a_mixture_of_experts_runs_without(device: torch.device, tmp_path: Path, caplog: Any) -> None:
    write_random_checkpoint(tmp_path, CONFIGS["moe"], seed=0)
    source = open_model(tmp_path)
    rig = Rig(load_text(source, text_config(source), CAPTURABLE_OPS, device, torch.bfloat16, print), CudaGraphs(device))
    rig.start(0)
    for _ in range(3):
        rig.step()
    (message,) = [text for text in caplog.messages if "CUDA graphs" in text]
    assert "kernels_numba/routing.py:" in message


@pytest.mark.usefixtures("memory")
def test_a_capture_that_breaks_off_leaves_the_device_usable(device: torch.device) -> None:
    graphs = CudaGraphs(device)
    x = torch.ones(1 << 20, device=device)

    def waits() -> Tensor:
        y = x * 2
        y.sum().item()
        return y

    with pytest.raises(CaptureError, match="captur"):
        graphs.capture(waits)
    assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    assert graphs.held_bytes == 0
    assert float((x + 1).sum()) == 2 << 20
    captured = graphs.capture(lambda: x * 3)
    x.fill_(2)
    captured.replay()
    assert captured.result.eq(6).all()
    before = torch.cuda.memory_reserved(device)
    large = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(device) == before, "memory is still given back to the device"


@pytest.mark.usefixtures("memory")
def test_an_engine_answers_the_same_with_graphs(device: torch.device) -> None:
    pytest.importorskip("msgspec", reason="the engine's messages need msgspec")
    from tests.support.engines import ARRIVALS, answers, make_engine

    model = embedded_model("embedded:ninfer-tiny", served_ops(device), device)
    found = []
    for graphs in (None, CudaGraphs(device)):
        kv, state = make_caches(model, 4, 24, 5 * PAGE_TOKENS, "bf16")
        engine = make_engine(model, kv, state, graphs)
        engine.probe()
        found.append(answers(engine, ARRIVALS))
    assert found[1] == found[0]
    expected = {"1 lane", "2 lanes with draws", "3 lanes with draws", "4 lanes with draws and penalties"}
    assert expected <= set(engine.stats().graphs)
    assert engine.stats().graph_bytes > 0


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("wanted", [True, False], ids="cuda_graph={}".format)
def test_the_configuration_decides(device: torch.device, wanted: bool) -> None:
    pytest.importorskip("msgspec", reason="the engine's messages need msgspec")
    pytest.importorskip("pydantic_settings", reason="the configuration needs pydantic-settings")
    from ninferd.config.schema import Settings
    from ninferd.engine.build import build_engine

    if ops_for(torch.device("cuda", 0), torch.bfloat16).attention_decode is TORCH_OPS.attention_decode:
        pytest.skip("torch serves attention, which waits for the device")
    engine = {"device": 0, "dtype": "bfloat16", "max_context": 256, "cuda_graph": wanted}
    settings = Settings.model_validate({"model": {"artifact": "embedded:ninfer-tiny"}, "engine": engine})
    stats = build_engine(settings, lambda progress: None).stats()
    assert stats.graphs == (("1 lane",) if wanted else ()), "the probe's second round is captured"
    assert (stats.graph_bytes > 0) == wanted

"""The gated delta rule by CUDA kernels: as near to float64 as the torch op is."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from kernels_numba import reference
from kernels_numba.nvidia import gated_delta_ops
from kernels_numba.ops import GatedDelta, GatedDeltaCommit, GatedDeltaRound
from kernels_numba.shapes import GatedDeltaPending, GatedDeltaShape, GatedDeltaWeights
from kernels_numba.torch_ops import gated_delta as torch_gated_delta
from tests.kernels_numba.inputs import GatedDeltaCase, converted

pytestmark = pytest.mark.gpu

SMALL = GatedDeltaShape(key_heads=2, value_heads=4, key_dim=128, value_dim=128, conv_kernel=4)
SHAPES = {
    "2k4v": SMALL,
    "16k32v": GatedDeltaShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_kernel=4),
    "16k48v": GatedDeltaShape(key_heads=16, value_heads=48, key_dim=128, value_dim=128, conv_kernel=4),
}
LAYER = 1
DECODE, PREFILL = gated_delta_ops.gated_delta_decode, gated_delta_ops.gated_delta_prefill
STATE_IN_HALVES = 1e-3
"""What the chunked form's operands, which are halves, cost a state."""


@dataclass
class Run:
    """An implementation with states of its own."""

    op: GatedDelta
    weights: GatedDeltaWeights
    conv: Tensor
    recurrent: Tensor
    shape: GatedDeltaShape

    def __call__(self, projected: Tensor, slots: Tensor) -> Tensor:
        return self.op(projected, self.weights, self.conv, self.recurrent, LAYER, slots, self.shape)


def moved(weights: GatedDeltaWeights) -> GatedDeltaWeights:
    conv, decay_rate, dt_bias, norm = (
        tensor.float().cuda() for tensor in (weights.conv, weights.decay_rate, weights.dt_bias, weights.norm)
    )
    return GatedDeltaWeights(conv, decay_rate, dt_bias, norm, weights.eps)


def runs(shape: GatedDeltaShape, ours: GatedDelta, torchs: GatedDelta, exact: GatedDelta) -> tuple[Run, Run, Run]:
    """Our op, torch's and the reference in float64 from the same states."""
    case = GatedDeltaCase.random(shape, 1)
    weights = converted(converted(case.weights, torch.float32), torch.float64)
    conv, recurrent = case.conv.bfloat16(), case.recurrent.float()

    def on_device(op: GatedDelta) -> Run:
        return Run(op, moved(weights), conv.cuda(), recurrent.cuda(), shape)

    return on_device(ours), on_device(torchs), Run(exact, weights, conv.double(), recurrent.double(), shape)


def normal(seed: int, *size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.double().cpu() - expected).norm() / expected.norm())


def report(name: str, found: Tensor, torchs: Tensor, expected: Tensor, allowed: float) -> None:
    ours, theirs = distance(found, expected), distance(torchs, expected)
    print(f"{name}: {ours:.2e}, torch {theirs:.2e}, largest {(found.double().cpu() - expected).abs().max():.1e}")
    assert ours <= max(2 * theirs, allowed)


@pytest.mark.parametrize("slots", [[3], [5, 0, 2]], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_decode(device: torch.device, shape: GatedDeltaShape, slots: list[int]) -> None:
    ours, torchs, exact = runs(
        shape,
        DECODE,
        torch_gated_delta.gated_delta_decode,
        reference.gated_delta_decode,
    )
    rows = torch.tensor(slots)
    found, theirs, expected = [], [], []
    for token in range(3):
        projected = normal(token, len(slots), shape.projected_width)
        found.append(ours(projected.cuda(), rows.cuda()))
        theirs.append(torchs(projected.cuda(), rows.cuda()))
        expected.append(exact(projected.double(), rows))
    report(f"decode {len(slots)} outputs", torch.cat(found), torch.cat(theirs), torch.cat(expected), 0)
    report(f"decode {len(slots)} states", ours.recurrent, torchs.recurrent, exact.recurrent, 1e-6)
    assert torch.equal(ours.conv.cpu().double(), exact.conv)


def test_many_sequences_agree_with_torch(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one launch takes; slots in any order."""
    monkeypatch.setattr(gated_delta_ops, "COUNTERS", 100 * SMALL.key_heads)
    shape, count = SMALL, 300
    case = GatedDeltaCase.random(shape, 1)
    weights = moved(case.weights)
    conv = normal(0, count, 2, shape.conv_channels, 3).cuda()
    recurrent = normal(1, count, 2, shape.value_heads, 128, 128).float().cuda()
    slots = torch.randperm(count, generator=torch.Generator().manual_seed(2)).cuda()
    projected = normal(3, count, shape.projected_width).cuda()
    ours = Run(DECODE, weights, conv.clone(), recurrent.clone(), shape)
    theirs = Run(torch_gated_delta.gated_delta_decode, weights, conv, recurrent, shape)
    found, expected = ours(projected, slots), theirs(projected, slots)
    assert distance(found, expected.double().cpu()) < 3e-3
    assert distance(ours.recurrent, recurrent.double().cpu()) < 1e-6
    assert torch.equal(ours.conv, theirs.conv)
    assert torch.equal(ours.recurrent[:, 0], theirs.recurrent[:, 0])


def test_runs_are_identical(device: torch.device) -> None:
    """Whatever order the blocks take."""
    shape = SHAPES["16k48v"]
    first, second, _ = runs(shape, DECODE, DECODE, reference.gated_delta_decode)
    slots = torch.tensor([1, 4], device=device)
    for token in range(50):
        projected = normal(token, 2, shape.projected_width).cuda()
        assert torch.equal(first(projected, slots), second(projected, slots))
    assert torch.equal(first.recurrent, second.recurrent)
    assert torch.equal(first.conv, second.conv)


def test_a_broken_sequence_leaves_the_others_alone(device: torch.device) -> None:
    ours, torchs, _ = runs(SMALL, DECODE, torch_gated_delta.gated_delta_decode, reference.gated_delta_decode)
    ours.recurrent[2] = torch.nan
    ours.conv[4] = torch.nan
    slots = torch.tensor([2, 0, 4], device=device)
    projected = normal(0, 3, SMALL.projected_width).cuda()
    found, expected = ours(projected, slots), torchs(projected, slots)
    assert found[[0, 2]].isnan().all()
    assert distance(found[1], expected[1].double().cpu()) < 3e-3
    assert ours.recurrent[[0, 1, 3, 5]].isfinite().all()


def test_nothing_waits_and_a_graph_replays(device: torch.device) -> None:
    shape = SHAPES["16k48v"]
    first, second, _ = runs(shape, DECODE, DECODE, reference.gated_delta_decode)
    slots, projected = torch.tensor([1, 4], device=device), normal(0, 2, shape.projected_width).cuda()
    first(projected, slots)
    second(projected, slots)
    torch.cuda.set_sync_debug_mode("error")
    try:
        first(projected, slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    second(projected, slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = first(projected, slots)
    for token in range(3):
        projected.copy_(normal(token, 2, shape.projected_width))
        slots.copy_(torch.tensor([token, 5]))
        graph.replay()
        assert torch.equal(replayed, second(projected, slots))
    assert torch.equal(first.recurrent, second.recurrent)


@dataclass
class Rounds:
    """An implementation of rounds with states and pending rows of its own; what is not pending is NaN."""

    run: Run
    op: GatedDeltaRound
    commit: GatedDeltaCommit
    pending: GatedDeltaPending

    @classmethod
    def of(cls, run: Run, op: GatedDeltaRound, commit: GatedDeltaCommit, rows: int) -> Rounds:
        shape, slots = run.shape, run.conv.shape[0]
        sizes = [(shape.conv_channels,), (shape.key_heads, 128), (shape.value_heads, 128), (shape.value_heads,)]
        pending = [torch.full((slots, 2, rows, *size), torch.nan).to(run.recurrent) for size in sizes]
        return cls(run, op, commit, GatedDeltaPending(pending[0].to(run.conv.dtype), *pending[1:]))

    def __call__(self, projected: Tensor, slots: Tensor, accepted: Tensor) -> Tensor:
        run = self.run
        states = run.weights, run.conv, run.recurrent, self.pending
        return self.op(projected, *states, LAYER, slots, accepted, run.shape)

    def committed(self, slots: Tensor, accepted: Tensor) -> Run:
        for field in fields(self.pending):  # of the layer that has had no round
            getattr(self.pending, field.name)[:, 1 - LAYER] = 0
        self.commit(self.run.conv, self.run.recurrent, self.pending, slots, accepted, self.run.shape)
        return self.run


def three_rounds(shape: GatedDeltaShape, rows: int) -> tuple[Rounds, Rounds, Rounds]:
    """Our op, torch's and the reference in float64 from the same states."""
    ours, torchs, exact = runs(shape, DECODE, torch_gated_delta.gated_delta_decode, reference.gated_delta_decode)
    theirs = torch_gated_delta.gated_delta_round, torch_gated_delta.gated_delta_commit
    expected = reference.gated_delta_round, reference.gated_delta_commit
    mine = gated_delta_ops.gated_delta_round, gated_delta_ops.gated_delta_commit
    return Rounds.of(ours, *mine, rows), Rounds.of(torchs, *theirs, rows), Rounds.of(exact, *expected, rows)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 16])
def test_rounds(device: torch.device, name: str, rows: int) -> None:
    """Rounds of fewer and fewer rows, of which all, some or none are accepted."""
    if rows > 4 and name != "2k4v":
        pytest.skip("the reference takes long")
    shape, slots = SHAPES[name], torch.tensor([5, 0, 2])
    ours, torchs, exact = three_rounds(shape, rows)
    accepted, found, theirs, expected = torch.tensor([0, 0, 0]), [], [], []
    for number, tokens in enumerate((rows, rows, max(1, rows // 2))):
        projected = normal(number, 3 * tokens, shape.projected_width)
        found.append(ours(projected.cuda(), slots.cuda(), accepted.cuda()))
        theirs.append(torchs(projected.cuda(), slots.cuda(), accepted.cuda()))
        expected.append(exact(projected.double(), slots, accepted))
        accepted = torch.tensor([tokens, (tokens + 1) // 2, 0])
    report(f"rounds of {rows} outputs", torch.cat(found), torch.cat(theirs), torch.cat(expected), 0)
    report(f"rounds of {rows} states", ours.run.recurrent, torchs.run.recurrent, exact.run.recurrent, 1e-6)
    assert torch.equal(ours.run.conv.cpu().double(), exact.run.conv)


def test_accepted_rows_are_steps(device: torch.device) -> None:
    """A round, a commit, and then tokens one by one, against nothing but tokens one by one."""
    shape, rows = SHAPES["16k48v"], 4
    ours, *_ = three_rounds(shape, rows)
    single = Run(DECODE, ours.run.weights, ours.run.conv.clone(), ours.run.recurrent.clone(), shape)
    slots, other = torch.tensor([4, 1], device=device), [0, 2, 3, 5]
    before = ours.run.recurrent.clone()
    projected = normal(0, 2 * rows, shape.projected_width).cuda()
    out = ours(projected, slots, torch.zeros(2, dtype=torch.int64, device=device))
    assert torch.equal(ours.run.recurrent, before)
    run = ours.committed(slots, torch.tensor([3, 1], device=device))
    singles = [single(projected[[t, rows + t]], slots) for t in range(1)]
    singles += [single(projected[t : t + 1], slots[:1]) for t in range(1, 3)]
    assert distance(out[[0, rows]], singles[0].double().cpu()) < 1e-3
    assert distance(out[1:3], torch.cat(singles[1:]).double().cpu()) < 1e-3
    assert distance(run.recurrent, single.recurrent.double().cpu()) < 1e-6
    assert torch.equal(run.conv[:, LAYER], single.conv[:, LAYER])
    assert torch.equal(run.recurrent[other], before[other])


def test_a_broken_sequence_leaves_the_others_of_a_round_alone(device: torch.device) -> None:
    ours, torchs, _ = three_rounds(SMALL, 4)
    slots, accepted = torch.tensor([2, 0, 4], device=device), torch.tensor([4, 3, 0], device=device)
    for rounds in (ours, torchs):
        rounds.run.recurrent[2] = torch.nan
        rounds(normal(0, 12, SMALL.projected_width).cuda(), slots, torch.zeros_like(accepted))
    projected = normal(1, 12, SMALL.projected_width).cuda()
    projected[8:] = torch.inf
    found, expected = ours(projected, slots, accepted), torchs(projected, slots, accepted)
    assert found[:4].isnan().all()
    assert found[8:].isnan().all()
    assert distance(found[4:8], expected[4:8].double().cpu()) < 3e-3
    assert ours.run.recurrent[[0, 1, 3, 4, 5]].isfinite().all()


def test_a_graph_replays_rounds(device: torch.device) -> None:
    """With other slots and other counts."""
    shape = SHAPES["16k48v"]
    first, second = three_rounds(shape, 4)[0], three_rounds(shape, 4)[0]
    slots, accepted = torch.tensor([1, 4], device=device), torch.tensor([0, 0], device=device)
    projected = normal(0, 8, shape.projected_width).cuda()
    for rounds in (first, second):
        rounds(projected, slots, accepted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = first(projected, slots, accepted)
    for token in range(4):
        projected.copy_(normal(token, 8, shape.projected_width))
        accepted.copy_(torch.tensor([token, 4 - token]))
        graph.replay()
        assert torch.equal(replayed, second(projected, slots, accepted))
    assert torch.equal(first.run.recurrent, second.run.recurrent)
    assert torch.equal(first.run.conv, second.run.conv)


def test_values_beyond_halves(device: torch.device) -> None:
    """Values and states of up to 1e9 in one head, to the end: what is smaller in a chunk is as exact as they are."""
    shape, projected = SMALL, normal(0, 300, SMALL.projected_width)
    projected[256:, 2 * shape.key_width : 2 * shape.key_width + 128] *= 1e9
    check_prefill(prefill_runs(shape), projected, "prefill of large values")


def test_torch_takes_other_head_sizes(device: torch.device) -> None:
    shape = GatedDeltaShape(key_heads=1, value_heads=3, key_dim=16, value_dim=16, conv_kernel=4)
    ours, torchs, _ = runs(shape, DECODE, torch_gated_delta.gated_delta_decode, reference.gated_delta_decode)
    projected, slots = normal(0, 1, shape.projected_width).cuda(), torch.tensor([3], device=device)
    assert torch.equal(ours(projected, slots), torchs(projected, slots))


def prefill_runs(shape: GatedDeltaShape) -> tuple[Run, Run, Run]:
    return runs(shape, PREFILL, torch_gated_delta.gated_delta_prefill, reference.gated_delta_prefill)


def check_prefill(all_three: tuple[Run, Run, Run], projected: Tensor, name: str) -> None:
    ours, torchs, exact = all_three
    slot = torch.tensor([4])
    found, theirs = (run(projected.cuda(), slot.cuda()) for run in (ours, torchs))
    report(f"{name} outputs", found, theirs, exact(projected.double(), slot), 0)
    report(f"{name} states", ours.recurrent, torchs.recurrent, exact.recurrent, STATE_IN_HALVES)
    assert torch.equal(ours.conv.cpu().double(), exact.conv)


@pytest.mark.parametrize("tokens", [2, 3, 23, 63, 64, 65, 130, 700])
def test_prefill(device: torch.device, tokens: int) -> None:
    check_prefill(prefill_runs(SMALL), normal(tokens, tokens, SMALL.projected_width), f"prefill {tokens}")


@pytest.mark.parametrize("name", ["16k32v", "16k48v"])
def test_prefill_of_many_heads(device: torch.device, name: str) -> None:
    check_prefill(prefill_runs(SHAPES[name]), normal(0, 100, SHAPES[name].projected_width), f"prefill {name}")


def test_prefill_continues(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of any size, and in several passes."""
    monkeypatch.setattr(gated_delta_ops, "SPAN_TOKENS", 128)
    all_three = prefill_runs(SMALL)
    for tokens in (5, 300, 1, 64):
        check_prefill(all_three, normal(tokens, tokens, SMALL.projected_width), f"prefill {tokens} more")


@pytest.mark.parametrize("scale", [30, 200])
def test_strong_and_weak_decay(device: torch.device, scale: int) -> None:
    projected = normal(0, 130, SMALL.projected_width)
    projected[:, -SMALL.value_heads :] *= scale
    check_prefill(prefill_runs(SMALL), projected, f"prefill with decays of {scale} times the logits")


@pytest.mark.parametrize("tokens", [64, 200])
def test_similar_keys_and_hardly_any_decay(device: torch.device, tokens: int) -> None:
    """The first tokens of a chunk count to its end."""
    projected = normal(0, tokens, SMALL.projected_width)
    projected[1:, : SMALL.conv_channels] += projected[:1, : SMALL.conv_channels]
    projected[:, -SMALL.value_heads :] -= 5
    check_prefill(prefill_runs(SMALL), projected, f"prefill {tokens} with similar keys")


def test_equal_keys(device: torch.device) -> None:
    """The system of a chunk is as far from the identity as it gets."""
    projected = normal(0, 1, SMALL.projected_width).expand(130, -1).contiguous()
    check_prefill(prefill_runs(SMALL), projected, "prefill of one token again and again")


def test_a_long_prefill_agrees_with_torch(device: torch.device) -> None:
    shape = SHAPES["16k48v"]
    ours, torchs, _ = prefill_runs(shape)
    projected, slot = normal(0, 5000, shape.projected_width).cuda(), torch.tensor([1], device=device)
    found, expected = ours(projected, slot), torchs(projected, slot)
    print(f"prefill 5000: outputs {distance(found, expected.double().cpu()):.1e}", end=", ")
    print(f"states {distance(ours.recurrent, torchs.recurrent.double().cpu()):.1e} from torch's")
    assert distance(found, expected.double().cpu()) < 3e-3
    assert distance(ours.recurrent, torchs.recurrent.double().cpu()) < STATE_IN_HALVES
    assert torch.equal(ours.conv, torchs.conv)


def test_prefill_neither_waits_nor_varies(device: torch.device) -> None:
    shape = SHAPES["16k48v"]
    first, second, _ = runs(shape, PREFILL, PREFILL, reference.gated_delta_prefill)
    projected, slot = normal(0, 200, shape.projected_width).cuda(), torch.tensor([2], device=device)
    first(projected, slot)
    second(projected, slot)
    torch.cuda.set_sync_debug_mode("error")
    try:
        first(projected, slot)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    second(projected, slot)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = first(projected, slot)
    for _ in range(5):
        graph.replay()
        assert torch.equal(replayed, second(projected, slot))
    assert torch.equal(first.recurrent, second.recurrent)


def test_prefill_touches_no_other_sequence(device: torch.device) -> None:
    ours, _, _ = prefill_runs(SMALL)
    ours.recurrent[2] = torch.nan
    before = ours.recurrent.clone()
    projected = normal(0, 70, SMALL.projected_width).cuda()
    assert ours(projected, torch.tensor([2], device=device)).isnan().all()
    assert ours(projected, torch.tensor([3], device=device)).isfinite().all()
    assert torch.equal(ours.recurrent[[0, 1, 4, 5]], before[[0, 1, 4, 5]])
    assert torch.equal(ours.recurrent[:, 1 - LAYER].nan_to_num(7), before[:, 1 - LAYER].nan_to_num(7))

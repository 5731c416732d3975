"""The sampler against float64 formulas, hand-computed penalties, and its independence of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from ninferd.engine.messages import SamplingParams, TokenLogprobs
from ninferd.engine.sampler import Sampled, Sampler

CPU = torch.device("cpu")
NO_PROMPT = np.array([0], np.int64)


def _sampler(params: list[SamplingParams], vocab: int, prompt: npt.NDArray[np.int64] = NO_PROMPT) -> Sampler:
    sampler = Sampler(len(params), vocab, CPU)
    for row, each in enumerate(params):
        sampler.start(row, each, prompt)
    return sampler


def _sample(sampler: Sampler, logits: torch.Tensor, rows: Sequence[int]) -> Sampled:
    return sampler.sample(sampler.rank(logits, sampler.prepare(rows)), rows)


def _distribution(logits: list[float], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Textbook definition: temperature, then top-k, top-p and min-p, each renormalising; no ties in the input."""
    scaled = np.array(logits, np.float64) / params.temperature
    probabilities = np.exp(scaled - scaled.max())
    order = np.argsort(-scaled)
    kept = list(order[: params.top_k] if params.top_k else order)
    probabilities = _renormalised(probabilities, kept)
    if params.top_p < 1.0:
        mass, nucleus = 0.0, []
        for token in kept:
            nucleus.append(token)
            mass += probabilities[token]
            if mass >= params.top_p:
                break
        kept = nucleus
        probabilities = _renormalised(probabilities, kept)
    kept = [token for token in kept if probabilities[token] >= params.min_p * probabilities.max()]
    return _renormalised(probabilities, kept)


def _renormalised(values: npt.NDArray[np.float64], kept: list[int]) -> npt.NDArray[np.float64]:
    result = np.zeros_like(values)
    result[kept] = values[kept] / values[kept].sum()
    return result


def _counts(logits: list[float], params: SamplingParams, *, lanes: int = 250, steps: int = 40) -> npt.NDArray[np.int64]:
    """How often each token is drawn over lanes x steps (seed, index) pairs."""
    sampler = _sampler([msgspec.structs.replace(params, seed=seed) for seed in range(lanes)], len(logits))
    batch = torch.tensor([logits] * lanes)
    drawn = [_sample(sampler, batch, range(lanes)).tokens for _ in range(steps)]
    return np.bincount(np.array(drawn).ravel(), minlength=len(logits))


LOGITS = [2.0, 1.5, 1.0, 0.9, 0.0, -0.5, -1.0, 0.4, 1.2, -3.0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=0),
        SamplingParams(seed=0, temperature=0.5),
        SamplingParams(seed=0, temperature=2.0),
        SamplingParams(seed=0, top_k=3),
        SamplingParams(seed=0, top_k=10),
        SamplingParams(seed=0, top_k=50),
        SamplingParams(seed=0, top_p=0.6),
        SamplingParams(seed=0, top_p=0.999),
        SamplingParams(seed=0, min_p=0.3),
        SamplingParams(seed=0, temperature=0.7, top_k=6, top_p=0.8, min_p=0.2),
        SamplingParams(seed=0, temperature=1.3, top_k=4, top_p=0.9),
    ],
    ids=lambda p: f"T{p.temperature}-k{p.top_k}-p{p.top_p}-m{p.min_p}",
)
def test_draws_follow_the_formula(params: SamplingParams) -> None:
    expected = _distribution(LOGITS, params)
    counts = _counts(LOGITS, params)
    assert (counts[expected == 0.0] == 0).all()
    support = expected > 0.0
    wanted = expected[support] * counts.sum()
    chi_square = float((((counts[support] - wanted) ** 2) / wanted).sum())
    freedom = int(support.sum()) - 1
    assert chi_square <= freedom + 5.0 * math.sqrt(2.0 * freedom) + 5.0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=3, temperature=0.0),
        SamplingParams(seed=3, top_k=1),
        SamplingParams(seed=3, top_p=0.0),
        SamplingParams(seed=3, top_p=1e-9),
        SamplingParams(seed=3, min_p=1.0),
        SamplingParams(seed=3, temperature=1e-30),
    ],
    ids=["greedy", "k1", "p0", "p-tiny", "m1", "cold"],
)
def test_degenerate_settings_are_the_argmax(params: SamplingParams) -> None:
    sampler = _sampler([params], len(LOGITS))
    drawn = {_sample(sampler, torch.tensor([LOGITS]), [0]).tokens[0] for _ in range(50)}
    assert drawn == {0}


def test_greedy_takes_the_first_of_equals() -> None:
    sampler = _sampler([SamplingParams(seed=0, temperature=0.0)], 5)
    assert _sample(sampler, torch.tensor([[1.0, 4.0, 4.0, 0.0, 4.0]]), [0]).tokens == [1]


def test_equal_logits_stay_together_under_top_k_and_top_p() -> None:
    flat = [0.0, 5.0, 5.0, 5.0, 0.0]
    for params in (SamplingParams(seed=0, top_k=2), SamplingParams(seed=0, top_p=0.4)):
        assert (_counts(flat, params, steps=4) > 0).tolist() == [False, True, True, True, False]


def test_masked_tokens_are_never_drawn() -> None:
    logits = [float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]
    for params in (SamplingParams(seed=0), SamplingParams(seed=0, top_k=4, top_p=0.99, min_p=0.01)):
        assert (_counts(logits, params, steps=4) > 0).tolist() == [False, True, False, True, False]


def test_top_p_beyond_the_sorted_prefix() -> None:
    """1000 nearly equal tokens: half the mass needs about 500 of them, more than the candidates sorted first."""
    logits = [-index * 1e-4 for index in range(1000)]
    expected = _distribution(logits, SamplingParams(seed=0, top_p=0.5))
    counts = _counts(logits, SamplingParams(seed=0, top_p=0.5))
    assert counts[expected == 0.0].sum() == 0
    assert abs(int((counts > 0).sum()) - int((expected > 0).sum())) <= 2  # 10 000 draws of 488 tokens miss none


def test_draws_do_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, 6, 300, generator=generator) * 2
    params = [
        SamplingParams(seed=7, temperature=0.8, top_k=20, top_p=0.9),
        SamplingParams(seed=7, temperature=0.8, min_p=0.05),
        SamplingParams(seed=8, temperature=0.0),
        SamplingParams(seed=-1, temperature=1.5, presence_penalty=1.0, top_logprobs=3),
        SamplingParams(seed=2**64 - 1, top_p=0.5, repetition_penalty=1.3),
        SamplingParams(seed=9, temperature=0.0, frequency_penalty=0.4),
    ]
    together = _sampler(params, 300)
    batched = [_sample(together, step, range(6)) for step in logits]
    for row, each in enumerate(params):
        alone = _sampler([each], 300)
        for step, result in zip(logits, batched, strict=True):
            solo = _sample(alone, step[row : row + 1], [0])
            assert solo.tokens[0] == result.tokens[row]
            assert solo.logprobs[0] == result.logprobs[row]
    shuffled = _sampler(params[::-1], 300)
    for step, result in zip(logits, batched, strict=True):
        order = [4, 1, 0, 5, 3, 2]
        mixed = _sample(shuffled, step.flip(0)[order], order)
        assert mixed.tokens == [result.tokens[5 - row] for row in order]


def test_seeds_and_token_indices_give_different_draws() -> None:
    logits = torch.zeros(1, 10_000)
    one, other = (_sampler([SamplingParams(seed=seed)], 10_000) for seed in (1, 2))
    first = [_sample(one, logits, [0]).tokens[0] for _ in range(20)]
    second = [_sample(other, logits, [0]).tokens[0] for _ in range(20)]
    assert len({*first, *second}) >= 38
    again = _sampler([SamplingParams(seed=1)], 10_000)
    assert [_sample(again, logits, [0]).tokens[0] for _ in range(20)] == first


def test_negative_seeds_are_unsigned_64_bit() -> None:
    logits = torch.zeros(1, 10_000)
    negative = _sample(_sampler([SamplingParams(seed=-1)], 10_000), logits, [0])
    unsigned = _sample(_sampler([SamplingParams(seed=2**64 - 1)], 10_000), logits, [0])
    assert negative == unsigned


@pytest.mark.parametrize(
    ("strengths", "expected"),
    [
        # prompt 0, 1; generated 1, 2, 2 in this order when each step's logits favour them
        ({"presence_penalty": 1.0}, [10.0, -10.0 - 1.0, 8.0 - 1.0, 4.0]),
        ({"frequency_penalty": 0.5}, [10.0, -10.0 - 0.5, 8.0 - 1.0, 4.0]),
        ({"repetition_penalty": 2.0}, [5.0, -20.0, 4.0, 4.0]),
        (
            {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 2.0},
            [5.0, -20.0 - 1.5, 4.0 - 2.0, 4.0],
        ),
        ({"presence_penalty": -2.0, "repetition_penalty": 0.5}, [20.0, -5.0 + 2.0, 16.0 + 2.0, 4.0]),
    ],
    ids=["presence", "frequency", "repetition", "all", "rewards"],
)
def test_penalties_by_hand(strengths: dict[str, float], expected: list[float]) -> None:
    """The penalised logits are read off through which added constant makes another token win."""
    logits = [10.0, -10.0, 8.0, 4.0]
    params = msgspec.structs.replace(SamplingParams(seed=0, temperature=0.0), **strengths)
    for token, value in enumerate(expected):
        for rival, rival_value in enumerate(expected):
            if rival == token:
                continue
            sampler = _sampler([params], 5, np.array([0, 1]))
            for forced in (1, 2, 2):
                row = [-1000.0] * 5
                row[forced] = 1000.0
                assert _sample(sampler, torch.tensor([row]), [0]).tokens == [forced]
            probe = [-1000.0] * 5
            probe[token], probe[rival] = logits[token], logits[rival]
            winner = _sample(sampler, torch.tensor([probe]), [0]).tokens[0]
            assert winner == (token if value > rival_value or (value == rival_value and token < rival) else rival)


@pytest.mark.parametrize("penalty", [1e-30, 1e-40, 1e-310])
def test_a_penalty_near_zero_draws_among_the_seen_tokens(penalty: float) -> None:
    """Their logits overflow float32; what is drawn must still be one of them."""
    sampler = _sampler([SamplingParams(seed=0, repetition_penalty=penalty)], 4, np.array([1, 2]))
    logits = torch.tensor([[3.0, 1.0, 2.0, 4.0]])
    assert {_sample(sampler, logits, [0]).tokens[0] for _ in range(30)} <= {1, 2}


def test_a_lane_starts_clean_after_another_request() -> None:
    params = SamplingParams(seed=0, temperature=0.0, presence_penalty=2.0, repetition_penalty=2.0)
    sampler = _sampler([params], 3, np.array([2]))
    assert _sample(sampler, torch.tensor([[2.0, 1.5, 1.0]]), [0]).tokens == [0]
    assert _sample(sampler, torch.tensor([[2.0, 1.5, 1.0]]), [0]).tokens == [1]
    sampler.stop(0)
    sampler.start(0, params, np.array([1]))
    assert _sample(sampler, torch.tensor([[2.0, 1.5, 1.6]]), [0]).tokens == [0]


def test_logprobs_are_after_temperature_before_truncation_and_penalties() -> None:
    params = SamplingParams(seed=0, temperature=0.5, top_k=1, presence_penalty=2.0, top_logprobs=3)
    sampler = _sampler([params], len(LOGITS))
    scaled = np.array(LOGITS, np.float64) / 0.5
    log_p = scaled - math.log(np.exp(scaled).sum())
    for _ in range(2):
        sampled = _sample(sampler, torch.tensor([LOGITS]), [0])
        logprobs = sampled.logprobs[0]
        assert isinstance(logprobs, TokenLogprobs)
        assert logprobs.chosen.token_id == sampled.tokens[0]
        assert logprobs.chosen.logprob == pytest.approx(log_p[sampled.tokens[0]], abs=1e-6)
        assert [top.token_id for top in logprobs.top] == [0, 1, 8]
        assert [top.logprob for top in logprobs.top] == pytest.approx(log_p[[0, 1, 8]], abs=1e-6)


@pytest.mark.parametrize(("wanted", "given"), [(0, 0), (100, 10)])
def test_number_of_top_logprobs(wanted: int, given: int) -> None:
    sampler = _sampler([SamplingParams(seed=0, temperature=0.0, top_logprobs=wanted)], len(LOGITS))
    logprobs = _sample(sampler, torch.tensor([LOGITS]), [0]).logprobs[0]
    assert logprobs is not None
    assert len(logprobs.top) == given


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_invalid_logits_spoil_their_own_row_only(bad: float, temperature: float) -> None:
    params = [SamplingParams(seed=4, temperature=temperature, top_k=5, top_p=0.9, min_p=0.01)] * 3
    logits = torch.tensor([LOGITS] * 3)
    clean = _sample(_sampler(params, len(LOGITS)), logits, range(3))
    logits[1, 4] = bad
    spoiled = _sample(_sampler(params, len(LOGITS)), logits, range(3))
    assert spoiled.usable == [True, False, True]
    assert [spoiled.tokens[row] for row in (0, 2)] == [clean.tokens[row] for row in (0, 2)]
    assert 0 <= spoiled.tokens[1] < len(LOGITS)


def test_all_masked_logits_are_not_usable() -> None:
    sampler = _sampler([SamplingParams(seed=0, temperature=0.0)], 3)
    assert _sample(sampler, torch.full((1, 3), float("-inf")), [0]).usable == [False]


def test_the_models_logits_are_left_as_they_are() -> None:
    params = SamplingParams(seed=0, top_k=2, presence_penalty=1.0, repetition_penalty=1.5)
    logits = torch.tensor([LOGITS])
    sampler = _sampler([params], len(LOGITS))
    _sample(sampler, logits, [0])
    _sample(sampler, logits, [0])
    assert torch.equal(logits, torch.tensor([LOGITS]))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=3, temperature=0.0),
        SamplingParams(seed=3, temperature=1.3),
        SamplingParams(seed=3, temperature=1.3, top_k=2, top_p=0.9),
        SamplingParams(seed=3, temperature=0.7, presence_penalty=1.0, repetition_penalty=1.2, top_logprobs=9),
    ],
    ids=["greedy", "drawn", "truncated", "penalised-with-logprobs"],
)
@pytest.mark.parametrize("padding", [50.0, float("nan")])
def test_padding_rows_of_the_head_do_not_exist(params: SamplingParams, padding: float) -> None:
    """Whatever a model says of ids that are no tokens: results are those of logits without them, bit for bit."""
    real = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    padded = torch.cat([real, torch.full((2, 3), padding)], dim=1)
    narrow, wide = _sampler([params] * 2, 5), _sampler([params] * 2, 5)
    for _ in range(20):
        sampled = _sample(wide, padded, range(2))
        assert sampled == _sample(narrow, real, range(2))
        assert all(sampled.usable)
        assert max(sampled.tokens) < 5


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 8.0], ids="spread={}".format)
@pytest.mark.parametrize("penalties", [False, True], ids=["without penalties", "with penalties"])
def test_drawing_before_the_host_looks_changes_nothing(spread: float, penalties: bool) -> None:
    """Prepared draws against those that the host directs, also where a few candidates do not settle a truncation."""
    params = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.0, top_k=3),
        SamplingParams(seed=3, temperature=0.6, top_p=0.95, top_k=20),
        SamplingParams(seed=4, temperature=1.2, top_k=60),
        SamplingParams(seed=5, top_p=0.999, top_logprobs=1),
        SamplingParams(seed=6, min_p=0.2),
        SamplingParams(seed=7, top_k=5, presence_penalty=0.9, frequency_penalty=0.3),
        SamplingParams(seed=8, temperature=0.0, repetition_penalty=1.7),
        SamplingParams(seed=9, temperature=0.9, top_p=0.9, repetition_penalty=0.6, top_logprobs=2),
    ]
    params = params if penalties else params[:6]
    generator = torch.Generator().manual_seed(0)
    prepared, directed = _sampler(params, 1000), _sampler(params, 1000)
    lanes = [4, 0, 1, 5, 3, 2, *([8, 6, 7] if penalties else [])]
    certain = []
    for _ in range(30):
        logits = spread * torch.randn(1, 1000, generator=generator).repeat(len(params), 1)
        ranked = prepared.rank(logits, prepared.prepare(lanes))
        certain.append(bool(ranked.answer[2].all()))
        found = prepared.sample(ranked, lanes)
        assert found.as_ranked == certain[-1]
        assert replace(found, as_ranked=False) == directed.sample(directed.rank(logits), lanes)
    assert any(certain) == (spread == 8.0)


def test_what_is_prepared() -> None:
    params = [
        SamplingParams(seed=0, temperature=0.0),
        SamplingParams(seed=1),
        SamplingParams(seed=2, presence_penalty=1.0),
    ]
    sampler = _sampler(params, 5)
    prepared = [sampler.prepare(rows) for rows in ([0], [1], [0, 1], [2], [1, 2], [0, 2])]
    assert prepared == [(False, False), (True, False), (True, False), (True, True), (True, True), (True, True)]


def test_draws_ahead_are_those_of_the_round_after() -> None:
    params = [SamplingParams(seed=1), SamplingParams(seed=2, temperature=0.5, top_k=3)]
    logits = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(0))
    early, late = _sampler(params, 50), _sampler(params, 50)
    prepared = early.prepare([0, 1])
    for each in logits:
        ranked = early.rank(each, prepared)
        prepared = early.prepare([0, 1], ahead=1)
        assert early.sample(ranked, [0, 1]) == late.sample(late.rank(each, late.prepare([0, 1])), [0, 1])

from __future__ import annotations

from typing import Any

import pytest

from ninferd.chat.errors import FrontendError, SamplingError
from ninferd.chat.sampling import SamplerFields, merge_sampling, presets_of
from ninferd.engine.messages import SamplingParams
from tests.support.frontends import make_settings

DENSE = presets_of({"text_config": {"hidden_size": 5120, "num_hidden_layers": 64}}, {})
MOE = presets_of({"text_config": {"hidden_size": 2048, "num_hidden_layers": 40, "num_experts": 256}}, {})
UNASKED = SamplerFields()


def merge(asked: SamplerFields = UNASKED, *, thinking: bool = True, **server: Any) -> SamplingParams:
    return merge_sampling(DENSE, make_settings(sampling=server), asked, thinking=thinking, seed=7)


@pytest.mark.parametrize(
    ("presets", "thinking", "expected"),
    [
        pytest.param(DENSE, True, (1.0, 0.95, 20, 0.0, 0.0, 0.0), id="dense thinking"),
        pytest.param(DENSE, False, (0.7, 0.80, 20, 0.0, 1.5, 0.0), id="dense non-thinking"),
        pytest.param(MOE, True, (1.0, 0.95, 20, 0.0, 1.5, 0.0), id="moe thinking"),
        pytest.param(MOE, False, (0.7, 0.80, 20, 0.0, 1.5, 0.0), id="moe non-thinking"),
    ],
)
def test_presets_of_the_family(presets: Any, thinking: bool, expected: tuple[float, ...]) -> None:
    params = merge_sampling(presets, make_settings(), SamplerFields(), thinking=thinking, seed=0)
    assert expected == (
        params.temperature,
        params.top_p,
        params.top_k,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
    )


def test_other_models_are_sampled_as_their_generation_config_says() -> None:
    presets = presets_of({"hidden_size": 256}, {"temperature": 0.3, "top_k": 50, "max_length": 9, "do_sample": True})
    assert presets.thinking == presets.non_thinking == SamplerFields(0.3, 1.0, 20, 0.0, 0.0, 0.0, 1.0)


def test_greedy_generation_config() -> None:
    assert presets_of({}, {"do_sample": False, "temperature": 0.9}).thinking.temperature == 0.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"temperature": "0.6"}, "temperature is '0.6', a number"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": True}, "top_p is True"),
        ({"temperature": 5}, "temperature is 5; 0 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ],
)
def test_unusable_generation_config(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        presets_of({}, config)


def test_request_wins_over_server_wins_over_preset() -> None:
    merged = merge(SamplerFields(temperature=0.1), temperature=0.5, top_p=0.4)
    assert (merged.temperature, merged.top_p, merged.top_k) == (0.1, 0.4, 20)


def test_explicit_zero_is_a_value() -> None:
    assert merge(SamplerFields(temperature=0.0), temperature=0.5).temperature == 0.0


def test_greedy_has_the_last_word() -> None:
    assert merge(SamplerFields(temperature=1.5), greedy=True).temperature == 0.0


def test_top_k_zero_is_the_cap() -> None:
    assert merge(SamplerFields(top_k=0)).top_k == 20


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_p", -1.0),
        ("top_k", 21),
        ("top_k", -1),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", float("inf")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 2.5),
    ],
)
def test_out_of_range(field: str, value: float) -> None:
    asked: dict[str, Any] = {field: value}
    with pytest.raises(SamplingError) as caught:
        merge(SamplerFields(**asked))
    assert caught.value.field == field


@pytest.mark.parametrize(("asked", "seed"), [(5, 5), (0, 0), (-1, 2**64 - 1), (2**64 + 3, 3)])
def test_seed_is_read_as_unsigned_64_bit(asked: int, seed: int) -> None:
    assert merge_sampling(DENSE, make_settings(), SamplerFields(), thinking=True, seed=asked).seed == seed


def test_seed_of_the_server_and_random_seeds() -> None:
    def seed(**server: int) -> int:
        return merge_sampling(DENSE, make_settings(sampling=server), SamplerFields(), thinking=True, seed=None).seed

    assert seed(seed=11) == 11
    assert len({seed() for _ in range(10)}) == 10

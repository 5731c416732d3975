"""Sampler values of one request: model preset, then server override, then the request's own fields."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ninferd.chat.errors import FrontendError, SamplingError
from ninferd.config.schema import Settings
from ninferd.engine.messages import SamplingParams

TOP_K_CAP = 20
MAX_REPETITION_PENALTY = 2.0
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class SamplerFields:
    """One layer of sampler values; None leaves the layer below."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None

    def over(self, lower: SamplerFields) -> SamplerFields:
        given = {entry.name: value for entry in fields(self) if (value := getattr(self, entry.name)) is not None}
        return replace(lower, **given)


NEUTRAL = SamplerFields(1.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0)

_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, TOP_K_CAP),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


@dataclass(frozen=True)
class SamplingPresets:
    """What the model's makers recommend, per thinking mode."""

    thinking: SamplerFields
    non_thinking: SamplerFields


_NON_THINKING = SamplerFields(temperature=0.7, top_p=0.80, top_k=20, min_p=0.0, presence_penalty=1.5)
_DENSE_27B = SamplingPresets(SamplerFields(1.0, 0.95, 20, 0.0, 0.0), _NON_THINKING)
_MOE_35B_A3B = SamplingPresets(SamplerFields(1.0, 0.95, 20, 0.0, 1.5), _NON_THINKING)
_BY_SHAPE: Mapping[tuple[Any, Any, Any], SamplingPresets] = {  # hidden size, layers, experts
    (5120, 64, 0): _DENSE_27B,
    (2048, 40, 256): _MOE_35B_A3B,
}


def presets_of(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> SamplingPresets:
    """Presets of a model directory.

    The two large models of the family are known by their shape and get their makers' values for both modes; any other
    model is sampled in both modes as its ``generation_config.json`` says. Raises FrontendError for values there that
    cannot be.
    """
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    shape = (text.get("hidden_size"), text.get("num_hidden_layers"), text.get("num_experts") or 0)
    if shape in _BY_SHAPE:
        return _BY_SHAPE[shape]
    names = {entry.name for entry in fields(SamplerFields)}
    own = {name: value for name, value in generation_config.items() if name in names and value is not None}
    for name, value in own.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else (int, float)):
            raise FrontendError(f"generation_config.json: {name} is {value!r}, a number is needed")
    if "top_k" in own:
        own["top_k"] = min(own["top_k"], TOP_K_CAP)
    if generation_config.get("do_sample") is False:
        own["temperature"] = 0.0
    preset = SamplerFields(**own).over(NEUTRAL)
    try:
        _check_ranges(preset)
    except SamplingError as error:
        raise FrontendError(f"generation_config.json: {error}") from error
    return SamplingPresets(preset, preset)


def merge_sampling(
    presets: SamplingPresets,
    settings: Settings,
    asked: SamplerFields,
    *,
    thinking: bool,
    seed: int | None,
    top_logprobs: int | None = None,
) -> SamplingParams:
    """Sampling of one request; raises SamplingError for a value out of range.

    ``top_k`` 0 means the cap of 20. A negative seed is read as unsigned 64-bit; without any seed each request gets a
    random one.
    """
    server = settings.sampling
    override = SamplerFields(
        server.temperature,
        server.top_p,
        server.top_k,
        server.min_p,
        server.presence_penalty,
        server.frequency_penalty,
    )
    preset = presets.thinking if thinking else presets.non_thinking
    merged = asked.over(override).over(preset).over(NEUTRAL)
    _check_ranges(merged)
    values = {entry.name: getattr(merged, entry.name) for entry in fields(merged)}
    values["top_k"] = values["top_k"] or TOP_K_CAP
    if server.greedy:
        values["temperature"] = 0.0
    if seed is None:
        seed = server.seed if server.seed is not None else secrets.randbits(64)
    return SamplingParams(seed=seed & _SEED_MASK, top_logprobs=top_logprobs, **values)


def _check_ranges(sampler: SamplerFields) -> None:
    for name, (low, high) in _RANGES.items():
        value: float = getattr(sampler, name)
        if not (math.isfinite(value) and low <= value <= high):
            raise SamplingError(name, f"is {value}; {low:g} to {high:g} are possible")
    penalty = sampler.repetition_penalty
    if penalty is not None and not (math.isfinite(penalty) and 0.0 < penalty <= MAX_REPETITION_PENALTY):
        raise SamplingError("repetition_penalty", f"is {penalty}; above 0 and up to {MAX_REPETITION_PENALTY:g} fits")

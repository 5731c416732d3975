"""Tables of the model's face: artifact, template, thinking, tools, sampling."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from ninferd.config.field import SHA256_PATTERN, PathText, PathValue, Table, key

WeightsProfile = Literal[
    "auto",
    "bf16",
    "qwen36-groupwise-int",
    "qwen36-moe-groupwise-int",
    "qwen36-moe-nvfp4",
    "qwen36-nvfp4",
    "qwen38-groupwise-int",
    "qwen38-nvfp4",
    "qwen38-nvfp4-mlp",
]
ReasoningEffort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]


class ModelSettings(Table):
    """What is served."""

    artifact: PathText = key(
        ...,
        "Model to serve: a .ninfer file, a Hugging Face directory, or embedded:ninfer-tiny, the small model that ships "
        "with ninferd (embedded:ninfer-tiny-bf16 is the same before quantisation).",
        reload="engine",
        min_length=1,
    )
    id: str | None = key(
        None,
        "Public model name. Unset: the artifact's own name. Clients cache it.",
        reload="engine",
        flag="--model-id",
        min_length=1,
    )
    weights_profile: WeightsProfile = key(
        "auto",
        "Refuse the model unless its weights are stored in this combination of formats; preflight prints the name. "
        "Changes nothing about how they are read: every tensor says its own format.",
        reload="engine",
        flag="--weights-profile",
    )
    verify_hash: bool = key(
        False,
        "Read the model's files once before loading and compare their SHA-256 with FILE.sha256 or SHA256SUMS beside "
        "them; refuse the model if there is neither. Not needed with model.sha256, which is always compared.",
        reload="engine",
    )
    sha256: str | None = key(
        None,
        "SHA-256 that the .ninfer file must have; the file is read once before loading to compare it. Parts of a split "
        "artifact are compared with FILE.sha256 or SHA256SUMS beside it, which must list them.",
        reload="engine",
        pattern=SHA256_PATTERN,
    )


class TemplateSettings(Table):
    """How messages become a prompt."""

    file: PathValue | None = key(
        None,
        "Jinja chat template used instead of the artifact's own; UTF-8, at most 16 MiB. Read again on every reload, "
        "compiled and rendered once before it replaces the old one.",
        reload="live",
        flag="--chat-template",
    )
    normalize: bool = key(
        True,
        "Repair message orders that the template refuses: merge leading system turns, move later ones.",
        reload="live",
    )
    strip_billing_header: bool = key(
        True,
        "Drop the changing billing line that Claude Code puts before its system prompt; it would defeat prefix reuse.",
        reload="live",
    )
    drop_reasoning: Literal["closed", "all"] = key(
        "closed",
        "Which reasoning of past turns to drop when the template does not preserve it.",
        reload="live",
    )
    recover_reasoning: bool = key(
        True, "Put back reasoning that a client dropped from the history, where it is still known.", reload="live"
    )
    kwargs: dict[str, JsonValue] = key({}, "Default chat_template_kwargs; a request's own win per name.", reload="live")


class ThinkingSettings(Table):
    """Reasoning before the answer."""

    enabled: bool = key(True, "Think unless a request says otherwise.", reload="live", flag="--thinking")
    preserve: bool = key(
        False,
        "Keep the reasoning of past turns in the prompt. A change is one prefix miss per conversation.",
        reload="live",
        flag="--preserve-thinking",
    )
    default_budget: int | None = key(
        None,
        "Reasoning tokens after which thinking is closed, for requests that set none. Unset: no budget.",
        reload="live",
        unit="tokens",
        flag="--default-thinking-budget",
        ge=1,
        le=8_388_608,
    )
    default_effort: ReasoningEffort | None = key(
        None,
        "Reasoning effort told to the template by default. Unset: the template's own default.",
        reload="live",
        flag="--reasoning-effort",
    )
    on_capacity: Literal["clamp", "reject"] = key(
        "clamp",
        "What to do with a thinking budget that does not fit the output limit: lower it, or refuse the request.",
        reload="live",
    )


class ToolsSettings(Table):
    """Reading tool calls out of generated text."""

    tolerant: bool = key(
        False,
        "Recover tool calls that are almost well formed.",
        reload="live",
        flag="--tolerant-tool-calls",
    )
    stream: Literal["final", "call", "incremental"] = key(
        "call",
        "When a stream carries tool calls: all at the end, each when complete, or argument by argument.",
        reload="live",
    )
    json_body: bool = key(True, "Tolerant parsing also reads JSON bodies inside <tool_call>.", reload="live")
    foreign_tags: bool = key(False, "Tolerant parsing also reads other models' call tags.", reload="live")
    report_malformed: bool = key(
        False, "Report a call that cannot be read to the client instead of showing it as text.", reload="live"
    )
    constraints: Literal["off", "auto", "basic"] = key(
        "off", "Constrain generation to well-formed tool calls.", reload="live"
    )


class PostThinkingSettings(Table):
    """Sampler after the end of thinking; what is unset stays as before it."""

    temperature: float | None = key(None, "Softmax temperature; 0 is greedy.", reload="live", ge=0, le=2)
    top_p: float | None = key(None, "Nucleus mass.", reload="live", ge=0, le=1)
    top_k: int | None = key(None, "Candidates; 0 is the cap of 20.", reload="live", ge=0, le=20)
    min_p: float | None = key(None, "Least probability relative to the best.", reload="live", ge=0, le=1)
    presence_penalty: float | None = key(None, "Subtracted once per token seen.", reload="live", ge=-2, le=2)
    frequency_penalty: float | None = key(None, "Subtracted per occurrence.", reload="live", ge=-2, le=2)


class SamplingSettings(Table):
    """Overrides of the model's sampling preset; a request's own fields win."""

    temperature: float | None = key(
        None, "Softmax temperature; 0 is greedy.", reload="live", flag="--temperature", ge=0, le=2
    )
    top_p: float | None = key(None, "Nucleus mass.", reload="live", flag="--top-p", ge=0, le=1)
    top_k: int | None = key(None, "Candidates; 0 is the cap of 20.", reload="live", flag="--top-k", ge=0, le=20)
    min_p: float | None = key(
        None, "Least probability relative to the best.", reload="live", flag="--min-p", ge=0, le=1
    )
    presence_penalty: float | None = key(
        None, "Subtracted once per token seen.", reload="live", flag="--presence-penalty", ge=-2, le=2
    )
    frequency_penalty: float | None = key(
        None, "Subtracted per occurrence.", reload="live", flag="--frequency-penalty", ge=-2, le=2
    )
    seed: int | None = key(
        None, "Seed of requests that name none. Unset: random each.", reload="live", flag="--seed", ge=0, le=2**64 - 1
    )
    greedy: bool = key(False, "Temperature 0 for every request, whatever it asks for.", reload="live", flag="--greedy")
    post_thinking: PostThinkingSettings = PostThinkingSettings()

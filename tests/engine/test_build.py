"""From settings to a serving engine over real (random) weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ninferd.config.schema import Settings
from ninferd.engine.build import build_engine, match_threads, resolve_device, resolve_dtype
from ninferd.engine.engine import Engine
from ninferd.engine.messages import (
    GenerationRequest,
    LoadProgress,
    PromptIdentity,
    RequestFinished,
    SamplingParams,
    TokensGenerated,
)
from ninferd.errors import InputError
from ninferd.memory.errors import CapacityError

CPU = torch.device("cpu")


def _quietly(settings: Settings) -> Engine:
    return build_engine(settings, lambda _progress: None)


def _changed(settings: Settings, **engine: Any) -> Settings:
    tables = settings.model_dump(include={"model", "engine"})
    tables["engine"] |= engine
    return Settings.model_validate(tables)


def _prompt(length: int, salt: int) -> list[int]:
    generator = torch.Generator().manual_seed(salt)
    return torch.randint(0, 512, (length,), generator=generator).tolist()


def _generate(
    engine: Engine, requests: list[GenerationRequest], *, cancel: tuple[str, ...] = ()
) -> dict[str, list[int]]:
    """Tokens of every finished request; those in ``cancel`` are cancelled at their third token."""
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokensGenerated):
                tokens[event.request_id] += event.token_ids
                if event.request_id in cancel and len(tokens[event.request_id]) == 3:
                    engine.cancel(event.request_id)
            elif isinstance(event, RequestFinished) and event.reason == "cancelled":
                del tokens[event.request_id]
        engine.check()
    return tokens


def test_info_and_progress(settings: Settings) -> None:
    progress: list[LoadProgress] = []
    engine = build_engine(settings, progress.append)
    info = engine.info
    assert (info.model_name, info.architecture, info.device) == ("tiny", "qwen3_5_text", "cpu")
    assert (info.weights_dtype, info.kv_dtype) == ("float32", "fp32")
    assert (info.vocab_size, info.max_context, info.max_concurrency, info.state_slots) == (512, 512, 4, 4)
    assert (info.kv_capacity_tokens, info.page_tokens) == (1024, 64)
    assert info.kv_bytes == 1024 * 2 * 2 * 32 * 4  # tokens, K and V, kv heads, head dim, float32
    assert info.state_bytes == 4 * 3 * (160 * 3 + 6 * 16 * 16) * 4  # slots, layers, (conv + recurrent), float32
    assert [each.stage for each in progress if each.stage != "weights"] == ["caches", "caches", "probe"]
    assert progress[0].stage == "weights"
    assert info.load_seconds > 0
    stats = engine.stats()
    assert (stats.steps, stats.pages_used, stats.pages_total) == (0, 0, 16)


def test_eight_clients_with_two_that_leave_equal_their_solo_runs(settings: Settings) -> None:
    """Greedy and sampled; prompts shorter and longer than a chunk; more clients than lanes."""
    engine = _quietly(settings)
    samplings = (SamplingParams(seed=0, temperature=0.0), SamplingParams(seed=11, temperature=0.8, top_p=0.9))
    requests = [
        GenerationRequest(
            f"r{salt}", PromptIdentity.from_token_ids(_prompt(5 + 40 * salt, salt)), samplings[salt % 2], 24, ()
        )
        for salt in range(8)
    ]
    together = _generate(engine, requests, cancel=("r2", "r5"))
    assert sorted(together) == ["r0", "r1", "r3", "r4", "r6", "r7"]
    for request in requests:
        if request.request_id in together:
            assert _generate(engine, [request]) == {request.request_id: together[request.request_id]}
    stats = engine.stats()
    assert (stats.pages_used, stats.state_slots_used, stats.requests_failed) == (0, 0, 0)


def test_bfloat16_cache_serves(settings: Settings) -> None:
    engine = _quietly(_changed(settings, kv_dtype="bf16"))
    request = GenerationRequest(
        "a", PromptIdentity.from_token_ids(_prompt(40, 1)), SamplingParams(seed=0, temperature=0.0), 8, ()
    )
    assert len(_generate(engine, [request])["a"]) == 8
    assert engine.info.kv_bytes == 1024 * 2 * 2 * 32 * 2


VECTOR_BYTES = {"fp32": 1024, "bf16": 512, "int8": 264, "fp8": 258, "nvfp4": 144}
"""Of 256 numbers, as in spec/memory §1.2."""
TOKEN_BYTES = {name: 2 * size for name, size in VECTOR_BYTES.items()} | {"k8v4": 258 + 144}


@pytest.mark.parametrize("kv_dtype", TOKEN_BYTES)
def test_every_kv_dtype_serves(kv_dtype: str) -> None:
    """The embedded model answers the same whatever its cache holds, two requests at a time and after each other."""
    engine = {"device": "cpu", "kv_dtype": kv_dtype, "max_context": 256, "max_concurrency": 2, "kv_capacity": 500}
    settings = Settings.model_validate({"model": {"artifact": "embedded:ninfer-tiny"}, "engine": engine})
    built = _quietly(settings)
    info = built.info
    assert (info.kv_dtype, info.kv_capacity_tokens) == (kv_dtype, 512)
    assert info.kv_bytes == 512 * 2 * TOKEN_BYTES[kv_dtype], "two attention layers of one kv head"
    prompts = {name: _prompt(length, length) for name, length in (("a", 40), ("b", 100))}
    requests = [
        GenerationRequest(name, PromptIdentity.from_token_ids(prompt), SamplingParams(seed=0, temperature=0.0), 12, ())
        for name, prompt in prompts.items()
    ]
    together = _generate(built, requests)
    assert {len(tokens) for tokens in together.values()} == {12}
    for request in requests:
        assert _generate(built, [request])[request.request_id] == together[request.request_id]


def test_heads_that_a_kv_dtype_cannot_store_are_refused(settings: Settings) -> None:
    with pytest.raises(
        InputError,
        match=r"^engine\.kv_dtype is nvfp4, but nvfp4 keys and values need a head_dim that is a power of two of at "
        r"least 64, not 32; bf16 stores heads of any size$",
    ):
        _quietly(_changed(settings, kv_dtype="nvfp4"))


def test_context_beyond_the_model_is_refused(settings: Settings) -> None:
    with pytest.raises(InputError, match=r"max_context is 4097 tokens, this model reaches 4096"):
        _quietly(_changed(settings, max_context=4097, kv_capacity=5000))


def test_caches_that_cannot_fit_are_refused(settings: Settings) -> None:
    with pytest.raises(CapacityError, match="caches do not fit"):
        _quietly(_changed(settings, kv_capacity=2_000_000_000))


def test_weights_without_room_are_refused_before_they_are_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[LoadProgress] = []
    monkeypatch.setattr("ninferd.engine.build.free_bytes", lambda device: 1 << 19)
    with pytest.raises(InputError, match=r"do not fit on the host: they need 1\.0 MiB, free are 0\.5 MiB"):
        build_engine(settings, progress.append)
    assert progress == []


def test_an_artifact_serves() -> None:
    """The embedded NVFP4 model against its bfloat16 checkpoint, which has the same values but for a last bit."""
    tokens = []
    for artifact in ("embedded:ninfer-tiny", "embedded:ninfer-tiny-bf16"):
        engine = {"device": "cpu", "kv_dtype": "fp32", "max_context": 256, "max_concurrency": 1, "kv_capacity": 256}
        built = _quietly(Settings.model_validate({"model": {"artifact": artifact}, "engine": engine}))
        assert built.info.model_name == artifact.removeprefix("embedded:")
        prompt = PromptIdentity.from_token_ids(_prompt(40, 1))
        tokens.append(
            _generate(built, [GenerationRequest("a", prompt, SamplingParams(seed=0, temperature=0.0), 16, ())])
        )
    assert tokens[0] == tokens[1]


def test_missing_checkpoint_is_refused(settings: Settings, tmp_path: Path) -> None:
    missing = Settings.model_validate({"model": {"artifact": str(tmp_path / "absent")}})
    with pytest.raises(InputError, match="absent"):
        _quietly(missing)


def test_compiled_ops_keep_torch_to_one_thread(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    info = _quietly(settings).info
    match_threads(msgspec.structs.replace(info, weights_dtype="bfloat16"))
    match_threads(msgspec.structs.replace(info, device="cuda:0 NVIDIA H200"))
    assert asked == []
    match_threads(info)
    assert asked == [1]


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    if not torch.cuda.is_available():
        assert resolve_device("auto") == CPU
    with pytest.raises(InputError, match=r"engine\.device is 1023"):
        resolve_device(1023)


@pytest.mark.parametrize(
    ("configured", "config", "device", "dtype"),
    [
        ("auto", {"dtype": "bfloat16"}, "cpu", torch.float32),
        ("bfloat16", {}, "cpu", torch.bfloat16),
        ("float32", {"dtype": "bfloat16"}, "cuda", torch.float32),
        ("auto", {"dtype": "float32"}, "cuda", torch.float32),
        ("auto", {"torch_dtype": "float16"}, "cuda", torch.bfloat16),
        ("auto", {"text_config": {"dtype": "float32"}}, "cuda", torch.float32),
        ("auto", {"dtype": "float32", "text_config": {}}, "cuda", torch.float32),
        ("auto", {}, "cuda", torch.bfloat16),
    ],
)
def test_dtypes(configured: str, config: dict[str, Any], device: str, dtype: torch.dtype) -> None:
    assert resolve_dtype(configured, config, torch.device(device)) == dtype

"""Everything but chat: probes, models, keys, error shapes, headers."""

from __future__ import annotations

import re

import pytest

from ninferd import __version__
from ninferd.api.context import ConfigStatus
from ninferd.engine.client import EngineState
from tests.api.harness import MODEL, Rig, body
from tests.support.frontends import make_settings
from tests.support.scripted_engine import INFO, STATS

pytestmark = pytest.mark.anyio


async def test_health_while_ready() -> None:
    response = await Rig().get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "version": __version__})


@pytest.mark.parametrize("state", ["loading", "restarting", "draining", "failed"])
async def test_health_otherwise(state: EngineState) -> None:
    rig = Rig()
    rig.engine.state = state
    response = await rig.get("/health")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert response.json() == {"status": "unavailable", "engine": state, "version": __version__}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_root(method: str) -> None:
    async with Rig().client() as client:
        assert (await client.request(method, "/")).status_code == 200


async def test_model_list_and_model() -> None:
    listed = (await Rig().get("/v1/models")).json()
    (model,) = listed["data"]
    assert listed["object"] == "list"
    assert isinstance(model.pop("created"), int)
    assert model == {
        "id": MODEL,
        "object": "model",
        "owned_by": "ninfer",
        "max_model_len": INFO.max_context,
        "context_window": INFO.max_context,
        "context_length": INFO.max_context,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    }
    assert (await Rig().get(f"/v1/models/{MODEL}")).json()["id"] == MODEL


async def test_model_id_of_the_configuration() -> None:
    rig = Rig(settings=make_settings(model={"artifact": "embedded:ninfer-tiny", "id": "org/my-model"}))
    assert (await rig.get("/v1/models/org/my-model")).json()["id"] == "org/my-model"
    assert (await rig.chat(model="org/my-model")).json()["model"] == "org/my-model"


async def test_unknown_model() -> None:
    response = await Rig().get("/v1/models/other")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "model_not_found", "model")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("POST", "/v1/nope", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods(method: str, path: str, status: int, code: str) -> None:
    async with Rig().client() as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["code"] == code
    assert ("allow" in response.headers) is (status == 405)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nope", "/stats"])
async def test_every_response_has_an_id_and_the_version(path: str) -> None:
    response = await Rig().get(path)
    assert re.fullmatch("req_[0-9a-f]{32}", response.headers["x-request-id"])
    assert response.headers["x-ninfer-version"] == __version__


KEYS = {"alice": "key-a", "bob": "key-b"}


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"authorization": "Bearer key-a"}, True),
        ({"authorization": "bearer \t key-b "}, True),
        ({"authorization": "BEARER\tkey-b"}, True),
        ({"x-api-key": "key-b"}, True),
        ({}, False),
        ({"authorization": "Bearer wrong"}, False),
        ({"authorization": "Basic key-a"}, False),
        ({"authorization": "Bearer"}, False),
        ({"x-api-key": ""}, False),
        ({"x-api-key": "key-\xe9"}, False),
    ],
)
async def test_keys(headers: dict[str, str], allowed: bool) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    response = await Rig(keys=KEYS).get("/v1/models", headers=raw)
    assert response.status_code == (200 if allowed else 401)
    if not allowed:
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert "x-request-id" in response.headers


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/health", 200), ("/stats", 200), ("/v1/models", 401), (f"/v1/models/{MODEL}", 401), ("/no", 401)],
)
async def test_what_is_open_without_a_key(path: str, status: int) -> None:
    assert (await Rig(keys=KEYS).get(path)).status_code == status


async def test_models_can_be_public() -> None:
    rig = Rig(keys=KEYS, settings=make_settings(server={"models_public": True}))
    assert (await rig.get("/v1/models")).status_code == 200
    assert (await rig.get(f"/v1/models/{MODEL}")).status_code == 200
    assert (await rig.chat()).status_code == 401


async def test_keys_change_with_a_reload() -> None:
    rig = Rig()
    assert (await rig.get("/v1/models")).status_code == 200
    rig.keys = KEYS
    assert (await rig.get("/v1/models")).status_code == 401


@pytest.mark.parametrize(
    ("state", "loaded", "code", "type_", "retry_after"),
    [
        ("loading", False, "model_loading", "service_unavailable", "2"),
        ("draining", True, "service_unavailable", "server_error", "5"),
        ("failed", True, "service_unavailable", "server_error", "5"),
        ("failed", False, "service_unavailable", "server_error", "5"),
    ],
)
async def test_no_engine_to_serve(state: EngineState, loaded: bool, code: str, type_: str, retry_after: str) -> None:
    rig = Rig()
    rig.engine.state = state
    if not loaded:
        rig.engine.info = None
    for response in (await rig.chat(), await rig.get("/v1/models")):
        assert (response.status_code, response.headers["retry-after"]) == (503, retry_after)
        error = response.json()["error"]
        assert (error["code"], error["type"], error["param"]) == (code, type_, None)


async def test_requests_go_to_a_restarting_engine_and_wait_there() -> None:
    rig = Rig()
    rig.engine.state = "restarting"
    assert (await rig.chat()).status_code == 200


async def test_retry_after_can_be_turned_off() -> None:
    rig = Rig(settings=make_settings(http={"retry_after": False}))
    rig.engine.state = "draining"
    assert "retry-after" not in (await rig.chat()).headers


async def test_cors() -> None:
    async with Rig().client() as client:
        assert "access-control-allow-origin" not in (await client.get("/health")).headers
        assert (await client.options("/v1/models")).status_code == 405
    rig = Rig(settings=make_settings(server={"cors": True}), keys=KEYS)
    async with rig.client() as client:
        preflight = await client.options("/v1/chat/completions")
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        assert "POST" in preflight.headers["access-control-allow-methods"]
        refused = await client.get("/v1/models")
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "*")
        assert "x-request-id" in refused.headers["access-control-expose-headers"]


async def test_stats() -> None:
    status = ConfigStatus(3, "tiny", 123, "ninferd.toml:4: no", ("engine.max_context",))
    rig = Rig(status=status)
    await rig.chat(verbosity="low")
    await rig.chat(n=2)
    stats = (await rig.get("/stats")).json()
    assert (stats["schema"], stats["schema_version"]) == ("ninfer_serve_stats", 3)
    assert stats["http"] == {"in_flight": 0, "max_in_flight": 17}
    assert stats["scheduler"] == {"running": 5, "prefilling": 2, "decode_ready": 3, "waiting": 1}
    assert stats["counters"]["computed_prefill_tokens"] == STATS.prompt_tokens - STATS.cached_tokens
    assert stats["counters"]["committed_decode_tokens"] == STATS.generated_tokens
    assert stats["cache_reuse"] == {"reused_prompt_tokens": STATS.cached_tokens}
    assert stats["pressure"] == {"device_main_kv_occupied_pages": 5, "device_state_occupied_slots": 1}
    assert stats["memory"]["kv_capacity_page_groups"] == STATS.pages_total
    assert stats["load"] == {"model_id": MODEL, "architecture": INFO.architecture, "load_seconds": 1.5}
    assert stats["config"] == {
        "profile": "tiny",
        "generation": 3,
        "last_reload_unix_ms": 123,
        "last_reload_error": "ninferd.toml:4: no",
        "pending_restart": ["engine.max_context"],
    }
    requests = stats["requests"]
    assert [requests[name] for name in ("started", "done", "rejected", "errors", "cancelled")] == [1, 1, 1, 0, 0]
    assert requests["by_protocol"] == {"openai_chat_completions": 2}
    assert stats["compat"] == {"ignored_total": 1}
    kernels = stats["kernels"]
    assert {name: kernels[name] for name in ("device", "arch", "table", "self_test_ms")} == {
        "device": "cpu",
        "arch": "sm_90",
        "table": "cuda",
        "self_test_ms": 12.5,
    }
    assert kernels["groups"] == [
        {
            "name": "norms",
            "ops": ["rms_norm", "silu_mul"],
            "implementation": "cuda",
            "checks": 9,
            "worst_kernel": "silu_mul",
            "max_error": 1.7e-3,
            "error_limit": 4e-3,
            "self_test_ms": 12.5,
            "fallback_reason": None,
            "variants": [{"name": "wide_norms", "serves": False, "fallback_reason": "CudaError: wide_norms"}],
        },
        {
            "name": "linear",
            "ops": ["linear"],
            "implementation": "torch",
            "checks": 0,
            "worst_kernel": None,
            "max_error": None,
            "error_limit": None,
            "self_test_ms": 0.0,
            "fallback_reason": "CudaError: gemv_q8_m4",
            "variants": [],
        },
    ]


async def test_stats_before_the_engine_is_there() -> None:
    rig = Rig()
    rig.engine.info = None
    response = await rig.get("/stats")
    assert (response.status_code, response.json()) == (503, {"status": "unavailable"})


async def test_a_bug_is_an_internal_error_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.engine.scripts[0].crash = RuntimeError("secret detail")
    response = await rig.chat(body())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret detail" not in response.text
    assert "secret detail" in caplog.text

"""What every response has in common: its id, the version, CORS, and the key check before any route."""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninferd import __version__
from ninferd.api.auth import key_label
from ninferd.api.context import ApiContext
from ninferd.api.errors import ApiError

KEY_LABEL = "ninferd.key_label"
"""Scope entry: label of the key that the request carried."""

_OPEN_PATHS = frozenset({"/", "/health", "/stats"})
_CORS_HEADERS = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "x-request-id, request-id",
}
_PREFLIGHT_HEADERS = {
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-allow-headers": (
        "Authorization, Content-Type, X-API-Key, anthropic-version, anthropic-beta, anthropic-user-profile-id, "
        "anthropic-dangerous-direct-browser-access, x-stainless-arch, x-stainless-lang, x-stainless-os, "
        "x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, "
        "x-stainless-timeout"
    ),
}


class ResponseHeaders:
    """Adds ``x-request-id``, ``x-ninfer-version`` and, when ``server.cors`` is on, the CORS headers."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(16)}"
        cors = self._context.settings().server.cors

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["x-ninfer-version"] = __version__
                if cors:
                    headers.update(_CORS_HEADERS)
            await send(message)

        if cors and scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=_PREFLIGHT_HEADERS)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


class KeyCheck:
    """401 for every path but the open ones unless the request carries a configured key."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = self._context.api_keys()
        if scope["type"] != "http" or not keys.required:
            await self._app(scope, receive, send)
            return
        label = key_label(keys, Headers(scope=scope))
        if label is None and not self._is_open(scope["path"]):
            error = ApiError(401, "a valid API key is needed", code="invalid_api_key")
            await error.response(retry_after=False)(scope, receive, send)
            return
        await self._app({**scope, KEY_LABEL: label}, receive, send)

    def _is_open(self, path: str) -> bool:
        if path in _OPEN_PATHS:
            return True
        is_models = path == "/v1/models" or path.startswith("/v1/models/")
        return is_models and self._context.settings().server.models_public

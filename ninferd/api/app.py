"""The ASGI application: routes, error shapes and the thread pool that prepares requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ninferd import __version__
from ninferd.api.chat import ChatCompletions
from ninferd.api.context import ApiContext
from ninferd.api.errors import RETRY_LOADING_S, ApiError, bad_request, internal_error
from ninferd.api.middleware import KeyCheck, ResponseHeaders
from ninferd.api.models import Models, public_model_name
from ninferd.api.stats import ApiCounters, stats_payload

PREPARATION_THREADS = 4


def create_app(context: ApiContext) -> Starlette:
    """One application per daemon; it owns no engine and no listener."""
    counters = ApiCounters()
    preparation = ThreadPoolExecutor(PREPARATION_THREADS, thread_name_prefix="prepare")
    models = Models(context)
    probes = _Probes(context, counters)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        preparation.shutdown(wait=False, cancel_futures=True)

    async def api_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response(retry_after=context.settings().http.retry_after)

    app = Starlette(
        routes=[
            Route("/", _root, methods=["GET"]),
            Route("/health", probes.health, methods=["GET"]),
            Route("/stats", probes.stats, methods=["GET"]),
            Route("/v1/models", models.list, methods=["GET"]),
            Route("/v1/models/{model:path}", models.retrieve, methods=["GET"]),
            Route("/v1/chat/completions", ChatCompletions(context, counters, preparation), methods=["POST"]),
        ],
        middleware=[Middleware(ResponseHeaders, context), Middleware(KeyCheck, context)],
        exception_handlers={ApiError: api_error, HTTPException: _http_error, Exception: _unexpected_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # the target would be a URL of the client's own making
    return app


class _Probes:
    """Routes that are open to everybody and never wait for the engine."""

    def __init__(self, context: ApiContext, counters: ApiCounters) -> None:
        self._context = context
        self._counters = counters

    async def health(self, _request: Request) -> Response:
        """200 while the engine can work on requests; a full queue does not matter."""
        state = self._context.engine.state
        if state == "ready":
            return JSONResponse({"status": "ok", "version": __version__})
        body = {"status": "unavailable", "engine": state, "version": __version__}
        return JSONResponse(body, 503, {"retry-after": str(RETRY_LOADING_S)})

    async def stats(self, _request: Request) -> Response:
        info, stats = self._context.engine.info, self._context.engine.stats
        if info is None or stats is None:
            return JSONResponse({"status": "unavailable"}, 503)
        model = public_model_name(self._context.settings(), info)
        return JSONResponse(stats_payload(self._context, self._counters, info, stats, model))


async def _root(_request: Request) -> Response:
    return PlainTextResponse("ninferd\n")


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods in the OpenAI shape; ``Allow`` is kept."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        body = ApiError(404, f"there is no {request.method} {request.url.path}", code="not_found")
    elif error.status_code == 405:
        body = ApiError(405, f"{request.url.path} does not take {request.method}", code="method_not_allowed")
    else:
        body = bad_request(error.detail, None)
    return JSONResponse(body.body(), error.status_code, error.headers)


async def _unexpected_error(_request: Request, _error: Exception) -> Response:
    return internal_error().response(retry_after=False)

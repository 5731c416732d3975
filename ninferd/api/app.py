"""The ASGI application."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ninferd import __version__
from ninferd.api.context import ApiContext


def create_app(context: ApiContext) -> Starlette:
    """One application per daemon; it owns no engine and no listener."""

    async def health(_request: Request) -> Response:
        ready = context.engine.state == "ready"
        return JSONResponse(
            {"status": "ok" if ready else "unavailable", "version": __version__}, status_code=200 if ready else 503
        )

    return Starlette(routes=[Route("/health", health, methods=["GET"])])

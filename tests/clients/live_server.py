"""The application behind the daemon's own listener and HTTP server, on a free loopback port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from hypercorn.asyncio import serve
from hypercorn.typing import ASGIFramework

from ninferd.api.app import create_app
from ninferd.api.context import ApiContext
from ninferd.daemon.listener import hypercorn_config, open_listener


@asynccontextmanager
async def running(context: ApiContext) -> AsyncIterator[str]:
    """Serve in this event loop; gives the base URL for OpenAI clients."""
    listener = open_listener("127.0.0.1", 0)
    port = listener.getsockname()[1]
    stop = asyncio.Event()
    config = hypercorn_config(listener, context.settings())
    app = cast(ASGIFramework, create_app(context))
    server = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop.set()
        await server

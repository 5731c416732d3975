"""The application behind the daemon's own listener and HTTP server on a free loopback port, with or without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

from hypercorn.asyncio import serve
from hypercorn.typing import ASGIFramework
from openai import AsyncOpenAI

from ninferd.api.app import create_app
from ninferd.api.context import ApiContext, ConfigStatus
from ninferd.config.schema import Settings
from ninferd.config.secrets import ApiKeys
from ninferd.daemon.listener import hypercorn_config, open_listener
from ninferd.daemon.serving import load_frontend
from ninferd.engine.build import build_engine
from ninferd.engine.local import LocalEngine


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


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[AsyncOpenAI, LocalEngine]]:
    """A real engine over the configured model, and the official client of a server before it."""
    frontend = load_frontend(settings)
    async with LocalEngine(partial(build_engine, settings)) as engine:
        context = ApiContext(
            engine=engine,
            settings=lambda: settings,
            frontend=lambda: frontend,
            api_keys=lambda: ApiKeys({}),
            config_status=ConfigStatus,
        )
        async with (
            running(context) as url,
            AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120) as client,
        ):
            yield client, engine

"""``GET /v1/models``: the one model that is served."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ninferd.api.context import ApiContext
from ninferd.api.errors import model_not_found
from ninferd.config.schema import Settings
from ninferd.engine.messages import EngineInfo

OWNER = "ninfer"  # third-party tools recognise the server by it


def public_model_name(settings: Settings, info: EngineInfo) -> str:
    """The name clients use: ``model.id``, else the artifact's own."""
    return settings.model.id or info.model_name


class Models:
    """Both routes."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._created = int(time.time())

    async def list(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def retrieve(self, request: Request) -> Response:
        model, asked = self._model(), str(request.path_params["model"])
        if asked != model["id"] and asked not in self._context.settings().compat.model_alias:
            raise model_not_found(asked, model["id"])
        return JSONResponse(model)

    def _model(self) -> dict[str, Any]:
        info = self._context.serving_engine()
        return {
            "id": public_model_name(self._context.settings(), info),
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "max_model_len": info.max_context,
            "context_window": info.max_context,
            "context_length": info.max_context,
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        }

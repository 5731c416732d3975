"""Every error a client can see, and the one place that makes HTTP out of the errors of other layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from ninferd.api.limits import BodyTooLargeError, TooManyRequestsError
from ninferd.chat.errors import (
    ContextLengthError,
    GenerationFailedError,
    PromptError,
    SamplingError,
    TemplateOptionConflictError,
)
from ninferd.engine.client import EngineState
from ninferd.errors import NinferError

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

MAX_MESSAGE_CHARS = 1000

RETRY_BUSY_S = 1
RETRY_UNAVAILABLE_S = 5
RETRY_LOADING_S = 2


class ApiError(NinferError):
    """An error as the client gets it; ``extra`` are further members of the error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        extra: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(_shortened(message))
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.extra = dict(extra or {})

    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code, **self.extra}
        return {"error": error}

    def response(self, *, retry_after: bool) -> JSONResponse:
        """``retry_after``: whether the server may send that header (``http.retry_after``)."""
        headers = {}
        if retry_after and self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def _shortened(message: str) -> str:
    """Messages quote what the client sent, however long: the ends say what and why, the middle goes."""
    half = MAX_MESSAGE_CHARS // 2
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:half]} … {message[-half:]}"


def bad_request(message: str, param: str | None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def model_not_found(asked: str, served: str) -> ApiError:
    message = f"the model {asked[:80]!r} does not exist; this server has {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def internal_error() -> ApiError:
    """For what should not happen: the details go to the log only."""
    return ApiError(500, "the server failed to handle this request", type=SERVER_ERROR, code="internal_error")


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, type=SERVER_ERROR, code="service_unavailable", retry_after_s=RETRY_UNAVAILABLE_S)


def queue_timeout() -> ApiError:
    return ApiError(
        503,
        "the request waited longer than queue.pending_timeout_ms for a free lane",
        type=SERVER_ERROR,
        code="request_queue_timeout",
        retry_after_s=RETRY_UNAVAILABLE_S,
    )


def refusal_of_state(state: EngineState) -> ApiError | None:
    """Why no request can be taken in this engine state; None when it can (during a restart requests wait)."""
    if state == "loading":
        return ApiError(
            503,
            "the model is still loading",
            type="service_unavailable",
            code="model_loading",
            retry_after_s=RETRY_LOADING_S,
        )
    if state == "draining":
        return unavailable("the server is shutting down")
    if state == "failed":
        return unavailable("the engine has failed")
    return None


def from_exception(error: Exception) -> ApiError:
    """The HTTP form of an error of any layer; anything unexpected is an internal error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, GenerationFailedError):
        return _from_engine(error)
    if isinstance(error, ContextLengthError):
        extra = {"max_context": error.max_context}
        if error.prompt_tokens is not None:
            extra["prompt_tokens"] = error.prompt_tokens
        return ApiError(400, str(error), param="messages", code="context_length_exceeded", extra=extra)
    if isinstance(error, TemplateOptionConflictError):
        return bad_request(str(error), error.option, "conflicting_template_option")
    if isinstance(error, PromptError):
        return bad_request(str(error), error.field, "invalid_prompt")
    if isinstance(error, SamplingError):
        return bad_request(str(error), error.field)
    if isinstance(error, BodyTooLargeError):
        return ApiError(413, str(error), code="request_too_large")
    if isinstance(error, TooManyRequestsError):
        return ApiError(429, str(error), type="rate_limit_error", code="server_overloaded", retry_after_s=RETRY_BUSY_S)
    return internal_error()


def _from_engine(error: GenerationFailedError) -> ApiError:
    if error.code == "queue_timeout":
        return queue_timeout()
    if error.code in ("prompt_too_long", "capacity_impossible"):
        return bad_request(str(error), "messages", "context_length_exceeded")
    if error.code == "invalid_request":
        return bad_request(str(error), None)
    return unavailable(str(error))

"""What can be wrong with a conversation; ``ninferd.api.errors`` gives each its HTTP form."""

from __future__ import annotations

from ninferd.errors import InputError, NinferError


class FrontendError(InputError):
    """The tokenizer, template or generation files of a model directory cannot be used."""


class PromptError(InputError):
    """The conversation cannot be turned into a prompt (bad history, or the template refused it).

    ``field`` is the part of the request that is to blame.
    """

    def __init__(self, message: str, field: str = "messages") -> None:
        super().__init__(message)
        self.field = field


class TemplateOptionConflictError(InputError):
    """One template option was given twice with different values."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


class SamplingError(InputError):
    """A sampler value is out of range after merging."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field = field


class ContextLengthError(InputError):
    """The prompt alone is longer than the context; ``prompt_tokens`` is None when it was too long to be counted."""

    def __init__(self, prompt_tokens: int | None, max_context: int) -> None:
        length = f"more than {max_context}" if prompt_tokens is None else str(prompt_tokens)
        super().__init__(f"the prompt has {length} tokens, the context holds {max_context}; shorten the conversation")
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context


class GenerationFailedError(NinferError):
    """The engine ended the request without a result; ``code`` is the engine's failure code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

"""The values of ``model_type`` in a ``config.json`` that ninferd serves. Free of torch, for the main process."""

from __future__ import annotations

DENSE_TYPES = ("qwen3_5", "qwen3_5_text")
MOE_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")


def type_problem(model_type: object) -> str | None:
    """What is wrong with a ``model_type``, for a message; None if it is served."""
    if model_type in DENSE_TYPES + MOE_TYPES:
        return None
    return f"is {model_type!r}; supported: {', '.join(DENSE_TYPES + MOE_TYPES)}"

"""Who may call: keys are read and compared by ``ninferd.config.secrets``; here is where a request carries one."""

from __future__ import annotations

from starlette.datastructures import Headers

from ninferd.config.secrets import ApiKeys


def presented_key(headers: Headers) -> str | None:
    """The key of ``Authorization: Bearer KEY`` (scheme in any case) or of ``x-api-key``."""
    scheme, *value = headers.get("authorization", "").split(maxsplit=1) or [""]
    if scheme.lower() == "bearer":
        return "".join(value).rstrip()
    return headers.get("x-api-key")


def key_label(keys: ApiKeys, headers: Headers) -> str | None:
    """The label of the key that the request carries, None without a valid one."""
    key = presented_key(headers)
    return None if key is None else keys.label_of(key)

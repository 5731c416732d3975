"""API keys: who may call, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers


@dataclass(frozen=True)
class ApiKeys:
    """Accepted keys by label; empty means the API is open. The values never reach a log or ``repr``."""

    by_label: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def required(self) -> bool:
        return bool(self.by_label)

    def label_of(self, presented: str) -> str | None:
        """The label of a matching key; every key is compared, so timing does not tell which one was close."""
        given = presented.encode("utf-8", "surrogateescape")
        found: str | None = None
        for label, key in self.by_label.items():
            if hmac.compare_digest(given, key.encode()):
                found = label
        return found


def presented_key(headers: Headers) -> str | None:
    """The key of ``Authorization: Bearer KEY`` (scheme in any case) or of ``x-api-key``."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, value = authorization.strip(" \t").partition(" ")
        if scheme.lower() == "bearer":
            return value.strip(" \t")
    return headers.get("x-api-key")


def is_authorised(keys: ApiKeys, headers: Headers) -> bool:
    if not keys.required:
        return True
    key = presented_key(headers)
    return key is not None and keys.label_of(key) is not None

"""All that a request may ever use of the caches, reserved whole when it is admitted (spec/memory §2.6).

Because no running request grows beyond it, none can be ended for the sake of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ninferd.memory.geometry import pages_for

LimitReason = Literal["OutputLimit", "ContextCapacity"]


@dataclass(frozen=True)
class Entitlement:
    """Positions and pages of one request. A page bundle holds the pages of the main and of the draft model."""

    output_tokens: int
    main_tokens: int
    draft_tokens: int  # positions of the draft model's cache; 0 without one
    limited_by: LimitReason  # what ends the output if nothing else does

    @property
    def cache_tokens(self) -> int:
        """Positions that page bundles must cover."""
        return max(self.main_tokens, self.draft_tokens)

    @property
    def pages(self) -> int:
        """Page bundles."""
        return pages_for(self.cache_tokens)


def entitlement_of(prompt_tokens: int, output_limit: int, max_context: int, drafted: int = 0) -> Entitlement:
    """Output is bounded by the context; the last sampled token never needs a position.

    ``drafted`` tokens are proposed per round by a model with a cache of its own, which writes that far ahead.
    """
    output = min(output_limit, max_context - prompt_tokens + 1)
    main = prompt_tokens + max(0, output - 1)
    draft = min(max_context, main + drafted - 1) if drafted else 0
    return Entitlement(output, main, draft, "OutputLimit" if output == output_limit else "ContextCapacity")

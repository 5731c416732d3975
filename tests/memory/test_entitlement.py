"""What a request may use: the arithmetic of spec/memory §2.6 and its example."""

from __future__ import annotations

import pytest

from ninferd.memory.entitlement import LimitReason, entitlement_of

POOL_PAGES = 6563  # 420,000 tokens


@pytest.mark.parametrize(
    ("prompt", "limit", "context", "output", "tokens", "reason"),
    [
        (130, 10, 1024, 10, 139, "OutputLimit"),
        (130, 1, 1024, 1, 130, "OutputLimit"),
        (130, 0, 1024, 0, 130, "OutputLimit"),
        (1024, 10, 1024, 1, 1024, "ContextCapacity"),
        (1000, 100, 1024, 25, 1024, "ContextCapacity"),
        (1000, 25, 1024, 25, 1024, "OutputLimit"),
    ],
)
def test_positions(prompt: int, limit: int, context: int, output: int, tokens: int, reason: LimitReason) -> None:
    entitled = entitlement_of(prompt, limit, context)
    assert (entitled.output_tokens, entitled.cache_tokens, entitled.limited_by) == (output, tokens, reason)


@pytest.mark.parametrize(
    ("prompt", "limit", "drafted", "draft_tokens", "pages"),
    [(100, 28, 5, 131, 3), (100, 28, 0, 0, 2), (1000, 25, 5, 1024, 16)],
    ids=["over a page", "no draft model", "at the end of the context"],
)
def test_a_draft_model_writes_ahead(prompt: int, limit: int, drafted: int, draft_tokens: int, pages: int) -> None:
    entitled = entitlement_of(prompt, limit, 1024, drafted)
    assert (entitled.draft_tokens, entitled.pages) == (draft_tokens, pages)


def test_two_requests_of_130000_output_tokens_share_a_pool_up_to_80000_prompt_tokens() -> None:
    def together(prompt: int) -> bool:
        return 2 * entitlement_of(prompt, 130_000, 420_000).pages <= POOL_PAGES

    assert together(79_800)
    assert not together(80_100)  # a few tokens around 80,000 are a matter of whole pages
    assert entitlement_of(290_001, 130_000, 420_000).limited_by == "OutputLimit"
    assert entitlement_of(290_002, 130_000, 420_000).limited_by == "ContextCapacity"

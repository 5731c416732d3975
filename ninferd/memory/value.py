"""What a cached thing is worth: the time it saves over the bytes it takes (spec/memory §6.3, Appendix A.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RetentionClass = Literal["live_session", "recent_private", "disposable"]

# Of spec §6.3 (16, 4, 1), relative to a private snapshot that is not the newest of its session.
RETENTION_WEIGHTS: dict[RetentionClass, float] = {"live_session": 4.0, "recent_private": 1.0, "disposable": 0.25}


@dataclass(frozen=True)
class CostModel:
    """Time of transfers and of prefill on one machine, in nanoseconds. Costs only rank; they never decide what fits."""

    d2h_batch_ns: float = 100_000.0
    h2d_batch_ns: float = 50_000.0
    copy_op_ns: float = 12_000.0
    copy_byte_ns: float = 0.025
    prefill_chunk_ns: float = 14_672_989.0  # 4-bit and 8-bit weights of a 27B
    prefill_token_ns: float = 87_498.0
    prefill_pair_ns: float = 1.909
    prefill_chunk_tokens: int = 1024

    def restore_ns(self, size_bytes: int, operations: int) -> float:
        """Host to device."""
        if not operations:
            return 0.0
        return max(self.h2d_batch_ns + operations * self.copy_op_ns, size_bytes * self.copy_byte_ns)

    def prefill_ns(self, base: int, tokens: int) -> float:
        """``tokens`` new ones behind ``base`` that are cached."""
        chunks = -(-tokens // self.prefill_chunk_tokens)
        pairs = base * tokens + tokens * (tokens + 1) / 2
        return self.prefill_chunk_ns * chunks + self.prefill_token_ns * tokens + self.prefill_pair_ns * pairs


@dataclass
class ValueClock:
    """Density H = L + F·C/Z with ageing: L is the density of the last victim, so what is never hit again sinks."""

    age: float = 0.0

    def density(self, hits: int, saved_ns: float, size_bytes: int, retention: RetentionClass) -> float:
        """Worth per byte of something hit ``hits`` times that saves ``saved_ns`` when it is hit."""
        use = (1 + hits) * RETENTION_WEIGHTS[retention]
        return self.age + use * max(0.0, saved_ns) / max(1, size_bytes)

    def evicted(self, density: float) -> None:
        """A victim of this density was given up; it never makes the clock go back."""
        self.age = max(self.age, density)

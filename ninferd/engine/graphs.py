"""Decode rounds that are captured once per number of lanes and replayed afterwards.

A round is a function of device memory alone: of the step's inputs, the page tables and the caches, all at addresses
that never change. Every number of lanes has a graph of its own, without padding: there are few of them (engine.
max_concurrency is at most 8), so no round computes lanes that nobody asked for, none needs pages or states to write
them to, and a graph runs the very kernels, on the very shapes, that run without it.

A round of a new width runs eagerly once, observed; the second is captured and replayed. So whatever an op makes at its
first call (tables, workspaces) is made outside the capture. If making it waited for the device, the width is observed
once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

GRAPH_BYTES: Final = 512 << 20
"""Bound of what all graphs hold: half of the memory that the capacity plan leaves free beside the caches."""

T = TypeVar("T")


class CaptureError(Exception):
    """A round that could not be captured; nothing of it has run."""


@dataclass(frozen=True)
class Captured(Generic[T]):
    """A captured call."""

    replay: Callable[[], None]
    result: T  # what the call returned: tensors that each replay fills anew


class Graphs(Protocol):
    """How calls are captured: CUDA graphs, or the tests' stand-in."""

    @property
    def held_bytes(self) -> int:
        """Device memory of all captured calls."""
        ...

    def observe(self, call: Callable[[], T]) -> tuple[T, str | None]:
        """Run a call; also why it cannot be captured, if it does what a graph cannot."""
        ...

    def capture(self, call: Callable[[], T]) -> Captured[T]:
        """Record a call without running it. Raises CaptureError."""
        ...

    def release(self) -> None:
        """Give back the memory of all captured calls, which are not replayed again."""
        ...


class DecodeRounds(Generic[T]):
    """Runs rounds of any width, from graphs where there are some. Results are the same bits either way."""

    def __init__(self, run: Callable[[int], T], graphs: Graphs | None, limit_bytes: int = GRAPH_BYTES) -> None:
        """``run(width)`` is a round of that many lanes, a function of device memory alone; no graphs: it runs as is."""
        self._run = run
        self._graphs = graphs
        self._limit_bytes = limit_bytes
        self._capturing = True
        self._observed: set[int] = set()
        self._suspected: set[int] = set()
        self._captured: dict[int, Captured[T]] = {}

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of lanes that have a graph."""
        return tuple(sorted(self._captured))

    @property
    def held_bytes(self) -> int:
        """Device memory of all graphs."""
        return 0 if self._graphs is None else self._graphs.held_bytes

    def __call__(self, width: int) -> T:
        """One round. Its result is valid until the next one."""
        captured = self._captured.get(width)
        if captured is None and self._graphs is not None and self._capturing:
            if width not in self._observed:
                return self._observe(self._graphs, width)
            captured = self._capture(self._graphs, width)
        if captured is None:
            return self._run(width)
        captured.replay()
        return captured.result

    def release(self) -> None:
        """Give back all graphs, for want of memory; rounds to come are captured anew."""
        if self._graphs is not None and self._captured:
            self._captured.clear()
            self._graphs.release()

    def _observe(self, graphs: Graphs, width: int) -> T:
        result, obstacle = graphs.observe(lambda: self._run(width))
        if obstacle is None:
            self._observed.add(width)
        elif width not in self._suspected:
            self._suspected.add(width)
        else:
            self._give_up(f"decode rounds run without further CUDA graphs: {obstacle}")
        return result

    def _capture(self, graphs: Graphs, width: int) -> Captured[T] | None:
        try:
            captured = graphs.capture(lambda: self._run(width))
        except CaptureError as error:
            self._give_up(f"decode rounds run without further CUDA graphs: capturing one of {width} failed: {error}")
            return None
        held = graphs.held_bytes
        self._captured[width] = captured
        logger.info(
            "captured the decode round of %d lane(s); CUDA graphs of %s lane(s) hold %.1f MiB",
            width,
            ", ".join(map(str, self.widths)),
            held / (1 << 20),
        )
        if held > self._limit_bytes:
            self._give_up(
                f"no more CUDA graphs are captured: those of {', '.join(map(str, self.widths))} lane(s) hold "
                f"{held >> 20} MiB, more than {self._limit_bytes >> 20}"
            )
        return captured

    def _give_up(self, reason: str) -> None:
        """Capture no more; widths captured so far keep their graphs."""
        self._capturing = False
        logger.warning("%s", reason)

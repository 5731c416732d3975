"""Decode rounds that are captured once per shape and replayed afterwards.

A round is a function of device memory alone: of the step's inputs, the page tables and the caches, all at addresses
that never change. Every number of lanes has a graph of its own, without padding: there are few of them (engine.
max_concurrency is at most 8), so no round computes lanes that nobody asked for, none needs pages or states to write
them to, and a graph runs the very kernels, on the very shapes, that run without it.

A round of a new shape runs eagerly once, observed; the second is captured and replayed. So whatever an op makes at its
first call (tables, workspaces) is made outside the capture. If making it waited for the device, the shape is observed
once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ninferd.memory.budget import HEADROOM_BYTES

logger = logging.getLogger(__name__)

GRAPH_BYTES: Final = HEADROOM_BYTES // 2
"""Once graphs hold more, no further one is captured. The capacity plan leaves this much free beside the caches."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class RoundShape(NamedTuple):
    """What decode rounds differ in, other than the numbers in their inputs."""

    lanes: int
    draws: bool  # tokens are drawn in it
    rows: int = 1  # of each lane: its last token, and drafts that are verified
    penalties: bool = False  # tokens are penalised and counted in it

    def __str__(self) -> str:
        lanes = f"{self.lanes} lane{'s' if self.lanes > 1 else ''}"
        rows = f" of {self.rows} rows" if self.rows > 1 else ""
        more = [name for name, wanted in (("draws", self.draws), ("penalties", self.penalties)) if wanted]
        return f"{lanes}{rows}{' with ' if more else ''}{' and '.join(more)}"


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


class DecodeRounds(Generic[K, T]):
    """Runs rounds of any shape, from graphs where there are some. Results are the same bits either way."""

    def __init__(self, run: Callable[[K], T], graphs: Graphs | None, limit_bytes: int = GRAPH_BYTES) -> None:
        """``run(shape)`` is a round, a function of device memory alone; without ``graphs`` it is called as it is."""
        self._run = run
        self._graphs = graphs
        self._limit_bytes = limit_bytes
        self._capturing = True
        self._observed: set[K] = set()
        self._suspected: set[K] = set()
        self._captured: dict[K, Captured[T]] = {}

    @property
    def captured(self) -> tuple[K, ...]:
        """Shapes that have a graph, as they came."""
        return tuple(self._captured)

    def replays(self, shape: K) -> bool:
        """Whether a round of this shape is but a replay, which leaves the host free while the device works."""
        return shape in self._captured

    @property
    def held_bytes(self) -> int:
        """Device memory of all graphs."""
        return 0 if self._graphs is None else self._graphs.held_bytes

    def __call__(self, shape: K) -> T:
        """One round. Its result is valid until the next one."""
        captured = self._captured.get(shape)
        if captured is None and self._graphs is not None and self._capturing:
            if shape not in self._observed:
                return self._observe(self._graphs, shape)
            captured = self._capture(self._graphs, shape)
        if captured is None:
            return self._run(shape)
        captured.replay()
        return captured.result

    def release(self) -> None:
        """Give back all graphs, for want of memory; rounds to come are captured anew."""
        if self._graphs is not None and self._captured:
            self._captured.clear()
            self._graphs.release()

    def _observe(self, graphs: Graphs, shape: K) -> T:
        result, obstacle = graphs.observe(lambda: self._run(shape))
        if obstacle is None:
            self._observed.add(shape)
        elif shape not in self._suspected:
            self._suspected.add(shape)
        else:
            self._give_up(f"decode rounds run without further CUDA graphs: {obstacle}")
        return result

    def _capture(self, graphs: Graphs, shape: K) -> Captured[T] | None:
        try:
            captured = graphs.capture(lambda: self._run(shape))
        except CaptureError as error:
            self._give_up(f"decode rounds run without further CUDA graphs: capturing {shape} failed: {error}")
            return None
        self._captured[shape] = captured
        held = f"{len(self._captured)} CUDA graph(s) hold {graphs.held_bytes / (1 << 20):.1f} MiB"
        logger.info("captured the decode round of %s; %s", shape, held)
        if graphs.held_bytes > self._limit_bytes:
            self._give_up(f"no more decode rounds are captured: {held}, more than {self._limit_bytes >> 20}")
        return captured

    def _give_up(self, reason: str) -> None:
        """Capture no more; shapes captured so far keep their graphs."""
        self._capturing = False
        logger.warning("%s", reason)

"""CUDA graphs through torch: one private memory pool and one stream for all captures."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch

from ninferd.engine.graphs import Captured, CaptureError

_WAITS: Final = "called a synchronizing CUDA operation"  # torch's words in its synchronisation debug mode

T = TypeVar("T")


class CudaGraphs:
    """See ``ninferd.engine.graphs.Graphs``.

    All graphs share the pool, so intermediate results of one lie where those of another do: they run one at a time, and
    what a call returns stays its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._device_index = torch.cuda.current_device() if device.index is None else device.index
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Device memory that captures took: the pool, and what the driver keeps of the graphs themselves."""
        return self._held_bytes

    def observe(self, call: Callable[[], T]) -> tuple[T, str | None]:
        """Run a call in torch's synchronisation debug mode, which names the first operation that waits.

        It runs on the stream of the captures, so that libraries make their workspaces for it outside the pool.
        """
        outer, mode = torch.cuda.current_stream(self._device), torch.cuda.get_sync_debug_mode()
        self._stream.wait_stream(outer)
        places: list[str] = []

        def note(message: Warning | str, *_: Any) -> None:
            if _WAITS in str(message):
                places.append(_place(traceback.extract_stack()))

        with warnings.catch_warnings(), torch.cuda.stream(self._stream):
            warnings.simplefilter("always")
            warnings.showwarning = cast(Any, note)  # undone with the filters
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = call()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        outer.wait_stream(self._stream)
        return result, f"{places[0]} waits for the device" if places else None

    def capture(self, call: Callable[[], T]) -> Captured[T]:
        """Record on a stream of our own; other threads may use CUDA meanwhile."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free_before = torch.cuda.mem_get_info(self._device)[0]
        graph = torch.cuda.CUDAGraph()
        try:
            result = self._record(graph, call)
        except Exception as error:  # whatever an op raises: nothing has run, and the round runs eagerly instead
            with suppress(RuntimeError):  # torch's allocator may believe that the capture goes on, and free nothing
                torch._C._cuda_endAllocateToPool(self._device_index, self._pool)
            self._pool = torch.cuda.graph_pool_handle()  # that of pinned memory believes it too, and cannot be told
            raise CaptureError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._graphs.append(graph)
        self._held_bytes += max(0, free_before - torch.cuda.mem_get_info(self._device)[0])
        return Captured(graph.replay, result)

    def _record(self, graph: torch.cuda.CUDAGraph, call: Callable[[], T]) -> T:
        """As ``torch.cuda.graph``, which leaves its stream the current one if the capture breaks off."""
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                return call()
            finally:
                graph.capture_end()

    def release(self) -> None:
        """Destroy all graphs and hand their memory back to the device."""
        torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._held_bytes = 0
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()


def _place(stack: traceback.StackSummary) -> str:
    """``DIRECTORY/FILE:LINE`` of the innermost call that is neither torch's nor this module's."""
    own, library = Path(__file__), Path(torch.__file__).parent
    for frame in reversed(stack):
        path = Path(frame.filename)
        if path != own and library not in path.parents and path.name != "warnings.py":
            return f"{path.parent.name}/{path.name}:{frame.lineno}"
    return "torch"

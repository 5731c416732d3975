"""A stand-in for CUDA graphs on the CPU, and an attention without host decisions that both can capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels_numba.kv.paged import PagedKv
from kernels_numba.ops import OpTable
from kernels_numba.shapes import AttentionShape
from kernels_numba.torch_ops.table import TORCH_OPS
from ninferd.engine.graphs import Captured, CaptureError

T = TypeVar("T")

_aten = torch.ops.aten
_HOST_DECISIONS = {
    _aten.item.default: "reads a number",
    _aten._local_scalar_dense.default: "reads a number",
    _aten.lift_fresh.default: "sends host data",
    _aten.nonzero.default: "makes a shape of data",
    _aten._unique2.default: "makes a shape of data",
}
"""What a CUDA graph cannot hold: each waits for the device, or copies from pageable memory. ``tolist`` is not seen."""


class RecordedGraphs:
    """Captured calls are lists of torch operations, run again on the very same tensors and with the very same numbers.

    As with a CUDA graph, whatever Python code decided is fixed by the capture, and nothing runs during it: what was
    written is put back, what was made is poisoned.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.replays = 0

    def observe(self, call: Callable[[], T]) -> tuple[T, str | None]:
        with _Recording() as recording:
            result = call()
        return result, recording.obstacle

    def capture(self, call: Callable[[], T]) -> Captured[T]:
        with _Recording(keeps=True) as recording:
            result = call()
        for written, content in reversed(recording.before):
            written.copy_(content)
        if recording.obstacle is not None:
            raise CaptureError(recording.obstacle)
        for made in recording.made:
            made.fill_(torch.nan if made.is_floating_point() else 1)
            self.held_bytes += made.nbytes

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return Captured(replay, result)

    def release(self) -> None:
        self.held_bytes = 0


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, *, keeps: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: list[tuple[Tensor, Tensor]] = []  # what was written to, and what it was
        self._keeps = keeps
        self.obstacle: str | None = None
        self.made: list[Tensor] = []  # results that are no views of what there was
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _HOST_DECISIONS and self.obstacle is None:
            self.obstacle = f"{func} {_HOST_DECISIONS[func]}"
        if self._keeps and func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.is_write:
                    self.before.append((value, value.clone()))
        result = func(*args, **kwargs)
        results = _tensors(result)
        given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        self.made += [tensor for tensor in results if _storage(tensor) not in given]
        self._calls.append((func, args, kwargs, results))
        return result

    def replay(self) -> None:
        for func, args, kwargs, results in self._calls:
            for old, new in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                if _storage(old) != _storage(new):
                    old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def masked_attention_decode(
    query: Tensor,
    projected: Tensor,
    kv: PagedKv,
    layer: int,
    page_table: Tensor,
    context_lengths: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """All rows and all columns of the page table at once; what lies behind a row is masked."""
    rows = query.shape[0] // context_lengths.shape[0]  # of each sequence, the last one sees the whole context
    earlier = torch.arange(rows - 1, -1, -1, device=query.device)
    context_lengths = (context_lengths[:, None] - earlier).flatten()
    page_table = page_table.repeat_interleave(rows, 0)
    cached = kv.plain[page_table.long(), layer].to(query.dtype)
    key, value = cached.permute(3, 0, 2, 1, 4, 5).flatten(3, 4)  # [S, KV, P * page_tokens, D] each
    behind = torch.arange(key.shape[2], device=query.device) >= context_lengths[:, None]
    group = shape.heads // shape.kv_heads
    key = key.masked_fill(behind[:, None, :, None], 0).repeat_interleave(group, 1)
    value = value.masked_fill(behind[:, None, :, None], 0).repeat_interleave(group, 1)
    scores = (query[:, :, None] @ key.mT).float() * shape.softmax_scale
    weights = scores.masked_fill(behind[:, None, None], -torch.inf).softmax(-1).to(query.dtype)
    attended: Tensor = (weights @ value).flatten(1)
    return attended * torch.sigmoid(projected[:, shape.gate_columns])


CAPTURABLE_OPS: OpTable = replace(TORCH_OPS, name="capturable", attention_decode=masked_attention_decode)
"""torch's ops, none of which makes the host wait in a decode round of a dense model."""

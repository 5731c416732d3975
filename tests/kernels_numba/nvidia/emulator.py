"""Runs the source text of a kernel on the CPU, so that its arithmetic and addresses are tested without a GPU.

Every thread is a generator that stops at each instruction of a warp or a block; those are carried out when all threads
concerned have come there. Global memory is host memory, of which only the given tensors may be touched; shared memory
starts as NaN, and what one warp writes there no other may touch before the next barrier. What it cannot show: races in
global memory and within a warp, and what the hardware's approximations cost.
"""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, partial
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_numba.nvidia.registry import BY_NAME
from tests.kernels_numba.nvidia.emulated_memory import Memory
from tests.kernels_numba.nvidia.emulated_ptx import OF_A_WARP, WARP, Vocabulary, carried_out, signed

_OF_A_BLOCK = {"bar_sync", "bar_or"}
_OF_THE_GRID = "wait_for"
_Thread = Generator[tuple[str, tuple[Any, ...]], Any, None]


class _Yields(ast.NodeTransformer):
    """Calls of instructions that several threads take part in become ``yield name, arguments``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names = OF_A_WARP | _OF_A_BLOCK | {_OF_THE_GRID}
        if isinstance(node.func, ast.Attribute) and node.func.attr in names:
            request = ast.Tuple([ast.Constant(node.func.attr), ast.Tuple(node.args, ast.Load())], ast.Load())
            return ast.Yield(request)
        return node


@cache
def _code(source: str) -> CodeType:
    tree = _Yields().visit(ast.parse(source))
    tree.body[0].body += ast.parse("if False: yield").body  # a generator also where there is nothing to wait for
    return compile(ast.fix_missing_locations(tree), "<kernel>", "exec")


def launch(
    source: str,
    grid: tuple[int, int, int],
    threads: int,
    arguments: Sequence[Any],
    tensors: Sequence[Tensor],
    *,
    shared_bytes: int = 0,
    order: Callable[[list[tuple[int, ...]]], list[tuple[int, ...]]] = lambda blocks: blocks,
    names: Sequence[str] = (),
    waits: Mapping[str, int] | None = None,
    together: bool = False,
) -> None:
    """Run ``kernel`` of ``source`` block after block, in ``order``; calls of ``names`` do nothing.

    ``together``: in turns, so that blocks can wait for each other. ``waits`` are the names of ``cp_wait`` intrinsics,
    with their groups; with them copies happen at the last moment.
    """
    blocks: list[tuple[int, ...]] = [index[::-1] for index in np.ndindex(*grid[::-1])]
    types: dict[str, Any] = {"f32": np.float32, "i64": int, "u32": lambda x: int(x) & 0xFFFFFFFF}
    types["i32"] = signed
    turns = []
    with np.errstate(all="ignore"):
        for block in order(blocks):
            memory = Memory(tensors, shared_bytes)
            running: list[_Thread] = []
            for thread in range(threads):
                vocabulary = Vocabulary(memory, thread, block, threads, grid, late=waits is not None)
                scope = {**dict.fromkeys(("P", "F", "F4"), vocabulary), **types, **{n: lambda: None for n in names}}
                scope |= {name: partial(vocabulary.cp_wait, groups) for name, groups in (waits or {}).items()}
                exec(_code(source), scope)
                running.append(scope["kernel"](*arguments))
            turns.append(_turns(running, memory))
            if not together:
                _run(turns)
        _run(turns)


def _run(turns: list[Generator[bool, None, None]]) -> None:
    """Blocks that take turns until all have ended."""
    while turns:
        moved = False
        for turn in turns.copy():
            advanced = next(turn, None)
            moved = moved or advanced is not False
            if advanced is None:
                turns.remove(turn)
        assert moved, "threads wait for each other"


def _turns(threads: list[_Thread], memory: Memory) -> Generator[bool, None, None]:
    """Every turn tells whether a thread went on."""
    requests: list[tuple[str, tuple[Any, ...]] | None] = []
    for index, thread in enumerate(threads):
        memory.warp = index // WARP
        requests.append(next(thread, None))

    def resume(index: int, value: Any) -> None:
        memory.warp = index // WARP
        try:
            requests[index] = threads[index].send(value)
        except StopIteration:
            requests[index] = None

    while any(requests):
        moved = False
        for first in range(0, len(threads), WARP):
            warp = requests[first : first + WARP]
            asked = {request[0] if request else None for request in warp}
            name = asked.pop()
            if asked or name is None or name in _OF_A_BLOCK or name == _OF_THE_GRID:
                continue
            arguments = [request[1] for request in warp if request]
            memory.warp = first // WARP
            for lane, value in enumerate(carried_out(name, arguments, memory)):
                resume(first + lane, value)
            moved = True
        asked = {request[0] if request else None for request in requests}
        if len(asked) == 1 and asked <= _OF_A_BLOCK:
            memory.barriers += 1
            any_of_them = int(any(int(value) for request in requests if request for value in request[1]))
            for index in range(len(threads)):
                resume(index, any_of_them)
            moved = True
        for index, request in enumerate(requests):
            if (
                request
                and request[0] == _OF_THE_GRID
                and memory.read("global", np.uint32, 1, request[1][0]) >= request[1][1]
            ):
                resume(index, None)
                moved = True
        yield moved


class EmulatedDevice:
    """Stands in for ``launch.Device``: kernels run here, and see ``tensors`` and what was allocated meanwhile."""

    arch = "sm_90"
    multiprocessors = 132
    shared_bytes_per_block = 99 << 10  # of the smallest device

    def __init__(self, shuffle: random.Random) -> None:
        self.tensors: list[Tensor] = []
        self.launched: list[str] = []
        self._shuffle = shuffle
        self._empty = torch.empty

    def empty(self, *size: Any, **options: Any) -> Tensor:
        """``torch.empty`` full of NaN."""
        tensor = self._empty(*size, **options)
        self.tensors.append(tensor)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 255)

    def kernel(self, name: str) -> Callable[..., None]:
        spec = BY_NAME[name]
        module = importlib.import_module(f"kernels_numba.nvidia.{spec.module}")
        source = module.source(*spec.arguments)
        named = module.waits(spec.arguments[0]) if hasattr(module, "waits") else {}
        types: dict[str, Callable[[Any], Any]] = {"l": int, "i": _int32, "f": np.float32}

        def run(
            grid: tuple[int, int, int],
            *arguments: Any,
            shared_bytes: int = 0,
            programmatic: bool = False,
        ) -> None:
            self.launched.append(name)
            assert shared_bytes <= self.shared_bytes_per_block
            launch(
                source,
                grid,
                spec.threads,
                [types[letter](value) for letter, value in zip(spec.signature, arguments, strict=True)],
                self.tensors,
                shared_bytes=shared_bytes,
                order=lambda blocks: self._shuffle.sample(blocks, len(blocks)),
                waits={"copies_done": 0, "older_copies_done": 1, **named},
            )

        return run


def _int32(value: int) -> int:
    assert -(1 << 31) <= value < 1 << 31
    return value

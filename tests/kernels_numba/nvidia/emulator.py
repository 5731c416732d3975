"""Runs the source text of a kernel on the CPU, so that its arithmetic and addresses are tested without a GPU.

Every thread is a generator that stops at each instruction of a warp or a block; those are carried out when all threads
concerned have come there. Global memory is host memory, of which only the given tensors may be touched; shared memory
starts as NaN, and what one warp writes there no other may touch before the next barrier. What it cannot show: races in
global memory and within a warp, and what the hardware's approximations cost.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_numba.nvidia.registry import BY_NAME

WARP = 32
_OF_A_WARP = frozenset({"shfl_xor", "shfl_xor_f", "shfl_idx", "shfl_idx_f", "shfl_up_f", "syncwarp", "movmatrix"})
_MATRICES = frozenset({"ldsm4", "ldsm4t", "mma_f16", "mma_bf16"})
_OF_A_BLOCK = "bar_sync"
_Thread = Generator[tuple[str, tuple[Any, ...]], Any, None]
_F, _U, _H, _L = np.float32, np.uint32, np.uint16, np.int64


@dataclass
class Memory:
    """Global memory as far as it is allowed, and the shared memory of one block."""

    tensors: Sequence[Tensor]
    shared_bytes: int

    def __post_init__(self) -> None:
        spans = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in self.tensors]
        self._spans = [(start, start + size) for start, size in spans]
        self._shared = np.full(self.shared_bytes, 0xFF, np.uint8)
        self.warp = self.barriers = 0  # of the thread that runs
        words = -(-self.shared_bytes // 4)
        self._written_by, self._read_by = (
            [-1] * words,
            [-1] * words,
        )  # barriers and warp; the last of the warps is several

    def place(self, space: str, address: int, size: int) -> int:
        """Host address of what a thread reads or writes, if it may."""
        assert address % min(size, 16) == 0, f"{size} bytes at {address:#x} are not aligned"
        if space == "shared":
            assert 0 <= address <= self.shared_bytes - size, f"{size} bytes at {address} of {self.shared_bytes} shared"
            return int(self._shared.ctypes.data) + address
        assert any(lo <= address and address + size <= hi for lo, hi in self._spans), f"{size} bytes at {address:#x}"
        return address

    def note(self, address: int, size: int, writes: bool) -> None:
        """A warp's access to shared memory; AssertionError if no barrier keeps it apart from another warp's."""
        if size < 4:  # neighbours in a word may belong to different warps
            return
        since = self.barriers * 64  # of what happened after the last barrier
        now, several = since + self.warp, since + 63
        written, read = self._written_by, self._read_by
        for word in range(address // 4, (address + size) // 4):
            race = since <= written[word] != now or (writes and since <= read[word] != now)
            assert not race, (
                f"warp {self.warp} {'writes' if writes else 'reads'} shared {4 * word}, another has just now"
            )
            if writes:
                written[word] = now
            else:
                read[word] = several if since <= read[word] != now else now

    def read(self, space: str, dtype: Any, count: int, address: int) -> Any:
        size = count * np.dtype(dtype).itemsize
        if space == "shared":
            self.note(int(address), size, writes=False)
        values = np.frombuffer(ctypes.string_at(self.place(space, int(address), size), size), dtype)
        return _scalar(values[0]) if count == 1 else tuple(_scalar(value) for value in values)

    def write(self, space: str, dtype: Any, address: int, *values: Any) -> None:
        mask = (1 << 8 * np.dtype(dtype).itemsize) - 1
        data = np.array([v if dtype is _F else int(v) & mask for v in values], dtype).tobytes()
        if space == "shared":
            self.note(int(address), len(data), writes=True)
        ctypes.memmove(self.place(space, int(address), len(data)), data, len(data))


def _scalar(value: Any) -> Any:
    return value if value.dtype == _F else int(value)


def _signed(word: int) -> int:
    return (int(word) + 2**31) % 2**32 - 2**31


def _halves(word: int, dtype: Any = np.float16) -> Any:
    return np.array([word], _U).view(dtype)


def _float(word: int) -> Any:
    return np.array([word & 0xFFFFFFFF], _U).view(_F)[0]


def _half_pair(low: float, high: float) -> int:
    return int(np.array([low, high], _F).astype(np.float16).view(_U)[0])


def _bfloat16(value: float) -> int:
    word = int(np.array([value], _F).view(_U)[0])
    return 0x7FFF if value != value else word + 0x7FFF + (word >> 16 & 1) >> 16


def _packed(halves: Any) -> int:
    return int(np.asarray(halves, np.float16).view(_U)[0])


def _permuted(eight_bytes: int, order: int) -> int:
    return sum((eight_bytes >> 8 * (order >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


def _e2m1_halves(word: int) -> tuple[int, ...]:
    """Half i of the result: the code that each half of the word scatters over the places of i, sign first."""
    places = ((15, 11, 10, 9), (7, 3, 2, 1), (8, 14, 13, 12), (0, 6, 5, 4))

    def moved(half: int, bits: tuple[int, ...]) -> int:
        return sum((half >> bit & 1) << to for bit, to in zip(bits, (15, 11, 10, 9), strict=True))

    return tuple(moved(word & 0xFFFF, bits) | moved(word >> 16, bits) << 16 for bits in places)


_PURE: dict[str, Callable[..., Any]] = {
    "u_div": lambda x, y: int(x) // int(y),
    "i_min": lambda x, y: min(_signed(x), _signed(y)) & 0xFFFFFFFF,
    "u_shl": lambda x, by: int(x) << int(by) & 0xFFFFFFFF,
    "u_shr": lambda x, by: int(x) >> int(by),
    "u_and": lambda x, y: int(x) & int(y),
    "u_or": lambda x, y: int(x) | int(y),
    "u_max": lambda x, y: max(int(x), int(y)),
    "prmt": lambda x, y, order: _permuted(int(x) | int(y) << 32, order),
    "h2_add": lambda x, y: _packed(_halves(x) + _halves(y)),
    "h2_mul": lambda x, y: _packed(_halves(x) * _halves(y)),
    "h2_mul_lo": lambda x, y: _packed(_halves(x) * _halves(y)[0]),
    "h2_mul_hi": lambda x, y: _packed(_halves(x) * _halves(y)[1]),
    "dq8": lambda word: _e2m1_halves(int(word)),
    "sc_first": lambda word: int(word) << 7 & 0x3F803F80,
    "sc_second": lambda word: int(word) & 0x3F803F80,
    "e4m3_halves": lambda word: int(word) & 0x80008000 | int(word) >> 1 & 0x3F803F80,
    "bits_f": _float,
    "f_bits": lambda x: int(np.array([x], _F).view(_U)[0]),
    "bf2_lo_f": lambda word: _float(int(word) << 16),
    "bf2_hi_f": lambda word: _float(int(word) & 0xFFFF0000),
    "bf2_pack": lambda low, high: _bfloat16(low) | _bfloat16(high) << 16,
    "h2_pack": _half_pair,
    "h2_lo_f": lambda word: _F(_halves(word)[0]),
    "h2_hi_f": lambda word: _F(_halves(word)[1]),
    "ex2": lambda x: np.exp2(_F(x)),
    "rcp": lambda x: _F(1) / _F(x),
    "rsqrt": lambda x: _F(1 / np.sqrt(float(x))),
    "fmaxf": lambda x, y: np.fmax(_F(x), _F(y)),
    "fminf": lambda x, y: np.fmin(_F(x), _F(y)),
    "fmaf": lambda x, y, z: _F(float(x) * float(y) + float(z)),
    "smem_base": lambda: 0,
    "fence_gpu": lambda: None,
    "pdl_wait": lambda: None,
    "pdl_launch": lambda: None,
}
_SPACES = {"g": "global", "s": "shared"}
_KINDS: dict[str, tuple[Any, int]] = {
    "1": (_U, 1),
    "2": (_U, 2),
    "4": (_U, 4),
    "_f": (_F, 1),
    "_f2": (_F, 2),
    "_f4": (_F, 4),
}
_KINDS |= {"_u16": (_H, 1), "_l": (_L, 1), "_i": (np.int32, 1)}


class _Vocabulary:
    """The names of ``ptx`` as one thread sees them."""

    def __init__(
        self, memory: Memory, thread: int, block: Sequence[int], threads: int, grid: Sequence[int], late: bool
    ) -> None:
        self._memory = memory
        self._late = late
        self._copies: list[list[tuple[int, int, int]]] = [[]]
        self.lane_id = lambda: thread % WARP
        self.tid_x, self.ntid_x = (lambda: thread), (lambda: threads)
        self.cta_x, self.cta_y, self.cta_z = (partial(int, index) for index in block)
        self.ncta_x, self.ncta_y, self.ncta_z = (partial(int, size) for size in grid)
        self.ldg_l2_f4 = partial(memory.read, "global", _F, 4)
        self.ldg_stream2, self.ldg_stream4 = (partial(memory.read, "global", _U, count) for count in (2, 4))
        for letter, space in _SPACES.items():
            for kind, (dtype, count) in _KINDS.items():
                setattr(self, f"ld{letter}{kind}", partial(memory.read, space, dtype, count))
                setattr(self, f"st{letter}{kind}", partial(memory.write, space, dtype))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _PURE[name]

    def cp_async16(self, to: int, source: int) -> None:
        places = self._memory.place("shared", to, 16), self._memory.place("global", int(source), 16)
        self._memory.note(to, 16, writes=True)
        if self._late:
            self._copies[-1].append((to, *places))
        else:
            ctypes.memmove(*places, 16)

    def cp_commit(self) -> None:
        self._copies.append([])

    def cp_wait(self, groups: int) -> None:
        while len(self._copies) > groups + 1:
            for to, place, source in self._copies.pop(0):
                self._memory.note(to, 16, writes=True)
                ctypes.memmove(place, source, 16)

    def atom_inc(self, address: int, limit: int) -> int:
        old: int = self._memory.read("global", _U, 1, address)
        self._memory.write("global", _U, address, 0 if old >= limit else old + 1)
        return old


def _exchange(name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    if name == "syncwarp":
        return [None] * WARP
    if name == "movmatrix":
        return _transposed([int(word) for (word,) in arguments])
    if name.startswith("shfl_xor"):
        return [arguments[lane ^ by][0] for lane, (_, by) in enumerate(arguments)]
    if name.startswith("shfl_idx"):
        return [arguments[lane % WARP][0] for _, lane in arguments]
    return [arguments[lane - by][0] if lane >= by else _F(0) for lane, (_, by) in enumerate(arguments)]


def _transposed(words: list[int]) -> list[Any]:
    matrix = np.ascontiguousarray(np.array(words, _U).view(_H).reshape(8, 8).T)
    return [int(word) for word in matrix.view(_U).reshape(-1)]


def _load_matrices(name: str, arguments: list[tuple[Any, ...]], memory: Memory) -> list[Any]:
    rows = np.array([memory.read("shared", _U, 4, address) for (address,) in arguments], _U).view(_H)
    matrices = rows.reshape(4, 8, 8)
    if name == "ldsm4t":
        matrices = matrices.transpose(0, 2, 1)
    words = np.ascontiguousarray(matrices).view(_U).reshape(4, WARP)
    return [tuple(int(word) for word in words[:, lane]) for lane in range(WARP)]


def _bfloat16_pair(word: int) -> Any:
    return np.array([word << 16 & 0xFFFFFFFF, word & 0xFFFF0000], _U).view(_F)


def _multiply(arguments: list[tuple[Any, ...]], pair: Callable[[int], Any]) -> list[Any]:
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    for lane, values in enumerate(arguments):
        row, column = lane // 4, 2 * (lane % 4)
        for i, (down, right) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
            a[row + down, column + right : column + right + 2] = pair(int(values[i]))
        for i in range(2):
            b[column + 8 * i : column + 8 * i + 2, row] = pair(int(values[4 + i]))
            c[row + 8 * i, column : column + 2] = values[6 + 2 * i : 8 + 2 * i]
    d = (a @ b + c).astype(_F).reshape(2, 8, 4, 2)
    return [(*d[0, lane // 4, lane % 4], *d[1, lane // 4, lane % 4]) for lane in range(WARP)]


class _Yields(ast.NodeTransformer):
    """Calls of instructions that several threads take part in become ``yield name, arguments``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names = _OF_A_WARP | _MATRICES | {_OF_A_BLOCK}
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
) -> None:
    """Run ``kernel`` of ``source`` block after block, in ``order``; calls of ``names`` do nothing.

    ``waits`` are the names of ``cp_wait`` intrinsics, with their groups; with them copies happen at the last moment.
    """
    blocks: list[tuple[int, ...]] = [index[::-1] for index in np.ndindex(*grid[::-1])]
    types: dict[str, Any] = {"f32": _F, "i64": int, "u32": lambda x: int(x) & 0xFFFFFFFF}
    types["i32"] = _signed
    with np.errstate(all="ignore"):
        for block in order(blocks):
            memory = Memory(tensors, shared_bytes)
            running: list[_Thread] = []
            for thread in range(threads):
                vocabulary = _Vocabulary(memory, thread, block, threads, grid, late=waits is not None)
                scope = {"P": vocabulary, **types, **{n: lambda: None for n in names}}
                scope |= {name: partial(vocabulary.cp_wait, groups) for name, groups in (waits or {}).items()}
                exec(_code(source), scope)
                running.append(scope["kernel"](*arguments))
            _run(running, memory)


def _run(threads: list[_Thread], memory: Memory) -> None:
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
            if asked or name is None or name == _OF_A_BLOCK:
                continue
            arguments = [request[1] for request in warp if request]
            memory.warp = first // WARP
            if name.startswith("mma"):
                results = _multiply(arguments, _halves if name == "mma_f16" else _bfloat16_pair)
            elif name in _MATRICES:
                results = _load_matrices(name, arguments, memory)
            else:
                results = _exchange(name, arguments)
            for lane, value in enumerate(results):
                resume(first + lane, value)
            moved = True
        if all(request and request[0] == _OF_A_BLOCK for request in requests):
            memory.barriers += 1
            for index in range(len(threads)):
                resume(index, None)
            moved = True
        assert moved, f"threads wait for each other: {sorted({r[0] if r else 'end' for r in requests})}"


class EmulatedDevice:
    """Stands in for ``launch.Device``: kernels run here, and see ``tensors`` and what was allocated meanwhile."""

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
        source = importlib.import_module(f"kernels_numba.nvidia.{spec.module}").source(*spec.arguments)
        types: dict[str, Callable[[Any], Any]] = {"l": int, "i": _int32, "f": _F}

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
                waits={"copies_done": 0, "older_copies_done": 1},
            )

        return run


def _int32(value: int) -> int:
    assert -(1 << 31) <= value < 1 << 31
    return value

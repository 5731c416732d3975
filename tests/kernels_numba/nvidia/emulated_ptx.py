"""What ``ptx`` gives kernels, done on the CPU: instructions of a thread, and those that a warp carries out together."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.kernels_numba.nvidia.emulated_fp4 import FP4, FP4_PRODUCTS, multiply_nvfp4
from tests.kernels_numba.nvidia.emulated_memory import Memory
from tests.kernels_numba.nvidia.emulated_tiles import PAIRS, TILES, multiply_pairs, with_b_of_shared_memory

WARP = 32
MATRICES = PAIRS | set(FP4_PRODUCTS) | {"ldsm4", "ldsm4t", "mma_f16", "mma_bf16"}
OF_A_WARP = MATRICES | {"shfl_xor", "shfl_xor_f", "shfl_idx", "shfl_idx_f", "shfl_up_f", "syncwarp", "movmatrix"}
_F, _U, _H, _L = np.float32, np.uint32, np.uint16, np.int64


def signed(word: int) -> int:
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


def _bfloat16_packed(pair: Any) -> int:
    return _bfloat16(pair[0]) | _bfloat16(pair[1]) << 16


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


_BFLOAT16_LARGEST = _F(float.fromhex("0x1.FEp127"))
_E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
_E4M3 = tuple(
    mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    for exponent in range(16)
    for mantissa in range(8)
)[:127]


def _nearest(x: float, values: Sequence[float]) -> int:
    """Index of the value next to ``x``, of two the even one."""
    if x != x:
        return 0
    above = bisect.bisect_left(values, x)
    if above in (0, len(values)):
        return min(above, len(values) - 1)
    below = above - 1
    distances = x - values[below], values[above] - x
    return (below, above)[distances[1] < distances[0] or (distances[0] == distances[1] and above % 2 == 0)]


_PURE: dict[str, Callable[..., Any]] = {
    "u_div": lambda x, y: int(x) // int(y),
    "i_min": lambda x, y: min(signed(x), signed(y)) & 0xFFFFFFFF,
    "u_shl": lambda x, by: int(x) << int(by) & 0xFFFFFFFF,
    "u_shr": lambda x, by: int(x) >> int(by),
    "u_and": lambda x, y: int(x) & int(y),
    "u_or": lambda x, y: int(x) | int(y),
    "u_xor": lambda x, y: int(x) ^ int(y),
    "u_max": lambda x, y: max(int(x), int(y)),
    "prmt": lambda x, y, order: _permuted(int(x) | int(y) << 32, order),
    "h2_add": lambda x, y: _packed(_halves(x) + _halves(y)),
    "h2_max": lambda x, y: _packed(np.fmax(_halves(x), _halves(y))),
    "bf2_max": lambda x, y: _bfloat16_packed(np.fmax(_bfloat16_pair(x), _bfloat16_pair(y))),
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
    "lg2": lambda x: np.log2(_F(x)),
    "rcp": lambda x: _F(1) / _F(x),
    "rsqrt": lambda x: _F(1 / np.sqrt(float(x))),
    "fmaxf": lambda x, y: np.fmax(_F(x), _F(y)),
    "fmax_abs": lambda x, y: np.fmax(_F(x), abs(_F(y))),
    "fminf": lambda x, y: np.fmin(_F(x), _F(y)),
    "fmaf": lambda x, y, z: _F(float(x) * float(y) + float(z)),
    "add_rn": lambda x, y: _F(x) + _F(y),
    "sub_rn": lambda x, y: _F(x) - _F(y),
    "mul_rn": lambda x, y: _F(x) * _F(y),
    "div_rn": lambda x, y: _F(x) / _F(y),
    "finite": lambda x: _F(0) if x != x else np.clip(_F(x), -_BFLOAT16_LARGEST, _BFLOAT16_LARGEST),
    "int8_code": lambda x: round(max(-127, min(127, float(x)))) & 0xFFFFFFFF,
    "e4m3_code": lambda x: _nearest(abs(float(x)), _E4M3),
    "e2m1_code": lambda x, step: _nearest(float(_F(abs(x)) / _F(step)), _E2M1),
    "smem_base": lambda: 0,
    "below": lambda x, y: int(signed(x) < signed(y)),
    "no_unroll": lambda: None,
    "fence_gpu": lambda: None,
    "fence_async": lambda: None,
    "wgmma_wait_1": lambda: None,
    "pdl_wait": lambda: None,
    "pdl_launch": lambda: None,
}
_PURE |= TILES | FP4
_SPACES = {"g": "global", "s": "shared"}
_KINDS: dict[str, tuple[Any, int]] = {
    "1": (_U, 1),
    "2": (_U, 2),
    "4": (_U, 4),
    "_f": (_F, 1),
    "_f2": (_F, 2),
    "_f4": (_F, 4),
}
_KINDS |= {"_u8": (np.uint8, 1), "_u16": (_H, 1), "_l": (_L, 1), "_i": (np.int32, 1)}


class Vocabulary:
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
        self.ldg_l2_f, self.ldg_l2_f4 = (partial(memory.read, "global", _F, count) for count in (1, 4))
        self.ldg_l2_2, self.ldg_l2_u16 = partial(memory.read, "global", _U, 2), partial(memory.read, "global", _H, 1)
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

    def cp_unit(self, to: int, source: int, lane: int, copied: int, scales: int) -> None:
        for offset, lanes in ((0, copied), (512, copied), (1024, scales)):
            if lane < lanes:
                self.cp_async16(to + offset, source + offset)

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

    atom_inc_relaxed = atom_inc

    def arrive(self, address: int) -> None:
        self._memory.write("global", _U, address, self._memory.read("global", _U, 1, address) + 1)

    def prefetch_l2(self, address: int) -> None:
        self._memory.place("global", int(address), 1)

    def red_max(self, address: int, value: int) -> None:
        self._memory.write("global", _U, address, max(int(value), self._memory.read("global", _U, 1, address)))

    def atom_add_s(self, address: int, value: int) -> int:
        """Of any warp, so that no race is noted."""
        place = ctypes.c_uint32.from_address(self._memory.place("shared", int(address), 4))
        old = place.value
        place.value = old + int(value)
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


def carried_out(name: str, arguments: list[tuple[Any, ...]], memory: Memory) -> list[Any]:
    """The results of the lanes of an instruction that a warp carries out together."""
    if name == "wgmma_f16_pair":
        arguments = with_b_of_shared_memory(arguments, memory)
    if name in PAIRS:
        return multiply_pairs(arguments, _bfloat16_pair if name == "mma_bf16_pair" else _halves)
    if name in FP4_PRODUCTS:
        return multiply_nvfp4(arguments, FP4_PRODUCTS[name])
    if name.startswith("mma"):
        return _multiply(arguments, _halves if name == "mma_f16" else _bfloat16_pair)
    if name in MATRICES:
        return _load_matrices(name, arguments, memory)
    return _exchange(name, arguments)

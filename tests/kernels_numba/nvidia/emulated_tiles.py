"""What ``tiles`` gives kernels, done on the CPU, by the meaning of the stored words rather than by their bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.kernels_numba.nvidia.emulated_memory import Memory

WARP = 32
PAIRS = frozenset({"mma_f16_pair", "mma_bf16_pair", "wgmma_f16_pair"})
_F, _U = np.float32, np.uint32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PLACES = ((15, 11), (7, 3), (8, 14), (0, 6))
"""Of the sign and of the highest bit of the magnitude of the 4 codes of 16 bits."""


def _word(low: float, high: float) -> int:
    return int(np.array([low, high], np.float64).astype(np.float16).view(_U)[0])


def _pair(word: int) -> Any:
    return np.array([word], _U).view(np.float16).astype(np.float64)


def _times(word: int, scales: int) -> int:
    return _word(*(_pair(word) * _pair(scales)))


def _codes(word: int) -> list[int]:
    """Words of the codes of both halves, times 2^-14."""

    def code(half: int, sign: int, top: int) -> float:
        value = _E2M1[half >> (top - 2) & 7] * 2.0**-14
        return -value if half >> sign & 1 else value

    return [_word(code(word & 0xFFFF, *place), code(word >> 16, *place)) for place in _PLACES]


def _e4m3(byte: int) -> float:
    """Without the meaning of NaN: 0x7F reads 480."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if byte & 0x80 else value


def _scales(word: int, second: bool) -> list[float]:
    return [_e4m3((word >> (16 * half + 7 * second)) & 127) for half in range(2)]


def _int8(byte: int) -> float:
    return float((byte + 128) % 256 - 128)


def _byte(word: int, index: int) -> int:
    return word >> 8 * index & 255


def _bytes_of(word: int, first: int, second: int, decode: Callable[[int], float]) -> int:
    return _word(decode(_byte(word, first)), decode(_byte(word, second)))


def _nvfp4_keys(part: int) -> Callable[..., tuple[int, ...]]:
    def decoded(x: int, y: int, *scales: int) -> tuple[int, ...]:
        rows, found = (_codes(x), _codes(y)), []
        for step in range(2):
            for half in range(2):
                for row in range(2):
                    scale = float(_pair(scales[2 * row + step])[part])
                    found.append(_word(*(_pair(rows[row][2 * step + half]) * scale)))
        return tuple(found)

    return decoded


def _nvfp4_values(*blocks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    words = [_codes(word) for block in blocks for word in block]
    return tuple(tuple(word[tile] for word in words) for tile in range(4))


def _value_scales(power: int) -> Callable[..., tuple[tuple[int, ...], ...]]:
    def extracted(*blocks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                _word(*(2.0**power * scale for scale in _scales(block[2 * high + tile // 2], bool(tile % 2))))
                for block in blocks
                for high in range(2)
            )
            for tile in range(4)
        )

    return extracted


def _byte_keys(decode: Callable[[int], float]) -> Callable[..., tuple[int, ...]]:
    def decoded(*words: int) -> tuple[int, ...]:
        return tuple(
            _bytes_of(words[2 * step + row], part, part + 2, decode)
            for step in range(2)
            for part in range(2)
            for row in range(2)
        )

    return decoded


def _byte_values(decode: Callable[[int], float]) -> Callable[..., tuple[tuple[int, ...], ...]]:
    def decoded(*blocks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                _bytes_of(block[2 * tile + high], 2 * row, 2 * row + 1, decode)
                for block in blocks
                for high in range(2)
                for row in range(2)
            )
            for tile in range(2)
        )

    return decoded


def _small_e4m3(byte: int) -> float:
    return _e4m3(byte) * 2.0**-8


def _fma(x: float, y: float, z: float) -> Any:
    return _F(float(x) * float(y) + float(z))


TILES: dict[str, Callable[..., Any]] = {
    "wgmma_done": lambda c: c,
    "b_descriptor": lambda address, c: address >> 4,
    "key_scales": lambda z: tuple(_word(*(2.0**7 * scale for scale in _scales(z, second))) for second in (False, True)),
    "nvfp4_value_scales": _value_scales(-8),
    "nvfp4_value_scales_lifted": _value_scales(7),
    "scaled_a_rows": lambda a, *rows: tuple(_times(w, rows[i % 2]) for i, w in enumerate(a)),
    "nvfp4_keys_low": _nvfp4_keys(0),
    "nvfp4_keys_high": _nvfp4_keys(1),
    "nvfp4_values": _nvfp4_values,
    "fp8_keys": _byte_keys(_small_e4m3),
    "fp8_values": _byte_values(_small_e4m3),
    "int8_keys": _byte_keys(_int8),
    "int8_values": _byte_values(_int8),
    "scaled_b": lambda b, y: tuple(tuple(_times(w, s) for w, s in zip(tile, y, strict=True)) for tile in b),
    "scaled_a": lambda a, y: tuple(_times(w, y[i // 2]) for i, w in enumerate(a)),
    "scaled_rows": lambda c, *rows: tuple(tuple(_F(x * rows[i // 2]) for i, x in enumerate(tile)) for tile in c),
    "add_scaled_rows": lambda c, added, *rows: tuple(
        tuple(_fma(x, rows[i // 2], y) for i, (y, x) in enumerate(zip(tile, more, strict=True)))
        for tile, more in zip(c, added, strict=True)
    ),
    "scaled_columns": lambda c, factors: tuple(
        tuple(_F(x * own[i % 2]) for i, x in enumerate(tile)) for tile, own in zip(c, factors, strict=True)
    ),
    "exp2_tile": lambda tile, factor, *shifts: tuple(
        np.exp2(_fma(x, factor, shifts[i % 2])) for i, x in enumerate(tile)
    ),
    "masked_tile": lambda tile, row, *limits: tuple(
        _F(-2e30) if row + 8 * (i // 2) > limits[i % 2] else x for i, x in enumerate(tile)
    ),
}


def with_b_of_shared_memory(arguments: list[tuple[Any, ...]], memory: Memory) -> list[tuple[Any, ...]]:
    """Of a warp's part in ``wgmma_f16_pair``: the fragments of B as its lanes would hold them."""
    (address,) = {16 * int(lane[1]) for lane in arguments}
    tiles = len(arguments[0][2])
    words = [
        [memory.read("shared", _U, 4, address + (i * tiles + tile) * 128 + 16 * g) for i in range(4)]
        for tile in range(tiles)
        for g in range(8)
    ]
    return [
        (a, tuple(tuple(words[8 * tile + lane // 4][i][lane % 4] for i in range(4)) for tile in range(tiles)), c)
        for lane, (a, _, c) in enumerate(arguments)
    ]


def _matrix(words: Any, pair: Callable[[int], Any]) -> Any:
    return np.array([[pair(int(word)) for word in lane] for lane in words], np.float64)


def multiply_pairs(arguments: list[tuple[Any, ...]], pair: Callable[[int], Any]) -> list[Any]:
    """``mma_*_pair`` of a warp: lane by lane tuples ``A, B, C``."""
    tiles = len(arguments[0][1])
    a, b, c = np.zeros((16, 32)), np.zeros((32, 8 * tiles)), np.zeros((16, 8 * tiles))
    rows = _matrix([lane[0] for lane in arguments], pair)
    for lane, (_, words, sums) in enumerate(arguments):
        g, q = lane // 4, lane % 4
        for i in range(8):
            step, row, high = i // 4, i % 2, i % 4 // 2
            a[g + 8 * row, 16 * step + 8 * high + 2 * q :][:2] = rows[lane, i]
        for tile in range(tiles):
            for i in range(4):
                b[16 * (i // 2) + 8 * (i % 2) + 2 * q :, 8 * tile + g][:2] = pair(int(words[tile][i]))
                c[g + 8 * (i // 2), 8 * tile + 2 * q + i % 2] = sums[tile][i]
    d = (a @ b + c).astype(_F)
    return [
        tuple(
            tuple(d[lane // 4 + 8 * (i // 2), 8 * tile + 2 * (lane % 4) + i % 2] for i in range(4))
            for tile in range(tiles)
        )
        for lane in range(len(arguments))
    ]

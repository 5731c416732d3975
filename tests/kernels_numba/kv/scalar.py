"""Encoders and page orders once more, one number at a time, from the text of the spec and of the layout."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [mantissa * 2.0**-9 for mantissa in range(8)] + [
    (8 + mantissa) * 2.0 ** (exponent - 10) for exponent in range(1, 16) for mantissa in range(8)
][:-1]
"""Values of the words 0 to 126."""
Codes = npt.NDArray[np.int64]


def nearest(values: list[float], x: float) -> int:
    """The word whose value is nearest; of two as near the even one."""
    return min(range(len(values)), key=lambda word: (abs(values[word] - x), word & 1))


def signed(word: int, x: float, sign_bit: int) -> int:
    return word | (math.copysign(1, x) < 0) << sign_bit


def nvfp4(x: npt.NDArray[np.float32]) -> tuple[list[int], list[int]]:
    """Codes and scale words of a vector of bfloat16 values."""
    codes, scales = [], []
    for group in x.reshape(-1, 16):
        word = nearest(E4M3, float(np.float32(np.abs(group).max()) / np.float32(6)))
        scales.append(word)
        for value in group:
            scaled = abs(np.float32(value) / np.float32(E4M3[word])) if word else 0
            codes.append(signed(nearest(E2M1, float(scaled)), float(value), 3) if word else 0)
    return codes, scales


def half_scaled(
    x: npt.NDArray[np.float32], group: int, largest: float, code: Callable[[float], int]
) -> tuple[list[int], list[float]]:
    codes, scales = [], []
    for values in x.reshape(-1, group):
        scale = np.float16(min(np.float32(np.abs(values).max()) / np.float32(largest), np.float32(65504)))
        scales.append(float(scale))
        inverse = np.float32(1) / np.float32(scale) if scale else np.float32(0)
        codes += [code(float(np.clip(np.float32(value) * inverse, -largest, largest))) for value in values]
    return codes, scales


def fp8(x: npt.NDArray[np.float32]) -> tuple[list[int], list[float]]:
    return half_scaled(x, len(x), 448, lambda scaled: signed(nearest(E4M3, abs(scaled)), scaled, 7))


def int8(x: npt.NDArray[np.float32]) -> tuple[list[int], list[float]]:
    return half_scaled(x, 64, 127, lambda scaled: round(scaled) & 255)


class Run:
    """Bytes of one part of a head run, filled bit by bit."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)
        self.written = np.zeros(8 * size_bytes, int)  # how often each bit

    def put(self, byte: int, bit: int, value: int, bits: int) -> None:
        """``bits`` bits of ``value`` to ``bit`` and above of the little-endian number that begins at ``byte``."""
        for i in range(bits):
            place = 8 * byte + bit + i
            self.data[place // 8] |= (value >> i & 1) << place % 8
            self.written[place] += 1

    def put_scattered(self, byte: int, member: int, code: int) -> None:
        """One of four E2M1 codes of a 16-bit half: h0 s=15 m=11..9, h1 s=7 m=3..1, h2 s=8 m=14..12, h3 s=0 m=6..4."""
        sign, magnitude = ((15, 9), (7, 1), (8, 12), (0, 4))[member]
        self.put(byte, sign, code >> 3, 1)
        self.put(byte, magnitude, code & 7, 3)


def nvfp4_key_codes(codes: Codes) -> Run:
    """``[token block of 16: 4][part][token 16][q 4][words]``; a word holds dimensions 4q.. 4q + 3 of two groups.

    The even ones in its low half, the odd ones in the high half: of the first group, then of the second.
    """
    head_dim = codes.shape[1]
    parts, words = max(1, head_dim // 128), min(4, head_dim // 32)
    run = Run(32 * head_dim)
    for block in range(4):
        for part in range(parts):
            for token in range(16):
                for q in range(4):
                    for word in range(words):
                        at = 4 * ((((block * parts + part) * 16 + token) * 4 + q) * words + word)
                        for half in range(2):
                            for i in range(4):
                                group = 2 * words * part + 2 * word + i // 2
                                code = int(codes[16 * block + token, 16 * group + 4 * q + 2 * (i % 2) + half])
                                run.put_scattered(at + 2 * half, i, code)
    return run


def nvfp4_key_scales(scales: Codes) -> Run:
    """``[token 64][16-bit units]``, a unit of two groups."""
    units = scales.shape[1] // 2
    run = Run(128 * units)
    for token in range(64):
        for unit in range(units):
            at = 2 * (token * units + unit)
            run.put(at, 0, int(scales[token, 2 * unit]), 7)
            run.put(at, 7, int(scales[token, 2 * unit + 1]), 7)
    return run


def nvfp4_value_codes(codes: Codes) -> Run:
    """``[token block 4][slice][lane 32][4 words]``: word 2 hi + rh has a half each of tokens 2q + 8hi and the next."""
    slices = codes.shape[1] // 64
    run = Run(32 * codes.shape[1])
    for block in range(4):
        for part in range(slices):
            for lane in range(32):
                g, q = divmod(lane, 4)
                for word in range(4):
                    hi, rh = divmod(word, 2)
                    for half in range(2):
                        token = 16 * block + 2 * q + 8 * hi + half
                        at = 4 * (((block * slices + part) * 32 + lane) * 4 + word) + 2 * half
                        for i in range(4):
                            run.put_scattered(at, i, int(codes[token, 64 * part + 16 * i + g + 8 * rh]))
    return run


def nvfp4_value_scales(scales: Codes) -> Run:
    """``[token block 4][slice][q 4][4 words]``: word 2 hi + p has groups 4 slice + 2p, + 1 of two tokens."""
    slices = scales.shape[1] // 4
    run = Run(64 * scales.shape[1])
    for block in range(4):
        for part in range(slices):
            for q in range(4):
                for word in range(4):
                    hi, pair = divmod(word, 2)
                    for half in range(2):
                        token = 16 * block + 2 * q + 8 * hi + half
                        at = 4 * (((block * slices + part) * 4 + q) * 4 + word) + 2 * half
                        for i in range(2):
                            run.put(at, 7 * i, int(scales[token, 4 * part + 2 * pair + i]), 7)
    return run


def byte_key_codes(codes: Codes) -> Run:
    run = Run(codes.size)
    for place, code in enumerate(codes.flatten()):
        run.put(place, 0, int(code), 8)
    return run


def byte_value_codes(codes: Codes) -> Run:
    """``[token block 4][slice][half 2][lane 32][16 bytes]``, byte 8 (i & 1) + 4 hi + 2 rh + lohi."""
    slices = codes.shape[1] // 64
    run = Run(codes.size)
    for block in range(4):
        for part in range(slices):
            for i in range(4):
                for lane in range(32):
                    g, q = divmod(lane, 4)
                    for hi in range(2):
                        for rh in range(2):
                            for lohi in range(2):
                                token = 16 * block + 8 * hi + 2 * q + lohi
                                dim = 64 * part + 16 * i + 8 * rh + g
                                at = (((block * slices + part) * 2 + i // 2) * 32 + lane) * 16
                                at += 8 * (i & 1) + 4 * hi + 2 * rh + lohi
                                run.put(at, 0, int(codes[token, dim]), 8)
    return run


def half_key_scales(words: Codes) -> Run:
    run = Run(2 * words.size)
    for place, word in enumerate(words.flatten()):
        run.put(2 * place, 0, int(word), 16)
    return run


def half_value_scales(words: Codes) -> Run:
    """``[group][64 tokens]``."""
    run = Run(2 * words.size)
    for token in range(64):
        for group in range(words.shape[1]):
            run.put(2 * (64 * group + token), 0, int(words[token, group]), 16)
    return run

"""Source text of unrolled kernels: how it is put together, and the arithmetic that several of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LOG2_E = 1.4426950408889634
WARP_OFFSETS = (16, 8, 4, 2, 1)
_LOG1P_TERMS = 8


class Source:
    """Lines of a function, indented as they are added."""

    def __init__(self, name: str, parameters: str) -> None:
        self._lines = [f"def {name}({', '.join(parameters.split())}):"]
        self._depth = 1

    def __call__(self, text: str) -> None:
        """Add lines, of which the first tells the indentation that they have in common."""
        for line in textwrap.dedent(text).strip("\n").splitlines():
            self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        """What is added within is the body of ``line``."""
        self(line)
        self._depth += 1
        yield
        self._depth -= 1

    def warp_sum(self, *names: str, offsets: Sequence[int] = WARP_OFFSETS) -> None:
        """Each of ``names`` becomes its sum over the lanes that differ by ``offsets``."""
        for offset in offsets:
            for name in names:
                self(f"{name} += P.shfl_xor_f({name}, {offset})")

    def mma(self, sums: str, a: str, b0: str, b1: str) -> None:
        """``sums``_0 to _3 += A B of halves, A being the fragment tuple ``a``."""
        names = ", ".join(f"{sums}_{i}" for i in range(4))
        self(f"{names} = P.mma_f16({a}[0], {a}[1], {a}[2], {a}[3], {b0}, {b1}, {names})")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def exp(x: str) -> str:
    return f"P.ex2(({x}) * f32({LOG2_E}))"


def sigmoid(x: str) -> str:
    return f"P.rcp(f32(1) + P.ex2(({x}) * f32({-LOG2_E})))"


def silu(x: str) -> str:
    return f"({x}) * {sigmoid(x)}"


def bf16(word: str, part: int) -> str:
    """One of the two bfloat16 numbers in a word, as float32."""
    return f"P.bf2_{('lo', 'hi')[part]}_f({word})"


def half(word: str, part: int) -> str:
    """One of the two halves in a word, as float32."""
    return f"P.h2_{('lo', 'hi')[part]}_f({word})"


def softplus(source: Source, result: str, x: str) -> None:
    """``result`` = log(1 + exp(x)) of the name ``x``; relatively exact to a few roundings also where it is small.

    With e = exp(-|x|): max(x, 0) + log1p(e), and log1p(e) = 2 atanh(e / (2 + e)), whose argument is at most 1/3.
    """
    series = f"f32({1 / (2 * _LOG1P_TERMS - 1)})"
    for term in range(_LOG1P_TERMS - 1, 0, -1):
        series = f"({series} * {result}_square + f32({1 / (2 * term - 1)}))"
    source(f"""
        {result}_e = {exp(f"P.fminf({x}, -{x})")}
        {result}_t = {result}_e * P.rcp({result}_e + f32(2))
        {result}_square = {result}_t * {result}_t
        {result} = P.fmaxf({x}, f32(0)) + f32(2) * {result}_t * {series}
    """)

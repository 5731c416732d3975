"""Decode attention with scores of FP4 tensor cores (sm_120a), instruction by instruction on the CPU: it never ran."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from kernels_numba.kv.codec import NVFP4
from kernels_numba.kv.encode import decode, encode
from kernels_numba.nvidia import attention_decode_ops, fp4_tiles
from kernels_numba.nvidia.attention_codec_fp4 import Fp4Plan
from kernels_numba.nvidia.attention_decode_kernels import served_plans
from kernels_numba.nvidia.attention_decode_ops import GROUP
from kernels_numba.nvidia.attention_fp4_kernels import ARCHS, KERNELS, PLANS, plans_with_fp4
from tests.kernels_numba.nvidia.emulated_fp4 import FP4, block_scaled_mma
from tests.kernels_numba.nvidia.test_attention_paged import LAYER, ROUNDING, Device, Paged, distance

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
BY_TILES = {plan.tiles: plan for plan in PLANS}


def rounded(query: Tensor) -> Tensor:
    """To NVFP4, in float64."""
    return decode(NVFP4, *encode(NVFP4, query)).double()


def expected(paged: Paged) -> Tensor:
    paged.query = rounded(paged.query)
    return paged.expected()


# ---- the instruction
def e4m3(byte: Any) -> Any:
    exponent, mantissa = byte >> 3, byte & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


@pytest.mark.parametrize(("half", "lane"), [(0, 0), (0, 1), (1, 2), (1, 3)], ids=str)
def test_a_product(half: int, lane: int) -> None:
    """Against a plain product of the values; scales that no selector names are NaN."""
    random = np.random.default_rng(4 * half + lane)
    a, b = random.integers(0, 16, (16, 64)), random.integers(0, 16, (64, 8))
    a_scales, b_scales = random.integers(0, 0x7F, (16, 4)), random.integers(0, 0x7F, (4, 8))
    c = random.normal(size=(16, 8)).astype(np.float32)

    def word(codes: Any) -> int:
        return sum(int(code) << 4 * i for i, code in enumerate(codes))

    def scales(four: Any) -> int:
        return sum(int(scale) << 8 * i for i, scale in enumerate(four))

    lanes = [divmod(each, 4) for each in range(32)]
    a_words = [[word(a[g + 8 * (r % 2), 8 * q + 32 * (r // 2) :][:8]) for r in range(4)] for g, q in lanes]
    b_words = [[word(b[8 * q + 32 * r :, g][:8]) for r in range(2)] for g, q in lanes]
    sums = [[c[g, 2 * q], c[g, 2 * q + 1], c[g + 8, 2 * q], c[g + 8, 2 * q + 1]] for g, q in lanes]
    of_rows = [scales(a_scales[g + 8 * (q % 2)]) if q // 2 == half else 0x7F7F7F7F for g, q in lanes]
    of_columns = [scales(b_scales[:, g]) if q == lane else 0x7F7F7F7F for g, q in lanes]
    found = block_scaled_mma(a_words, b_words, sums, of_rows, of_columns, half, lane)

    def values(codes: Any) -> Any:
        return np.where(codes & 8, -1, 1) * E2M1[codes & 7]

    product = (values(a) * e4m3(a_scales).repeat(16, 1)) @ (values(b) * e4m3(b_scales).repeat(16, 0)) + c
    for (g, q), got in zip(lanes, found, strict=True):
        wanted = [product[g, 2 * q], product[g, 2 * q + 1], product[g + 8, 2 * q], product[g + 8, 2 * q + 1]]
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(product).max())


def test_operands_of_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of two tiles, of the half 1: which words each product takes, and whose scales."""
    calls: list[tuple[str, list[Any]]] = []

    def inline(_: Any, text: str, results: str, arguments: str, values: list[Any]) -> list[str]:
        assert (results, arguments) == ("ffff", "rrrrrrffffrr")
        calls.append((text, values))
        return [f"d{len(calls)}{i}" for i in range(4)]

    monkeypatch.setattr(fp4_tiles, "inline", inline)
    emitter: Any = SimpleNamespace(b=None, items=list)
    a, b = [f"a{i}" for i in range(8)], [[f"b{tile}{i}" for i in range(4)] for tile in range(2)]
    c = [[f"c{tile}{i}" for i in range(4)] for tile in range(2)]
    sums = fp4_tiles._mma(1)(emitter, a, b, c, ["za0", "za1"], ["zb0", "zb1"])
    assert [values for _, values in calls] == [
        ["a0", "a1", "a2", "a3", "b00", "b01", "c00", "c01", "c02", "c03", "za0", "zb0"],
        ["a0", "a1", "a2", "a3", "b10", "b11", "c10", "c11", "c12", "c13", "za0", "zb1"],
        ["a4", "a5", "a6", "a7", "b02", "b03", "d10", "d11", "d12", "d13", "za1", "zb0"],
        ["a4", "a5", "a6", "a7", "b12", "b13", "d20", "d21", "d22", "d23", "za1", "zb1"],
    ]
    assert sums == [[f"d3{i}" for i in range(4)], [f"d4{i}" for i in range(4)]]
    selectors = [text[text.index("},$14") :] for text, _ in calls]
    assert selectors == ["},$14,{0,1},$15,{0,2};"] * 2 + ["},$14,{0,1},$15,{0,3};"] * 2


# ---- what moves bits, as LLVM is told to
_OPERATIONS: dict[str, Callable[..., int]] = {
    "and_": lambda x, y: x & y,
    "or_": lambda x, y: x | y,
    "shl": lambda x, y: x << y,
    "lshr": lambda x, y: x >> y,
    "icmp_signed": lambda _, x, y: int(x != y),
    "select": lambda chosen, x, y: x if chosen else y,
}


class Integers:
    """LLVM's builder on Python's integers of 32 bits."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *values: _OPERATIONS[name](*(getattr(v, "constant", v) for v in values)) & 0xFFFFFFFF


class Emitter:
    """Of PTX, whose operations have ``results``."""

    def __init__(self, results: Mapping[tuple[str, str, str], Callable[..., Any]] | None = None) -> None:
        self.b, self._results = Integers(), results or {}

    def __call__(self, operation: tuple[str, str, str], *values: Any) -> Any:
        return self._results[operation](*values)

    def items(self, value: Any) -> list[Any]:
        return list(value)

    def float(self, value: float) -> Any:
        return np.float32(value)


def emitter(results: Mapping[tuple[str, str, str], Callable[..., Any]] | None = None) -> Any:
    return Emitter(results)


def test_codes_of_keys() -> None:
    generator = random.Random(0)
    for _ in range(64):
        stored = [generator.getrandbits(32) for _ in range(8)]
        assert tuple(fp4_tiles._nvfp4_codes(emitter(), *stored)) == FP4["nvfp4_codes"](*stored)


def test_scales_of_keys() -> None:
    generator = random.Random(0)
    for _ in range(64):
        stored = generator.getrandbits(32)
        assert fp4_tiles._spread(Integers(), stored) == FP4["spread_scales"](stored)


def float_of(word: int) -> Any:
    return np.array([word & 0xFFFFFFFF], np.uint32).view(np.float32)[0]


def e2m1_codes(numbers: Any) -> list[int]:
    """Of numbers within a group whose scale is 1."""
    return [int(encode(NVFP4, torch.tensor([float(x)] + [6.0] * 15))[0][0]) for x in numbers]


@pytest.mark.parametrize("swapped", [0, 1])
def test_codes_of_queries(swapped: int) -> None:
    """In the order that keys have; what is not finite becomes so before."""
    numbers = torch.tensor([1.0, -2.5, 0.3, 6.0, -0.0, 100.0, float("nan"), float("-inf")]).bfloat16()
    packed = numbers.view(torch.int32).tolist()
    largest = np.float32(torch.finfo(torch.bfloat16).max)
    results: dict[tuple[str, str, str], Callable[..., Any]] = {
        fp4_tiles._BF16_PARTS[0]: lambda word: float_of(word << 16),
        fp4_tiles._BF16_PARTS[1]: lambda word: float_of(word & 0xFFFF0000),
        fp4_tiles._FINITE: lambda x: np.float32(0) if np.isnan(x) else np.clip(x, -largest, largest),
        fp4_tiles._LARGEST: lambda x, y: max(x, abs(y)),
        fp4_tiles._DIVISION: lambda x, y: x / y,
        fp4_tiles._E2M1: lambda *x: sum(code << 4 * i for i, code in enumerate(e2m1_codes(x))),
    }
    unsigned = [word & 0xFFFFFFFF for word in packed]
    values = fp4_tiles._query_values(emitter(results), unsigned, swapped)
    assert values == list(FP4["query_values"](unsigned, swapped))
    small = [np.float32(x) for x in (0.4, -1, 1.5, -2, 3, 4, -6, 0)]
    codes = [int(code) for code in e2m1_codes(small)]
    # bytes of a stored word have dimensions 2, 0, 3, 1; half bytes are those of the first four and of the last
    wanted = sum(codes[d] << 4 * i for i, d in enumerate((2, 6, 0, 4, 3, 7, 1, 5)))
    assert fp4_tiles._query_codes(emitter(results), small, np.float32(1)) == wanted
    assert FP4["query_codes"](small, 1.0) == wanted


# ---- the kernel
@pytest.mark.parametrize(
    ("heads", "rows", "contexts", "slots"),
    [(6, 1, [200, 1, 64], 6), (4, 2, [130], 2), (6, 2, [66, 2], 2), (6, 4, [4, 100], 3), (6, 8, [77], 1)],
    ids=str,
)
def test_rows(heads: int, rows: int, contexts: list[int], slots: int) -> None:
    paged = Paged("nvfp4", contexts, heads, rows=rows)
    plan = next(plan for plan in PLANS if 8 * plan.tiles >= heads * rows)
    out = paged.run(plan, slots)
    assert distance(out, paged.expected()) > 10 * ROUNDING
    assert distance(out, expected(paged)) < ROUNDING


def test_two_pages_a_step_and_several_kv_heads() -> None:
    paged = Paged("nvfp4", [150], heads=6, kv_heads=3, rows=2)
    out = paged.run(Fp4Plan("nvfp4", 1, 2, 3), 2, late=False)
    assert distance(out, expected(paged)) < ROUNDING


@pytest.mark.parametrize("scale", [2.0**-9, 2.0**8], ids=["small", "large"])
def test_the_whole_range_of_scales(scale: float) -> None:
    """Subnormal and the largest scales of keys meet those of queries."""
    paged = Paged("nvfp4", [60], key_scale=scale, value_scale=scale)
    paged.query = (paged.query.double() / scale).bfloat16()
    out = paged.run(BY_TILES[1], 1)
    assert distance(out, expected(paged)) < ROUNDING


def test_queries_without_a_scale_and_other_than_finite() -> None:
    """Groups that round to nothing, the ties of E2M1, a NaN and an infinity."""
    paged = Paged("nvfp4", [70], heads=2)
    paged.query[0, 0, :16] = 0.005
    paged.query[0, 0, 16:24] = torch.tensor([0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5.0, 6.0])
    paged.query[0, 1, 32] = torch.nan
    paged.query[0, 1, 40] = -torch.inf
    out = paged.run(BY_TILES[1], 1)
    assert distance(out, expected(paged)) < ROUNDING


def test_the_op_of_the_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NVFP4 through its kernels, over other codecs as before."""
    (variant,) = GROUP.variants
    launched = {}
    for codec in ("nvfp4", "fp8"):
        device = Device(random.Random(0))
        device.arch = "sm_120a"
        paged = Paged(codec, [70], rows=1)
        device.tensors += [paged.query, paged.projected, paged.kv.pages, paged.table, paged.lengths]
        monkeypatch.setattr(attention_decode_ops, "device_of", lambda _, device=device: device)
        monkeypatch.setattr(attention_decode_ops, "resident_blocks", lambda *_: 2)
        monkeypatch.setattr(attention_decode_ops, "integers", lambda *_: True)
        monkeypatch.setattr(torch, "empty", device.empty)
        arguments = paged.query, paged.projected, paged.kv, LAYER, paged.table, paged.lengths, paged.shape
        out = variant.ops["attention_decode"](*arguments)
        launched[codec] = device.launched
        assert distance(out, expected(paged) if codec == "nvfp4" else paged.expected()) < ROUNDING
    assert launched == {
        "nvfp4": ["attention_fp4_1x1", "attention_combine_256"],
        "fp8": ["attention_paged_fp8_1x1", "attention_combine_256"],
    }


def test_where_it_serves() -> None:
    (variant,) = GROUP.variants
    assert variant.archs == ARCHS == ("sm_120a",)
    assert all(spec.archs == ARCHS for spec in KERNELS)
    assert not {spec.name for spec in KERNELS} & set(GROUP.kernels)
    assert plans_with_fp4("nvfp4", "sm_120a") == PLANS
    for codec, arch in (("nvfp4", "sm_90"), ("nvfp4", "sm_100a"), ("fp8", "sm_120a"), ("k8v4", "sm_120a")):
        assert plans_with_fp4(codec, arch) == served_plans(codec, arch)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.tiles} tiles")
def test_two_blocks_fit_into_a_multiprocessor(plan: Fp4Plan) -> None:
    """100 KiB, of which the driver takes one for each block."""
    assert plan.shared_bytes <= 99 << 10
    assert 2 * (plan.shared_bytes + 1024) <= 100 << 10

"""The ops that serve a model, one by one, at the sizes of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ninferd.benchmarks.ceilings import Ceilings
from ninferd.benchmarks.families import FAMILIES
from ninferd.benchmarks.results import Figure, Skipped, percent
from ninferd.benchmarks.subject import Subject
from ninferd.benchmarks.timing import PerCall


@dataclass(frozen=True)
class KernelOptions:
    """What is varied; an op takes of it what it has."""

    rows: Sequence[int]  # of activations, and of queries of a sequence
    prefill_rows: Sequence[int]
    lanes: Sequence[int]
    contexts: Sequence[int]
    kv_dtypes: Sequence[str]


@dataclass(frozen=True)
class Timing:
    """One op as it was timed, before it is set against the ceilings."""

    op: str
    case: str
    rows: int
    per_call: PerCall
    lanes: int = 1
    context_tokens: int | None = None
    kv_dtype: str | None = None
    read_bytes: int | None = None  # read, and written where it says so, at least
    flops: int | None = None  # given where arithmetic is what bounds it


class KernelFigure(Figure, frozen=True):
    """One op at one size. A share is given of the ceiling that bounds it."""

    op: str
    case: str
    kv_dtype: str | None
    lanes: int
    rows: int
    context_tokens: int | None
    us: float
    captured: bool  # timed inside a CUDA graph
    bytes: int | None
    flops: int | None
    share_of_read: float | None
    share_of_gemm: float | None

    COLUMNS: ClassVar = (
        ("op", -20),
        ("case", -34),
        ("kv", -6),
        ("lanes", 5),
        ("rows", 6),
        ("context", 8),
        ("us", 10),
        ("graph", 5),
        ("GB/s", 7),
        ("TFLOP/s", 8),
        ("of read", 8),
        ("of products", 11),
    )

    def cells(self) -> Sequence[str]:
        return (
            self.op,
            self.case,
            self.kv_dtype or "",
            str(self.lanes),
            str(self.rows),
            "" if self.context_tokens is None else str(self.context_tokens),
            f"{self.us:.2f}",
            "yes" if self.captured else "no",
            "" if self.share_of_read is None or self.bytes is None else f"{self.bytes / self.us / 1e3:.0f}",
            "" if self.flops is None else f"{self.flops / self.us / 1e6:.3g}",
            percent(self.share_of_read),
            percent(self.share_of_gemm),
        )


class Measure(Protocol):
    """Times a family of ops."""

    def __call__(self, subject: Subject, options: KernelOptions, /) -> Iterator[Timing | Skipped]: ...


def families() -> Mapping[str, Measure]:
    """By the names in ``FAMILIES``."""
    from ninferd.benchmarks.op_attention import measure_append, measure_attention
    from ninferd.benchmarks.op_gated_delta import measure_gated_delta
    from ninferd.benchmarks.op_products import measure_products
    from ninferd.benchmarks.op_small import measure_norms, measure_sampling

    return {
        "products": measure_products,
        "attention": measure_attention,
        "append": measure_append,
        "gated-delta": measure_gated_delta,
        "norms": measure_norms,
        "sampling": measure_sampling,
    }


def measure_kernels(
    subject: Subject, options: KernelOptions, ceilings: Ceilings, only: Sequence[str] = FAMILIES
) -> Iterator[KernelFigure | Skipped]:
    """All figures, one after the other."""
    measures = families()
    for name in only:
        for timing in measures[name](subject, options):
            yield timing if isinstance(timing, Skipped) else _figure(timing, ceilings)


def _figure(timing: Timing, ceilings: Ceilings) -> KernelFigure:
    size, flops, seconds = timing.read_bytes, timing.flops, timing.per_call.seconds
    return KernelFigure(
        op=timing.op,
        case=timing.case,
        kv_dtype=timing.kv_dtype,
        lanes=timing.lanes,
        rows=timing.rows,
        context_tokens=timing.context_tokens,
        us=1e6 * seconds,
        captured=timing.per_call.captured,
        bytes=size,
        flops=flops,
        share_of_read=size / seconds / ceilings.read_bytes_per_s if size is not None and flops is None else None,
        share_of_gemm=None if flops is None else flops / seconds / ceilings.gemm_flop_per_s,
    )

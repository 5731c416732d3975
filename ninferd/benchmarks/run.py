"""One run: the ceilings first, then every figure as it comes, and all of it as one object."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ninferd import __version__
from ninferd.benchmarks.ceilings import Ceilings, measure_ceilings
from ninferd.benchmarks.results import Benchmark, Figure, Model, Report, Skipped, Where
from ninferd.benchmarks.subject import Subject, load_subject
from ninferd.engine.build import resolve_device, resolve_dtype
from ninferd.engine.failures import is_out_of_memory
from ninferd.errors import NinferError

Show = Callable[[str], None]
"""Gets what is for people, line by line."""
Figures = Iterator[Figure | Skipped]


def run_on_model(
    benchmark: Benchmark,
    artifact: str,
    device: str | int,
    measure: Callable[[Subject, Ceilings], Figures],
    show: Show,
) -> Report:
    """Load a model and measure it. InputError for a model or a device that is not there or does not fit."""
    found = resolve_device(device)
    with _warnings(show) as warnings:
        report = _begun(benchmark, artifact, found, show)
        report.warnings = warnings
        subject = load_subject(artifact, device, lambda _done, _total: None)
        model = subject.model
        report.model = Model(
            subject.name,
            model.config.model_type,
            str(model.dtype).removeprefix("torch."),
            model.weights_bytes,
            model.ops.report,
        )
        show(f"{subject.name}: {model.weights_bytes / 1e9:.2f} GB of weights; {model.ops.report}")
        _collect(report, measure(subject, report.ceilings), show)
    return report


def run_start(artifact: str, device: str | int, measure: Callable[[torch.dtype], Figures], show: Show) -> Report:
    """As ``run_on_model``, of what loads the model elsewhere; ``measure`` gets the type of its plain weights."""
    found = resolve_device(device)
    with _warnings(show) as warnings:
        report = _begun("start", artifact, found, show)
        report.warnings = warnings
        _collect(report, measure(resolve_dtype("auto", {}, found)), show)
    return report


def _begun(benchmark: Benchmark, artifact: str, device: torch.device, show: Show) -> Report:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = Where(name, str(torch.__version__), __version__, time)
    show(f"{name}, torch {where.torch}, ninferd {where.ninferd}, {time}")
    ceilings = measure_ceilings(device)
    for line in ceilings.lines():
        show(line)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Report(benchmark, where, artifact, None, ceilings)


def _collect(report: Report, figures: Figures, show: Show) -> None:
    for figure in _in_words(figures):
        if isinstance(figure, Skipped):
            report.skipped.append(figure)
        else:
            if not report.figures:
                show(figure.heading())
            report.figures.append(figure)
        show(figure.line())


def _in_words(figures: Figures) -> Figures:
    """The figures; that memory ran out is said in one line."""
    try:
        yield from figures
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise NinferError(f"memory ran out, measure less at once: {str(error).splitlines()[0]}") from error


@contextmanager
def _warnings(show: Show) -> Iterator[list[str]]:
    """What is logged as a warning meanwhile: kernels that do not serve, graphs that could not be captured."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())
            show(f"warning: {found[-1]}")

    handler = Handler(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("kernels_numba", "ninferd")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield found
    finally:
        for logger in loggers:
            logger.removeHandler(handler)

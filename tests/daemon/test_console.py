from __future__ import annotations

import io

import pytest

from ninferd.daemon.console import Console, progress_bar, progress_text
from ninferd.daemon.units import format_bytes
from ninferd.engine.messages import LoadProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_written_above_the_footer() -> None:
    stream = Terminal()
    console = Console(stream)
    console.set_footer("50 %")
    console.write_line("a record")
    console.set_footer("")
    console.write_line("another")
    assert stream.getvalue() == "\r\x1b[K50 %\r\x1b[Ka record\n50 %\r\x1b[Kanother\n"


def test_no_footer_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.set_footer("50 %")
    console.write_line("a record")
    assert stream.getvalue() == "a record\n"


def test_bar_shows_the_fraction_within_the_width() -> None:
    bar = progress_bar(LoadProgress("weights", 1 << 30, 2 << 30), columns=80)
    assert bar == f"weights [{'#' * 15}{'-' * 15}] 50 %  1.0 GiB / 2.0 GiB"
    assert len(progress_bar(LoadProgress("weights", 1, 2), columns=20)) == 19


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (LoadProgress("weights", 512, 1024), "loading weights: 50 % of 1.0 KiB"),
        (LoadProgress("hash", 512, 1024), "checking SHA-256: 50 % of 1.0 KiB"),
        (LoadProgress("caches", 0, 0), "loading caches"),
        (LoadProgress("probe", 0, 0), "loading probe: one token, after compiling the kernels that are new"),
        (LoadProgress("weights", 9, 8), "loading weights: 100 % of 8 B"),
    ],
)
def test_progress_text(progress: LoadProgress, text: str) -> None:
    assert progress_text(progress) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (27 << 30, "27.0 GiB"),
        (2 << 40, "2.0 TiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text

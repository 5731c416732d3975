from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninferd.daemon.console import Console
from ninferd.daemon.journal import (
    JournalFormatter,
    TextFormatter,
    configure_logging,
    formatter_for,
    set_level,
    stderr_is_journal,
    syslog_priority,
)

PLAIN_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  (\w+)  (.*)$")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Leave the process-wide logging as it was."""
    root, ours = logging.getLogger(), logging.getLogger("ninferd")
    handlers, root_level, our_level = root.handlers, root.level, ours.level
    yield
    root.handlers = handlers
    root.setLevel(root_level)
    ours.setLevel(our_level)


def record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("ninferd.test", level, __file__, 1, message, None, None)


@pytest.mark.parametrize(
    ("level", "priority"),
    [(5, 7), (logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)
def test_priorities_are_those_of_syslog(level: int, priority: int) -> None:
    assert syslog_priority(level) == priority


def test_journal_format_prefixes_every_line() -> None:
    assert JournalFormatter().format(record(logging.ERROR, "first\nsecond")) == "<3>first\n<3>second"


def test_journal_format_prefixes_every_line_of_a_traceback() -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        entry = logging.LogRecord("ninferd", logging.ERROR, __file__, 1, "failed", None, sys.exc_info())
    lines = JournalFormatter().format(entry).splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)
    assert lines[-1] == "<3>RuntimeError: boom"


def test_plain_format_is_time_level_message() -> None:
    match = PLAIN_LINE.match(TextFormatter(colour=False).format(record(logging.WARNING, "watch out")))
    assert match is not None
    assert match.groups() == ("WARNING", "watch out")


def test_colour_marks_severity() -> None:
    text = TextFormatter(colour=True).format(record(logging.ERROR, "bad"))
    assert "\x1b[31mERROR  bad\x1b[0m" in text
    assert "\x1b[31m" not in TextFormatter(colour=True).format(record(logging.INFO, "fine"))


def test_control_characters_cannot_forge_output() -> None:
    text = JournalFormatter().format(record(logging.INFO, "name\r\x1b[2Jx\x85"))
    assert text == "<6>name\\x0d\\x1b[2Jx\\x85"


def test_journal_is_recognised_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert stderr_is_journal({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}, stream)
        assert not stderr_is_journal({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}, stream)
        assert not stderr_is_journal({}, stream)
    assert not stderr_is_journal({"JOURNAL_STREAM": "1:1"}, io.StringIO())


@pytest.mark.parametrize(
    ("stream", "env", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_only_on_a_terminal_that_wants_it(stream: io.StringIO, env: dict[str, str], coloured: bool) -> None:
    text = formatter_for(env, Console(stream)).format(record(logging.ERROR, "x"))
    assert ("\x1b[31m" in text) == coloured


def test_level_applies_to_ours_and_keeps_libraries_quiet(restored_logging: None) -> None:
    stream = io.StringIO()
    configure_logging("info", Console(stream), env={})
    logging.getLogger("ninferd.part").info("ours")
    logging.getLogger("ninferd.part").debug("too much")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("problem")
    set_level("error")
    logging.getLogger("ninferd.part").warning("hidden now")
    set_level("off")
    logging.getLogger("ninferd.part").critical("hidden too")
    lines = [match[2] for line in stream.getvalue().splitlines() if (match := PLAIN_LINE.match(line))]
    assert lines == ["ours", "problem"]


def test_trace_level_shows_libraries(restored_logging: None) -> None:
    stream = io.StringIO()
    configure_logging("trace", Console(stream), env={})
    logging.getLogger("library").debug("chatter")
    logging.getLogger("ninferd.part").log(5, "finest")
    assert [line.split("  ")[1:] for line in stream.getvalue().splitlines()] == [
        ["DEBUG", "chatter"],
        ["TRACE", "finest"],
    ]

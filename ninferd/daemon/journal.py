"""Operational log on stderr: priority prefixes for journald, colour on a terminal, plain text otherwise.

Messages never carry prompts, keys or request bodies; that is the duty of whoever logs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TextIO

from ninferd.daemon.console import Console, printable

TRACE = 5
OFF = logging.CRITICAL + 10

LEVELS: Mapping[str, int] = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": OFF,
}

_COLOURS = ((logging.CRITICAL, "\x1b[1;31m"), (logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"))
_DIM, _RESET = "\x1b[2m", "\x1b[0m"


def stderr_is_journal(env: Mapping[str, str], stderr: TextIO) -> bool:
    """Whether stderr is the stream that systemd connected to the journal (``JOURNAL_STREAM`` = device:inode)."""
    try:
        status = os.fstat(stderr.fileno())
    except (OSError, ValueError):
        return False
    return env.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def syslog_priority(level: int) -> int:
    """RFC 5424 severity of a logging level."""
    for minimum, priority in ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6)):
        if level >= minimum:
            return priority
    return 7


class MessageFormatter(logging.Formatter):
    """Message, then the traceback where there is one, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JournalFormatter(MessageFormatter):
    """``<N>`` before every line of a record; the journal itself keeps time and level."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{syslog_priority(record.levelno)}>"
        lines = super().format(record).split("\n")
        return "\n".join(prefix + line for line in lines)


class TextFormatter(MessageFormatter):
    """``YYYY-MM-DD HH:MM:SS.mmm  LEVEL  message`` in local time."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).isoformat(sep=" ", timespec="milliseconds")
        level, message = record.levelname, super().format(record)
        if not self._colour:
            return f"{moment}  {level}  {message}"
        accent = next((code for minimum, code in _COLOURS if record.levelno >= minimum), "")
        return f"{_DIM}{moment}{_RESET}  {accent}{level}  {message}{_RESET if accent else ''}"


class ConsoleHandler(logging.Handler):
    """Writes records through the console, which keeps a progress line below them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.write_line(self.format(record))
        except Exception:
            self.handleError(record)


def formatter_for(env: Mapping[str, str], console: Console) -> logging.Formatter:
    """The form of the log that suits where it goes; ``NO_COLOR`` (non-empty) turns colour off."""
    if stderr_is_journal(env, console.stream):
        return JournalFormatter()
    return TextFormatter(colour=console.is_terminal and not env.get("NO_COLOR"))


def configure_logging(level: str, console: Console, env: Mapping[str, str] = os.environ) -> None:
    """Send every logger of this process to ``console``. ``level`` is a key of ``LEVELS``."""
    logging.addLevelName(TRACE, "TRACE")
    handler = ConsoleHandler(console)
    handler.setFormatter(formatter_for(env, console))
    root = logging.getLogger()
    root.handlers = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Apply ``log.level``; libraries stay at warnings unless the level is ``trace``."""
    number = LEVELS[level]
    logging.getLogger("ninferd").setLevel(number)
    logging.getLogger().setLevel(number if number <= TRACE else max(number, logging.WARNING))

"""Root of every error that ninferd raises on purpose."""

from typing import ClassVar


class NinferError(Exception):
    """An expected failure with a message fit for the operator or the client."""

    exit_status: ClassVar[int] = 1


class InputError(NinferError):
    """What was given cannot be used: configuration, files, arguments."""

    exit_status: ClassVar[int] = 2


def one_line(message: str) -> str:
    """``message`` with what is not printable escaped: names of files must not break a line nor drive a terminal."""
    if message.isprintable():
        return message
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in message)

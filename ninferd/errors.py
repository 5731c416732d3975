"""Root of every error that ninferd raises on purpose."""

from typing import ClassVar


class NinferError(Exception):
    """An expected failure with a message fit for the operator or the client."""

    exit_status: ClassVar[int] = 1


class InputError(NinferError):
    """What was given cannot be used: configuration, files, arguments."""

    exit_status: ClassVar[int] = 2

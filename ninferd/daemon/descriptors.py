"""File descriptors: as many as the system allows, and a listener that outlives the lack of them."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import time
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

WANTED_DESCRIPTORS = 65536
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WARN_EVERY_S = 10.0


def raise_descriptor_limit() -> None:
    """Use what the hard limit allows, up to WANTED_DESCRIPTORS: the usual soft limit of 1024 is one per connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Listener(socket.socket):
    """A listening socket that turns connections away while there are no descriptors for them.

    asyncio answers such a lack by trying again, more and more often and with a traceback each time, until it does
    nothing else. Here a descriptor kept for the purpose takes the waiting connection and closes it.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._spare = _spare_descriptor()
        self._warned_s = -_WARN_EVERY_S

    def accept(self) -> tuple[socket.socket, Any]:
        """As in the base class; BlockingIOError also after a connection that was turned away."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._turn_away(error)
            raise BlockingIOError from error

    def close(self) -> None:
        """Close the spare descriptor too."""
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _turn_away(self, reason: OSError) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            logger.warning("turning connections away: %s", reason.strerror)
        if self._spare is not None:
            os.close(self._spare)
            with suppress(OSError):
                super().accept()[0].close()
        self._spare = _spare_descriptor()


def _spare_descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # another thread was faster; the next attempt may succeed
        return None

"""What happens when the process has no file descriptors left."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ninferd.daemon.descriptors import WANTED_DESCRIPTORS, raise_descriptor_limit
from ninferd.daemon.listener import open_listener


@contextmanager
def soft_limit(descriptors: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def exhausted() -> Iterator[None]:
    """No new descriptor can be had; closed ones can be had again."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    with soft_limit(lowest_free):
        yield


def test_connections_without_a_descriptor_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    with closing(open_listener("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = listener.getsockname()
        clients = [socket.create_connection(address) for _ in range(3)]
        with exhausted(), caplog.at_level(logging.WARNING):
            for client in clients:
                with pytest.raises(BlockingIOError):
                    listener.accept()
                assert client.recv(1) == b"", "closed at once, instead of waiting for nothing"
        for client in clients:
            client.close()
        assert caplog.messages == ["turning connections away: Too many open files"]
        with socket.create_connection(address), closing(listener.accept()[0]) as accepted:
            assert accepted.getpeername()[0] == "127.0.0.1"


def test_nothing_to_accept_is_no_lack_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    with closing(open_listener("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert caplog.messages == []


def test_soft_limit_is_raised_to_what_is_useful() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    highest = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    with soft_limit(min(highest, 1024)):
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (highest, hard)

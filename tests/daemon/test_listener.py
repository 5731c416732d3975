from __future__ import annotations

import logging
import socket
from contextlib import closing

import pytest

from ninferd.daemon.listener import ListenError, format_address, hypercorn_config, open_listener
from tests.daemon.support import settings


def test_accepted_connections_inherit_the_keepalive_options() -> None:
    with (
        closing(open_listener("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        closing(listener.accept()[0]) as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [accepted.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [10, 3, 3, 15000]


def test_port_in_use_is_named() -> None:
    with closing(open_listener("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=f"server.port: cannot listen on 127.0.0.1:{port}: another process"):
            open_listener("127.0.0.1", port)


def test_address_of_another_machine_is_named() -> None:
    with pytest.raises(ListenError, match="no interface of this machine"):
        open_listener("192.0.2.1", 0)  # reserved for documentation


def test_unknown_host_is_named() -> None:
    with pytest.raises(ListenError, match=r"server.host: 'no\.such\.host\.invalid' cannot be resolved"):
        open_listener("no.such.host.invalid", 0)


def test_hypercorn_owns_the_socket_and_stays_quiet() -> None:
    listener = open_listener("127.0.0.1", 0)
    config = hypercorn_config(listener, settings(http={"idle_keepalive_s": 33}))
    with closing(config.create_sockets().insecure_sockets[0]) as served:
        assert served is listener
    assert config.keep_alive_timeout == 33
    assert config.log.access_logger is None
    assert config.log.error_logger is logging.getLogger("hypercorn")
    assert config.response_headers("h11")[-1][0] != b"server"


def test_ipv6_addresses_are_bracketed() -> None:
    assert format_address("::1", 80) == "[::1]:80"
    assert format_address("localhost", 80) == "localhost:80"

"""The listening socket, bound before the model loads and handed to hypercorn."""

from __future__ import annotations

import errno
import logging
import socket

from hypercorn.config import Config as HypercornConfig
from hypercorn.config import Sockets

from ninferd.config.schema import Settings
from ninferd.daemon.descriptors import Listener
from ninferd.errors import NinferError

BACKLOG = 1024
KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 3
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 15_000  # a peer that acknowledges nothing for so long is gone
FLUSH_S = 5.0  # for finished answers to reach their clients when the listener closes


class ListenError(NinferError):
    """The address of the API cannot be listened on."""


def open_listener(host: str, port: int) -> Listener:
    """A listening TCP socket whose accepted connections inherit the keep-alive options.

    Raises ListenError saying which address, and why not.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(f"server.host: {host!r} cannot be resolved: {error.strerror}") from None
    listener = Listener(family, kind, protocol)
    try:
        _set_options(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"server.port: cannot listen on {format_address(host, port)}: {_reason(error)}") from None
    return listener


def _set_options(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS),
        (socket.TCP_NODELAY, 1),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there (see `ss -ltnp`)"
    if error.errno == errno.EACCES:
        return "ports below 1024 need CAP_NET_BIND_SERVICE"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no interface of this machine has that address"
    return str(error.strerror)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _ListeningConfig(HypercornConfig):
    """Hypercorn's configuration with a socket that is already there."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def create_sockets(self) -> Sockets:
        return Sockets(secure_sockets=[], insecure_sockets=[self._listener], quic_sockets=[])


def hypercorn_config(listener: Listener, settings: Settings) -> HypercornConfig:
    """Hypercorn on ``listener``, which then belongs to it; its own messages go through ours, without an access log."""
    config = _ListeningConfig(listener)
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    config.include_server_header = False
    config.keep_alive_timeout = settings.http.idle_keepalive_s
    config.graceful_timeout = FLUSH_S
    return config

"""Frames of the socket between the main process and the engine child: 4-byte little-endian length, then msgpack.

The two directions carry two tagged unions of ``ninferd.engine.messages``; a decoder accepts only its own direction.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from ninferd.engine.messages import Command, EngineEvent
from ninferd.errors import NinferError

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
_HEADER_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder()

MessageT = TypeVar("MessageT")


class FrameError(NinferError):
    """The peer sent something that is not a frame of this protocol, or stopped inside one."""


def encode(message: Command | EngineEvent) -> bytes:
    """One message as a frame; raises FrameError if it exceeds MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} of {len(body)} bytes exceeds the frame limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_HEADER_BYTES, "little") + body


class Decoder(Generic[MessageT]):
    """Incremental: feed bytes as they arrive, get the messages they complete.

    After a FrameError the stream has no known boundary any more; the caller must drop the connection.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """The messages completed by ``data``, in order; raises FrameError on an oversized or undecodable frame."""
        self._buffer += data
        messages: list[MessageT] = []
        consumed = 0
        while len(self._buffer) - consumed >= _HEADER_BYTES:
            body_start = consumed + _HEADER_BYTES
            length = int.from_bytes(self._buffer[consumed:body_start], "little")
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"frame of {length} bytes announced, the limit is {MAX_FRAME_BYTES}")
            if len(self._buffer) < body_start + length:
                break
            messages.append(self._decode(bytes(self._buffer[body_start : body_start + length])))
            consumed = body_start + length
        del self._buffer[:consumed]
        return messages

    def close(self) -> None:
        """To be called at the end of the stream; raises FrameError if it ended inside a frame."""
        if self._buffer:
            raise FrameError(f"stream ended inside a frame, {len(self._buffer)} bytes left over")

    def _decode(self, body: bytes) -> MessageT:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
            raise FrameError(f"undecodable frame of {len(body)} bytes: {error}") from error


def decode_commands() -> Decoder[Command]:
    """A decoder of what the main process sends."""
    return Decoder(msgspec.msgpack.Decoder(Command))


def decode_events() -> Decoder[EngineEvent]:
    """A decoder of what the engine child sends."""
    return Decoder(msgspec.msgpack.Decoder(EngineEvent))

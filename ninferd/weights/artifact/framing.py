"""Headers of entry and continuation files."""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC_PREFIX = b"NINFER\0"
ENTRY_MAGIC = MAGIC_PREFIX + b"\x03"
PART_MAGIC = b"NINPRT\0\x03"
HEADER_BYTES = 32  # of both kinds of file
OLD_HEADER_BYTES = 16  # of versions 1 and 2
FILE_ALIGNMENT = 4096
TENSOR_ALIGNMENT = 256
ARTIFACT_ID_BYTES = 16
PART_PAYLOAD_START = FILE_ALIGNMENT
MAX_JSON_BYTES = 256 << 20

_HEADER = struct.Struct("<8sQ16s")


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class Header:
    """The first 32 bytes of a file."""

    magic: bytes
    number: int  # json_bytes of an entry file, the index of a continuation
    artifact_id: bytes

    def packed(self) -> bytes:
        return _HEADER.pack(self.magic, self.number, self.artifact_id)

    @classmethod
    def unpacked(cls, raw: bytes) -> Header:
        """``raw`` are exactly 32 bytes."""
        return cls(*_HEADER.unpack(raw))


def magic_problem(magic: bytes) -> str:
    """Why a file that starts with ``magic`` is no entry file of a known version."""
    if magic == PART_MAGIC:
        return "is a continuation of an artifact; open the entry file that lists it"
    if magic[:7] == MAGIC_PREFIX:
        return f"is an artifact of version {magic[7]}; versions 1, 2 and 3 can be read"
    return f"starts with {magic.hex(' ')}; an artifact starts with {ENTRY_MAGIC.hex(' ')} (NINFER, 0, version)"

"""The example file of the format's description, made here from its formulas alone, without the code under test."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

SHA256 = "de2546845b25e8800f6adf22c38f3b5739530c98ac46e08e07d2bf6b4cfcd8bb"
FILE_BYTES = 30_480
ARTIFACT_ID = bytes(range(16))
PAYLOAD_START = 4096

JSON = (
    '{"components":{"text":{"config":{},"resources":{"tokenizer.json":"resource/text/tokenizer.json"}}},'
    '"objects":[{"id":"resource/text/tokenizer.json","encoding":"raw_bytes_v1","offset":0,"bytes":13,"kind":"resource"},'
    '{"id":"t/bf16","shape":[3,5],"format":"bf16","layout":"contiguous_le_v1","offset":256,"bytes":30,"kind":"tensor"},'
    '{"id":"t/q4_g64_fp16","shape":[5,200],"format":"q4_g64_fp16","layout":"row_split_k128_v1","offset":512,"bytes":808,"kind":"tensor"},'
    '{"id":"t/q5_g64_fp16","shape":[5,200],"format":"q5_g64_fp16","layout":"row_split_k128_v1","offset":1536,"bytes":1064,"kind":"tensor"},'
    '{"id":"t/q6_g64_fp16","shape":[5,200],"format":"q6_g64_fp16","layout":"row_split_k128_v1","offset":2816,"bytes":1320,"kind":"tensor"},'
    '{"id":"t/q8_g32_fp16","shape":[5,200],"format":"q8_g32_fp16","layout":"row_split_k128_v1","offset":4352,"bytes":1360,"kind":"tensor"},'
    '{"id":"t/t2_g128_fp16","shape":[5,200],"format":"t2_g128_fp16","layout":"row_split_k128_v1","offset":5888,"bytes":532,"kind":"tensor"},'
    '{"id":"t/nvfp4","shape":[256,128],"format":"nvfp4","layout":"block_scale_k16_m128x4_v1","offset":6656,"bytes":18436,"kind":"tensor"},'
    '{"id":"t/fp8","shape":[3,130],"format":"fp8_e4m3fn_row_bf16","layout":"row_scale_v1","offset":25344,"bytes":518,"kind":"tensor"},'
    '{"id":"t/fp32","shape":[],"format":"fp32","layout":"contiguous_le_v1","offset":26112,"bytes":4,"kind":"tensor"},'
    '{"id":"t/int32","shape":[4],"format":"int32","layout":"contiguous_le_v1","offset":26368,"bytes":16,"kind":"tensor"}],'
    '"bindings":{"a":{"object":"t/nvfp4"},"b":{"parts":[{"object":"t/nvfp4","range":[16384,32768]}]},"c":{"object":"t/q4_g64_fp16"}},'
    '"uses":[{"parameter":"a","input":"x","activation_policy":"AllowA4","auxiliaries":{"activation_input_divisor":{"object":"t/fp32"}}}],'
    '"files":[{"path":null,"payload_bytes":26384}],"metadata":{"name":"golden"},"provenance":{}}'
)

OBJECT_SHA256 = {
    "t/q4_g64_fp16": "01a479252e026b25c3b1836c0a0bb7eb5da97533f6ed845b077ccfe00deaf399",
    "t/q5_g64_fp16": "cfdaeeae27de4ed2a21693b15f8b1cfaa4d227dd48534654fc096537f93a7996",
    "t/q6_g64_fp16": "fb9631d1ece01b047ae2951e30fce1d783742a09b02134320560b25c0038ef89",
    "t/q8_g32_fp16": "5c10bffd4bc4c2a3a3cf1b543606ba13830d91a7054373d97a875e773b264f08",
    "t/t2_g128_fp16": "2d83c1a96077a8f5760688ddbdb00596fb0f43848f2bd197fcbef35aac81964f",
    "t/nvfp4": "0b2c8e582c1f27112260500584b5acb9e9e8978e3427d1bd21909c49cb537728",
    "t/fp8": "e397793714e3c4ba5694243b7ea7d589ea0df3cdacfc78d8d39512b76e9a8843",
}

_GROUPED = {  # bits, group, largest code, smallest code
    "t/q4_g64_fp16": (4, 64, 7, -8),
    "t/q5_g64_fp16": (5, 64, 15, -16),
    "t/q6_g64_fp16": (6, 64, 31, -32),
    "t/q8_g32_fp16": (8, 32, 127, -127),
    "t/t2_g128_fp16": (2, 128, 1, -1),
}


def object_bytes() -> dict[str, bytes]:
    """Content of every object by id."""
    content = {
        "resource/text/tokenizer.json": b'{"model":{}}\n',
        "t/bf16": struct.pack("<15H", *range(0x3F80, 0x3F8F)),
    }
    content.update({name: _grouped(*kind) for name, kind in _GROUPED.items()})
    content["t/nvfp4"] = _nvfp4()
    content["t/fp8"] = _fp8()
    content["t/fp32"] = struct.pack("<f", 0.75)
    content["t/int32"] = struct.pack("<4i", 7, 0, 2, 9)
    return content


def golden_file() -> bytes:
    """The whole file."""
    text = JSON.encode()
    json_bytes = PAYLOAD_START - 32
    payload = bytearray(FILE_BYTES - PAYLOAD_START)
    offsets = (0, 256, 512, 1536, 2816, 4352, 5888, 6656, 25344, 26112, 26368)
    for offset, content in zip(offsets, object_bytes().values(), strict=True):
        payload[offset : offset + len(content)] = content
    head = b"NINFER\0\x03" + json_bytes.to_bytes(8, "little") + ARTIFACT_ID
    return head + text.ljust(json_bytes) + bytes(payload)


def _padded(plane: bytes) -> bytes:
    return plane + bytes(-len(plane) % 256)


def _grouped(bits: int, group: int, largest: int, smallest: int) -> bytes:
    rows, columns = 5, 200
    groups = 256 // group
    base, high = bytearray(), bytearray()
    scales = np.zeros((rows, groups), "<f2")
    for n in range(rows):
        for g in range(groups):
            codes = [
                ((7 * n + 3 * k) % (largest - smallest + 1) + smallest) % (1 << bits) if k < columns else 0
                for k in range(g * group, (g + 1) * group)
            ]
            if g * group < columns:
                scales[n, g] = (n % 3 + 1) * 2.0 ** -(g % 4)
            low_bits = min(bits, 4) if bits != 8 else 8
            base += _bit_stream([code & ((1 << low_bits) - 1) for code in codes], low_bits)
            if bits in (5, 6):
                high += _bit_stream([code >> 4 for code in codes], bits - 4)
    planes = _padded(bytes(base))
    if high:
        planes += _padded(bytes(high))
    return planes + scales.tobytes()


def _bit_stream(values: list[int], bits: int) -> bytes:
    """Values one after the other, lower bit first."""
    total = sum(value << (bits * index) for index, value in enumerate(values))
    return total.to_bytes(len(values) * bits // 8, "little")


def _nvfp4() -> bytes:
    rows, columns = 256, 128
    codes = bytes(
        ((5 * n + 3 * k) % 16) | ((5 * n + 3 * (k + 1)) % 16) << 4 for n in range(rows) for k in range(0, columns, 2)
    )
    scales = bytearray(rows * columns // 16)
    for n in range(rows):
        for g in range(columns // 16):
            tile = (n // 128) * (columns // 64) + g // 4
            scales[tile * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4] = (3 * n + 7 * g) % 127
    return codes + bytes(scales) + struct.pack("<f", 2.5)


def _fp8() -> bytes:
    rows, columns = 3, 130
    codes = bytes((11 * n + 5 * k) % 127 + 0x80 * (k % 2) for n in range(rows) for k in range(columns))
    return _padded(codes) + struct.pack("<3H", *(0x3F80 + 16 * n for n in range(rows)))


def words(values: NDArray[np.generic]) -> list[int]:
    """An integer array as a flat list."""
    return [int(value) for value in values.reshape(-1)]

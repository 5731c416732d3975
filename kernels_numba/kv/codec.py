"""Codecs of cached keys and values: their names, what they store, and sizes.

Free of torch, so that memory is planned without it. The values of a codec and their rounding are defined in
``kernels_numba.kv.encode``, the order of its bytes in ``kernels_numba.kv.order``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

PAGE_TOKENS: Final = 64


@dataclass(frozen=True)
class VectorFormat:
    """How one vector of a head, a key or a value, is stored."""

    name: str
    code_bits: int
    scale_bytes: int = 0
    group: int | None = None
    """Neighbouring dimensions that share a scale; None: all of the vector."""

    @property
    def is_plain(self) -> bool:
        """Numbers as they are, without scales."""
        return self.scale_bytes == 0

    def scales(self, head_dim: int) -> int:
        """Scales of a vector."""
        return 0 if self.is_plain else head_dim // (self.group or head_dim)

    def code_bytes(self, head_dim: int) -> int:
        """Bytes of the codes of a vector."""
        return head_dim * self.code_bits // 8

    def vector_bytes(self, head_dim: int) -> int:
        """Bytes of a vector with its scales."""
        return self.code_bytes(head_dim) + self.scales(head_dim) * self.scale_bytes


FP32: Final = VectorFormat("fp32", 32)
BF16: Final = VectorFormat("bf16", 16)
FP8: Final = VectorFormat("fp8", 8, scale_bytes=2)
"""E4M3 with one float16 scale."""
INT8: Final = VectorFormat("int8", 8, scale_bytes=2, group=64)
"""Integers from -127 to 127 with float16 scales."""
NVFP4: Final = VectorFormat("nvfp4", 4, scale_bytes=1, group=16)
"""E2M1 with E4M3 scales."""


@dataclass(frozen=True)
class KvCodec:
    """The formats of keys and of values, under the name of ``engine.kv_dtype``."""

    name: str
    key: VectorFormat
    value: VectorFormat
    rotates_keys: bool
    """Whether keys, and with them the queries, are turned by the Hadamard matrix before they are stored."""

    @property
    def is_plain(self) -> bool:
        """Whether keys and values are numbers without scales."""
        return self.key.is_plain and self.value.is_plain

    def supports(self, head_dim: int) -> bool:
        """Whether heads of this size can be stored: any as they are, else powers of two of at least 64."""
        if self.is_plain and not self.rotates_keys:
            return head_dim >= 1
        return head_dim >= 64 and head_dim & (head_dim - 1) == 0


KV_CODECS: Final[Mapping[str, KvCodec]] = MappingProxyType(
    {
        codec.name: codec
        for codec in (
            KvCodec("fp32", FP32, FP32, rotates_keys=False),
            KvCodec("bf16", BF16, BF16, rotates_keys=False),
            KvCodec("fp8", FP8, FP8, rotates_keys=True),
            KvCodec("int8", INT8, INT8, rotates_keys=True),
            KvCodec("nvfp4", NVFP4, NVFP4, rotates_keys=True),
            KvCodec("k8v4", FP8, NVFP4, rotates_keys=True),
        )
    }
)
"""By the values of ``engine.kv_dtype``."""

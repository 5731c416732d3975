"""Golden objects of the artifact format's description: generators and digests that were published with it."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GROUPED_SHAPE = (5, 200)
NVFP4_SHAPE = (256, 128)
NVFP4_DIVISOR = 2.5
FP8_SHAPE = (3, 130)

OBJECT_DIGESTS = {
    "q4_g64_fp16": "01a479252e026b25c3b1836c0a0bb7eb5da97533f6ed845b077ccfe00deaf399",
    "q5_g64_fp16": "cfdaeeae27de4ed2a21693b15f8b1cfaa4d227dd48534654fc096537f93a7996",
    "q6_g64_fp16": "fb9631d1ece01b047ae2951e30fce1d783742a09b02134320560b25c0038ef89",
    "q8_g32_fp16": "5c10bffd4bc4c2a3a3cf1b543606ba13830d91a7054373d97a875e773b264f08",
    "t2_g128_fp16": "2d83c1a96077a8f5760688ddbdb00596fb0f43848f2bd197fcbef35aac81964f",
    "nvfp4": "0b2c8e582c1f27112260500584b5acb9e9e8978e3427d1bd21909c49cb537728",
    "fp8_e4m3fn_row_bf16": "e397793714e3c4ba5694243b7ea7d589ea0df3cdacfc78d8d39512b76e9a8843",
}
VALUE_DIGESTS = {
    "q4_g64_fp16": "f58d989798b003a77e0e0c890264f2bfb9c04978d952465c6608ac966dfd5809",
    "q5_g64_fp16": "3142cb6c66b8e8ec3a2717b7b459d1a3a9e5e18f70d2d9d0d24b3532bd1fd552",
    "q6_g64_fp16": "c702b14737f5f5ec4dd39eb0d6937611a0c8307828d518131c869aa314c3077c",
    "q8_g32_fp16": "dd61c01cd68018233308bd674e58d5c8c53d7483f81b29c10187e87522c44785",
    "t2_g128_fp16": "84d8b7f64601387eec025ccfe037b53a5a00ebe7fd979c8885f097cc9d3f0cdb",
    "nvfp4": "3301511e276b67b6a98ac14c040ccff1c6dab7081b3aa141e327287a3eeebcc4",
    "fp8_e4m3fn_row_bf16": "0e61f5a59fd4693494c344712a7f4cb169f21840499a9306ef0aef5f8be158be",
}


def digest(array: NDArray[np.generic]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def grouped_codes(smallest: int, largest: int) -> NDArray[np.int8]:
    """``((7n + 3k) mod (qmax - qmin + 1)) + qmin``."""
    n, k = np.indices(GROUPED_SHAPE)
    return ((7 * n + 3 * k) % (largest - smallest + 1) + smallest).astype(np.int8)


def grouped_scales(group: int) -> NDArray[np.float16]:
    """``((n mod 3) + 1) * 2^-(g mod 4)`` for groups with a column of the matrix, else 0; K is padded to 256."""
    n, g = np.indices((GROUPED_SHAPE[0], 256 // group))
    scales = (n % 3 + 1) * 2.0 ** -(g % 4)
    return np.where(g * group < GROUPED_SHAPE[1], scales, 0).astype(np.float16)


def nvfp4_codes() -> NDArray[np.uint8]:
    """One code per byte ``[256, 128]``."""
    n, k = np.indices(NVFP4_SHAPE)
    return ((5 * n + 3 * k) % 16).astype(np.uint8)


def nvfp4_scales() -> NDArray[np.uint8]:
    """Scale words ``[256, 8]`` in natural order."""
    n, g = np.indices((256, 8))
    return ((3 * n + 7 * g) % 127).astype(np.uint8)


def fp8_codes() -> NDArray[np.uint8]:
    n, k = np.indices(FP8_SHAPE)
    return ((11 * n + 5 * k) % 127 + 0x80 * (k % 2)).astype(np.uint8)


def fp8_scales() -> NDArray[np.uint16]:
    return np.array([0x3F80, 0x3F90, 0x3FA0], np.uint16)

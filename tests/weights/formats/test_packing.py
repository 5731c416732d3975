"""Order of bits and of block scales, against the published vectors and closed formulas."""

import numpy as np
import pytest

from ninferd.weights.formats.packing import pack, unpack
from ninferd.weights.formats.registry import GROUPED
from ninferd.weights.formats.swizzle import swizzled, tile_rows, unswizzled
from tests.weights.formats import golden


@pytest.mark.parametrize(
    ("format", "lanes", "codes", "high"),
    [
        ("q4_g64_fp16", [-8, 7, 1, -1, 3, -4], "78f1c3", None),
        ("q5_g64_fp16", [-16, 15, 1, -1, 0, 8, -9, 4], "f0f18047", "49"),
        ("q6_g64_fp16", [-32, 31, 16, -1], "f0f0", "d6"),
        ("q8_g32_fp16", [-127, 127, -1, 1], "817fff01", None),
        ("t2_g128_fp16", [1, -1, 0, -1, 0, 1], "cd04", None),
    ],
)
def test_bytes_of_the_first_lanes(format: str, lanes: list[int], codes: str, high: str | None) -> None:
    row = np.zeros((1, 64), np.int8)
    row[0, : len(lanes)] = lanes
    packed, packed_high = pack(row, GROUPED[format])
    assert packed[0, : len(codes) // 2].tobytes().hex() == codes
    assert not packed[0, len(codes) // 2 :].any()
    assert (packed_high is None) == (high is None)
    if packed_high is not None and high is not None:
        assert packed_high[0, : len(high) // 2].tobytes().hex() == high
        assert not packed_high[0, len(high) // 2 :].any()


@pytest.mark.parametrize("format", GROUPED)
@pytest.mark.parametrize("columns", [1, 128, 200, 384])
def test_every_code_in_every_lane_survives(format: str, columns: int) -> None:
    kind = GROUPED[format]
    n, k = np.indices((1 << kind.bits, columns))
    codes = ((n + k) % (1 << kind.bits) - (1 << (kind.bits - 1))).astype(np.int8)
    packed, high = pack(codes, kind)
    padding = -columns % 128
    assert packed.shape == (len(codes), kind.groups(columns) * 32)
    if high is not None:
        assert high.shape == (len(codes), kind.groups(columns) * kind.high_bytes)
    np.testing.assert_array_equal(unpack(packed, high, kind), np.pad(codes, ((0, 0), (0, padding))))


@pytest.mark.parametrize(("row", "block", "offset"), [
    (0, 0, 0), (1, 0, 16), (32, 0, 4), (31, 3, 499), (127, 3, 511), (0, 4, 512), (128, 0, 40960), (200, 319, 81547),
])  # fmt: skip
def test_published_places_of_scales(row: int, block: int, offset: int) -> None:
    scales = np.zeros((256, 320), np.uint8)
    scales[row, block] = 1
    assert np.flatnonzero(swizzled(scales)).tolist() == [offset]


@pytest.mark.parametrize("shape", [(128, 4), (256, 8), (384, 12)], ids=str)
def test_places_of_scales_follow_the_formula(shape: tuple[int, int]) -> None:
    rows, blocks = shape
    scales = np.random.default_rng(4).integers(0, 256, shape, np.uint8)
    stored = swizzled(scales).reshape(-1)
    for n in range(rows):
        for g in range(blocks):
            offset = (n // 128 * (blocks // 4) + g // 4) * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4
            assert stored[offset] == scales[n, g]
    np.testing.assert_array_equal(unswizzled(stored.reshape(shape)), scales)


def test_rows_of_tiles_are_swizzled_by_themselves() -> None:
    scales = golden.nvfp4_scales()
    np.testing.assert_array_equal(swizzled(scales)[128:], swizzled(scales[128:]))


@pytest.mark.parametrize(("rows", "tiles"), [((0, 1), (0, 128)), ((127, 129), (0, 256)), ((128, 256), (128, 256))])
def test_tiles_of_rows(rows: tuple[int, int], tiles: tuple[int, int]) -> None:
    assert tile_rows(*rows) == tiles

"""Names, planes and sizes of tensor formats, against the sizes of published files."""

import pytest

from ninferd.errors import InputError
from ninferd.weights.formats.registry import (
    FP8_BLOCK,
    LAYOUT_OF,
    PlaneSpec,
    encoded_bytes,
    execution_bytes,
    plane_layout,
    require_pair,
)

# Object sizes of the published 27B artifacts.
PUBLISHED = [
    ("fp8_e4m3fn_row_bf16", 248320, 5120, 1_271_895_040),
    ("fp8_e4m3fn_row_bf16", 14336, 5120, 73_428_992),
    ("fp8_e4m3fn_row_bf16", 16384, 5120, 83_918_848),
    ("fp8_e4m3fn_row_bf16", 5120, 6144, 31_467_520),
    ("q8_g32_fp16", 248320, 5120, 1_350_860_800),
    ("q8_g32_fp16", 34816, 5120, 189_399_040),
    ("q8_g32_fp16", 5120, 25600, 139_264_000),
    ("q5_g64_fp16", 7168, 5120, 24_084_480),
    ("q5_g64_fp16", 1152, 4304, 3_290_112),
    ("nvfp4", 34816, 5120, 100_270_084),
    ("nvfp4", 5120, 17408, 50_135_044),
    ("nvfp4", 14336, 5120, 41_287_684),
    ("nvfp4", 16384, 5120, 47_185_924),
    ("nvfp4", 5120, 6144, 17_694_724),
    ("q4_g64_fp16", 131072, 5120, 356_515_840),
    ("q4_g64_fp16", 7168, 5120, 19_496_960),
    ("q4_g64_fp16", 3456, 1152, 2_115_072),
    ("q6_g64_fp16", 1152, 1536, 1_382_400),
]
# Objects of the golden file (artifact format 2.7) and of the packing vectors (5.3).
GOLDEN = [
    ("bf16", (3, 5), 30),
    ("q4_g64_fp16", (5, 200), 808),
    ("q5_g64_fp16", (5, 200), 1064),
    ("q6_g64_fp16", (5, 200), 1320),
    ("q8_g32_fp16", (5, 200), 1360),
    ("t2_g128_fp16", (5, 200), 532),
    ("nvfp4", (256, 128), 18436),
    ("fp8_e4m3fn_row_bf16", (3, 130), 518),
    ("fp32", (), 4),
    ("int32", (4,), 16),
    ("q4_g64_fp16", (1, 64), 260),
    ("q5_g64_fp16", (1, 64), 516),
    ("q6_g64_fp16", (1, 64), 516),
    ("q5_g64_fp16", (2, 130), 528),
]


@pytest.mark.parametrize(("format", "rows", "columns", "size"), PUBLISHED)
def test_published_sizes(format: str, rows: int, columns: int, size: int) -> None:
    assert encoded_bytes(format, (rows, columns)) == size


@pytest.mark.parametrize(("format", "shape", "size"), GOLDEN)
def test_golden_sizes(format: str, shape: tuple[int, ...], size: int) -> None:
    assert encoded_bytes(format, shape) == size


def test_planes_of_grouped_integers() -> None:
    assert plane_layout("q5_g64_fp16", (1, 64)) == (
        PlaneSpec("codes", "u1", (1, 64), 0, 64),
        PlaneSpec("high", "u1", (1, 16), 256, 16),
        PlaneSpec("scales", "<f2", (1, 2), 512, 4),
    )
    assert plane_layout("q8_g32_fp16", (5, 200)) == (
        PlaneSpec("codes", "u1", (5, 256), 0, 1280),
        PlaneSpec("scales", "<f2", (5, 8), 1280, 80),
    )


def test_planes_of_nvfp4() -> None:
    assert plane_layout("nvfp4", (256, 64), divisors=2) == (
        PlaneSpec("codes", "u1", (256, 32), 0, 8192),
        PlaneSpec("scales", "u1", (256, 4), 8192, 1024),
        PlaneSpec("divisors", "<f4", (2,), 9216, 8),
    )


def test_planes_of_fp8_rows() -> None:
    assert plane_layout("fp8_e4m3fn_row_bf16", (3, 130)) == (
        PlaneSpec("codes", "u1", (3, 130), 0, 390),
        PlaneSpec("scales", "<u2", (3,), 512, 6),
    )


@pytest.mark.parametrize(
    ("format", "dtype", "size"), [("bf16", "<u2", 120), ("fp32", "<f4", 240), ("int32", "<i4", 240)]
)
def test_direct_tensors_keep_their_shape(format: str, dtype: str, size: int) -> None:
    assert plane_layout(format, (3, 4, 5)) == (PlaneSpec("values", dtype, (3, 4, 5), 0, size),)


@pytest.mark.parametrize(
    ("format", "shape", "divisors", "message"),
    [
        ("nvfp4", (192, 64), 1, "multiples of 128"),
        ("nvfp4", (128, 96), 1, "multiples of 64"),
        ("nvfp4", (384, 64), 2, "2 divisors"),
        ("nvfp4", (256, 64), 0, "0 divisors"),
        ("nvfp4", (256, 64), 4, "4 divisors"),
        ("nvfp4", (128,), 1, r"\[128\]"),
        ("q4_g64_fp16", (2, 3, 64), 1, r"\[2, 3, 64\]"),
        ("fp8_e4m3fn_row_bf16", (), 1, r"\[\]"),
        ("bf16", (4, 0), 1, "at least 1"),
        ("bf16", (-4, -4), 1, "at least 1"),
        ("bf16", (1 << 32, 1 << 32), 1, "2\\^64"),
        ("bf16", (1,) * 17, 1, "at most 16"),
        ("q4_g64_fp16", (128, 128), 2, "no divisors"),
        ("fp8_e4m3fn_block128", (128, 128), 1, "Hugging Face"),
        ("fp16", (128, 128), 1, "Hugging Face"),
        ("gguf_q4_k", (128, 256), 1, "ggml"),
        ("nvfp4_mul", (128, 256), 1, "expert banks"),
        ("exl3", (128, 256), 1, "ExLlamaV3"),
        ("Q4G64_F16S", (128, 128), 1, "known are bf16"),
    ],
)
def test_refusals(format: str, shape: tuple[int, ...], divisors: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plane_layout(format, shape, divisors)


def test_a_format_goes_with_one_layout() -> None:
    for format, layout in LAYOUT_OF.items():
        require_pair(format, layout)
        for other in set(LAYOUT_OF.values()) - {layout}:
            with pytest.raises(InputError, match=layout):
                require_pair(format, other)
    with pytest.raises(InputError, match="unknown"):
        require_pair("q3", "row_split_k128_v1")


@pytest.mark.parametrize(
    ("format", "rows", "columns", "size"),
    [
        ("bf16", 3, 50, 600),
        ("fp16", 3, 50, 600),
        ("fp32", 3, 50, 600),
        ("fp64", 3, 50, 600),
        ("nvfp4", 96, 160, 96 * 80 + 96 * 10 + 96 * 4),
        ("fp8_e4m3fn_row_bf16", 3, 130, 3 * 130 + 3 * 4),
        (FP8_BLOCK, 130, 257, 130 * 257 + 4 * 2 * 3 + 130 * 4),
        ("q4_g64_fp16", 5, 200, 5 * 4 * (32 + 2)),
        ("q5_g64_fp16", 5, 200, 5 * 4 * (40 + 2)),
        ("q6_g64_fp16", 5, 200, 5 * 4 * (48 + 2)),
        ("q8_g32_fp16", 5, 200, 5 * 8 * (32 + 2)),
        ("t2_g128_fp16", 5, 200, 5 * 2 * (32 + 2)),
    ],
)
def test_bytes_on_a_device(format: str, rows: int, columns: int, size: int) -> None:
    assert execution_bytes(format, rows, columns, dense_element_bytes=4) == size


def test_only_matrices_have_a_size_on_a_device() -> None:
    with pytest.raises(InputError, match="int32"):
        execution_bytes("int32", 1, 1, 4)

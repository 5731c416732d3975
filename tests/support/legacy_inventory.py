"""Objects of the five published version 2 artifacts, written down from their documentation.

Names and shapes follow the object tables of the version 2 documents, formats those of the converters (Neroued/ninfer,
gzenz/ninfer). Nothing here uses the product's registry, recipes or codecs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

GRID = 4096
ALIGNMENT = 256
PUBLISHED_BYTES = {
    ("qwen3.6-27b", "groupwise-int"): 17_495_365_888,
    ("qwen3.6-27b", "nvfp4"): 18_324_064_000,
    ("qwen3.8-27b", "groupwise-int"): 18_210_531_328,
    ("qwen3.8-27b", "nvfp4"): 21_492_695_040,
    ("qwen3.6-35b-a3b", "groupwise-int"): 22_783_246_080,
}
PUBLISHED_OBJECTS = dict(zip(PUBLISHED_BYTES, (1124, 1307, 1124, 1124, 940), strict=True))

_NAMES = (
    "frontend/tokenizer.json",
    "frontend/tokenizer_config.json",
    "frontend/chat_template.jinja",
    "frontend/generation_config.json",
    "frontend/preprocessor_config.json",
    "frontend/video_preprocessor_config.json",
)
_RESOURCES_3_8 = dict(zip(_NAMES, (12_809_320, 17_928, 8_952, 202, 390, 385), strict=True))
_RESOURCES_3_6 = dict(zip(_NAMES, (12_807_982, 16_710, 7_756, 202, 390, 385), strict=True))


def resources(model_id: str) -> dict[str, int]:
    """Sizes of a model's published frontend files; only their sum, up to the next multiple of 256, matters."""
    return _RESOURCES_3_8 if model_id == "qwen3.8-27b" else _RESOURCES_3_6


_SPELLINGS = {
    "bf16": ("BF16", "contiguous-le-v1"),
    "fp32": ("FP32", "contiguous-le-v1"),
    "int32": ("I32", "contiguous-le-v1"),
    "q4_g64_fp16": ("Q4G64_F16S", "row-split-k128-v1"),
    "q5_g64_fp16": ("Q5G64_F16S", "row-split-k128-v1"),
    "q6_g64_fp16": ("Q6G64_F16S", "row-split-k128-v1"),
    "q8_g32_fp16": ("W8G32_F16S", "row-split-k128-v1"),
    "nvfp4": ("NVFP4", "blockscale-k16-m128x4-v1"),
    "fp8_e4m3fn_row_bf16": ("FP8_E4M3FN_ROW_BF16S", "row-scale-v1"),
}
B, F, Q4, Q5, Q6, Q8 = "bf16", "fp32", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
NVFP4, FP8 = "nvfp4", "fp8_e4m3fn_row_bf16"

Entry = tuple[str, str, tuple[int, ...]]
"""Name, format in the spelling of version 3, shape."""


def legacy_inventory(model_id: str, weights_id: str, *, with_dflash2: bool = False) -> list[Entry]:
    """All tensors of one identity, in file order."""
    entries = list(_qwen_35b() if model_id == "qwen3.6-35b-a3b" else _qwen_27b(model_id, weights_id))
    if with_dflash2:
        entries += _draft("dflash2", hidden=5120, intermediate=17408, layers=5, taps=5, has_convolutions=True)
    return entries


def file_bytes(model_id: str, weights_id: str, entries: list[Entry], resource_bytes: dict[str, int]) -> int:
    """Size of the version 2 file with these objects: 16 bytes, JSON, grid of 4096, resources, tensors at 256."""
    records = legacy_records(entries, resource_bytes)
    directory = {"identity": {"model_id": model_id, "weights_id": weights_id}, "objects": records}
    json_bytes = len(json.dumps(directory, separators=(",", ":")).encode())
    return _up(16 + json_bytes, GRID) + int(records[-1]["offset"]) + int(records[-1]["bytes"])


def encoded_bytes(format: str, shape: tuple[int, ...]) -> int:
    """By the size formulas of the storage layouts."""
    elements = 1
    for size in shape:
        elements *= size
    if format in ("bf16", "fp32", "int32"):
        return elements * (2 if format == "bf16" else 4)
    rows, columns = shape
    if format == NVFP4:
        return _up(elements // 2, ALIGNMENT) + elements // 16 + 4
    if format == FP8:
        return _up(elements, ALIGNMENT) + 2 * rows
    group, high_bytes = {Q4: (64, 0), Q5: (64, 8), Q6: (64, 16), Q8: (32, 0)}[format]
    groups = rows * (_up(columns, 128) // group)
    return _up(groups * 32, ALIGNMENT) + _up(groups * high_bytes, ALIGNMENT) + groups * 2


def legacy_records(entries: list[Entry], resource_bytes: dict[str, int]) -> list[dict[str, Any]]:
    """Object records of a version 2 directory, in file order."""
    records: list[dict[str, Any]] = []
    end = 0
    for name, size in resource_bytes.items():
        record = {"name": name, "kind": "resource", "encoding": "raw-bytes-v1", "offset": end, "bytes": size}
        records.append(record)
        end += size
    for name, format, shape in entries:
        start, size = _up(end, ALIGNMENT), encoded_bytes(format, shape)
        spelling, layout = _SPELLINGS[format]
        records.append(
            {
                "name": name,
                "kind": "tensor",
                "shape": list(shape),
                "format": spelling,
                "layout": layout,
                "offset": start,
                "bytes": size,
            }
        )
        end = start + size
    return records


@dataclass(frozen=True)
class _Layer:
    """Formats of one text layer of the 27B."""

    attention: tuple[str, ...]  # of one parent, or of the pair
    attention_output: str
    gdn: tuple[str, ...]
    gdn_output: str
    gate_up: str
    down: str
    is_ab_fused: bool


def _layer_formats(model_id: str, weights_id: str, layer: int) -> _Layer:
    if weights_id == "groupwise-int":
        return _Layer((Q4, Q5), Q5, (Q4, Q5), Q5, Q4, Q5, False)
    if model_id == "qwen3.6-27b":
        attention = B if layer < 24 else NVFP4
        attention_output = B if layer in (3, 7) else NVFP4
        return _Layer((attention,), attention_output, (NVFP4,), B if layer == 4 else NVFP4, NVFP4, NVFP4, False)
    mlp = NVFP4 if layer < 56 else FP8
    return _Layer((FP8,), FP8, (FP8,), FP8, mlp, mlp, True)


def _qwen_27b(model_id: str, weights_id: str) -> Iterator[Entry]:
    groupwise = Q6 if model_id == "qwen3.6-27b" else Q8
    other = Q8 if model_id == "qwen3.6-27b" else FP8
    ends = groupwise if weights_id == "groupwise-int" else other
    yield "text/token_embedding", ends, (248320, 5120)
    for layer in range(64):
        formats = _layer_formats(model_id, weights_id, layer)
        prefix = f"text/layers/{layer}/"
        yield f"{prefix}input_norm", B, (5120,)
        if layer % 4 == 3:
            parts = {"query_key_gate_value": 14336} if len(formats.attention) == 1 else _pair("query_key", "gate_value")
            for (name, rows), format in zip(parts.items(), formats.attention, strict=True):
                yield f"{prefix}attention/{name}", format, (rows, 5120)
            yield from _divisor(f"{prefix}attention/input_projection", formats.attention[0])
            yield f"{prefix}attention/query_norm", B, (256,)
            yield f"{prefix}attention/key_norm", B, (256,)
            yield f"{prefix}attention/output", formats.attention_output, (5120, 6144)
            yield from _divisor(f"{prefix}attention/output_projection", formats.attention_output)
        else:
            yield f"{prefix}gdn/a_log", F, (48,)
            yield f"{prefix}gdn/dt_bias", F, (48,)
            yield f"{prefix}gdn/convolution", B, (4, 10240)
            if formats.is_ab_fused:
                yield f"{prefix}gdn/a_b_projection", B, (96, 5120)
            else:
                yield f"{prefix}gdn/a_projection", B, (48, 5120)
                yield f"{prefix}gdn/b_projection", B, (48, 5120)
            parts = {"query_key_value_z": 16384}
            if len(formats.gdn) == 2:
                parts = {"query_key": 4096, "value_z": 12288}
            for (name, rows), format in zip(parts.items(), formats.gdn, strict=True):
                yield f"{prefix}gdn/{name}", format, (rows, 5120)
            yield from _divisor(f"{prefix}gdn/input_projection", formats.gdn[0])
            yield f"{prefix}gdn/norm", B, (128,)
            yield f"{prefix}gdn/output", formats.gdn_output, (5120, 6144)
            yield from _divisor(f"{prefix}gdn/output_projection", formats.gdn_output)
        yield f"{prefix}post_attention_norm", B, (5120,)
        yield f"{prefix}mlp/gate_up", formats.gate_up, (34816, 5120)
        yield from _divisor(f"{prefix}mlp/gate_up_projection", formats.gate_up)
        yield f"{prefix}mlp/down", formats.down, (5120, 17408)
        yield from _divisor(f"{prefix}mlp/down_projection", formats.down)
    yield "text/final_norm", B, (5120,)
    yield "text/output_head", ends, (248320, 5120)
    yield "text/draft_head", Q4, (131072, 5120)
    yield "text/draft_head_token_ids", "int32", (131072,)
    yield from _mtp_attention(5120, query_rows=14336, query_width=6144)
    yield "mtp/layer/mlp/gate_up", Q8, (34816, 5120)
    yield "mtp/layer/mlp/down", Q8, (5120, 17408)
    yield from _vision(5120)


def _qwen_35b() -> Iterator[Entry]:
    yield "text/token_embedding", Q8, (248320, 2048)
    for layer in range(40):
        prefix = f"text/layers/{layer}/"
        yield f"{prefix}input_norm", B, (2048,)
        if layer % 4 == 3:
            yield f"{prefix}attention/query_key_gate_value", Q8, (9216, 2048)
            yield f"{prefix}attention/query_norm", B, (256,)
            yield f"{prefix}attention/key_norm", B, (256,)
            yield f"{prefix}attention/output", Q8, (2048, 4096)
        else:
            yield f"{prefix}gdn/a_log", F, (32,)
            yield f"{prefix}gdn/dt_bias", F, (32,)
            yield f"{prefix}gdn/convolution", B, (4, 8192)
            yield f"{prefix}gdn/a_b_projection", B, (64, 2048)
            yield f"{prefix}gdn/query_key_value_z", Q8, (12288, 2048)
            yield f"{prefix}gdn/norm", B, (128,)
            yield f"{prefix}gdn/output", Q8, (2048, 4096)
        yield f"{prefix}post_attention_norm", B, (2048,)
        yield from _moe(f"{prefix}moe/", Q4, Q6 if layer in (34, 38, 39) else Q5)
    yield "text/final_norm", B, (2048,)
    yield "text/output_head", Q6, (248320, 2048)
    yield "text/draft_head", Q4, (131072, 2048)
    yield "text/draft_head_token_ids", "int32", (131072,)
    yield from _mtp_attention(2048, query_rows=9216, query_width=4096)
    yield from _moe("mtp/layer/moe/", Q8, Q8)
    yield from _vision(2048)
    yield from _draft("dflash", hidden=2048, intermediate=6144, layers=6, taps=8, has_convolutions=False)


def _moe(prefix: str, gate_up: str, down: str) -> Iterator[Entry]:
    yield f"{prefix}router_shared_gate", B, (257, 2048)
    yield f"{prefix}routed_gate_up", gate_up, (262144, 2048)
    yield f"{prefix}routed_down", down, (524288, 512)
    yield f"{prefix}shared_gate_up", Q8, (1024, 2048)
    yield f"{prefix}shared_down", Q8, (2048, 512)


def _mtp_attention(hidden: int, query_rows: int, query_width: int) -> Iterator[Entry]:
    yield "mtp/input_projection", Q8, (hidden, 2 * hidden)
    for name in ("embedding_norm", "hidden_norm", "final_norm", "layer/input_norm", "layer/post_attention_norm"):
        yield f"mtp/{name}", B, (hidden,)
    yield "mtp/layer/attention/query_key_gate_value", Q8, (query_rows, hidden)
    yield "mtp/layer/attention/query_norm", B, (256,)
    yield "mtp/layer/attention/key_norm", B, (256,)
    yield "mtp/layer/attention/output", Q8, (hidden, query_width)


def _vision(text_hidden: int) -> Iterator[Entry]:
    yield "vision/patch_embedding", Q6, (1152, 1536)
    yield "vision/patch_embedding_bias", B, (1152,)
    yield "vision/position_embedding", B, (2304, 1152)
    for block in range(27):
        prefix = f"vision/layers/{block}/"
        for norm in ("norm1", "norm2"):
            yield f"{prefix}{norm}/weight", B, (1152,)
            yield f"{prefix}{norm}/bias", B, (1152,)
        yield f"{prefix}attention/qkv", Q4, (3456, 1152)
        yield f"{prefix}attention/qkv_bias", B, (3456,)
        yield f"{prefix}attention/output", Q5, (1152, 1152)
        yield f"{prefix}attention/output_bias", B, (1152,)
        yield f"{prefix}mlp/fc1", Q4, (4304, 1152)
        yield f"{prefix}mlp/fc1_bias", B, (4304,)
        yield f"{prefix}mlp/fc2", Q5, (1152, 4304)
        yield f"{prefix}mlp/fc2_bias", B, (1152,)
    yield "vision/merger/norm/weight", B, (1152,)
    yield "vision/merger/norm/bias", B, (1152,)
    yield "vision/merger/fc1", Q8, (4608, 4608)
    yield "vision/merger/fc1_bias", B, (4608,)
    yield "vision/merger/fc2", Q8, (text_hidden, 4608)
    yield "vision/merger/fc2_bias", B, (text_hidden,)


def _draft(
    kind: str, *, hidden: int, intermediate: int, layers: int, taps: int, has_convolutions: bool
) -> Iterator[Entry]:
    yield f"{kind}/feature_projection", Q8, (hidden, taps * hidden)
    yield f"{kind}/context_norm", B, (hidden,)
    yield f"{kind}/final_norm", B, (hidden,)
    for layer in range(layers):
        prefix = f"{kind}/layers/{layer}/"
        yield f"{prefix}input_norm", B, (hidden,)
        yield f"{prefix}post_attention_norm", B, (hidden,)
        yield f"{prefix}attention/query_key_value", Q8, (6144, hidden)
        yield f"{prefix}attention/query_norm", B, (128,)
        yield f"{prefix}attention/key_norm", B, (128,)
        yield f"{prefix}attention/output", Q8, (hidden, 4096)
        yield f"{prefix}mlp/gate_up", Q8, (2 * intermediate, hidden)
        yield f"{prefix}mlp/down", Q8, (hidden, intermediate)
        for part in ("attention_conv", "mlp_conv") if has_convolutions else ():
            yield f"{prefix}{part}/base_kernel", B, (2, 2, hidden)
            yield f"{prefix}{part}/kernel_projection", B, (4 * hidden // 16, hidden)
    if has_convolutions:
        yield f"{kind}/candidate_selector/hidden_projection", B, (256, hidden)
        yield f"{kind}/candidate_selector/predecessor_codebook", B, (248320, 256)
        yield f"{kind}/candidate_selector/successor_codebook", B, (248320, 256)


def _pair(first: str, second: str) -> dict[str, int]:
    return {first: 7168, second: 7168}


def _divisor(site: str, format: str) -> Iterator[Entry]:
    if format == NVFP4:
        yield f"{site}/input_scale_divisor", F, ()


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple

"""Frontend files of a synthetic model: the embedded model's tokenizer and template, and what its vision tower needs."""

from __future__ import annotations

import json

from ninferd.errors import InputError
from ninferd.weights.convert.frontend import collect_frontend
from ninferd.weights.huggingface.source import HuggingFaceSource
from ninferd.weights.locate import artifact_path
from ninferd.weights.parameters.geometry import ModelGeometry, VisionGeometry
from ninferd.weights.token_domain import read_token_domain

EMBEDDED = "embedded:ninfer-tiny-bf16"
LONGEST_EDGE_PIXELS, SHORTEST_EDGE_PIXELS = 16777216, 65536


def synthetic_frontend(geometry: ModelGeometry, where: str) -> tuple[dict[str, bytes], int]:
    """The files by their Hugging Face names, and how many tokens they know.

    The head has more rows than that for a large vocabulary; like its padding, they are never sampled. InputError if it
    has fewer.
    """
    embedded = HuggingFaceSource.open(artifact_path(EMBEDDED))
    count = read_token_domain(embedded).count
    if count > geometry.text.vocab_size:
        raise InputError(
            f"{where}: vocab_size is {geometry.text.vocab_size}; a synthetic model has the tokenizer of {EMBEDDED} and "
            f"needs at least {count}"
        )
    contents, _ = collect_frontend(embedded, ("text",))
    if geometry.vision is not None:
        for name, processor in (
            ("preprocessor_config.json", "Qwen2VLImageProcessorFast"),
            ("video_preprocessor_config.json", "Qwen3VLVideoProcessor"),
        ):
            contents[name] = json.dumps(_preprocessor(geometry.vision, processor)).encode()
    return contents, count


def _preprocessor(vision: VisionGeometry, processor: str) -> dict[str, object]:
    kind = "video_processor_type" if "Video" in processor else "image_processor_type"
    return {
        "size": {"longest_edge": LONGEST_EDGE_PIXELS, "shortest_edge": SHORTEST_EDGE_PIXELS},
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        kind: processor,
    }

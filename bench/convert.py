"""Conversion speed and memory: a synthetic checkpoint of the 27B's shapes, converted and copied in one run.

    python bench/convert.py [--layers 6] [--recipe nvfp4] [--search mse] [--threads 2] [--dir /tmp]

Writes a bf16 checkpoint (0.75 GB a layer and 0.17 GB around them) and an artifact to a temporary folder of --dir, and
removes both. Copying reads the checkpoint and writes as many bytes to another file. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

HIDDEN, VOCABULARY = 5120, 8192
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 17408,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
}
COPY_BYTES = 8 << 20
PATTERN_ELEMENTS = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--recipe", default="nvfp4")
    parser.add_argument("--search", default="none")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    needed = (args.layers * 3 + 1) << 29
    free = shutil.disk_usage(args.dir).free
    if free < 2 * needed:
        sys.exit(f"{args.dir}: {2 * needed >> 30} GiB are needed, {free >> 30} GiB are free")
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="bench-convert-") as folder:
        source, artifact, copy = (Path(folder) / name for name in ("model", "model.ninfer", "copy"))
        source_bytes = write_checkpoint(source, args.layers)
        warm_up(args)
        cpu_started = cpu_seconds(resource.RUSAGE_SELF)
        copy_seconds = copied(source / "model.safetensors", copy)
        copy_cpu_seconds = cpu_seconds(resource.RUSAGE_SELF) - cpu_started
        copy.unlink()
        cpu_started = cpu_seconds(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run(command(args, source, artifact), check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        report = json.loads(artifact.with_name("model.ninfer.conversion.json").read_text())
        result = {
            "recipe": args.recipe,
            "search": args.search,
            "threads": args.threads,
            "source_bytes": source_bytes,
            "artifact_bytes": sum(file["bytes"] for file in report["files"]),
            "seconds": round(seconds, 1),
            "source_mb_per_s": round(source_bytes / seconds / 1e6),
            "cpu_seconds": round(cpu_seconds(resource.RUSAGE_CHILDREN) - cpu_started, 1),
            "copy_seconds": round(copy_seconds, 1),
            "copy_cpu_seconds": round(copy_cpu_seconds, 1),
            "of_copy_speed": round(copy_seconds / seconds, 3),
            "peak_rss_mb": round(peak_bytes / 1e6),
        }
        print(json.dumps(result))


def command(args: argparse.Namespace, source: Path, artifact: Path) -> list[str]:
    """The conversion as a user starts it."""
    options = ["--recipe", args.recipe, "--search", args.search, "--threads", str(args.threads)]
    program = [sys.executable, "-c", "import sys; from ninferd.cli import main; sys.exit(main())"]
    return [*program, "model", "convert", str(source), str(artifact), *options, "--device", args.device]


def warm_up(args: argparse.Namespace) -> None:
    """Compile the kernels: a first conversion of one layer's worth of a small model is not what is measured."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "model", 1)
        subprocess.run(
            command(args, Path(folder) / "model", Path(folder) / "model.ninfer"),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def cpu_seconds(whose: int) -> float:
    """Of all threads so far: what a busy machine does not change."""
    usage = resource.getrusage(whose)
    return usage.ru_utime + usage.ru_stime


def copied(source: Path, target: Path) -> float:
    """Seconds to read ``source`` and write it to ``target``, down to the disk."""
    started = time.perf_counter()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(COPY_BYTES):
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return time.perf_counter() - started


def write_checkpoint(directory: Path, layers: int) -> int:
    """A bf16 checkpoint with normally distributed weights that repeat after 64 MiB; returns its bytes."""
    directory.mkdir(parents=True)
    types = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)]
    config = CONFIG | {"num_hidden_layers": layers, "layer_types": types}
    (directory / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    shapes = dict(tensors(types))
    for name, shape in shapes.items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    values = np.random.default_rng(0).standard_normal(PATTERN_ELEMENTS, np.float32) * np.float32(0.02)
    pattern = memoryview((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            rest = 2 * prod(shape)
            while rest:
                rest -= file.write(pattern[: min(rest, len(pattern))])
    return end


def tensors(layer_types: list[str]) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of the text model."""
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN]
    yield "lm_head.weight", [VOCABULARY, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for layer, kind in enumerate(layer_types):
        prefix = f"model.layers.{layer}."
        mixer = ATTENTION if kind == "full_attention" else GATED_DELTA
        for name, shape in (mixer | FEED_FORWARD).items():
            yield prefix + name, shape


ATTENTION = {
    "self_attn.q_proj.weight": [12288, HIDDEN],
    "self_attn.k_proj.weight": [1024, HIDDEN],
    "self_attn.v_proj.weight": [1024, HIDDEN],
    "self_attn.o_proj.weight": [HIDDEN, 6144],
    "self_attn.q_norm.weight": [256],
    "self_attn.k_norm.weight": [256],
}
GATED_DELTA = {
    "linear_attn.in_proj_qkv.weight": [10240, HIDDEN],
    "linear_attn.in_proj_z.weight": [6144, HIDDEN],
    "linear_attn.in_proj_a.weight": [48, HIDDEN],
    "linear_attn.in_proj_b.weight": [48, HIDDEN],
    "linear_attn.conv1d.weight": [10240, 1, 4],
    "linear_attn.A_log": [48],
    "linear_attn.dt_bias": [48],
    "linear_attn.norm.weight": [128],
    "linear_attn.out_proj.weight": [HIDDEN, 6144],
}
FEED_FORWARD = {
    "input_layernorm.weight": [HIDDEN],
    "post_attention_layernorm.weight": [HIDDEN],
    "mlp.gate_proj.weight": [17408, HIDDEN],
    "mlp.up_proj.weight": [17408, HIDDEN],
    "mlp.down_proj.weight": [HIDDEN, 17408],
}


if __name__ == "__main__":
    main()

"""Damaged models of which everything is asked: the answer is a report, or one line why there is none."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ninferd.cli.model_inspect import as_json, lines
from ninferd.errors import InputError
from ninferd.weights.artifact.directory import Binding, BindingPart, Component, StoredObject, Use
from ninferd.weights.artifact.plan import Contents, resource_object, tensor_object
from ninferd.weights.artifact.writer import ArtifactWriter
from ninferd.weights.parameters.component_configs import model_geometry
from ninferd.weights.parameters.registry import parameters
from ninferd.weights.verify.inspection import inspect_model
from ninferd.weights.verify.verification import verify_model
from tests.weights.artifact.mutation import ENTRY, Files, Mutator
from tests.weights.artifact.test_fuzz import limited_memory, written

MUTATIONS = 1500
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 32,
    "vocab_size": 8,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 16,
}
RESOURCES = {
    "tokenizer.json": {
        "model": {"type": "BPE", "vocab": {"abcdefgh"[i]: i for i in range(8)}},
        "decoder": {"type": "ByteLevel"},
    },
    "generation_config.json": {"eos_token_id": [7]},
    "tokenizer_config.json": {"chat_template": "{{ messages }}"},
}


def sound_model(path: Path) -> Files:
    """Every parameter is an object of its own; matrices are q4, and one shares an object with another."""
    needed = parameters(model_geometry({"text": CONFIG}, "config"))
    texts = {name: json.dumps(content).encode() for name, content in RESOURCES.items()}
    objects: list[StoredObject] = [resource_object(name, len(text)) for name, text in texts.items()]
    objects += [tensor_object(each.name, each.shape, each.direct or "q4_g64_fp16") for each in needed]
    objects.append(tensor_object("divisor", (), "fp32"))
    bindings = {
        each.name: Binding((BindingPart(each.name, 0, size),), is_whole=True)
        for each in needed
        if (size := tensor_object("", each.shape, "bf16").elements)
    }
    bindings["text/layers/1/mlp/up"] = Binding((BindingPart("text/layers/1/mlp/gate", 0, 16 * 32),))
    divisor = {"activation_input_divisor": Binding((BindingPart("divisor", 0, 1),), is_whole=True)}
    uses = [Use(each.name, source, "AllowA4", divisor) for each in needed for source in each.inputs]
    components = {"text": Component(CONFIG, resources={name: name for name in texts})}
    with ArtifactWriter(path, Contents(tuple(objects), components, bindings, tuple(uses))) as writer:
        for entry in objects:
            writer.put(
                entry.id, [texts.get(entry.id) or (b"\0\0\x80?" if entry.id == "divisor" else bytes(entry.size_bytes))]
            )
        writer.publish()
    return {ENTRY: path.read_bytes()}


def asked(path: Path) -> str:
    """Inspect and verify; says how it ended."""
    try:
        inspection = inspect_model(path)
        findings = verify_model(path, with_values=True, on_progress=lambda _done, _total: None)
    except InputError as error:
        require_line(str(error), path)
        return "refused"
    for line in (*inspection.problems, *findings.errors, *findings.warnings):
        require_line(line, path)
    assert json.loads(json.dumps(as_json(inspection)))["tensors"] != []
    assert all(line.isprintable() for every in (True, False) for line in lines(inspection, every_tensor=every))
    return "errors" if findings.errors else "warnings" if findings.warnings else "sound"


def require_line(line: str, path: Path) -> None:
    assert line.startswith(f"{path.parent}/")
    assert line.isprintable()


def test_the_undamaged_model_is_sound(tmp_path: Path) -> None:
    sound_model(tmp_path / ENTRY)
    assert asked(tmp_path / ENTRY) == "sound"


def test_damaged_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = sound_model(tmp_path / ENTRY)
    mutator = Mutator(Random(7))
    outcomes: Counter[str] = Counter()
    with limited_memory():
        for index in range(MUTATIONS):
            path = written(tmp_path, mutator.mutated(base))
            try:
                outcomes[asked(path)] += 1
            except BaseException as error:
                error.add_note(f"mutation {index}, in {tmp_path}")
                raise
    assert all(outcomes[kind] > MUTATIONS // 200 for kind in ("sound", "warnings", "errors", "refused")), outcomes
    with capsys.disabled():
        print(f"\n{MUTATIONS} damaged models: {dict(outcomes)}", end=" ")

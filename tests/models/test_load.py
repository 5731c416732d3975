"""Loading: progress, types, names, and checkpoints that do not fit their configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ninferd.errors import InputError
from ninferd.models import load_text_model
from tests.support.checkpoints import MOE, TEXT, nested, write_random_checkpoint
from tests.support.models import prompt_tokens
from tests.support.sequences import Runner

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


def ignore_progress(done: int, total: int) -> None:
    """Most tests look at something else."""


def logits_of(directory: Path) -> torch.Tensor:
    model = load_text_model(directory, CPU, torch.float32, ignore_progress)
    return Runner.create(model, 1, 20).step({0: prompt_tokens(20)}, all_logits=True)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path, TEXT, seed=5)
    return tmp_path


def rewrite(directory: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of a checkpoint."""
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(tensors), file)


def test_progress_counts_all_bytes(dense: Path) -> None:
    seen: list[tuple[int, int]] = []
    model = load_text_model(dense, CPU, torch.float32, lambda done, total: seen.append((done, total)))
    tensors = load_file(dense / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == 269_140  # of the golden configuration, as published
    matrices = sum(tensor.nbytes for tensor in tensors.values() if tensor.ndim == 2)
    assert {total for _, total in seen} == {matrices}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (matrices, matrices)
    padded_rows = 3 * (320 - 268)  # of the fused input projections, whose last tile of 64 rows is not full
    assert model.weights_bytes == 4 * (269_140 + padded_rows * 64)


def test_a_bfloat16_checkpoint_in_float32(dense: Path) -> None:
    rewrite(dense, lambda tensors: {name: tensor.bfloat16().float() for name, tensor in tensors.items()})
    rounded = logits_of(dense)
    rewrite(dense, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert torch.equal(logits_of(dense), rounded)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_other_prefixes(dense: Path, prefix: str) -> None:
    expected = logits_of(dense)
    rewrite(dense, lambda tensors: {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()})
    assert torch.equal(logits_of(dense), expected)


def test_drafting_and_vision_tensors_are_left_out(dense: Path) -> None:
    expected = logits_of(dense)
    rewrite(dense, lambda tensors: tensors | {"mtp.fc.weight": torch.ones(2), "model.visual.x": torch.ones(3)})
    assert torch.equal(logits_of(dense), expected)


def test_sharded_checkpoints(dense: Path) -> None:
    expected = logits_of(dense)
    tensors = load_file(dense / "model.safetensors")
    weight_map = {name: f"part-{index % 3}.safetensors" for index, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name].clone() for name in tensors if weight_map[name] == shard}, dense / shard)
    (dense / "model.safetensors").unlink()
    (dense / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits_of(dense), expected)


def test_stacked_experts_equal_single_ones(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, MOE, seed=6)
    expected = logits_of(tmp_path)

    def stacked(tensors: Tensors) -> Tensors:
        kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
        for layer in range(4):
            experts = [f"model.layers.{layer}.mlp.experts.{expert}" for expert in range(8)]
            gate_up = [torch.cat([tensors[f"{e}.gate_proj.weight"], tensors[f"{e}.up_proj.weight"]]) for e in experts]
            down = [tensors[f"{e}.down_proj.weight"] for e in experts]
            kept[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.stack(gate_up)
            kept[f"model.layers.{layer}.mlp.experts.down_proj"] = torch.stack(down)
        return kept

    rewrite(tmp_path, stacked)
    assert torch.equal(logits_of(tmp_path), expected)


def test_a_tied_head_is_ignored_if_present(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, TEXT | {"tie_word_embeddings": True}, seed=7)
    expected = logits_of(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"lm_head.weight": torch.zeros(512, 64)})
    assert torch.equal(logits_of(tmp_path), expected)


def test_the_nested_form_with_its_vision_tower(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, nested(TEXT), seed=8)
    assert any("visual" in name for name in load_file(tmp_path / "model.safetensors"))
    assert logits_of(tmp_path).shape == (20, 512)


def test_a_missing_tensor(dense: Path) -> None:
    name = "model.layers.2.linear_attn.A_log"
    rewrite(dense, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(InputError, match=r"tensor layers\.2\.linear_attn\.A_log \[6\] is missing"):
        logits_of(dense)


def test_a_tensor_too_many(dense: Path) -> None:
    rewrite(dense, lambda tensors: tensors | {"model.layers.4.input_layernorm.weight": torch.ones(64)})
    with pytest.raises(InputError, match=r"unexpected tensors: layers\.4\.input_layernorm\.weight"):
        logits_of(dense)


def test_a_tensor_of_another_shape(dense: Path) -> None:
    rewrite(dense, lambda tensors: tensors | {"model.layers.3.self_attn.k_proj.weight": torch.ones(32, 64)})
    with pytest.raises(InputError, match=r"k_proj\.weight has shape \[32, 64\], expected \[64, 64\]"):
        logits_of(dense)


def test_weights_do_not_alias_the_file(dense: Path) -> None:
    model = load_text_model(dense, CPU, torch.float32, ignore_progress)
    expected = Runner.create(model, 1, 20).step({0: prompt_tokens(20)})
    file = dense / "model.safetensors"
    with file.open("r+b") as opened:
        opened.write(b"\xff" * file.stat().st_size)
    assert torch.equal(Runner.create(model, 1, 20).step({0: prompt_tokens(20)}), expected)

"""Fake quantisation of the training weights, against torch's own E4M3 and formulas written out in numpy float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.train_tiny import pointwise
from tools.train_tiny.configs import Shape
from tools.train_tiny.data.rows import LEARNED
from tools.train_tiny.export import load_weights
from tools.train_tiny.fake_quant import FakeQuantiser, nvfp4_parents, q8_names, q8_values, quantise
from tools.train_tiny.model import Rows, TinyModel
from tools.train_tiny.step import Trainer, compute_losses, make_optimizer

ASSETS = Path(__file__).parents[2] / "ninferd" / "assets" / "ninfer_tiny"
SMALL = Shape(vocab_size=512, hidden_size=64, intermediate_size=96, num_layers=4, head_dim=64, rotary_dim=16,
              mrope_section=(3, 3, 2), linear_head_dim=32)  # fmt: skip
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def make_model(seed: int = 0) -> TinyModel:
    """Returns a small model in fp32 whose weights have outliers."""
    torch.manual_seed(seed)
    model = TinyModel(SMALL, torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(1.0 + 4.0 * (torch.rand_like(parameter) > 0.98))
    return model


def bf16(weight: Tensor) -> NDArray[np.float64]:
    """Returns the values that a bf16 checkpoint holds."""
    return weight.detach().bfloat16().double().numpy()


def expected_nvfp4(weight: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    """Encodes blocks of 16 with the divisor ``2688 / largest``, candidates compared one by one, and decodes."""
    divisor = np.float64(np.float32(2688.0 / largest))
    y = (weight * divisor).astype(np.float32).reshape(-1, 16)
    scale = np.minimum(np.abs(y).max(-1, keepdims=True) / np.float32(6.0), np.float32(448.0))
    scale = torch.from_numpy(scale).to(torch.float8_e4m3fn).double().numpy()
    share = np.divide(np.abs(y), scale, out=np.zeros(y.shape), where=scale > 0).astype(np.float32)
    distance = np.abs(share[..., None].astype(np.float64) - E2M1)
    distance[..., 1::2] += 1e-9
    code = E2M1[distance.argmin(-1)]
    return np.asarray(np.sign(y) * code * scale / divisor, np.float64).reshape(weight.shape)


def expected_q8(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Encodes groups of 32 with an fp16 scale ``largest / 127``, and decodes."""
    x = weight.reshape(-1, 32)
    scale = (np.abs(x).max(-1, keepdims=True) / 127.0).astype(np.float32).astype(np.float16).astype(np.float64)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0).astype(np.float32)
    codes = np.clip(np.rint((x.astype(np.float32) * inverse).astype(np.float32)), -127, 127)
    return np.asarray(codes * scale, np.float64).reshape(weight.shape)


def test_e4m3_rounding_equals_torch_at_every_value_and_tie() -> None:
    values = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, middles, torch.nextafter(middles, middles - 1), torch.nextafter(middles, middles + 1)])
    assert torch.equal(pointwise.round_e4m3(x), x.to(torch.float8_e4m3fn).float())


def test_e2m1_ties_go_to_the_even_code() -> None:
    block = torch.tensor(
        [[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, 0.0]]
    )
    values = pointwise.nvfp4_values(block.bfloat16(), torch.ones(1, 1))
    assert values[0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0, 0.0]


@pytest.mark.parametrize("magnitude", [0.0, 1e-30, 1.0, 1e30])
def test_blocks_of_every_magnitude_stay_finite(magnitude: float) -> None:
    block = torch.full((1, 16), magnitude)
    divisor = torch.full((1, 1), 2688.0 / max(magnitude, 1.0))
    expected = 0.0 if magnitude < 1e-20 else magnitude
    torch.testing.assert_close(
        pointwise.nvfp4_values(block.bfloat16(), divisor), torch.full((1, 16), expected), rtol=5e-3, atol=0.0
    )


def test_parents_are_those_of_the_converter() -> None:
    names = [name for name, _ in TinyModel(SMALL).named_parameters()]
    parents = nvfp4_parents(names)
    first = [
        [name.removeprefix("model.layers.0.") for name in p] for p in parents if p[0].startswith("model.layers.0.")
    ]
    fourth = [
        [name.removeprefix("model.layers.3.") for name in p] for p in parents if p[0].startswith("model.layers.3.")
    ]
    mlp = [["mlp.gate_proj.weight", "mlp.up_proj.weight"], ["mlp.down_proj.weight"]]
    gdn = [["linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"], ["linear_attn.out_proj.weight"]]
    qkv = [f"self_attn.{part}_proj.weight" for part in "kqv"]
    assert sorted(first) == sorted([*gdn, *mlp])
    assert sorted(fourth) == sorted([qkv, ["self_attn.o_proj.weight"], *mlp])
    assert len(parents) == 4 * SMALL.num_layers
    assert len(q8_names(names)) == 1 + 1 + 4 + 3


def test_rounded_weights_equal_the_formulas() -> None:
    model = make_model()
    named = dict(model.named_parameters())
    rounded = FakeQuantiser(model)(model)
    names = list(named)
    for parent in nvfp4_parents(names):
        largest = max(np.abs(bf16(named[name])).max() for name in parent)
        for name in parent:
            expected = expected_nvfp4(bf16(named[name]), largest)
            np.testing.assert_allclose(rounded[name].detach().double().numpy(), expected, rtol=2e-7, err_msg=name)
    for name in q8_names(names):
        expected = expected_q8(bf16(named[name]))
        np.testing.assert_allclose(rounded[name].detach().double().numpy(), expected, rtol=2e-7, err_msg=name)
    assert len(rounded) == sum(len(parent) for parent in nvfp4_parents(names)) + len(q8_names(names))


def test_q8_of_zeros_and_of_the_smallest_scale() -> None:
    groups = torch.zeros(2, 32)
    groups[1, 3] = 1e-7
    values = q8_values(groups.bfloat16())
    assert not values[0].any()
    assert values[1, 3] == 2 * 2.0**-24


def test_gradients_pass_straight_through() -> None:
    model = make_model()
    rounded = FakeQuantiser(model)(model)
    named = dict(model.named_parameters())
    factors = {name: torch.randn_like(value) for name, value in rounded.items()}
    torch.stack([(value * factors[name]).sum() for name, value in rounded.items()]).sum().backward()  # type: ignore[no-untyped-call]
    for name, factor in factors.items():
        grad = named[name].grad
        assert grad is not None, name
        assert torch.equal(grad, factor), name


def test_steps_see_rounded_weights_and_change_the_exact_ones() -> None:
    model, copy = make_model(), make_model()
    quantise(copy)
    torch.manual_seed(1)
    batch = torch.randint(0, SMALL.vocab_size, (2, 64)) + LEARNED
    rows = Rows(2, 64, SMALL, torch.device("cpu"))
    expected = compute_losses(copy, None, batch.flatten(), rows)
    exact = compute_losses(model, None, batch.flatten(), rows)
    trainer = Trainer(model, make_optimizer(model, torch.tensor(3e-3), 0.0), 0.25, FakeQuantiser(model))
    trainer.step(batch)
    assert trainer.losses.main.item() == pytest.approx(expected.main.item(), rel=1e-5)
    assert trainer.losses.main.item() != pytest.approx(exact.main.item(), rel=1e-5)
    before = dict(make_model().named_parameters())
    assert all(not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    for _ in range(5):
        trainer.step(batch)
    assert trainer.losses.main.item() < expected.main.item()
    assert trainer.losses.draft.item() < expected.draft.item()


def test_rounding_bf16_values_again_changes_nothing() -> None:
    model = make_model()
    quantise(model)
    once = {name: parameter.detach().bfloat16() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data.copy_(parameter.bfloat16())
    quantise(model)
    for name in [name for parent in nvfp4_parents(list(once)) for name in parent]:
        assert torch.equal(dict(model.named_parameters())[name].bfloat16(), once[name]), name


def test_shipped_weights_lie_on_their_nvfp4_and_q8_grids() -> None:
    model = TinyModel(Shape())
    load_weights(model, ASSETS)
    named = dict(model.named_parameters())
    shipped = {name: parameter.detach().bfloat16() for name, parameter in named.items()}
    quantise(model)
    rounded = [*FakeQuantiser(model).nvfp4, *q8_names(list(named))]
    assert sum(shipped[name].numel() for name in rounded) > 0.99 * sum(value.numel() for value in shipped.values())
    for name in rounded:
        assert torch.equal(named[name].bfloat16(), shipped[name]), name

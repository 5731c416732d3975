"""Fake quantisation: the values that the weights have after the ``.ninfer`` converter stored them.

The projections of the trunk become NVFP4 (blocks of 16 columns with an E4M3 scale, one divisor for each matrix or fused
parent), the tied embedding and the MTP matrices Q8 (groups of 32 with an fp16 scale); everything else stays bf16.
Gradients pass straight through. Command line: ``python -m tools.train_tiny.fake_quant FROM TO`` rounds the weights of a
directory and writes them, again as bf16; encoding those gives the same codes and scales.
"""

import argparse
import math
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.train_tiny import pointwise
from tools.train_tiny.configs import Shape
from tools.train_tiny.export import export, load_weights
from tools.train_tiny.model import TinyModel

BLOCK = 16
GROUP = 32
Q8_MAX = 127.0
DIVISOR_RANGE = 6.0 * 448.0
"""Largest E2M1 value times largest E4M3 scale: what a parent's largest magnitude is scaled to."""

_PARENTS: tuple[str, ...] = (
    r"self_attn\.[qkv]_proj",
    r"self_attn\.o_proj",
    r"linear_attn\.in_proj_(qkv|z)",
    r"linear_attn\.out_proj",
    r"mlp\.(gate|up)_proj",
    r"mlp\.down_proj",
)


def _parent(name: str) -> str:
    """Returns a key that the matrices of one fused NVFP4 parent share, or the empty string."""
    for parent in _PARENTS:
        if found := re.fullmatch(rf"(model\.layers\.\d+)\.{parent}\.weight", name):
            return f"{found[1]}.{parent}"
    return ""


def nvfp4_parents(names: list[str]) -> list[list[str]]:
    """Groups the names of the NVFP4 matrices by parent; small projections (GDN's a and b) are in none."""
    named = sorted((parent, name) for name in names if (parent := _parent(name)))
    return [[name for _, name in group] for _, group in groupby(named, key=lambda item: item[0])]


def q8_names(names: list[str]) -> list[str]:
    """Returns the names of the Q8 matrices: the embedding, and the projections of the draft layer."""
    return [name for name in names if re.fullmatch(r"model\.embed_tokens\.weight|mtp\.(.+_proj|fc)\.weight", name)]


def q8_values(groups: Tensor) -> Tensor:
    """Rounds bf16 ``[G, 32]`` to ``fp16 scale * int8`` by groups; returns fp32."""
    x = groups.float()
    largest = x.abs().amax(-1, keepdim=True)
    scale = (largest / Q8_MAX).half().float()
    scale = torch.where((scale == 0) & (largest > 0), 2.0**-24, scale)
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    return torch.round(x * inverse).clamp(-Q8_MAX, Q8_MAX) * scale


class _StraightThrough(torch.autograd.Function):
    """Applies ``function`` to a list of weights; each gradient goes to its weight unchanged."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[list[Tensor]], list[Tensor]], *weights: Tensor) -> tuple[Tensor, ...]:
        """Returns as many tensors of the same shapes."""
        ctx.set_materialize_grads(False)
        return tuple(function(list(weights)))

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Hands the gradients on."""
        return (None, *grads)


def _joined(weights: list[Tensor], width: int) -> Tensor:
    """Returns all weights as bf16 ``[all / width, width]``; rows are multiples of the width, so none is shared."""
    return torch.cat([weight.reshape(-1, width) for weight in weights]).bfloat16()


def _parted(values: Tensor, like: list[Tensor]) -> list[Tensor]:
    pieces = torch.split(values, [weight.numel() // values.shape[1] for weight in like])
    return [piece.reshape(weight.shape) for piece, weight in zip(pieces, like, strict=True)]


class FakeQuantiser:
    """Rounds a model's weights, all of one format at once: few large kernels, so that a step costs little more."""

    def __init__(self, model: nn.Module) -> None:
        """Plans which matrix belongs to which parent and which block to which divisor."""
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        device = next(model.parameters()).device
        parents = nvfp4_parents(list(shapes))
        self.nvfp4 = [name for parent in parents for name in parent]
        self.q8 = q8_names(list(shapes))
        sizes = [len(parent) for parent in parents]
        self._parents = len(parents)
        self._parent_of_matrix = torch.arange(len(parents)).repeat_interleave(torch.tensor(sizes)).to(device)
        blocks = torch.tensor([math.prod(shapes[name]) // BLOCK for name in self.nvfp4])
        self._parent_of_block = self._parent_of_matrix.cpu().repeat_interleave(blocks).to(device)

    def __call__(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns the rounded weights by parameter name, for ``torch.func.functional_call``."""
        named = dict(model.named_parameters())
        fours = _StraightThrough.apply(self._to_nvfp4, *(named[name] for name in self.nvfp4))  # type: ignore[no-untyped-call]
        eights = _StraightThrough.apply(_to_q8, *(named[name] for name in self.q8))  # type: ignore[no-untyped-call]
        return dict(zip((*self.nvfp4, *self.q8), (*fours, *eights), strict=True))

    def _to_nvfp4(self, weights: list[Tensor]) -> list[Tensor]:
        maxima = torch.stack(torch._foreach_norm(weights, math.inf)).bfloat16().float()
        largest = maxima.new_zeros(self._parents).scatter_reduce(0, self._parent_of_matrix, maxima, "amax")
        divisors = torch.where(largest > 0, torch.full_like(largest, DIVISOR_RANGE) / largest, 1.0)
        values = pointwise.nvfp4_values(_joined(weights, BLOCK), divisors[self._parent_of_block][:, None])
        return _parted(values, weights)


def _to_q8(weights: list[Tensor]) -> list[Tensor]:
    return _parted(q8_values(_joined(weights, GROUP)), weights)


@torch.no_grad()
def quantise(model: nn.Module) -> None:
    """Rounds the weights of a model in place."""
    named = dict(model.named_parameters())
    for name, value in FakeQuantiser(model)(model).items():
        named[name].copy_(value)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, metavar="FROM", help="directory with model.safetensors")
    parser.add_argument("target", type=Path, metavar="TO", help="directory that receives model.safetensors")
    arguments = parser.parse_args()
    model = TinyModel(Shape())
    load_weights(model, arguments.source)
    quantise(model)
    export(model, arguments.target)


if __name__ == "__main__":
    main()

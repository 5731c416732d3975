"""What each stored format costs in quality: a Markdown table against the same model in bfloat16.

    python -m bench.weight_formats NAME=PATH [NAME=PATH ...] [--reference PATH] [--cases 8]

PATH is a .ninfer file or a Hugging Face directory of the embedded model; the reference defaults to its bfloat16
checkpoint. Per source: whether it loads; the largest deviation of a loaded weight from the float64 formula of its
format (an nvfp4 divisor is inverted with one rounding, 6e-8); and over the right replies to held-out cases of every
family, the mean KL divergence of the next token's distribution, and how often the likeliest token is the same. In
float32 on the CPU. Needs transformers for the chat template.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch

from bench.held_out import Case, HeldOut
from kernels_numba.cpu.table import CPU_OPS
from ninferd.errors import NinferError
from ninferd.models import Qwen3_5Text, text_config
from ninferd.models.qwen3_5.load import load_text, text_geometry
from ninferd.weights.loading.matrices import load_matrices
from ninferd.weights.loading.plan import text_plan
from ninferd.weights.loading.resolve import resolve_plan
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import open_model
from ninferd.weights.profiles import describe
from ninferd.weights.source import ModelSource
from tests.support.matrix_values import formula_values, matrix_values
from tests.support.sequences import Runner

CPU = torch.device("cpu")
REFERENCE = "embedded:ninfer-tiny-bf16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--reference", default=REFERENCE)
    parser.add_argument("--cases", type=int, default=8, help="of each family")
    args = parser.parse_args()
    reference = open_model(artifact_path(args.reference))
    families = HeldOut(artifact_path(REFERENCE)).short(args.cases)
    cases = [case for family in families.values() for case in family]
    expected = distributions(load(reference), cases)
    positions = sum(len(case.reply) for case in cases)
    print(f"{positions} positions in {len(cases)} held-out replies, against {args.reference} in float32.\n")
    print("| source | stored | loads | largest deviation from the float64 formula | KL (nats) | same likeliest token |")
    print("|---|---|---|---|---|---|")
    for named in args.sources:
        name, _, path = named.rpartition("=")
        print(f"| {name or path} | {row(path, cases, expected)} |", flush=True)


def row(path: str, cases: list[Case], expected: torch.Tensor) -> str:
    """The cells after the name."""
    try:
        source = open_model(artifact_path(path))
        stored = describe(source, text_plan(text_geometry(text_config(source)))).summary()
        found = distributions(load(source), cases)
    except NinferError as error:
        return f"| no: {error} | | |"
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    agreement = (expected.argmax(-1) == found.argmax(-1)).double().mean()
    return f"{stored} | yes | {deviation(source):.1e} | {divergence:.2e} | {agreement:.1%}"


def load(source: ModelSource) -> Qwen3_5Text:
    return load_text(source, text_config(source), CPU_OPS, CPU, torch.float32, _quietly)


def deviation(source: ModelSource) -> float:
    """The largest relative deviation of a weight from its formula; 0 is to the last bit of float64."""
    plan = text_plan(text_geometry(text_config(source)))
    requests = {request.key: request for request in plan.matrices}
    largest = 0.0
    for key, matrices in load_matrices(resolve_plan(source, plan, "<f4").matrices, CPU, _quietly):
        for index, parameters in enumerate(requests[key].matrices):
            found = np.concatenate([matrix_values(each[index] if each.stack else each) for each in matrices])
            runs = [run for each in parameters for run in source.matrix(each.name, each.shape[0], each.shape[1])]
            formula = np.concatenate([formula_values(run.matrix, run.begin, run.end) for run in runs])
            scale = np.where(formula == 0, 1, np.abs(formula))
            largest = max(largest, float((np.abs(found - formula) / scale).max()))
    return largest


def distributions(model: Qwen3_5Text, cases: list[Case]) -> torch.Tensor:
    """Log probabilities ``[positions, vocabulary]`` in float64 at every token of every reply."""
    return torch.cat(list(_distributions(model, cases)))


def _distributions(model: Qwen3_5Text, cases: list[Case]) -> Iterator[torch.Tensor]:
    for case in cases:
        tokens = case.prompt + case.reply
        logits = Runner.create(model, 1, len(tokens)).step({0: tokens}, all_logits=True)
        yield logits[len(case.prompt) - 1 : -1].double().log_softmax(-1)


def _quietly(_done: int, _total: int) -> None:
    """Progress is not shown."""


if __name__ == "__main__":
    main()

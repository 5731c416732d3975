"""Distributions of synthetic weights: such that activations and logits have the sizes of a trained model's."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninferd.weights.parameters.geometry import ModelGeometry
from ninferd.weights.parameters.registry import Parameter

EMBEDDING_SIGMA = 0.02
LOGIT_SIGMA = 3.0
"""Of the logits: some tokens are then clearly likelier than others, and none is certain."""
NORM_SIGMA = 0.1
BIAS_SIGMA = 0.02
CONVOLUTION_SIGMA = 0.5
DECAY_RATES = (1.0, 16.0)  # exp(a_log), uniform; this and the next as Mamba-2 is initialised (state-spaces/mamba)
TIME_STEPS = (1e-3, 1e-1)  # softplus(dt_bias), uniform in its logarithm

_HEADS = ("text/output_head", "proposal/head")
_INTO_RESIDUAL = ("/output", "/down", "/fc2")


def matrix_sigma(parameter: Parameter, geometry: ModelGeometry) -> float:
    """Standard deviation of a matrix's values.

    An input of variance 1 gives an output of variance 1; what is added to the residual stream gives less, by the number
    of additions, so that the stream ends with variance 1 (GPT-2's initialisation).
    """
    columns = parameter.shape[1]
    if parameter.name == "text/token_embedding":
        return EMBEDDING_SIGMA
    if parameter.name in _HEADS:
        return LOGIT_SIGMA / sqrt(columns)
    if parameter.name.endswith(_INTO_RESIDUAL):
        return 1 / sqrt(columns * 2 * len(geometry.text.layer_types))
    return 1 / sqrt(columns)


def direct_values(parameter: Parameter, token_count: int, generator: np.random.Generator) -> NDArray[Any]:
    """Values of what is stored directly: float32, or for ids int32, all different and below ``token_count``."""
    shape, last = parameter.shape, parameter.name.rsplit("/", 1)[-1]
    if parameter.direct == "int32":
        return generator.permutation(token_count)[: shape[0]].astype(np.int32)
    if last == "a_log":
        return np.log(generator.uniform(*DECAY_RATES, shape)).astype(np.float32)
    if last == "dt_bias":
        steps = np.exp(generator.uniform(log(TIME_STEPS[0]), log(TIME_STEPS[1]), shape))
        biases: NDArray[Any] = steps + np.log(-np.expm1(-steps))  # the inverse of softplus
        return biases.astype(np.float32)
    noise = generator.standard_normal(shape, np.float32)
    if last in ("convolution", "base_kernel"):
        return np.float32(CONVOLUTION_SIGMA) * noise
    if "norm" in last and not last.endswith("_bias"):
        return np.float32(0 if _is_zero_centred(parameter) else 1) + np.float32(NORM_SIGMA) * noise
    return np.float32(BIAS_SIGMA) * noise


def _is_zero_centred(parameter: Parameter) -> bool:
    """Whether the gain is one more than the stored value."""
    return parameter.component in ("text", "mtp") and not parameter.name.endswith("gdn/norm")

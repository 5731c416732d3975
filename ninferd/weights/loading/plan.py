"""What the text model is loaded as: which parameters become one product, in which order. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ninferd.weights.parameters.geometry import ModelGeometry, MoeGeometry, TextGeometry
from ninferd.weights.parameters.registry import Parameter, text_parameters

EMBEDDING = "text/token_embedding"
HEAD = "text/output_head"


@dataclass(frozen=True)
class MatrixRequest:
    """Matrix parameters whose rows, one after the other, are the weights of one product, or of a stack of them."""

    key: str
    parameters: tuple[Parameter, ...]
    stack: int | None = None  # so many matrices, each of equally many of the parameters

    @property
    def matrices(self) -> tuple[tuple[Parameter, ...], ...]:
        """The parameters of each matrix of the stack, or of the only one."""
        each = len(self.parameters) // (self.stack or 1)
        return tuple(self.parameters[first : first + each] for first in range(0, len(self.parameters), each))


@dataclass(frozen=True)
class TextPlan:
    """All weights of the text model."""

    matrices: tuple[MatrixRequest, ...]
    arrays: tuple[Parameter, ...]  # small, in float32: norms, convolutions, decays

    @property
    def parameters(self) -> frozenset[str]:
        """Names of all parameters that are loaded."""
        names = {parameter.name for request in self.matrices for parameter in request.parameters}
        return frozenset(names | {parameter.name for parameter in self.arrays})


def text_plan(text: TextGeometry) -> TextPlan:
    """The plan of a text model; keys are prefixes of parameter names, with ``in`` for the fused input projection.

    Rows are in the order of ``kernels_numba.shapes``: attention/in is query, gate, key, value; gdn/in is query, key,
    value, z, b, a; mlp/gate_up and each expert of moe/gate_up is gate, up; moe/router ends with the shared score.
    """
    known = {parameter.name: parameter for parameter in text_parameters(ModelGeometry(text))}
    arrays = tuple(parameter for parameter in known.values() if parameter.direct is not None)

    def request(prefix: str, key: str, *names: str, stack: int | None = None) -> MatrixRequest:
        return MatrixRequest(prefix + key, tuple(known[prefix + name] for name in names), stack)

    def requests() -> Iterator[MatrixRequest]:
        yield request("", EMBEDDING, EMBEDDING)
        for index, layer_type in enumerate(text.layer_types):
            prefix = f"text/layers/{index}/"
            if layer_type == "full_attention":
                yield request(f"{prefix}attention/", "in", "query", "gate", "key", "value")
                yield request(f"{prefix}attention/", "output", "output")
            else:
                names = ("query", "key", "value", "z", "b_projection", "a_projection")
                yield request(f"{prefix}gdn/", "in", *names)
                yield request(f"{prefix}gdn/", "output", "output")
            if isinstance(text.feed_forward, MoeGeometry):
                count = text.feed_forward.experts
                experts = [f"experts/{expert}/" for expert in range(count)]
                gate_up = [f"{expert}{part}" for expert in experts for part in ("gate", "up")]
                yield request(f"{prefix}moe/", "router", "router", "shared_score")
                yield request(f"{prefix}moe/", "gate_up", *gate_up, stack=count)
                yield request(f"{prefix}moe/", "down", *(f"{expert}down" for expert in experts), stack=count)
                yield request(f"{prefix}moe/shared/", "gate_up", "gate", "up")
                yield request(f"{prefix}moe/shared/", "down", "down")
            else:
                yield request(f"{prefix}mlp/", "gate_up", "gate", "up")
                yield request(f"{prefix}mlp/", "down", "down")
        if not text.tie_word_embeddings:
            yield request("", HEAD, HEAD)

    return TextPlan(tuple(requests()), arrays)

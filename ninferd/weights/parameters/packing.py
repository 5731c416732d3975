"""Which parameters may share one stored parent, and in which row order. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator

from ninferd.weights.parameters.geometry import DraftGeometry, ModelGeometry, MoeGeometry, TextGeometry

Group = tuple[str, ...]


def packing_groups(geometry: ModelGeometry) -> tuple[Group, ...]:
    """Candidate groups, each in row order, in the order to try them: a parameter goes into the first that fits.

    Members of one group have the same columns and belong to one component. A group fits if no member is packed
    already and all have one format (and, for imported NVFP4, one divisor).
    """
    return tuple(_all(geometry))


def _all(geometry: ModelGeometry) -> Iterator[Group]:
    text = geometry.text
    for index, layer_type in enumerate(text.layer_types):
        yield from _layer(text, f"text/layers/{index}/", is_attention=layer_type == "full_attention")
    if geometry.has_mtp:
        yield from _layer(text, "mtp/layers/0/", is_attention=True)
    for block in range(geometry.vision.depth if geometry.vision is not None else 0):
        prefix = f"vision/layers/{block}/attention/"
        yield _named(prefix, "query", "key", "value")
        yield _named(prefix, "query_bias", "key_bias", "value_bias")
    for draft in geometry.drafts:
        yield from _draft(draft)


def _layer(text: TextGeometry, prefix: str, *, is_attention: bool) -> Iterator[Group]:
    if is_attention:
        yield _named(f"{prefix}attention/", "query", "key", "gate", "value")
        yield _named(f"{prefix}attention/", "query", "key")
        yield _named(f"{prefix}attention/", "gate", "value")
    else:
        yield _named(f"{prefix}gdn/", "query", "key", "value", "z")
        yield _named(f"{prefix}gdn/", "query", "key")
        yield _named(f"{prefix}gdn/", "value", "z")
        yield _named(f"{prefix}gdn/", "a_projection", "b_projection")
    if isinstance(text.feed_forward, MoeGeometry):
        yield from _moe(text.feed_forward.experts, f"{prefix}moe/")
    else:
        yield _named(f"{prefix}mlp/", "gate", "up")


def _moe(experts: int, prefix: str) -> Iterator[Group]:
    yield _named(prefix, "router", "shared_score")
    yield tuple(f"{prefix}experts/{expert}/{part}" for expert in range(experts) for part in ("gate", "up"))
    yield tuple(f"{prefix}experts/{expert}/down" for expert in range(experts))
    yield _named(f"{prefix}shared/", "gate", "up")


def _draft(draft: DraftGeometry) -> Iterator[Group]:
    for index in range(len(draft.layer_types)):
        prefix = f"{draft.kind}/layers/{index}/"
        yield _named(f"{prefix}attention/", "query", "key", "value")
        yield _named(f"{prefix}mlp/", "gate", "up")


def _named(prefix: str, *parts: str) -> Group:
    return tuple(prefix + part for part in parts)

"""What the configurations of the text model and of the drafters have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninferd.weights.json_table import JsonTable, shown

MAX_SIZE = 1 << 24  # of any dimension
MAX_LAYERS = 1024
MAX_KERNEL = 64


def float32_value(value: float) -> float:
    """The float32 next to ``value``, as artifacts store it: 1e-6 becomes 9.999999974752427e-07."""
    return float(np.float32(value))


def layer_types(table: JsonTable, known: tuple[str, ...]) -> tuple[Any, ...]:
    """``layer_types``, as many as ``num_hidden_layers`` and each in ``known``."""
    count = table.integer("num_hidden_layers", MAX_LAYERS)
    names = table.items("layer_types")
    for name in names:
        if name not in known:
            raise table.error("layer_types", f"holds {shown(name)}; known: {', '.join(map(repr, known))}")
    if len(names) != count:
        raise table.error("layer_types", f"has {len(names)} entries, but num_hidden_layers is {count}")
    return tuple(names)


def grouped_heads(table: JsonTable, heads_key: str, kv_heads_key: str) -> tuple[int, int]:
    """Two head counts, the first a multiple of the second."""
    heads, kv_heads = table.integer(heads_key, MAX_SIZE), table.integer(kv_heads_key, MAX_SIZE)
    if heads % kv_heads:
        raise table.error(heads_key, f"({heads}) must be a multiple of {kv_heads_key} ({kv_heads})")
    return heads, kv_heads

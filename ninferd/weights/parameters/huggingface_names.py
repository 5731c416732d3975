"""Which tensor of a Hugging Face checkpoint, and which of its rows, a parameter is. Free of torch.

Names are canonical: without the wrapper's prefix (``layers.0...``, ``embed_tokens.weight``, ``visual...``, ``mtp...``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ninferd.weights.parameters.geometry import (
    AttentionGeometry,
    DraftGeometry,
    GatedDeltaGeometry,
    MlpGeometry,
    MoeGeometry,
    TextGeometry,
    VisionGeometry,
)

Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SourceTensor:
    """Rows of a stored tensor, which counts as a matrix ``[rows, columns]`` however many dimensions it has."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor, as stored
    columns: int  # its elements are rows of so many
    runs: Rows  # rows [begin, end) of it, in the parameter's order
    is_transposed: bool = False  # the parameter is [columns, rows]

    @property
    def rows(self) -> int:
        """Of the whole tensor."""
        return prod(self.shape) // self.columns


Sources = tuple[SourceTensor, ...]
"""Alternatives; a checkpoint has one of them."""

Named = Iterator[tuple[str, Sources]]


def text_sources(text: TextGeometry) -> Named:
    """The text parameters and their tensors; a tied head is the embedding."""
    vocabulary = (text.vocab_size, text.hidden_size)
    yield "text/token_embedding", _whole("embed_tokens.weight", vocabulary)
    for index, layer_type in enumerate(text.layer_types):
        names = f"text/layers/{index}/", f"layers.{index}."
        yield from _layer(text, *names, is_attention=layer_type == "full_attention")
    yield "text/final_norm", _whole("norm.weight", (text.hidden_size,))
    head = "embed_tokens.weight" if text.tie_word_embeddings else "lm_head.weight"
    yield "text/output_head", _whole(head, vocabulary)


def mtp_sources(text: TextGeometry) -> Named:
    """The multi-token prediction layer of a text model."""
    hidden = text.hidden_size
    yield "mtp/input_projection", _whole("mtp.fc.weight", (hidden, 2 * hidden))
    yield "mtp/embedding_norm", _whole("mtp.pre_fc_norm_embedding.weight", (hidden,))
    yield "mtp/hidden_norm", _whole("mtp.pre_fc_norm_hidden.weight", (hidden,))
    yield from _layer(text, "mtp/layers/0/", "mtp.layers.0.", is_attention=True)
    yield "mtp/final_norm", _whole("mtp.norm.weight", (hidden,))


def vision_sources(vision: VisionGeometry, text_hidden: int) -> Named:
    """The vision tower, whose last projection has ``text_hidden`` rows."""
    hidden, merged = vision.hidden_size, vision.merged_width
    patch = (hidden, 3, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    patch_name = "visual.patch_embed.proj"
    yield (
        "vision/patch_embedding",
        (SourceTensor(f"{patch_name}.weight", patch, vision.patch_width, ((0, hidden),)),),
    )
    yield "vision/patch_embedding_bias", _whole(f"{patch_name}.bias", (hidden,))
    yield "vision/position_embedding", _whole("visual.pos_embed.weight", (vision.position_embeddings, hidden))
    for block in range(vision.depth):
        names = f"vision/layers/{block}/", f"visual.blocks.{block}."
        yield from _vision_block(*names, hidden, vision.intermediate_size)
    for suffix in ("weight", "bias"):
        yield f"vision/merger/norm_{suffix}", _whole(f"visual.merger.norm.{suffix}", (hidden,))
    yield from _biased("vision/merger/fc1", "visual.merger.linear_fc1", (merged, merged))
    yield from _biased("vision/merger/fc2", "visual.merger.linear_fc2", (text_hidden, merged))


def draft_sources(draft: DraftGeometry) -> Named:
    """A drafter, which is a checkpoint of its own."""
    kind, hidden, convolution = draft.kind, draft.hidden_size, draft.convolution
    yield f"{kind}/feature_projection", _whole("fc.weight", (hidden, hidden * len(draft.target_layer_ids)))
    yield f"{kind}/context_norm", _whole("hidden_norm.weight", (hidden,))
    for index in range(len(draft.layer_types)):
        yield from _draft_layer(draft, f"{kind}/layers/{index}/", f"layers.{index}.")
    yield f"{kind}/final_norm", _whole("norm.weight", (hidden,))
    if convolution is not None:
        selector = "candidate_selector"
        rank, codebook = convolution.selector_rank, (draft.vocab_size, convolution.selector_rank)
        yield f"{kind}/{selector}/hidden_projection", _whole(f"{selector}.hidden_projection.weight", (rank, hidden))
        for name in ("predecessor_codebook", "successor_codebook"):
            yield f"{kind}/{selector}/{name}", _whole(f"{selector}.{name}", codebook)


def _layer(text: TextGeometry, prefix: str, source: str, *, is_attention: bool) -> Named:
    hidden = text.hidden_size
    yield f"{prefix}input_norm", _whole(f"{source}input_layernorm.weight", (hidden,))
    yield f"{prefix}post_attention_norm", _whole(f"{source}post_attention_layernorm.weight", (hidden,))
    if is_attention:
        assert text.attention is not None
        yield from _attention(text.attention, hidden, f"{prefix}attention/", f"{source}self_attn.")
    else:
        assert text.gated_delta is not None
        yield from _gated_delta(text.gated_delta, hidden, f"{prefix}gdn/", f"{source}linear_attn.")
    if isinstance(text.feed_forward, MlpGeometry):
        yield from _mlp(f"{prefix}mlp/", f"{source}mlp.", text.feed_forward.intermediate_size, hidden)
    else:
        yield from _moe(text.feed_forward, hidden, f"{prefix}moe/", f"{source}mlp.")


def _attention(attention: AttentionGeometry, hidden: int, prefix: str, source: str) -> Named:
    """The rows of ``q_proj`` alternate per head: its queries, then its gates."""
    size = attention.head_dim
    query_gate = (2 * attention.query_width, hidden)
    for offset, name in ((0, "query"), (size, "gate")):
        runs = tuple((2 * head * size + offset, (2 * head + 1) * size + offset) for head in range(attention.heads))
        yield f"{prefix}{name}", _rows(f"{source}q_proj.weight", query_gate, runs)
    for name in ("key", "value"):
        yield f"{prefix}{name}", _whole(f"{source}{name[0]}_proj.weight", (attention.kv_width, hidden))
    yield f"{prefix}query_norm", _whole(f"{source}q_norm.weight", (size,))
    yield f"{prefix}key_norm", _whole(f"{source}k_norm.weight", (size,))
    yield f"{prefix}output", _whole(f"{source}o_proj.weight", (hidden, attention.query_width))


def _gated_delta(gdn: GatedDeltaGeometry, hidden: int, prefix: str, source: str) -> Named:
    for name, tensor in (("a_log", "A_log"), ("dt_bias", "dt_bias")):
        yield f"{prefix}{name}", _whole(f"{source}{tensor}", (gdn.value_heads,))
    convolution = (gdn.conv_channels, 1, gdn.conv_kernel)
    runs = ((0, gdn.conv_channels),)
    yield (
        f"{prefix}convolution",
        tuple(
            SourceTensor(f"{source}{name}.weight", convolution, gdn.conv_kernel, runs, is_transposed=True)
            for name in ("conv1d", "convNd")
        ),
    )
    for name in ("a", "b"):
        yield f"{prefix}{name}_projection", _whole(f"{source}in_proj_{name}.weight", (gdn.value_heads, hidden))
    begin = 0
    for name, rows in (("query", gdn.key_width), ("key", gdn.key_width), ("value", gdn.value_width)):
        shape = (gdn.conv_channels, hidden)
        yield f"{prefix}{name}", _rows(f"{source}in_proj_qkv.weight", shape, ((begin, begin + rows),))
        begin += rows
    yield f"{prefix}z", _whole(f"{source}in_proj_z.weight", (gdn.value_width, hidden))
    yield f"{prefix}norm", _whole(f"{source}norm.weight", (gdn.value_dim,))
    yield f"{prefix}output", _whole(f"{source}out_proj.weight", (hidden, gdn.value_width))


def _mlp(prefix: str, source: str, intermediate: int, hidden: int) -> Named:
    for name in ("gate", "up"):
        yield f"{prefix}{name}", _whole(f"{source}{name}_proj.weight", (intermediate, hidden))
    yield f"{prefix}down", _whole(f"{source}down_proj.weight", (hidden, intermediate))


def _moe(moe: MoeGeometry, hidden: int, prefix: str, source: str) -> Named:
    """Experts lie in one stack, as the official checkpoints have them, or one by one, as quantised ones do."""
    size, experts = moe.intermediate_size, f"{source}experts."
    yield f"{prefix}router", _whole(f"{source}gate.weight", (moe.experts, hidden))
    yield f"{prefix}shared_score", _whole(f"{source}shared_expert_gate.weight", (1, hidden))
    for expert in range(moe.experts):
        single = dict(_mlp(f"{prefix}experts/{expert}/", f"{experts}{expert}.", size, hidden))
        for part, name, begin, rows, columns in (
            ("gate", "gate_up_proj", 2 * size * expert, size, hidden),
            ("up", "gate_up_proj", 2 * size * expert + size, size, hidden),
            ("down", "down_proj", hidden * expert, hidden, size),
        ):
            stack = (moe.experts, 2 * size if part != "down" else hidden, columns)
            stacked = SourceTensor(f"{experts}{name}", stack, columns, ((begin, begin + rows),))
            parameter = f"{prefix}experts/{expert}/{part}"
            yield parameter, (stacked, *single[parameter])
    yield from _mlp(f"{prefix}shared/", f"{source}shared_expert.", moe.shared_intermediate_size, hidden)


def _vision_block(prefix: str, source: str, hidden: int, intermediate: int) -> Named:
    for norm in ("norm1", "norm2"):
        for suffix in ("weight", "bias"):
            yield f"{prefix}{norm}_{suffix}", _whole(f"{source}{norm}.{suffix}", (hidden,))
    for index, name in enumerate(("query", "key", "value")):
        runs = ((index * hidden, (index + 1) * hidden),)
        yield f"{prefix}attention/{name}", _rows(f"{source}attn.qkv.weight", (3 * hidden, hidden), runs)
        yield f"{prefix}attention/{name}_bias", _rows(f"{source}attn.qkv.bias", (3 * hidden,), runs)
    yield from _biased(f"{prefix}attention/output", f"{source}attn.proj", (hidden, hidden))
    yield from _biased(f"{prefix}mlp/fc1", f"{source}mlp.linear_fc1", (intermediate, hidden))
    yield from _biased(f"{prefix}mlp/fc2", f"{source}mlp.linear_fc2", (hidden, intermediate))


def _draft_layer(draft: DraftGeometry, prefix: str, source: str) -> Named:
    hidden, kv = draft.hidden_size, (draft.kv_width, draft.hidden_size)
    yield f"{prefix}input_norm", _whole(f"{source}input_layernorm.weight", (hidden,))
    yield f"{prefix}post_attention_norm", _whole(f"{source}post_attention_layernorm.weight", (hidden,))
    yield f"{prefix}attention/query", _whole(f"{source}self_attn.q_proj.weight", (draft.query_width, hidden))
    for name in ("key", "value"):
        tensor = _whole(f"{source}self_attn.{name[0]}_proj.weight", kv)
        yield f"{prefix}attention/{name}", tensor
        yield f"{prefix}attention/context_{name}", tensor
    yield f"{prefix}attention/query_norm", _whole(f"{source}self_attn.q_norm.weight", (draft.head_dim,))
    yield f"{prefix}attention/key_norm", _whole(f"{source}self_attn.k_norm.weight", (draft.head_dim,))
    yield f"{prefix}attention/output", _whole(f"{source}self_attn.o_proj.weight", (hidden, draft.query_width))
    yield from _mlp(f"{prefix}mlp/", f"{source}mlp.", draft.intermediate_size, hidden)
    if draft.convolution is not None:
        taps = draft.convolution.kernel_size
        rows = 2 * taps * (hidden // draft.convolution.group_size)
        for name in ("attention_conv", "mlp_conv"):
            yield f"{prefix}{name}/base_kernel", _whole(f"{source}{name}.base_kernel", (2, taps, hidden))
            yield (
                f"{prefix}{name}/kernel_projection",
                _whole(f"{source}{name}.kernel_projection.weight", (rows, hidden)),
            )


def _biased(parameter: str, source: str, shape: tuple[int, int]) -> Named:
    yield parameter, _whole(f"{source}.weight", shape)
    yield f"{parameter}_bias", _whole(f"{source}.bias", shape[:1])


def _whole(name: str, shape: tuple[int, ...]) -> Sources:
    """A tensor as it is; one of rank 1 is a column, so that parts of it are rows too."""
    columns = shape[-1] if len(shape) > 1 else 1
    return (SourceTensor(name, shape, columns, ((0, prod(shape) // columns),)),)


def _rows(name: str, shape: tuple[int, ...], runs: Rows) -> Sources:
    return (SourceTensor(name, shape, shape[-1] if len(shape) > 1 else 1, runs),)

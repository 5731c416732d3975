"""Names, shapes and uses of every parameter of a model; what stored bytes are asked for by. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ninferd.weights.parameters.geometry import (
    AttentionGeometry,
    DraftGeometry,
    GatedDeltaGeometry,
    MlpGeometry,
    ModelGeometry,
    MoeGeometry,
    TextGeometry,
    VisionGeometry,
)

DirectFormat = Literal["bf16", "fp32", "int32"]


@dataclass(frozen=True)
class Parameter:
    """One tensor as the model's arithmetic needs it, however it is stored."""

    name: str
    shape: tuple[int, ...]
    direct: DirectFormat | None  # the format of what is never quantised; None for a matrix of any format
    inputs: tuple[str, ...] = ()  # what is multiplied with it, by the names of an artifact's uses

    @property
    def component(self) -> str:
        """``text``, ``mtp``, ``vision``, ``dflash``, ``dflash2`` or ``proposal`` (a part of an artifact's text)."""
        return self.name.split("/", 1)[0]


def parameters(geometry: ModelGeometry) -> tuple[Parameter, ...]:
    """All parameters in model order: text, mtp, vision, drafts, proposal head."""
    return tuple(_all(geometry))


def text_parameters(geometry: ModelGeometry) -> tuple[Parameter, ...]:
    """Those of the text component alone, in the same order."""
    return tuple(_text(geometry))


def final_hidden_inputs(geometry: ModelGeometry, *, with_text: bool) -> tuple[str, ...]:
    """Inputs of the output head: the last hidden state of the text model and of every present drafter."""
    drafters = [name for name in geometry.components if name in ("mtp", "dflash", "dflash2")]
    return tuple(f"{name}/final_hidden" for name in (["text"] if with_text else []) + drafters)


def _all(geometry: ModelGeometry) -> Iterator[Parameter]:
    yield from _text(geometry)
    if geometry.has_mtp:
        yield from _mtp(geometry.text)
    if geometry.vision is not None:
        yield from _vision(geometry.vision, geometry.text.hidden_size)
    for draft in geometry.drafts:
        yield from _draft(draft)
    if geometry.proposal_rows is not None:
        head_inputs = final_hidden_inputs(geometry, with_text=False)
        yield Parameter("proposal/head", (geometry.proposal_rows, geometry.text.hidden_size), None, head_inputs)
        yield Parameter("proposal/token_ids", (geometry.proposal_rows,), "int32")


def _text(geometry: ModelGeometry) -> Iterator[Parameter]:
    text = geometry.text
    vocabulary = (text.vocab_size, text.hidden_size)
    yield Parameter("text/token_embedding", vocabulary, None)
    for index, layer_type in enumerate(text.layer_types):
        yield from _layer(text, f"text/layers/{index}/", is_attention=layer_type == "full_attention")
    yield _norm("text/final_norm", text.hidden_size)
    yield Parameter("text/output_head", vocabulary, None, final_hidden_inputs(geometry, with_text=True))


def _mtp(text: TextGeometry) -> Iterator[Parameter]:
    hidden = text.hidden_size
    yield Parameter("mtp/input_projection", (hidden, 2 * hidden), None, ("mtp/stem_input",))
    yield _norm("mtp/embedding_norm", hidden)
    yield _norm("mtp/hidden_norm", hidden)
    yield from _layer(text, "mtp/layers/0/", is_attention=True)
    yield _norm("mtp/final_norm", hidden)


def _layer(text: TextGeometry, prefix: str, *, is_attention: bool) -> Iterator[Parameter]:
    hidden = text.hidden_size
    yield _norm(f"{prefix}input_norm", hidden)
    if is_attention:
        assert text.attention is not None
        yield from _attention(text.attention, hidden, prefix)
    else:
        assert text.gated_delta is not None
        yield from _gated_delta(text.gated_delta, hidden, prefix)
    yield _norm(f"{prefix}post_attention_norm", hidden)
    feed_forward = text.feed_forward
    if isinstance(feed_forward, MlpGeometry):
        product = f"{prefix}mlp/product"
        yield from _mlp(f"{prefix}mlp/", feed_forward.intermediate_size, hidden, f"{prefix}ffn_input", product)
    else:
        yield from _moe(feed_forward, hidden, prefix)


def _attention(attention: AttentionGeometry, hidden: int, prefix: str) -> Iterator[Parameter]:
    mixer_input = (f"{prefix}mixer_input",)
    query, kv = (attention.query_width, hidden), (attention.kv_width, hidden)
    yield Parameter(f"{prefix}attention/query", query, None, mixer_input)
    yield Parameter(f"{prefix}attention/key", kv, None, mixer_input)
    yield Parameter(f"{prefix}attention/gate", query, None, mixer_input)
    yield Parameter(f"{prefix}attention/value", kv, None, mixer_input)
    yield _norm(f"{prefix}attention/query_norm", attention.head_dim)
    yield _norm(f"{prefix}attention/key_norm", attention.head_dim)
    output_input = (f"{prefix}attention/gated_output",)
    yield Parameter(f"{prefix}attention/output", (hidden, attention.query_width), None, output_input)


def _gated_delta(gdn: GatedDeltaGeometry, hidden: int, prefix: str) -> Iterator[Parameter]:
    mixer_input = (f"{prefix}mixer_input",)
    prefix = f"{prefix}gdn/"
    heads, key, value = (gdn.value_heads, hidden), (gdn.key_width, hidden), (gdn.value_width, hidden)
    yield Parameter(f"{prefix}a_log", (gdn.value_heads,), "fp32")
    yield Parameter(f"{prefix}dt_bias", (gdn.value_heads,), "fp32")
    yield Parameter(f"{prefix}convolution", (gdn.conv_kernel, gdn.conv_channels), "bf16")
    yield Parameter(f"{prefix}a_projection", heads, None, mixer_input)
    yield Parameter(f"{prefix}b_projection", heads, None, mixer_input)
    yield Parameter(f"{prefix}query", key, None, mixer_input)
    yield Parameter(f"{prefix}key", key, None, mixer_input)
    yield Parameter(f"{prefix}value", value, None, mixer_input)
    yield Parameter(f"{prefix}z", value, None, mixer_input)
    yield _norm(f"{prefix}norm", gdn.value_dim)
    yield Parameter(f"{prefix}output", (hidden, gdn.value_width), None, (f"{prefix}gated_output",))


def _mlp(prefix: str, intermediate: int, hidden: int, gate_up_input: str, down_input: str) -> Iterator[Parameter]:
    yield Parameter(f"{prefix}gate", (intermediate, hidden), None, (gate_up_input,))
    yield Parameter(f"{prefix}up", (intermediate, hidden), None, (gate_up_input,))
    yield Parameter(f"{prefix}down", (hidden, intermediate), None, (down_input,))


def _moe(moe: MoeGeometry, hidden: int, prefix: str) -> Iterator[Parameter]:
    ffn_input = f"{prefix}ffn_input"
    prefix = f"{prefix}moe/"
    yield Parameter(f"{prefix}router", (moe.experts, hidden), None, (ffn_input,))
    yield Parameter(f"{prefix}shared_score", (1, hidden), None, (ffn_input,))
    for expert in range(moe.experts):
        expert_prefix = f"{prefix}experts/{expert}/"
        yield from _mlp(expert_prefix, moe.intermediate_size, hidden, ffn_input, f"{expert_prefix}product")
    shared_product = f"{prefix}shared/product"
    yield from _mlp(f"{prefix}shared/", moe.shared_intermediate_size, hidden, ffn_input, shared_product)


def _vision(vision: VisionGeometry, text_hidden: int) -> Iterator[Parameter]:
    hidden, merged = vision.hidden_size, vision.merged_width
    yield from _biased("vision/patch_embedding", (hidden, vision.patch_width), "vision/patch_input")
    yield Parameter("vision/position_embedding", (vision.position_embeddings, hidden), "bf16")
    for block in range(vision.depth):
        prefix = f"vision/layers/{block}/"
        yield from _layer_norm(f"{prefix}norm1", hidden)
        for part in ("query", "key", "value"):
            yield from _biased(f"{prefix}attention/{part}", (hidden, hidden), f"{prefix}attention_input")
        yield from _biased(f"{prefix}attention/output", (hidden, hidden), f"{prefix}attention_output")
        yield from _layer_norm(f"{prefix}norm2", hidden)
        yield from _biased(f"{prefix}mlp/fc1", (vision.intermediate_size, hidden), f"{prefix}mlp_input")
        yield from _biased(f"{prefix}mlp/fc2", (hidden, vision.intermediate_size), f"{prefix}mlp_activation")
    yield from _layer_norm("vision/merger/norm", hidden)
    yield from _biased("vision/merger/fc1", (merged, merged), "vision/merger/input")
    yield from _biased("vision/merger/fc2", (text_hidden, merged), "vision/merger/activation")


def _draft(draft: DraftGeometry) -> Iterator[Parameter]:
    kind, hidden, convolution = draft.kind, draft.hidden_size, draft.convolution
    features = (hidden, hidden * len(draft.target_layer_ids))
    yield Parameter(f"{kind}/feature_projection", features, None, (f"{kind}/target_features",))
    yield _norm(f"{kind}/context_norm", hidden)
    for index in range(len(draft.layer_types)):
        yield from _draft_layer(draft, f"{kind}/layers/{index}/")
    yield _norm(f"{kind}/final_norm", hidden)
    if convolution is not None:
        prefix = f"{kind}/candidate_selector/"
        codebook = (draft.vocab_size, convolution.selector_rank)
        selector = (convolution.selector_rank, hidden)
        yield Parameter(f"{prefix}hidden_projection", selector, None, (f"{kind}/final_hidden",))
        yield Parameter(f"{prefix}predecessor_codebook", codebook, None)
        yield Parameter(f"{prefix}successor_codebook", codebook, None)


def _draft_layer(draft: DraftGeometry, prefix: str) -> Iterator[Parameter]:
    hidden = draft.hidden_size
    query, kv = (draft.query_width, hidden), (draft.kv_width, hidden)
    yield _norm(f"{prefix}input_norm", hidden)
    for part, shape in (("query", query), ("key", kv), ("value", kv)):
        yield Parameter(f"{prefix}attention/{part}", shape, None, (f"{prefix}query_projection_input",))
    for part in ("context_key", "context_value"):
        yield Parameter(f"{prefix}attention/{part}", kv, None, (f"{draft.kind}/context_input",))
    yield _norm(f"{prefix}attention/query_norm", draft.head_dim)
    yield _norm(f"{prefix}attention/key_norm", draft.head_dim)
    output_input = (f"{prefix}attention_output",)
    yield Parameter(f"{prefix}attention/output", (hidden, draft.query_width), None, output_input)
    yield from _draft_convolution(draft, prefix, "attention_conv")
    yield _norm(f"{prefix}post_attention_norm", hidden)
    mlp_input, product = f"{prefix}mlp_input", f"{prefix}mlp_product"
    yield from _mlp(f"{prefix}mlp/", draft.intermediate_size, hidden, mlp_input, product)
    yield from _draft_convolution(draft, prefix, "mlp_conv")


def _draft_convolution(draft: DraftGeometry, prefix: str, part: str) -> Iterator[Parameter]:
    if draft.convolution is None:
        return
    kernel_size, hidden = draft.convolution.kernel_size, draft.hidden_size
    rows = 2 * kernel_size * (hidden // draft.convolution.group_size)
    yield Parameter(f"{prefix}{part}/base_kernel", (2, kernel_size, hidden), "bf16")
    yield Parameter(f"{prefix}{part}/kernel_projection", (rows, hidden), None, (f"{prefix}{part}_input",))


def _norm(name: str, size: int) -> Parameter:
    return Parameter(name, (size,), "bf16")


def _layer_norm(name: str, size: int) -> Iterator[Parameter]:
    yield _norm(f"{name}_weight", size)
    yield _norm(f"{name}_bias", size)


def _biased(name: str, shape: tuple[int, int], projected: str) -> Iterator[Parameter]:
    yield Parameter(name, shape, None, (projected,))
    yield Parameter(f"{name}_bias", (shape[0],), "bf16")

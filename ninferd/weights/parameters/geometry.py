"""The sizes that fix which parameters a model has and their shapes; real numbers are float32. Free of torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

LayerType = Literal["linear_attention", "full_attention"]
DraftLayerType = Literal["sliding_attention", "full_attention"]
DraftKind = Literal["dflash", "dflash2"]

COMPONENTS = ("text", "vision", "mtp", "dflash", "dflash2")
"""Components whose geometry is known, in the order of an artifact."""


@dataclass(frozen=True)
class AttentionGeometry:
    """Gated attention of the text model; ``heads`` is a multiple of ``kv_heads``."""

    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]  # pairs of the T, H and W axes

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class GatedDeltaGeometry:
    """Gated delta rule; ``value_heads`` is a multiple of ``key_heads``."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True)
class MlpGeometry:
    """A dense feed-forward block."""

    intermediate_size: int


@dataclass(frozen=True)
class MoeGeometry:
    """A mixture of experts with one shared expert."""

    experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True)
class TextGeometry:
    """The text model."""

    hidden_size: int
    vocab_size: int
    layer_types: tuple[LayerType, ...]
    max_position_embeddings: int
    tie_word_embeddings: bool
    rms_norm_eps: float
    attention: AttentionGeometry | None  # None only without full attention layers and without MTP
    gated_delta: GatedDeltaGeometry | None  # None only without linear attention layers
    feed_forward: MlpGeometry | MoeGeometry

    @property
    def is_moe(self) -> bool:
        return isinstance(self.feed_forward, MoeGeometry)


@dataclass(frozen=True)
class VisionGeometry:
    """The vision tower; it ends in rows of the text model's hidden size. Patches have three colour channels."""

    depth: int
    hidden_size: int
    intermediate_size: int
    heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    position_embeddings: int

    @property
    def patch_width(self) -> int:
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def merged_width(self) -> int:
        return self.hidden_size * self.spatial_merge_size**2


@dataclass(frozen=True)
class ConvolutionGeometry:
    """What DFlash2 has beyond DFlash: grouped dynamic convolutions and a candidate selector."""

    kernel_size: int
    group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True)
class DraftGeometry:
    """A block drafter; hidden size and vocabulary are those of the text model it drafts for."""

    hidden_size: int
    vocab_size: int
    layer_types: tuple[DraftLayerType, ...]
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int | None  # None only without sliding layers
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    convolution: ConvolutionGeometry | None  # None exactly for DFlash

    @property
    def kind(self) -> DraftKind:
        return "dflash" if self.convolution is None else "dflash2"

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class ModelGeometry:
    """All components of one model."""

    text: TextGeometry
    vision: VisionGeometry | None = None
    has_mtp: bool = False
    drafts: tuple[DraftGeometry, ...] = ()  # at most one of each kind
    proposal_rows: int | None = None  # rows of the optimised draft head; None if there is none

    @property
    def components(self) -> tuple[str, ...]:
        """The components that are there, in the order of COMPONENTS."""
        kinds = {draft.kind for draft in self.drafts}
        there = {"text": True, "vision": self.vision is not None, "mtp": self.has_mtp}
        return tuple(name for name in COMPONENTS if there.get(name, name in kinds))

    def without(self, names: Collection[str]) -> ModelGeometry:
        """The same model without some components; ``proposal`` stands for the optimised draft head."""
        return replace(
            self,
            vision=None if "vision" in names else self.vision,
            has_mtp=self.has_mtp and "mtp" not in names,
            drafts=tuple(draft for draft in self.drafts if draft.kind not in names),
            proposal_rows=None if "proposal" in names else self.proposal_rows,
        )

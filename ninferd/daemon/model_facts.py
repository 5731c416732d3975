"""What the main process needs to know of a model to predict its memory and describe it: read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernels_numba.kv.layout import KvLayout
from ninferd.config.groups.model import ModelSettings
from ninferd.daemon.resident import resident_bytes
from ninferd.daemon.units import format_bytes
from ninferd.errors import InputError
from ninferd.memory.geometry import StateGeometry, kv_layout
from ninferd.weights.artifact.framing import PART_PAYLOAD_START
from ninferd.weights.artifact.reader import Artifact
from ninferd.weights.artifact_source import ArtifactSource
from ninferd.weights.loading.layout import DenseDtype
from ninferd.weights.loading.plan import TextPlan, text_plan
from ninferd.weights.loading.resolve import resolve_plan
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import configured_digests, open_model, require_configured_profile, text_geometry_of
from ninferd.weights.parameters.geometry import AttentionGeometry, GatedDeltaGeometry, TextGeometry
from ninferd.weights.profiles import WeightsDescription, describe
from ninferd.weights.source import ModelSource

_FIRST_OF = {
    "vision": "vision/patch_embedding",
    "mtp": "mtp/input_projection",
    "dflash": "dflash/feature_projection",
    "dflash2": "dflash2/feature_projection",
    "proposal": "proposal/head",
}
"""A parameter by which a component is recognised."""


@dataclass(frozen=True)
class ModelFacts:
    """Sizes and formats of one model; properties raise InputError naming what is missing, misshapen or left over."""

    source: ModelSource
    text: TextGeometry
    attention: AttentionGeometry
    gated_delta: GatedDeltaGeometry

    @classmethod
    def of(cls, source: ModelSource) -> ModelFacts:
        """Raises InputError naming the key of the configuration that is missing or cannot be used."""
        text = text_geometry_of(source)
        if text.attention is None or text.gated_delta is None:
            raise InputError(
                f"{source.path}: layer_types must hold full_attention and linear_attention, as in all models of the "
                "family"
            )
        return cls(source, text, text.attention, text.gated_delta)

    @classmethod
    def read(cls, model: ModelSettings) -> ModelFacts:
        """Of the configured model.

        Raises InputError also for one that is not stored as ``model.weights_profile`` asserts, and where
        ``model.sha256`` or ``model.verify_hash`` lacks something to compare with. No file is hashed here.
        """
        source = open_model(artifact_path(model.artifact))
        require_configured_profile(model, source)
        configured_digests(model, source.path)
        return cls.of(source)

    @property
    def architecture(self) -> str:
        names = self.source.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "Qwen3.5 family"

    @cached_property
    def plan(self) -> TextPlan:
        return text_plan(self.text)

    @cached_property
    def weights(self) -> WeightsDescription:
        return describe(self.source, self.plan)

    def weights_bytes(self, dense: DenseDtype, *, on_cpu: bool) -> int:
        """What the loaded weights take, see ``resident_bytes``; plain values become ``dense``."""
        plan = resolve_plan(self.source, self.plan, dense)
        return resident_bytes(plan, in_tiles=on_cpu and dense == "<f4")

    def kv_layout(self, kv_dtype: str) -> KvLayout:
        layers = self.text.layer_types.count("full_attention")
        return kv_layout(kv_dtype, layers, self.attention.kv_heads, self.attention.head_dim)

    def state_geometry(self, conv_element_bytes: int) -> StateGeometry:
        delta = self.gated_delta
        return StateGeometry(
            gdn_layers=self.text.layer_types.count("linear_attention"),
            conv_channels=delta.conv_channels,
            conv_history=delta.conv_kernel - 1,
            conv_element_bytes=conv_element_bytes,
            value_heads=delta.value_heads,
            key_head_dim=delta.key_dim,
            value_head_dim=delta.value_dim,
        )

    def lines(self) -> list[str]:
        """The container with its components, and the formats of the weights."""
        return [self.container_line, f"weights {self.weights.name}: {self.weights.summary()}"]

    @property
    def container_line(self) -> str:
        others = [name for name in self._components() if name != "text"]
        unused = f"; stored but not loaded: {', '.join(others)}" if others else ""
        return f"{self._container()}; loaded: text{unused}"

    def _container(self) -> str:
        if isinstance(self.source, ArtifactSource):
            return container_text(self.source.artifact)
        return "Hugging Face directory"

    def _components(self) -> list[str]:
        """Ids of what is stored, also of components that are unknown here."""
        named = self.source.components if isinstance(self.source, ArtifactSource) else ("text",)
        found = [name for name, parameter in _FIRST_OF.items() if self.source.has(parameter)]
        return list(dict.fromkeys((*named, *found)))


def container_text(artifact: Artifact) -> str:
    """``artifact version 3, 2 files of 40.1 GiB``."""
    continued = sum(PART_PAYLOAD_START + file.payload_bytes for file in artifact.files[1:])
    size = format_bytes(artifact.entry_bytes + continued)
    count = len(artifact.files)
    return f"artifact version {artifact.version}, {f'{count} files of ' if count > 1 else ''}{size}"


def dense_dtype(configured: str, config: Mapping[str, Any], *, on_cpu: bool) -> DenseDtype:
    """What plain weights become with ``engine.dtype``: ``auto`` is float32 on the CPU, else what the model declares."""
    if configured == "auto" and not on_cpu:
        text = config.get("text_config", config)
        configured = text.get("dtype", text.get("torch_dtype", config.get("dtype")))
        return "<f4" if configured == "float32" else "<u2"
    return "<u2" if configured == "bfloat16" else "<f4"

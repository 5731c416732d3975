"""The whole configuration as one immutable object; attribute names are the TOML keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from ninferd.config.groups.daemon import DaemonSettings, LogSettings, MonitorSettings, RequestLogSettings
from ninferd.config.groups.engine import CacheSettings, EngineSettings, MediaSettings, SpecSettings
from ninferd.config.groups.http import (
    CompatSettings,
    HttpSettings,
    LimitsSettings,
    QueueSettings,
    ResponsesSettings,
    ServerSettings,
)
from ninferd.config.groups.model import (
    ModelSettings,
    SamplingSettings,
    TemplateSettings,
    ThinkingSettings,
    ToolsSettings,
)

_layer_trees: ContextVar[Sequence[Mapping[str, Any]]] = ContextVar("layer_trees", default=())


class Settings(BaseSettings):
    """Validated values of every table. Use ``ninferd.config.layers.load`` to make one from files."""

    model_config = SettingsConfigDict(frozen=True, strict=True, extra="forbid", protected_namespaces=())

    model: ModelSettings
    engine: EngineSettings = EngineSettings()
    spec: SpecSettings = SpecSettings()
    cache: CacheSettings = CacheSettings()
    server: ServerSettings = ServerSettings()
    http: HttpSettings = HttpSettings()
    queue: QueueSettings = QueueSettings()
    limits: LimitsSettings = LimitsSettings()
    responses: ResponsesSettings = ResponsesSettings()
    template: TemplateSettings = TemplateSettings()
    thinking: ThinkingSettings = ThinkingSettings()
    tools: ToolsSettings = ToolsSettings()
    sampling: SamplingSettings = SamplingSettings()
    compat: CompatSettings = CompatSettings()
    media: MediaSettings = MediaSettings()
    daemon: DaemonSettings = DaemonSettings()
    log: LogSettings = LogSettings()
    request_log: RequestLogSettings = RequestLogSettings()
    monitor: MonitorSettings = MonitorSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Explicit values, then the layers of ``from_layers``, highest first."""
        del env_settings, dotenv_settings, file_secret_settings  # they would bypass the layers and know no origins
        return (init_settings, *(InitSettingsSource(settings_cls, dict(tree)) for tree in reversed(_layer_trees.get())))

    @classmethod
    def from_layers(cls, trees: Sequence[Mapping[str, Any]]) -> Settings:
        """Merge trees given lowest first (tables deeply, anything else replaces) and validate the result.

        Raises ``pydantic.ValidationError``.
        """
        token = _layer_trees.set(trees)
        try:
            return cls.model_validate({})
        finally:
            _layer_trees.reset(token)

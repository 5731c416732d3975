"""What the daemon serves with at one moment, and how it is made from the configuration files."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ninferd.api.context import ConfigStatus
from ninferd.chat.frontend import ChatFrontend
from ninferd.config.availability import unavailable
from ninferd.config.layers import ConfigSources, ResolvedConfig, load
from ninferd.config.origin import ConfigError, Problem
from ninferd.config.reload import Change
from ninferd.config.schema import Settings
from ninferd.config.secrets import ApiKeys, load_api_keys
from ninferd.daemon.model_facts import ModelFacts
from ninferd.daemon.preflight import require_suitable
from ninferd.errors import InputError
from ninferd.weights.locate import artifact_path
from ninferd.weights.opening import open_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Serving:
    """Everything that a reload replaces, as one object."""

    resolved: ResolvedConfig  # as loaded from the files
    settings: Settings  # the same with ``process`` keys as they were at start
    frontend: ChatFrontend
    api_keys: ApiKeys
    status: ConfigStatus
    pending: tuple[Change, ...] = ()  # ``process`` keys that wait for a restart


def load_config(sources: ConfigSources) -> ResolvedConfig:
    """Read and check the configuration and what it points to. Raises ConfigError with all problems."""
    resolved = load(sources)
    problems = outside_problems(resolved)
    if problems:
        raise ConfigError(problems)
    for warning in resolved.warnings:
        logger.warning("config | %s", warning)
    return resolved


def outside_problems(resolved: ResolvedConfig) -> list[Problem]:
    """What only shows outside the configuration: features of this build, where the model is, the key file."""
    problems = unavailable(resolved)
    try:
        artifact_path(resolved.settings.model.artifact)
    except InputError as error:
        problems.append(Problem(str(resolved.origin("model.artifact")), None, str(error)))
    try:
        load_api_keys(resolved.settings.server, resolved.sources.env)
    except ConfigError as error:
        problems.extend(error.problems)
    return problems


def check_model(resolved: ResolvedConfig) -> list[str]:
    """What the model is, in lines, after its tokenizer, template and directory of weights were read and tried.

    Raises ConfigError with what only shows then. No weight is read.
    """
    settings = resolved.settings
    try:
        facts = ModelFacts.read(settings.model)
        facts.weights_bytes("<f4", on_cpu=True)
        require_suitable(settings, facts)
        load_frontend(settings)
        return facts.lines()
    except InputError as error:
        raise ConfigError([Problem(str(resolved.origin("model.artifact")), None, str(error))]) from error


def load_frontend(settings: Settings) -> ChatFrontend:
    return ChatFrontend.load(open_model(artifact_path(settings.model.artifact)), settings)


def first_serving(resolved: ResolvedConfig) -> Serving:
    """State at start. Raises InputError for a template, tokenizer or key file that cannot be used."""
    settings = resolved.settings
    status = ConfigStatus(generation=1, profile=resolved.profile)
    return Serving(
        resolved, settings, load_frontend(settings), load_api_keys(settings.server, resolved.sources.env), status
    )

"""Finding, merging and tracing the layers of the configuration.

Later wins per key: built-in defaults, base file, profile chain, ``conf.d/*.toml`` in name order, environment, command
line. Tables merge deeply; arrays and scalars replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ninferd.config import rules
from ninferd.config.files import Document, is_missing, list_toml, read_document
from ninferd.config.keys import KEYS
from ninferd.config.origin import ConfigError, Layer, LayerName, Origin, Problem
from ninferd.config.profiles import profile_chain
from ninferd.config.schema import Settings
from ninferd.config.text_values import environment_layer, override_layer
from ninferd.config.toml_lines import KeyPath
from ninferd.config.validate import layer_problems

DEFAULT_BASE_FILE = Path("/etc/ninfer/ninferd.toml")
BUILT_IN = Origin("default", "built-in")


@dataclass(frozen=True)
class ConfigSources:
    """Everything that decides a configuration; loading the same sources again is a reload."""

    base_file: Path
    profile: str | None  # as asked for on the command line
    profiles_dir: Path
    conf_dir: Path
    env: Mapping[str, str] = field(repr=False)  # may hold secrets
    overrides: tuple[tuple[str, str], ...] = ()  # (key, value as TOML text); a later one wins
    base_file_required: bool = False  # else a missing base file is an empty one


@dataclass(frozen=True)
class ResolvedConfig:
    """A valid configuration that knows where each of its values was set."""

    sources: ConfigSources
    settings: Settings
    layers: tuple[Layer, ...] = field(repr=False)  # lowest first; raw values, secrets included
    profile: str | None
    files: tuple[Path, ...]  # read, lowest layer first
    warnings: tuple[Problem, ...]

    def origin(self, key: str) -> Origin:
        """Where the winning value of ``key`` was set."""
        return _origin(self.layers, key)

    def is_given(self, key: str) -> bool:
        """Whether any layer above the defaults sets ``key``, be it to its default."""
        return self.origin(key).layer != "default"


def load(sources: ConfigSources, drop_in: Document | None = None) -> ResolvedConfig:
    """Read and check everything. Raises ConfigError with all problems that can be found in one go.

    ``drop_in`` stands for the file of its path in ``conf.d``, which need not exist yet: what would be if it did.
    """
    reader = _Reader(sources, drop_in)
    layers = reader.layers()
    problems = [*reader.problems, *(problem for layer in layers for problem in layer_problems(layer))]
    if not problems and not any("artifact" in layer.tree.get("model", {}) for layer in layers):
        reason = 'required: the path of a .ninfer file or a model directory, or "embedded:ninfer-tiny"'
        problems.append(Problem(str(sources.base_file), "model.artifact", reason))
    if problems:
        raise ConfigError(problems)
    settings = Settings.from_layers([layer.tree for layer in layers])

    def placed(violations: Iterator[rules.Violation]) -> tuple[Problem, ...]:
        return tuple(Problem(str(_origin(layers, key)), key, reason) for key, reason in violations)

    broken = placed(rules.violations(settings, lambda key: _origin(layers, key).layer != "default"))
    if broken:
        raise ConfigError(broken)
    return ResolvedConfig(
        sources, settings, layers, reader.profile, tuple(reader.files), placed(rules.warnings(settings))
    )


def runtime_dir(sources: ConfigSources) -> Path:
    """``daemon.runtime_dir`` alone, even of a configuration that is incomplete or broken elsewhere."""
    values = (layer.tree.get("daemon") for layer in reversed(_Reader(sources).layers()))
    paths = (table.get("runtime_dir") for table in values if isinstance(table, dict))
    return next((Path(path) for path in paths if isinstance(path, str)), Path(KEYS["daemon.runtime_dir"].default))


def _origin(layers: tuple[Layer, ...], key: str) -> Origin:
    found = (layer.origin(KEYS[key].path) for layer in reversed(layers))
    return next((origin for origin in found if origin is not None), BUILT_IN)


class _Reader:
    """Turns sources into layers; a source that cannot be read becomes a problem and the rest goes on."""

    def __init__(self, sources: ConfigSources, drop_in: Document | None = None) -> None:
        self._sources = sources
        self._drop_in = drop_in
        self.problems: list[Problem] = []
        self.files: list[Path] = []
        self.profile: str | None = None

    def layers(self) -> tuple[Layer, ...]:
        """Lowest first."""
        base = self._base()
        return (
            self._defaults(),
            *([self._file_layer("base", base, ignore="profile")] if base else []),
            *(self._file_layer("profile", document, ignore="extends") for document in self._profiles(base)),
            *(self._file_layer("conf.d", document) for document in self._drop_ins()),
            self._noting_problems(environment_layer(self._sources.env)),
            self._noting_problems(override_layer(self._sources.overrides)),
        )

    def _defaults(self) -> Layer:
        """Most defaults are the schema's; systemd tells the runtime directory (the first one, if several)."""
        directory = self._sources.env.get("RUNTIME_DIRECTORY", "").split(":")[0]
        if not directory:
            return Layer({}, {}, BUILT_IN)
        origin = Origin("default", "$RUNTIME_DIRECTORY")
        origins: dict[KeyPath, Origin] = {("daemon",): origin, ("daemon", "runtime_dir"): origin}
        return Layer({"daemon": {"runtime_dir": directory}}, origins, BUILT_IN)

    def _base(self) -> Document | None:
        path = self._sources.base_file
        return None if is_missing(path) and not self._sources.base_file_required else self._read(path)

    def _profiles(self, base: Document | None) -> list[Document]:
        asked = self._asked_profile(base)
        if asked is None:
            return []
        self.profile, origin = asked
        try:
            return profile_chain(self.profile, origin, self._sources.profiles_dir)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return []

    def _asked_profile(self, base: Document | None) -> tuple[str, Origin] | None:
        in_file = self._profile_in(base)
        if self._sources.profile is not None:
            return self._sources.profile, Origin("command line", "command line")
        if name := self._sources.env.get("NINFERD_PROFILE"):
            return name, Origin("environment", "NINFERD_PROFILE")
        return in_file

    def _profile_in(self, base: Document | None) -> tuple[str, Origin] | None:
        if base is None or "profile" not in base.tree:
            return None
        origin = Origin("base", str(base.path), base.lines["profile",])
        name = base.tree["profile"]
        if not isinstance(name, str):
            self.problems.append(Problem(str(origin), "profile", "the name of one profile expected"))
            return None
        return name, origin

    def _drop_ins(self) -> list[Document]:
        planned = {self._drop_in.path: self._drop_in} if self._drop_in else {}
        try:
            present = list_toml(self._sources.conf_dir)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return []
        paths = sorted({*present, *planned}, key=lambda path: path.name)
        documents = (planned.get(path) or self._read(path) for path in paths)
        return [document for document in documents if document is not None]

    def _read(self, path: Path) -> Document | None:
        try:
            return read_document(path)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None

    def _file_layer(self, name: LayerName, document: Document, ignore: str | None = None) -> Layer:
        self.files.append(document.path)
        tree = {key: value for key, value in document.tree.items() if key != ignore}
        origins = {path: Origin(name, str(document.path), line) for path, line in document.lines.items()}
        return Layer(tree, origins, Origin(name, str(document.path)))

    def _noting_problems(self, made: tuple[Layer, list[Problem]]) -> Layer:
        layer, problems = made
        self.problems.extend(problems)
        return layer

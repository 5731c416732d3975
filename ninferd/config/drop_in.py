"""The drop-in file that ``ninferd config set`` keeps."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from ninferd.config.atomic import write_atomically
from ninferd.config.availability import is_available
from ninferd.config.describe import toml_text
from ninferd.config.files import is_missing, parse_document, read_document
from ninferd.config.keys import KEYS, KeySpec, hint
from ninferd.config.layers import ConfigSources, ResolvedConfig, load
from ninferd.config.text_values import ARGV_REFUSAL, parse_text
from ninferd.errors import InputError, NinferError

FILE_NAME = "50-ninferd-set.toml"
_HEADER = "# Kept by `ninferd config set`, which rewrites it: comments made here are lost.\n"
_FILE_MODE = 0o644


@dataclass(frozen=True)
class SetResult:
    """What ``set_value`` wrote."""

    spec: KeySpec
    path: Path
    resolved: ResolvedConfig  # with the new value

    @property
    def wins(self) -> bool:
        """False if a higher layer sets the key too."""
        return self.resolved.origin(self.spec.name).file == str(self.path)


def set_value(sources: ConfigSources, name: str, text: str) -> SetResult:
    """Set one key in the drop-in if the whole configuration stays valid; else nothing is touched.

    Raises InputError (ConfigError with all problems), or NinferError if the file cannot be written.
    """
    spec = _settable(name)
    path = sources.conf_dir / FILE_NAME
    tree = {} if is_missing(path) else copy.deepcopy(dict(read_document(path).tree))
    _table_of(tree, spec, path)[spec.path[-1]] = parse_text(spec, text)
    content = _HEADER + tomli_w.dumps(tree)
    result = SetResult(spec, path, load(sources, drop_in=parse_document(path, content)))
    value = spec.value(result.resolved.settings)
    if not is_available(spec, value):
        raise InputError(f"{name} = {toml_text(value)}: not available in this build")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode(), _FILE_MODE)
    except OSError as error:
        raise NinferError(f"{path}: cannot be written: {error.strerror}") from error
    return result


def _settable(name: str) -> KeySpec:
    spec = KEYS.get(name)
    if spec is None:
        raise InputError(f"{name}: unknown key{hint(name)}")
    if spec.secret:
        raise InputError(f"{name}: {ARGV_REFUSAL}")
    return spec


def _table_of(tree: dict[str, Any], spec: KeySpec, path: Path) -> dict[str, Any]:
    node = tree
    for table in spec.path[:-1]:
        node = node.setdefault(table, {})
        if not isinstance(node, dict):
            raise InputError(f"{path}: {table} is not a table; repair or remove the file")
    return node

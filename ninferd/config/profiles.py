"""Finding profiles by name: the operator's directory first, then the ones that ship with ninferd."""

from __future__ import annotations

import re
from pathlib import Path

import ninferd
from ninferd.config.files import Document, is_missing, list_toml, read_document
from ninferd.config.origin import ConfigError, Origin, Problem

MAX_DEPTH = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def shipped_profiles_dir() -> Path:
    """``profiles/`` inside the installed package, or at the top of the source tree, from where the wheel takes it."""
    package = Path(ninferd.__file__).resolve().parent
    installed = package / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def profile_chain(name: str, asked_by: Origin, profiles_dir: Path) -> list[Document]:
    """The profile ``name`` and what it extends, the furthest ancestor first.

    Raises ConfigError: unknown profile (the message lists the known ones), depth over 4, cycle, bad ``extends``.
    """
    chain: list[Document] = []
    where = str(asked_by)
    wanted: str | None = name
    while wanted is not None:
        if any(document.path.stem == wanted for document in chain):
            loop = " -> ".join([*(document.path.stem for document in chain), wanted])
            raise ConfigError([Problem(where, "extends", f"profiles extend each other in a cycle: {loop}")])
        if len(chain) == MAX_DEPTH:
            raise ConfigError([Problem(where, "extends", f"more than {MAX_DEPTH} profiles in a chain")])
        document = read_document(_find(wanted, where, profiles_dir))
        chain.append(document)
        where = f"{document.path}:{document.lines.get(('extends',), 1)}"
        wanted = _parent(document, where)
    return chain[::-1]


def _find(name: str, where: str, profiles_dir: Path) -> Path:
    directories = (profiles_dir, shipped_profiles_dir())
    if _NAME.fullmatch(name) is None:
        raise ConfigError([Problem(where, "profile", "a profile name has letters, digits, '.', '_' and '-' only")])
    for directory in directories:
        path = directory / f"{name}.toml"
        if not is_missing(path):
            return path
    known = sorted({path.stem for directory in directories for path in list_toml(directory)})
    reason = f'no profile "{name}" in {profiles_dir} or among the shipped ones; known: {", ".join(known) or "none"}'
    raise ConfigError([Problem(where, "profile", reason)])


def _parent(document: Document, where: str) -> str | None:
    parent = document.tree.get("extends")
    if parent is not None and not isinstance(parent, str):
        raise ConfigError([Problem(where, "extends", "the name of one profile expected")])
    return parent

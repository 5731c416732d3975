"""Continuations that no entry file lists any more, once their artifact has been replaced by one of fewer files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ninferd.config.files import open_regular
from ninferd.errors import InputError
from ninferd.weights.artifact.framing import HEADER_BYTES, PART_MAGIC, Header
from ninferd.weights.artifact.reader import Artifact


@dataclass(frozen=True)
class Continuation:
    """A file that an artifact says is its part ``index``."""

    path: Path
    index: int
    artifact_id: bytes

    def is_ours(self) -> bool:
        """Whether the file says so too."""
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                return file.read(HEADER_BYTES) == Header(PART_MAGIC, self.index, self.artifact_id).packed()
        except OSError:
            return False


def continuations(path: Path) -> tuple[Continuation, ...]:
    """Those of the artifact at ``path``, whether they are there or not.

    Empty if there is none, if it cannot be read, and for a link: replacing it leaves the artifact that it leads to.
    """
    if path.is_symlink() or not path.is_file():
        return ()
    try:
        artifact = Artifact.open(path)
    except InputError:
        return ()
    if artifact.artifact_id is None:
        return ()
    names = [str(record.name) for record in artifact.files[1:]]
    return tuple(Continuation(path.with_name(name), index, artifact.artifact_id) for index, name in enumerate(names, 1))


def remove_continuations(replaced: Iterable[Continuation], kept: Collection[Path]) -> None:
    """Remove what belonged to a replaced artifact, but for the names that the new one has taken."""
    for each in replaced:
        if each.path not in kept and each.is_ours():
            with suppress(OSError):  # the new artifact is complete all the same
                each.path.unlink()

"""Which model a directory holds, as far as prompts depend on it. Free of torch: the main process uses it too."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ninferd.errors import InputError

_FILES = ("config.json", "tokenizer.json")


def model_identity(directory: Path) -> str:
    """SHA-256 in hex of where the directory really is and of the files that decide what its token ids mean.

    A link that points elsewhere and a file that was replaced in place give another identity; a missing file counts as
    an empty one. Raises InputError if a file cannot be read.
    """
    digest = hashlib.sha256(str(directory.resolve()).encode("utf-8", "surrogateescape"))
    for name in _FILES:
        path = directory / name
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except FileNotFoundError:
            digest.update(hashlib.sha256().digest())
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()

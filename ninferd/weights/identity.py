"""Which model a directory holds, as far as prompts depend on it. Free of torch: the main process uses it too."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ninferd.weights.json_file import read_bounded

MAX_TOKENIZER_BYTES = 256 << 20

_FILES = ("config.json", "tokenizer.json")


def model_identity(directory: Path) -> str:
    """SHA-256 in hex of where the directory really is and of the files that decide what its token ids mean.

    A link that points elsewhere and a file that was replaced in place give another identity; a missing file counts as
    an empty one. Raises InputError if a file cannot be read.
    """
    digest = hashlib.sha256(str(directory.resolve()).encode("utf-8", "surrogateescape"))
    for name in _FILES:
        path = directory / name
        content = read_bounded(path, MAX_TOKENIZER_BYTES) if path.exists() else b""
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()

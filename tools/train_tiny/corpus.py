"""Collects the freely licensed running text: WordNet 3.0 glosses (Debian package wordnet-base) and Python's library.

The result is one UTF-8 file of documents separated by NUL. It trains the tokenizer, serves as language-modelling text
and is the filler of the recall families.
"""

import argparse
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SEPARATOR = "\0"
_SKIPPED = re.compile(r"(^|/)(test|tests|idlelib|lib2to3|encodings|site-packages|dist-packages|__pycache__)/")
_CODE_LINES = 60


def wordnet_glosses(directory: Path) -> Iterator[str]:
    """Yields ``word: definition; "example"`` lines from the ``data.*`` files of WordNet 3.0.

    Record format (``wndb(5WN)``): offset, file number, part of speech, word count in hex, words …, ``| gloss``.
    """
    for part in ("noun", "verb", "adj", "adv"):
        for line in (directory / f"data.{part}").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("  ") or " | " not in line:
                continue
            record, gloss = line.split(" | ", 1)
            word = record.split(" ")[4].replace("_", " ")
            yield f"{word}: {gloss.strip()}"


def python_sources(directory: Path) -> Iterator[str]:
    """Yields the standard library in pieces of at most 60 lines, as code documents."""
    for path in sorted(directory.rglob("*.py")):
        if _SKIPPED.search(path.relative_to(directory).as_posix()):
            continue
        lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
        for first in range(0, len(lines), _CODE_LINES):
            piece = "\n".join(lines[first : first + _CODE_LINES]).strip()
            if len(piece) > 200 and piece.isascii():
                yield piece


def collect(wordnet: Path, library: Path, seed: int = 0, glosses_per_document: int = 24) -> list[str]:
    """Returns shuffled documents: groups of WordNet lines, and pieces of Python source."""
    rng = random.Random(seed)
    glosses = list(wordnet_glosses(wordnet))
    rng.shuffle(glosses)
    size = glosses_per_document
    documents = ["\n".join(glosses[first : first + size]) for first in range(0, len(glosses), size)]
    documents += python_sources(library)
    rng.shuffle(documents)
    return documents


def read(path: Path) -> list[str]:
    """Reads a file written by :func:`main` back into its documents."""
    return path.read_text(encoding="utf-8").split(SEPARATOR)


def main() -> None:
    """Command line: ``python -m tools.train_tiny.corpus --wordnet DIR --out FILE``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--library", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    documents = collect(arguments.wordnet, arguments.library)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(SEPARATOR.join(documents), encoding="utf-8")
    print(f"{len(documents)} documents, {arguments.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

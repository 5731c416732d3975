"""Reading spans of files into memory, from several threads at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from ninferd.config.files import open_regular
from ninferd.errors import InputError
from ninferd.weights.stored import FileSpan


class OpenFiles:
    """Descriptors of the files of one load; each is opened at its first read and kept until the end."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def read_into(self, spans: Iterable[FileSpan], buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes of ``spans``. Raises InputError if a file ends before."""
        position = 0
        for span in spans:
            self._read(span, buffer[position : position + span.size_bytes])
            position += span.size_bytes
        assert position == len(buffer)

    def _read(self, span: FileSpan, buffer: memoryview) -> None:
        descriptor = self._descriptor(span.path)
        done = 0
        while done < span.size_bytes:
            try:
                count = os.preadv(descriptor, [buffer[done:]], span.offset + done)
            except OSError as error:
                raise InputError(
                    f"{span.path}: cannot be read at offset {span.offset + done}: {error.strerror}"
                ) from error
            if count == 0:
                raise InputError(
                    f"{span.path}: ends at byte {span.offset + done}, bytes {span.offset} to "
                    f"{span.offset + span.size_bytes} are needed: the file changed while it was read"
                )
            done += count

    def _descriptor(self, path: Path) -> int:
        with self._lock:
            if path not in self._descriptors:
                try:
                    descriptor = open_regular(path)
                except OSError as error:
                    raise InputError(f"{path}: cannot be read: {error.strerror}") from error
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                self._descriptors[path] = descriptor
            return self._descriptors[path]

"""Files that are written under temporary names and appear under their own all together, the first one last."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import unicodedata
from collections.abc import Sequence
from glob import escape
from pathlib import Path

from ninferd.errors import InputError

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def temporary_path(path: Path) -> Path:
    """Where ``path`` is until it is complete; the same in every run, so that a new one takes a leftover away."""
    return path.with_name(f".{path.name}.partial")


class Unpublished:
    """Open files of known sizes. A lock on the first one keeps a second writer of the same artifact away."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int], *, overwrite: bool) -> None:
        self._paths = list(paths)
        self._sizes = list(sizes)
        self._overwrite = overwrite
        self._descriptors: list[int] = []
        self._published: list[Path] = []

    def create(self) -> None:
        """Create all files, full of zeros. InputError if one exists, if the disk is too full or is not writable."""
        directory = self._paths[0].parent
        try:
            for path in self._paths:
                if self._overwrite:
                    require_replaceable(path)
                else:
                    _require_absent(path)
            needed, free = sum(self._sizes), shutil.disk_usage(directory).free
            if needed > free:
                raise InputError(f"{self._paths[0]}: needs {needed} bytes, {directory} has {free} free")
            for path, size in zip(self._paths, self._sizes, strict=True):
                descriptor = _create_locked(path)
                self._descriptors.append(descriptor)
                os.ftruncate(descriptor, size)
            self._remove_leftovers()
        except OSError as error:
            raise InputError(f"{self._paths[0]}: cannot be written: {error.strerror}") from error

    def write(self, index: int, offset: int, data: memoryview) -> None:
        """Write all of ``data`` at ``offset`` of a file."""
        try:
            while data:
                written = os.pwrite(self._descriptors[index], data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise InputError(f"{self._paths[index]}: cannot be written: {error.strerror}") from error

    def publish(self) -> None:
        """Make durable and move to the final names. If one is taken meanwhile, none appears."""
        try:
            for descriptor in self._descriptors:
                os.fsync(descriptor)
            for path in (*self._paths[1:], self._paths[0]):
                self._move(path)
            _sync_directory(self._paths[0].parent)
        except BaseException as error:
            if not self._overwrite:
                for path in self._published:
                    path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise InputError(f"{self._paths[0]}: cannot be published: {error.strerror}") from error
            raise

    def discard(self) -> None:
        """Close all files and remove those that were not published."""
        for path, descriptor in zip(self._paths, self._descriptors, strict=False):
            temporary = temporary_path(path)
            if _is_open_file(temporary, descriptor):
                temporary.unlink(missing_ok=True)
            os.close(descriptor)
        self._descriptors.clear()

    def _remove_leftovers(self) -> None:
        """Temporary continuations of a writer that was killed and had cut the payload into more files."""
        entry = self._paths[0]
        ours = {temporary_path(path) for path in self._paths}
        for path in entry.parent.glob(f".{escape(entry.name)}.part-[0-9]*.partial"):
            if path not in ours:
                path.unlink()

    def _move(self, path: Path) -> None:
        temporary = temporary_path(path)
        if self._overwrite:
            temporary.replace(path)
            return
        try:
            path.hardlink_to(temporary)
        except FileExistsError as error:
            raise InputError(f"{path}: exists already; it is not overwritten") from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _require_absent(path)  # this file system cannot do it in one step
            temporary.rename(path)
            self._published.append(path)
        else:
            self._published.append(path)
            temporary.unlink()


def _create_locked(path: Path) -> int:
    """A new temporary file for ``path``; one that no living writer holds is taken away first."""
    temporary = temporary_path(path)
    try:
        descriptor = _create(temporary)
    except FileExistsError:
        left = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _lock(path, left)
            temporary.unlink()
        finally:
            os.close(left)
        descriptor = _create(temporary)
    try:
        _lock(path, descriptor)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):  # no other writer has it: this file system has no locks
            temporary.unlink()
        raise
    return descriptor


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(f"{path}: is being written by another process") from error


def _is_open_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def require_replaceable(path: Path) -> None:
    """InputError if ``path`` is not the name of a file, or of something that a file must not take the place of."""
    _require_file_name(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise InputError(f"{path}: exists already and is {kind}; it is not replaced")


def _require_file_name(path: Path) -> None:
    """A name with a newline cannot be listed: neither in a directory nor as ``sha256sum`` does it."""
    if path.name in ("", ".."):
        raise InputError(f"{path}: is not the name of a file")
    if any(unicodedata.category(each) == "Cc" for each in path.name):
        raise InputError(f"{path}: the name of an artifact must have no control characters")


def _require_absent(path: Path) -> None:
    _require_file_name(path)
    if os.path.lexists(path):
        raise InputError(f"{path}: exists already; it is not overwritten")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

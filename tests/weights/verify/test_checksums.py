"""SHA-256 lists beside a model: found, read, and held against every file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ninferd.errors import InputError
from ninferd.weights.verify.checksums import check_sha256, expected_files
from tests.weights.artifact import golden
from tests.weights.artifact.support import write_golden

WRONG = "0" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "golden.ninfer"
    path.write_bytes(golden.golden_file())
    return path


def ignored(_done: int, _total: int) -> None:
    pass


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_given_digest_and_progress(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    check_sha256(path, golden.SHA256.upper(), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (golden.FILE_BYTES, golden.FILE_BYTES)


def test_given_digest_wins_over_the_list(path: Path) -> None:
    path.with_name("SHA256SUMS").write_text(f"{WRONG}  golden.ninfer\n")
    check_sha256(path, golden.SHA256, ignored)
    with pytest.raises(InputError):
        check_sha256(path, None, ignored)


@pytest.mark.parametrize(
    ("list_name", "text"),
    [
        ("golden.ninfer.sha256", f"{golden.SHA256}  golden.ninfer\n"),
        ("golden.ninfer.sha256", golden.SHA256),
        ("golden.ninfer.sha256", f"{golden.SHA256}  name-before-it-was-renamed.ninfer\n"),
        ("SHA256SUMS", f"# published\n\n{WRONG}  other\n{golden.SHA256.upper()} *golden.ninfer\r\n"),
        ("SHA256SUMS", f"{golden.SHA256}  ./golden.ninfer"),
    ],
    ids=["sidecar", "digest alone", "renamed", "list of several, binary mark", "path in the list"],
)
def test_lists(path: Path, list_name: str, text: str) -> None:
    path.with_name(list_name).write_text(text)
    check_sha256(path, None, ignored)
    damaged = bytearray(path.read_bytes())
    damaged[20_000] ^= 1  # a code of a tensor, which no structural check can see
    path.write_bytes(damaged)
    with pytest.raises(InputError) as caught:
        check_sha256(path, None, ignored)
    assert str(caught.value) == (
        f"{path}: SHA-256 is {sha256(path)}, expected {golden.SHA256} ({path.with_name(list_name)})"
    )


def test_sidecar_comes_before_the_list(path: Path) -> None:
    path.with_name("SHA256SUMS").write_text(f"{WRONG}  golden.ninfer\n")
    path.with_name("golden.ninfer.sha256").write_text(golden.SHA256)
    check_sha256(path, None, ignored)


@pytest.mark.parametrize("text", [None, f"{WRONG}  other.ninfer\n"], ids=["no list", "list without the file"])
def test_nothing_to_compare_with(path: Path, text: str | None) -> None:
    if text is not None:
        path.with_name("SHA256SUMS").write_text(text)
    assert expected_files(path) == ()
    with pytest.raises(InputError) as caught:
        check_sha256(path, None, ignored)
    assert str(caught.value) == (
        f"{path}: there is no SHA-256 to compare it with: neither {path}.sha256 or {path.with_name('SHA256SUMS')} nor "
        "a configured one"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"{WRONG[:-1]}  golden.ninfer",
            f"1: must be 64 hexadecimal digits and a file name, found '{WRONG[:-1]}  golden.n",
        ),
        (f"\n{WRONG}", f"2: must be 64 hexadecimal digits and a file name, found '{WRONG}'"),
        (
            f"{WRONG}  golden.ninfer\n{'1' * 64}  golden.ninfer",
            "2: 'golden.ninfer' has another SHA-256 than in a line before",
        ),
    ],
    ids=["63 digits", "no name", "twice"],
)
def test_wrong_lines(path: Path, text: str, problem: str) -> None:
    path.with_name("SHA256SUMS").write_text(text)
    with pytest.raises(InputError) as caught:
        expected_files(path)
    assert str(caught.value).startswith(f"{path.with_name('SHA256SUMS')}:{problem}")


def test_list_that_is_no_text(path: Path) -> None:
    path.with_name("SHA256SUMS").write_bytes(b"a\xff")
    with pytest.raises(InputError) as caught:
        expected_files(path)
    assert str(caught.value) == f"{path.with_name('SHA256SUMS')}: is not UTF-8 at byte 1"


def test_given_digest_that_is_none(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        check_sha256(path, "abc", ignored)
    assert str(caught.value) == f"{path}: a SHA-256 has 64 hexadecimal digits, found 'abc'"


class TestParts:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "golden.ninfer"
        write_golden(path, max_file_bytes=16_384)
        return path

    def lines(self, path: Path) -> list[str]:
        return [f"{sha256(file)}  {file.name}" for file in sorted(path.parent.glob("golden*"))]

    def test_all_files_are_hashed(self, path: Path) -> None:
        path.with_name("SHA256SUMS").write_text("\n".join(self.lines(path)))
        seen: list[tuple[int, int]] = []
        check_sha256(path, None, lambda done, total: seen.append((done, total)))
        assert seen[-1] == (2 * 16_384 + 4096 + 1808, 2 * 16_384 + 4096 + 1808)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        last = path.with_name("golden.ninfer.part-0002")
        raw = bytearray(last.read_bytes())
        raw[-1] ^= 1
        last.write_bytes(raw)
        with pytest.raises(InputError) as caught:
            check_sha256(path, None, ignored)
        assert str(caught.value).startswith(f"{last}: SHA-256 is {sha256(last)}, expected ")

    def test_one_digest_does_not_cover_the_parts(self, path: Path) -> None:
        with pytest.raises(InputError) as caught:
            check_sha256(path, sha256(path), ignored)
        assert str(caught.value) == (
            f"{path}: there is no SHA-256 of its part golden.ninfer.part-0001 in {path}.sha256 or "
            f"{path.with_name('SHA256SUMS')}"
        )
        path.with_name("golden.ninfer.sha256").write_text("\n".join(self.lines(path)[1:]))
        check_sha256(path, sha256(path), ignored)


class TestDirectory:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        for name in ("model-1.safetensors", "model-2.safetensors", "config.json"):
            (tmp_path / name).write_text(name)
        return tmp_path

    def write_list(self, path: Path, *names: str) -> None:
        text = "".join(f"{sha256(path / name)}  {name}\n" for name in names)
        (path / "SHA256SUMS").write_text(text)

    def test_listed_files(self, path: Path) -> None:
        assert expected_files(path) == ()
        self.write_list(path, "model-1.safetensors", "model-2.safetensors", "config.json")
        check_sha256(path, None, ignored)
        (path / "config.json").write_text("changed")
        with pytest.raises(InputError, match=r"config.json: SHA-256 is "):
            check_sha256(path, None, ignored)

    def test_weights_that_are_not_listed(self, path: Path) -> None:
        self.write_list(path, "model-1.safetensors", "config.json")
        with pytest.raises(InputError) as caught:
            check_sha256(path, None, ignored)
        assert str(caught.value) == f"{path / 'SHA256SUMS'}: has no line for model-2.safetensors"

    def test_listed_file_that_is_missing(self, path: Path) -> None:
        self.write_list(path, "model-1.safetensors", "model-2.safetensors", "config.json")
        (path / "config.json").unlink()
        with pytest.raises(InputError) as caught:
            check_sha256(path, None, ignored)
        assert str(caught.value) == f"{path / 'config.json'}: cannot be read: No such file or directory"

    def test_given_digest(self, path: Path) -> None:
        with pytest.raises(InputError) as caught:
            check_sha256(path, WRONG, ignored)
        assert str(caught.value) == (
            f"{path}: is a directory, and one SHA-256 is that of a file; list its files in SHA256SUMS"
        )

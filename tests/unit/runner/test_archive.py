"""Code archives: nothing is unpacked outside of its folder."""

import os
import stat
import zipfile
from pathlib import Path

import pytest

from elastane_common.code_archive import ArchiveError, digest_of, pack
from elastane_runner.archive import ArchiveLimits, unpack


def _folder(path: Path) -> Path:
    (path / "src").mkdir(parents=True)
    (path / "src" / "train.py").write_text("print(1)\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o700)
    return path


def _zip(path: Path, *entries: tuple[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            info.filename = name
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return path


def _refused(path: Path, tmp_path: Path, words: str, limits: ArchiveLimits | None = None) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArchiveError, match=words):
        unpack(path, digest_of(path), tmp_path / "code", limits)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    digest = pack(_folder(tmp_path / "one"), tmp_path / "one.zip")
    unpack(tmp_path / "one.zip", digest, tmp_path / "code")
    assert (tmp_path / "code" / "src" / "train.py").read_text() == "print(1)\n"
    assert (tmp_path / "code" / "run.sh").stat().st_mode & stat.S_IXUSR
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "one", "one.zip"]


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../out",
        "a/../../out",
        "C:/x",
        "a\\..\\x",
        "a//b",
        "./a",
        "..",
        "a\nb",
        "a\x00b",
        "a\x1b[2J",
    ],
)
def test_a_path_that_could_lead_out_is_refused(tmp_path: Path, name: str) -> None:
    _refused(_zip(tmp_path / "a.zip", (name, b"x")), tmp_path, "not allowed")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: int) -> None:
    _refused(_zip(tmp_path / "a.zip", ("a", b"/etc"), mode=kind | 0o777), tmp_path, "not a plain file")


@pytest.mark.parametrize("names", [("a", "A"), ("caf\u00e9", "cafe\u0301")])
def test_a_path_that_is_there_twice_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    _refused(_zip(tmp_path / "a.zip", *((name, b"x") for name in names)), tmp_path, "twice")


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a/b/c")])
def test_a_file_that_is_a_folder_too_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    _refused(_zip(tmp_path / "a.zip", *((name, b"x") for name in names)), tmp_path, "one name")


def test_limits_are_kept(tmp_path: Path) -> None:
    path = _zip(tmp_path / "a.zip", ("a", os.urandom(600)), ("b", os.urandom(600)))
    _refused(path, tmp_path, "2 entries", ArchiveLimits(entries=1))
    _refused(path, tmp_path, "larger unpacked", ArchiveLimits(total_bytes=1199))
    unpack(path, digest_of(path), tmp_path / "code", ArchiveLimits(entries=2, total_bytes=1200))


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    _refused(_zip(tmp_path / "a.zip", ("a", bytes(8 * 1024 * 1024))), tmp_path, "tightly")


@pytest.mark.parametrize("end", [0, 10, -30])
def test_a_damaged_archive_is_refused(tmp_path: Path, end: int) -> None:
    path = _zip(tmp_path / "a.zip", ("a", os.urandom(600)))
    path.write_bytes(path.read_bytes()[:end])
    _refused(path, tmp_path, "cannot be read")


def test_changed_bytes_are_refused(tmp_path: Path) -> None:
    path = _zip(tmp_path / "a.zip", ("a", os.urandom(600)))
    with pytest.raises(ArchiveError, match="sha256"):
        unpack(path, "0" * 64, tmp_path / "code")
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    _refused(path, tmp_path, "cannot be read")


def test_a_full_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    _refused(_zip(tmp_path / "a.zip", ("a", b"x")), tmp_path, "already")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_are_inflated_without_a_bound_are_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("a", b"x")
    _refused(tmp_path / "a.zip", tmp_path, "another method")

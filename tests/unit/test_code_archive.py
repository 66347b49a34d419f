"""Code archives: equal folders give equal digests, and only plain files of a bounded size go in."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from elastane_common import layout
from elastane_common.code_archive import ArchiveError, CodeLimits, digest_of, pack, store


def code_folder(path: Path) -> Path:
    (path / "src").mkdir(parents=True)
    (path / "src" / "train.py").write_text("print(1)\n")
    (path / "run.sh").write_text("#!/bin/sh\n")
    (path / "run.sh").chmod(0o700)
    return path


def test_the_digest_depends_on_contents_alone(tmp_path: Path) -> None:
    one, two = code_folder(tmp_path / "one"), code_folder(tmp_path / "two")
    for ignored in (".git", "src/__pycache__", ".pytest_cache"):
        (two / ignored).mkdir()
        (two / ignored / "file").write_bytes(b"x")
    os.utime(two / "run.sh", (1_000_000_000, 1_000_000_000))
    assert pack(one, tmp_path / "one.zip") == pack(two, tmp_path / "two.zip")
    (two / "run.sh").chmod(0o600)
    assert pack(two, tmp_path / "two.zip") != digest_of(tmp_path / "one.zip")


def test_entries_are_sorted_and_keep_their_permission_to_execute(tmp_path: Path) -> None:
    pack(code_folder(tmp_path / "one"), tmp_path / "one.zip")
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == ["run.sh", "src/train.py"]
        modes = [entry.external_attr >> 16 & stat.S_IXUSR for entry in archive.infolist()]
        assert modes == [stat.S_IXUSR, 0]
        assert archive.read("src/train.py") == b"print(1)\n"


def test_a_virtual_environment_is_left_out_although_it_has_links(tmp_path: Path) -> None:
    folder = code_folder(tmp_path / "one")
    before = pack(folder, tmp_path / "one.zip")
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "env" / "bin" / "python").symlink_to("/usr/bin/python3")
    assert pack(folder, tmp_path / "one.zip") == before


@pytest.mark.parametrize("target", ["/etc", "/etc/hostname", "/does/not/exist"])
def test_a_link_is_not_packed(tmp_path: Path, target: str) -> None:
    folder = code_folder(tmp_path / "one")
    (folder / "link").symlink_to(target)
    with pytest.raises(ArchiveError, match="link is not a plain file"):
        pack(folder, tmp_path / "one.zip")


def test_a_pipe_is_not_packed(tmp_path: Path) -> None:
    folder = code_folder(tmp_path / "one")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ArchiveError, match="pipe is not a plain file"):
        pack(folder, tmp_path / "one.zip")


def test_limits_are_kept(tmp_path: Path) -> None:
    folder = code_folder(tmp_path / "one")
    with pytest.raises(ArchiveError, match="more than 1 files"):
        pack(folder, tmp_path / "one.zip", CodeLimits(entries=1))
    with pytest.raises(ArchiveError, match="more than 18 bytes"):
        pack(folder, tmp_path / "one.zip", CodeLimits(total_bytes=18))
    pack(folder, tmp_path / "one.zip", CodeLimits(entries=2, total_bytes=19))


def test_an_archive_inside_of_its_folder_is_refused(tmp_path: Path) -> None:
    folder = code_folder(tmp_path / "one")
    with pytest.raises(ArchiveError, match="inside of the folder"):
        pack(folder, folder / "one.zip")


def test_an_archive_is_stored_once(tmp_path: Path) -> None:
    digest = pack(code_folder(tmp_path / "one"), tmp_path / "one.zip")
    url = (tmp_path / "artifacts").as_uri()
    assert store(tmp_path / "one.zip", digest, url)
    stored = tmp_path / "artifacts" / layout.code_archive(digest)
    assert digest_of(stored) == digest
    before = stored.stat().st_ino
    assert not store(tmp_path / "one.zip", digest, url)
    assert stored.stat().st_ino == before


def test_an_archive_that_is_cut_short_is_stored_again(tmp_path: Path) -> None:
    digest = pack(code_folder(tmp_path / "one"), tmp_path / "one.zip")
    stored = tmp_path / "artifacts" / layout.code_archive(digest)
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"PK")
    assert store(tmp_path / "one.zip", digest, (tmp_path / "artifacts").as_uri())
    assert digest_of(stored) == digest


def test_an_archive_larger_than_runners_take_is_not_stored(tmp_path: Path) -> None:
    digest = pack(code_folder(tmp_path / "one"), tmp_path / "one.zip")
    size = (tmp_path / "one.zip").stat().st_size
    url = (tmp_path / "artifacts").as_uri()
    with pytest.raises(ArchiveError, match=f"has {size} bytes"):
        store(tmp_path / "one.zip", digest, url, bytes_max=size - 1)
    assert not (tmp_path / "artifacts").exists()
    assert store(tmp_path / "one.zip", digest, url, bytes_max=size)

"""Artifacts: seen whole or not at all, never mixed, and refused where they differ from their manifest."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from elastane_common import layout
from elastane_common.artifacts import (
    MANIFEST,
    ArtifactError,
    list_artifacts,
    list_run,
    local_files,
    read_manifest,
    settle,
    verify,
    write_artifacts,
    write_record,
)
from elastane_common.errors import EXIT_REFUSED
from elastane_common.file_manifest import FileEntry
from elastane_common.run_record import RunRecord
from elastane_common.storage import Folder
from unit.artifacts.storages import KINDS, folder_url, names, put, remove


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield from folder_url(request.param, tmp_path)


def a_model(folder: Path, weights: bytes = b"weights", **more: bytes) -> Path:
    """A local folder with a file of its own and one in a subfolder."""
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "weights.bin").write_bytes(weights)
    (folder / "sub" / "empty.json").write_bytes(b"")
    for name, data in more.items():
        (folder / name).write_bytes(data)
    return folder


def upload(url: str, path: Path) -> None:
    write_artifacts(url, local_files(path))


def content(url: str) -> dict[str, bytes]:
    """What a reader gets who follows the manifest."""
    manifest = verify(url)
    found = {}
    for entry, located in zip(manifest.files, manifest.located(), strict=True):
        with fsspec.open(f"{url}/{located.path}", "rb") as file:
            found[entry.path] = file.read()
    return found


def test_a_folder_is_there_with_its_manifest(url: str, tmp_path: Path) -> None:
    assert read_manifest(url) is None and list_artifacts(url) == []
    upload(url, a_model(tmp_path / "m"))
    assert content(url) == {"weights.bin": b"weights", "sub/empty.json": b""}
    with fsspec.open(f"{url}/{MANIFEST}", "rb") as file:
        stored = json.load(file)
    assert stored["version"] == 1
    assert stored["files"][1] == {
        "path": "weights.bin",
        "size": 7,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "kind": "model",
    }
    assert [entry.path for entry in list_artifacts(url)] == [
        f"{stored['folder']}/sub/empty.json",
        f"{stored['folder']}/weights.bin",
    ]


def test_the_content_hash_is_that_of_coreutils(tmp_path: Path) -> None:
    path = a_model(tmp_path / "m")
    manifest = write_artifacts(str(tmp_path / "there"), local_files(path))
    line = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    assert os.popen(f"cd {path} && {line}").read().split()[0] == manifest.content_hash


def test_the_same_content_is_not_written_again(url: str, tmp_path: Path) -> None:
    path = a_model(tmp_path / "m")
    upload(url, path)
    folder = read_manifest(url)
    assert folder is not None
    put(f"{url}/{folder.folder}/weights.bin", b"WEIGHTS")  # of the same size, so that a write would show
    upload(url, path)
    with fsspec.open(f"{url}/{folder.folder}/weights.bin", "rb") as file:
        assert file.read() == b"WEIGHTS"


def test_a_file_that_went_missing_is_written_again(url: str, tmp_path: Path) -> None:
    path = a_model(tmp_path / "m")
    upload(url, path)
    remove(f"{url}/{list_artifacts(url)[1].path}")
    upload(url, path)
    assert content(url)["weights.bin"] == b"weights"


def test_what_a_killed_writer_left_of_a_file_is_removed(tmp_path: Path) -> None:
    url, path = str(tmp_path / "there"), a_model(tmp_path / "m")
    upload(url, path)
    folder = list_artifacts(url)[0].path.partition("/")[0]
    put(f"{url}/{folder}/sub/.empty.json.0123.tmp", b"half")
    remove(f"{url}/{MANIFEST}")
    upload(url, path)
    assert names(url) == [f"{folder}/sub/empty.json", f"{folder}/weights.bin", MANIFEST]


def test_another_content_replaces_the_first(url: str, tmp_path: Path) -> None:
    upload(url, a_model(tmp_path / "m"))
    upload(url, a_model(tmp_path / "m", b"better"))
    assert content(url) == {"weights.bin": b"better", "sub/empty.json": b""}
    assert len(names(url)) == 3


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_verify_names_what_differs(url: str, tmp_path: Path, damage: str) -> None:
    upload(url, a_model(tmp_path / "m"))
    path = list_artifacts(url)[1].path
    if damage == "missing":
        remove(f"{url}/{path}")
    else:
        put(f"{url}/{path}", {"changed": b"Weights", "cut": b"weight"}[damage])
    said = {"changed": "has the sha256", "cut": "6 bytes instead of 7", "missing": "is missing"}[damage]
    with pytest.raises(ArtifactError, match=f"{path} .*{said}|{path} {said}") as caught:
        verify(url)
    assert caught.value.exit_code == EXIT_REFUSED


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b'{"version": 1, "folder": "f", "files": [{"path": "../x", "size": 1, "sha256": ""}]}', "damaged"),
        (b'{"version": 1, "folder": "../f", "files": []}', "is damaged"),
        (b'{"version": 2, "folder": "f", "files": []}', "has version 2"),
    ],
)
def test_a_manifest_that_is_none_is_refused(url: str, data: bytes, said: str) -> None:
    put(f"{url}/{MANIFEST}", data)
    with pytest.raises(ArtifactError, match=said):
        list_artifacts(url)


def test_fields_of_later_releases_are_ignored(url: str) -> None:
    put(f"{url}/{MANIFEST}", b'{"version": 1, "folder": "f", "files": [], "later": {"a": 1}}')
    assert list_artifacts(url) == []


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="neither a file nor a folder"):
        local_files(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match="is empty"):
        local_files(tmp_path / "empty")
    path = a_model(tmp_path / "m")
    (path / "link").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="link is not a regular file"):
        local_files(path)
    (path / "link").unlink()
    (path / "link").symlink_to(path / "weights.bin")  # as model hubs have them in their caches
    assert sorted(local_files(path)) == ["link", "sub/empty.json", "weights.bin"]


def test_names_that_no_storage_could_hold_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"")
    for path in ("../x", "/x", "a//x", "a\\x", "a\nx", "", "." * 2000, "\udcff"):
        with pytest.raises(ArtifactError):
            write_artifacts(str(tmp_path / "there"), {path: file})
    assert not (tmp_path / "there").exists()


def test_a_file_that_changes_meanwhile_leaves_the_old_artifacts(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(url, a_model(tmp_path / "m"))
    path, opened = a_model(tmp_path / "m", b"second"), Path.open
    reads = itertools.count()

    def changing(self: Path, *arguments: object, **more: object) -> object:
        if self.name == "weights.bin" and self.parent == path and next(reads) == 1:
            self.write_bytes(b"third!")
        return opened(self, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", changing)
    with pytest.raises(ArtifactError, match="changed while it was uploaded"):
        upload(url, path)
    monkeypatch.undo()
    assert content(url)["weights.bin"] == b"weights"


def test_killed_before_each_file_operation(tmp_path: Path) -> None:
    """The old artifacts are there, or the new ones, and nothing between."""
    url, outcomes = str(tmp_path / "there"), []
    upload(url, a_model(tmp_path / "0", b"weights 0"))
    for round_ in itertools.count(1):
        path = a_model(tmp_path / "next", f"weights {round_}".encode())
        before = content(url)["weights.bin"]
        killed = upload_in_child(url, path, kill_before=round_ - 1)
        after = content(url)["weights.bin"]
        assert after in (before, path.joinpath("weights.bin").read_bytes())
        outcomes.append(after != before)
        if not killed:
            break
    # Killed early the old ones stay; killed late, while they are removed, the new ones are there.
    assert outcomes == sorted(outcomes) and not outcomes[0] and outcomes[-2:] == [True, True]
    assert len(outcomes) > 10


def upload_in_child(url: str, path: Path, *, kill_before: int) -> bool:
    """Uploads in a forked process that is killed before its given file operation; True if it was."""
    child = os.fork()
    if child == 0:
        operations = itertools.count()

        def audit(event: str, _arguments: object) -> None:
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open")
            if changes and next(operations) == kill_before:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)
        try:
            upload(url, path)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


class Killed(BaseException):
    """Ends a writer at some operation of the storage."""


class Interrupted:
    """A writer's storage: before its nth change something else happens, and it may be killed after that."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, at: int, then: Callable[[], None], dies: bool
    ) -> None:
        self.changes, self.at, self.then, self.dies = 0, at, then, dies
        self._is_others = False
        for name in ("write", "remove_file", "remove_subfolder"):
            monkeypatch.setattr(Folder, name, self._counted(getattr(Folder, name)))

    def _counted(self, change: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: object) -> None:
            if self._is_others:
                change(*arguments)
                return
            self.changes += 1
            if self.changes == self.at:
                self._is_others = True
                self.then()
                self._is_others = False
            change(*arguments)
            if self.dies and self.changes == self.at:
                raise Killed

        return counted


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies after its write"])
@pytest.mark.parametrize("saves", [b"8", b"7", b"b"], ids=["its own", "the same", "the one before"])
@pytest.mark.parametrize("before", [None, 5, 7], ids=["first model", "second launch", "second model"])
def test_a_launch_that_was_given_up_changes_nothing_whenever_it_wakes_up(
    url: str, tmp_path: Path, before: int | None, saves: bytes, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later launch saves its model before any one of the changes that the older one makes."""
    zombies, theirs = local_files(a_model(tmp_path / "7", b"7")), local_files(a_model(tmp_path / "8", saves))
    for at in itertools.count(1):
        with monkeypatch.context() as patch:
            here = f"{url}/{at}"
            if before is not None:
                write_artifacts(here, local_files(a_model(tmp_path / "b", b"b")), fence=before)

            later_launch = functools.partial(write_artifacts, here, theirs, fence=8)
            woken = Interrupted(patch, at, later_launch, dies)
            try:
                write_artifacts(here, zombies, fence=7)
            except (ArtifactError, Killed) as error:
                assert dies or "a later launch" in str(error)
        if woken.changes < at:
            break
        assert content(here)["weights.bin"] == saves and read_manifest(here).fence == 8
        settled = settle(here)
        with fsspec.open(f"{here}/{MANIFEST}", "rb") as file:
            assert json.loads(file.read())["folder"] == settled.folder and settled.fence == 8
    assert at == {None: 5, 5: 8, 7: 6}[before], "at each of its changes"


def test_who_reads_the_manifest_alone_sees_no_model_of_a_launch_that_was_given_up(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks, sees nobody, and overwrites manifest.json after the later launch: it puts that one back."""
    zombies, theirs = local_files(a_model(tmp_path / "7", b"7")), local_files(a_model(tmp_path / "8", b"8"))
    write = Folder.write

    def late(folder: Folder, name: str, chunks: object) -> None:
        if name == MANIFEST and read_manifest(url).fence == 7:
            monkeypatch.undo()
            write_artifacts(url, theirs, fence=8)
        write(folder, name, chunks)

    monkeypatch.setattr(Folder, "write", late)
    with pytest.raises(ArtifactError, match=r"a later launch .* \(fence 8, own 7\)"):
        write_artifacts(url, zombies, fence=7)
    with fsspec.open(f"{url}/{MANIFEST}", "rb") as file:
        assert json.loads(file.read())["fence"] == 8
    assert content(url)["weights.bin"] == b"8"


def test_a_later_launch_removes_what_earlier_ones_have_left(url: str, tmp_path: Path) -> None:
    for fence in (3, 5):
        write_artifacts(url, local_files(a_model(tmp_path / "m")), fence=fence)
    folder = read_manifest(url).folder
    assert folder.endswith("-5")
    files = [f"{folder}/sub/empty.json", f"{folder}/weights.bin", "launches/5.json", MANIFEST]
    assert names(url) == sorted(files)


def test_a_run_lists_model_logs_and_record(url: str, tmp_path: Path) -> None:
    log = layout.rank_log(1, 0)
    put(layout.join(url, log), b"line\n")
    put(layout.join(url, layout.rank_log(2, 10)), b"")
    put(layout.join(url, "notes.txt"), b"x")
    assert [(entry.path, entry.kind, entry.sha256) for entry in list_run(url)] == [
        (log, "log", ""),
        ("attempts/2/rank-10.log", "log", ""),
        ("notes.txt", "other", ""),
    ]
    put(layout.join(url, "model", "half", "weights.bin"), b"not yet whole")
    assert [entry.kind for entry in list_run(url)] == ["log", "log", "other"]
    upload(layout.model_url(url), a_model(tmp_path / "m"))
    sha256 = hashlib.sha256(b"line\n").hexdigest()
    record = RunRecord(
        run_id=1, state="succeeded", created_at=0.0, spec={}, artifacts=(FileEntry(log, 5, sha256, "log"),)
    )
    write_record(url, record)
    listed = {entry.path: entry for entry in list_run(url)}
    assert sorted(entry.kind for entry in listed.values()) == [
        "log",
        "log",
        "model",
        "model",
        "other",
        "record",
    ]
    assert listed[log].sha256 == sha256
    assert len(listed["record.json"].sha256) == 64
    for entry in listed.values():
        with fsspec.open(layout.join(url, entry.path), "rb") as file:
            assert len(file.read()) == entry.size_bytes


def test_the_layout() -> None:
    assert layout.join("memory://a/", layout.run_folder(7), layout.RECORD) == "memory://a/runs/7/record.json"
    assert layout.join("/", "x") == "/x"
    assert layout.model_url("s3://b/runs/7") == "s3://b/runs/7/model"
    assert layout.code_archive("ab" * 32) == f"code/{'ab' * 32}.zip"
    assert layout.kind_of("attempts/1/rank-0.log") == "log"
    assert layout.kind_of("attempts/1/rank-0.log.tmp") == layout.kind_of("models/x") == "other"
    for bad in ("../x", "AB" * 32, "ab" * 31, ""):
        with pytest.raises(ValueError, match="is not a sha256"):
            layout.code_archive(bad)

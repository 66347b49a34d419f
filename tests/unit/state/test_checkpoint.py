"""Checkpoints: whole or ignored, verified to the last byte, never fewer than promised."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from elastane.state.checkpoint import (
    CheckpointError,
    CheckpointTooNewError,
    NoUsableCheckpointError,
    ShardInfo,
    checkpoint_name,
    list_checkpoints,
    load_newest,
    take_snapshot,
    write_manifest,
    write_shard,
)
from elastane.state.codec import decode, encode
from elastane.state.shard_file import MAGIC
from elastane_common import storage
from elastane_common.errors import EXIT_REFUSED, EXIT_SCRIPT_RAISED
from unit.state.checkpoints import CONTEXTS, ESTS, a_state, save
from unit.state.models import OPTIMIZERS, build, train


@pytest.fixture(params=["path", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Folders that do not exist yet, on each kind of storage."""
    if request.param == "memory":
        root = f"memory://{uuid.uuid4().hex}/job"
        yield root
        with fsspec.open(f"{root}/x", "w") as file:
            file.write("")
        fsspec.filesystem("memory").rm(root.removeprefix("memory:/"), recursive=True)
    else:
        yield ("file://" if request.param == "file" else "") + str(tmp_path / "deep" / "job")


def names(url: str, *, complete: bool = True) -> list[str]:
    return [checkpoint.name for checkpoint in list_checkpoints(url) if checkpoint.complete == complete]


def edit(url: str, name: str, pattern: str, change: Any) -> None:
    """Rewrites the first file of a checkpoint whose name contains `pattern`; None removes it."""
    fs, root = fsspec.core.url_to_fs(f"{url}/{name}")
    path = min(path for path in fs.find(root) if pattern in path)
    data = change(fs.cat_file(path))
    fs.rm_file(path)
    if data is not None:
        fs.pipe_file(path, data)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_what_was_saved_is_loaded(url: str, shards: int) -> None:
    name = save(url, 12, shards=shards)
    loaded = load_newest(url, num_ests=ESTS)
    assert loaded is not None
    assert (loaded.name, loaded.step, loaded.num_ests, loaded.rejected) == (name, 12, ESTS, ())
    assert loaded.contexts == CONTEXTS and list(loaded.contexts) == list(range(ESTS))
    assert loaded.ready_order == (2, 0, 1)
    state = decode(loaded.exported)
    assert (
        torch.equal(state["weight"], torch.full((3000,), 12.0)) and state["step"] == 12 and state["lr"] == 4.0
    )


def test_training_goes_on_identically_from_a_checkpoint(url: str) -> None:
    def make(seed: int) -> Any:
        scheduler = torch.optim.lr_scheduler.MultiStepLR
        return build(OPTIMIZERS["adamw"], lambda o: scheduler(o, [2, 5]), seed=seed, dtype=torch.bfloat16)

    first, again = make(0), make(1)
    train(first, range(3))
    snapshots = [take_snapshot(first.export(), i, 2, step=3, contexts={i: CONTEXTS[i]}) for i in range(2)]
    expected, losses = first.fingerprint(), train(first, range(3, 8))  # goes on before anything is written
    name = checkpoint_name(3, 1)
    entries = [write_shard(url, name, i, 2, snapshot) for i, snapshot in enumerate(snapshots)]
    write_manifest(url, name, 3, 2, entries, 1)
    loaded = load_newest(url)
    assert loaded is not None
    again.load(loaded.exported)
    assert again.fingerprint() == expected
    assert train(again, range(3, 8)) == losses and again.fingerprint() == first.fingerprint()


def test_nothing_there(url: str) -> None:
    assert load_newest(url) is None and list_checkpoints(url) == []


def test_one_that_the_history_does_not_lead_up_to_is_passed_over_and_named(url: str) -> None:
    save(url, 5)
    save(url, 9)
    loaded = load_newest(url, step_max=8)
    assert loaded is not None and loaded.step == 5
    assert loaded.rejected == (f"{checkpoint_name(9, 1)}: the job's history goes only up to step 8",)
    with pytest.raises(NoUsableCheckpointError, match="goes only up to step 4"):
        load_newest(url, step_max=4)


def test_without_a_manifest_there_is_no_checkpoint(url: str) -> None:
    save(url, 5)
    save(url, 6, manifest=False)
    loaded = load_newest(url)
    assert loaded is not None and loaded.step == 5 and loaded.rejected == ()
    assert names(url, complete=False) == [checkpoint_name(6, 1)]


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGES: dict[str, tuple[str, Any, str]] = {
    "stripe bit": ("shard-00001", lambda d: flip(d, len(d) - 9), "shard-00001-of-00003.bin is damaged"),
    "context bit": ("shard-00002", lambda d: flip(d, d.index(b"\x03" * 40)), "shard-00002.*damaged"),
    "structure bit": ("shard-00000", lambda d: flip(d, d.index(b'"lr"') + 1), "shard-00000.*damaged"),
    "magic": ("shard-00000", lambda d: flip(d, 0), "does not begin with the header of a shard"),
    "header length": (
        "shard-00000",
        lambda d: flip(d, len(MAGIC) + 7),
        "does not begin with the header of a shard",
    ),
    "header": ("shard-00000", lambda d: flip(d, len(MAGIC) + 8), "unreadable header"),
    "truncated": ("shard-00001", lambda d: d[:-1], "bytes long, should be"),
    "empty": ("shard-00001", lambda d: b"", "is 0 bytes long, should be"),
    "longer": ("shard-00001", lambda d: d + b"\0", "bytes long, should be"),
    "missing shard": ("shard-00002", lambda d: None, "shard-00002-of-00003.bin is missing"),
    "manifest bit": ("manifest", lambda d: flip(d, d.index(b'"num_ests"') + 12), "its manifest"),
    "manifest cut": ("manifest", lambda d: d[:-30], "manifest is unreadable"),
    "manifest no text": ("manifest", lambda d: b"\xff\xfe", "manifest is unreadable"),
    "manifest other json": ("manifest", lambda d: b"[1]", "manifest is unreadable"),
    "manifest edited": ("manifest", lambda d: d.replace(b'num_ests": 5', b'num_ests": 4'), "sha256 differs"),
    "manifest version": ("manifest", lambda d: d.replace(b'version": 1', b'version": 0'), "has version 0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_the_reason_told(url: str, damage: str) -> None:
    save(url, 5)
    name = save(url, 6)
    pattern, change, reason = DAMAGES[damage]
    edit(url, name, pattern, change)
    loaded = load_newest(url)
    assert loaded is not None and loaded.step == 5
    assert len(loaded.rejected) == 1 and loaded.rejected[0].startswith(f"{name}: ")
    assert re.search(reason, loaded.rejected[0]), loaded.rejected[0]


def test_every_single_flipped_bit_is_noticed(tmp_path: Path) -> None:
    url = str(tmp_path)
    name = save(url, 6, shards=1)
    path = tmp_path / name / "shard-00000-of-00001.bin"
    data = path.read_bytes()
    for position in range(0, len(data), 211):
        path.write_bytes(flip(data, position))
        with pytest.raises(NoUsableCheckpointError):
            load_newest(url)
    path.write_bytes(data)
    assert load_newest(url) is not None


def test_shards_of_different_checkpoints_do_not_mix(url: str) -> None:
    """Each file may be right by itself, and still not belong here."""
    save(url, 5, shards=2)
    name = checkpoint_name(6, 1)
    exported = encode(a_state(6))
    first = write_shard(
        url, name, 0, 2, take_snapshot(exported, 0, 2, step=6, contexts=dict.fromkeys(range(2), CONTEXTS[0]))
    )
    other = take_snapshot(exported, 1, 2, step=7, contexts=dict.fromkeys(range(2, ESTS), CONTEXTS[0]))
    second = write_shard(url, name, 1, 2, other)
    with pytest.raises(CheckpointError, match="belongs to another checkpoint"):
        write_manifest(url, name, 6, ESTS, [first, second], 3)
    loaded = load_newest(url)
    assert loaded is not None and loaded.step == 5


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1, 2, 3, 3), (1, 2, 3, 4)], ids=str)
def test_all_contexts_must_be_there_before_older_checkpoints_are_given_up(
    url: str, ranks: tuple[int, ...]
) -> None:
    save(url, 5)
    name, exported = checkpoint_name(6, 1), encode(a_state(6))
    halves = (ranks[:2], ranks[2:]) if ranks.count(3) == 1 else (ranks[:4], ranks[4:])
    entries = [
        write_shard(
            url, name, i, 2, take_snapshot(exported, i, 2, step=6, contexts={r: CONTEXTS[r] for r in half})
        )
        for i, half in enumerate(halves)
    ]
    with pytest.raises(CheckpointError, match="contexts of ESTs"):
        write_manifest(url, name, 6, ESTS, entries, 1)
    assert names(url) == [checkpoint_name(5, 1)]


def test_a_checkpoint_of_another_number_of_ests_is_not_used(url: str) -> None:
    save(url, 6, ests=3)
    with pytest.raises(NoUsableCheckpointError, match="job with 3 ESTs, this one has 5") as caught:
        load_newest(url, num_ests=5)
    assert len(caught.value.facts["rejected"]) == 1  # type: ignore[arg-type]
    save(url, 5)
    loaded = load_newest(url, num_ests=5)
    assert loaded is not None and loaded.step == 5


def test_when_all_are_unusable_it_is_said_instead_of_starting_anew(url: str) -> None:
    for step in (5, 6):
        edit(url, save(url, step), "shard-00000", lambda data: data[:-1])
    with pytest.raises(NoUsableCheckpointError) as caught:
        load_newest(url)
    assert caught.value.exit_code == EXIT_REFUSED
    reasons = caught.value.facts["rejected"]
    assert isinstance(reasons, tuple) and [r.split(":")[0] for r in reasons] == [
        checkpoint_name(6, 1),
        checkpoint_name(5, 1),
    ]


def test_storage_that_cannot_be_read_now_may_be_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, 5)
    fs, _ = fsspec.core.url_to_fs(url)
    monkeypatch.setattr(
        type(fs), "open", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error"))
    )
    with pytest.raises(NoUsableCheckpointError, match=r"cannot read .*manifest\.json: I/O error") as caught:
        load_newest(url)
    assert caught.value.exit_code == EXIT_SCRIPT_RAISED


# ------------------------------------------------------------------ what is kept


def test_the_newest_are_kept_and_remains_of_incomplete_ones_removed(url: str) -> None:
    save(url, 1)
    save(url, 2, manifest=False)
    for step in (3, 4, 5):
        save(url, step, keep=2)
    save(url, 9, manifest=False)  # newer than the next: perhaps still being written
    save(url, 6, keep=2)
    assert names(url) == [checkpoint_name(5, 1), checkpoint_name(6, 1)]
    assert names(url, complete=False) == [checkpoint_name(9, 1)]
    fs, root = fsspec.core.url_to_fs(url)
    assert len(fs.ls(root)) == 3


@pytest.mark.parametrize("keep", [0, 1])
def test_the_one_just_written_is_never_removed(url: str, keep: int) -> None:
    save(url, 100, generation=5)
    save(url, 50, generation=9, keep=keep)  # history went back because 100 was unusable
    assert names(url) == [checkpoint_name(50, 9), checkpoint_name(100, 5)]


def test_what_is_in_doubt_is_set_aside_for_good(url: str) -> None:
    for step, generation in ((2, 1), (4, 1), (6, 2), (4, 3)):
        save(url, step, generation=generation)
    loaded = load_newest(url, doubts=[(2, 2)])
    assert loaded is not None and loaded.name == checkpoint_name(4, 3)
    assert names(url) == [checkpoint_name(2, 1), checkpoint_name(4, 1), checkpoint_name(4, 3)]
    loaded = load_newest(url, doubts=[(2, 2), (1, 3)])
    assert loaded is None  # not an error: the initial state is not in doubt
    assert names(url) == []
    save(url, 8, generation=4, keep=1)  # and it is removed as what is incomplete is
    assert len(list_checkpoints(url)) == 1


def test_generations_sort_as_numbers(url: str) -> None:
    for generation in (999_999, 1_000_000):
        save(url, 5, generation=generation)
    assert names(url) == ["step-000000000005-g999999", "step-000000000005-g1000000"]
    loaded = load_newest(url)
    assert loaded is not None and loaded.name == "step-000000000005-g1000000"


def test_a_name_may_spell_the_generation_out(url: str) -> None:
    """As the master names them."""
    save(url, 5, generation=9)
    name, exported = "step-000000000005-generation-10", encode(a_state(5))
    entry = write_shard(url, name, 0, 1, take_snapshot(exported, 0, 1, step=5, contexts={0: CONTEXTS[0]}))
    write_manifest(url, name, 5, 1, [entry], 3)
    assert [(found.name, found.generation) for found in list_checkpoints(url)][1] == (name, 10)


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-x").mkdir()
    (tmp_path / "model.txt").write_text("mine")
    for step in range(4):
        save(str(tmp_path), step, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.txt",
        "notes",
        checkpoint_name(3, 1),
        "step-x",
    ]


def test_failing_to_remove_does_not_fail_the_checkpoint(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(url, 1)

    def refuse(_self: object, name: str) -> None:
        raise CheckpointError(f"cannot remove {name}")

    monkeypatch.setattr(storage.Folder, "remove_file", refuse)
    save(url, 2, keep=1)
    assert names(url) == [checkpoint_name(1, 1), checkpoint_name(2, 1)]


def test_a_removal_that_stops_half_way_leaves_no_half_checkpoint(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, 1)
    with monkeypatch.context() as patch:
        patch.setattr(storage.Folder, "remove_subfolder", lambda _self, _name: None)
        save(url, 2, keep=1)
    assert names(url) == [checkpoint_name(2, 1)] and names(url, complete=False) == [checkpoint_name(1, 1)]
    save(url, 3, keep=1)
    assert names(url, complete=False) == []


# ------------------------------------------------------------------ what can go wrong while writing


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_and_leaves_no_partial_file(small_disk: Path) -> None:
    url = str(small_disk)
    good = save(url, 1, shards=1)
    big = take_snapshot(encode(torch.zeros(1 << 20)), 0, 1, step=2, contexts={})
    with pytest.raises(CheckpointError, match="the storage is full") as caught:
        write_shard(url, checkpoint_name(2, 1), 0, 1, big)
    assert caught.value.facts["errno"] == errno.ENOSPC and "keep fewer checkpoints" in caught.value.hint
    assert list((small_disk / checkpoint_name(2, 1)).iterdir()) == []
    loaded = load_newest(url)
    assert loaded is not None and loaded.name == good
    save(url, 3, shards=1, keep=1)  # and the disk is not clogged


class FullFile:
    """A file of a remote storage that has no room for the second write."""

    def __init__(self, file: Any) -> None:
        self._file, self._writes = file, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        self._writes += 1
        if self._writes > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self._file.write(data))


def test_a_full_remote_storage_leaves_no_partial_file(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    url = f"memory://{uuid.uuid4().hex}"
    real = type(fs).open
    monkeypatch.setattr(type(fs), "open", lambda self, *a, **k: FullFile(real(self, *a, **k)))
    name = checkpoint_name(2, 1)
    with pytest.raises(CheckpointError, match="full"):
        write_shard(url, name, 0, 1, take_snapshot(encode(torch.zeros(100)), 0, 1, step=2, contexts={}))
    assert fs.find(f"{url.removeprefix('memory:/')}/{name}") == []


def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        save(str(tmp_path / "file"), 1)


def test_an_unknown_protocol_is_a_typed_error() -> None:
    with pytest.raises(CheckpointError, match="no storage for the URL"):
        list_checkpoints("nosuch://bucket")


@pytest.mark.parametrize(
    "name", ["", "..", "step-1", "step-1-gx", "a/step-1-g1", "step-1-g1/..", "step-1-g1-../x"]
)
def test_names_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    snapshot = take_snapshot(encode({}), 0, 1, step=1, contexts={})
    with pytest.raises(CheckpointError, match="not a checkpoint name"):
        write_shard(str(tmp_path), name, 0, 1, snapshot)
    with pytest.raises(CheckpointError, match="not a checkpoint name"):
        write_manifest(str(tmp_path), name, 1, 0, [], 1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut right after the rename must not find an empty file of that name."""
    calls: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def renamed(path: Path, target: Path) -> Path:
        calls.append(f"rename {Path(target).name}")
        return replace(path, target)

    def synced(descriptor: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().suffix or 'folder'}")
        fsync(descriptor)

    monkeypatch.setattr(Path, "replace", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    storage.Folder(str(tmp_path)).write("step/shard", [b"x" * 100])
    assert calls == ["sync .tmp", "rename shard", "sync folder", "sync folder"]


def test_the_manifest_is_refused_unless_every_shard_is_there(url: str) -> None:
    name, exported = checkpoint_name(4, 1), encode(a_state(4))
    entries = [
        write_shard(url, name, i, 2, take_snapshot(exported, i, 2, step=4, contexts={i: CONTEXTS[i]}))
        for i in range(2)
    ]
    elsewhere = [entries[0], ShardInfo(1, "shard-00001-of-00003.bin", "", 10)]
    shorter = [entries[0], ShardInfo(1, entries[1].file, entries[1].sha256, entries[1].bytes - 1)]
    for wrong in ([], entries[:1], entries[1:], [entries[0], entries[0]], elsewhere, shorter):
        with pytest.raises(CheckpointError):
            write_manifest(url, name, 4, 2, wrong, 3)
    with pytest.raises(CheckpointError, match="cannot be of step 5"):
        write_manifest(url, name, 5, 2, entries, 3)
    assert names(url) == []
    write_manifest(url, name, 4, 2, entries, 3)
    assert names(url) == [name]


def test_files_and_manifest_are_as_documented(tmp_path: Path) -> None:
    name = save(str(tmp_path), 1234, shards=3, generation=7)
    assert name == "step-000000001234-g000007"
    files = sorted(path.name for path in (tmp_path / name).iterdir())
    assert files == ["manifest.json"] + [f"shard-{i:05d}-of-00003.bin" for i in range(3)]
    manifest = json.loads((tmp_path / name / "manifest.json").read_text())
    assert (manifest["step"], manifest["num_ests"]) == (1234, ESTS)
    for entry in manifest["shards"]:
        data = (tmp_path / name / entry["file"]).read_bytes()
        assert len(data) == entry["bytes"] and data.startswith(b"elastane-shard-1")
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]


def test_a_snapshot_does_not_follow_the_live_state() -> None:
    weight = torch.ones(1000)
    parts = dict(CONTEXTS[0])
    snapshot = take_snapshot(encode({"weight": weight}), 0, 1, step=1, contexts={0: parts})
    before = snapshot.stripe.clone()
    weight.zero_()
    parts.clear()
    assert torch.equal(snapshot.stripe, before) and snapshot.contexts[0] == CONTEXTS[0]


def test_a_snapshot_copies_its_stripe_only() -> None:
    exported = encode(torch.zeros(1 << 20, dtype=torch.uint8))
    sizes = [
        take_snapshot(exported, i, 4, step=1, contexts={}).stripe.untyped_storage().nbytes() for i in range(4)
    ]
    assert sizes == [1 << 18] * 4


def test_writing_a_shard_again_replaces_it(url: str) -> None:
    name, exported = checkpoint_name(4, 1), encode(a_state(4))
    write_shard(url, name, 0, 1, take_snapshot(encode(a_state(9)), 0, 1, step=4, contexts={0: CONTEXTS[1]}))
    entry = write_shard(url, name, 0, 1, take_snapshot(exported, 0, 1, step=4, contexts={0: CONTEXTS[0]}))
    write_manifest(url, name, 4, 1, [entry], 3)
    loaded = load_newest(url)
    assert loaded is not None and decode(loaded.exported)["step"] == 4 and loaded.contexts == {0: CONTEXTS[0]}


@pytest.mark.parametrize("more", ["", '"parts": {"a": 1}, "shards": 7,'])
def test_a_checkpoint_of_a_newer_release_is_neither_passed_over_nor_touched(url: str, more: str) -> None:
    save(url, 4)
    newer = save(url, 8)

    def newer_form(data: bytes) -> bytes:
        # A later form may have other fields, and other types in those we know.
        changed = data.replace(b'"version": 1,', f'"version": 3, {more}'.encode())
        return changed.replace(b'"shards": [', b'"shards_were": [') if more else changed

    edit(url, newer, "manifest", newer_form)
    with pytest.raises(CheckpointTooNewError, match=r"step-000000000008.*version 3.*up to 2") as refused:
        load_newest(url)
    assert refused.value.exit_code == EXIT_REFUSED
    assert "upgrade" in refused.value.hint
    assert len(names(url)) == 2


def test_a_storage_that_will_refuse_again_ends_the_worker_for_good(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no storage for the URL 'absent://b/c'") as caught:
        storage.Folder("absent://b/c")
    assert caught.value.exit_code == EXIT_REFUSED
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write") as caught:
        storage.Folder(str(tmp_path / "file" / "checkpoints")).write("a", [b"x"])
    assert caught.value.exit_code == EXIT_REFUSED

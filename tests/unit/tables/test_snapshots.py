"""Snapshots of slots: what is read is what was written, or the one before."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from elastane.tables import snapshots
from elastane.tables.sections import Section
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.snapshot_file import SlotSnapshotError
from elastane.tables.snapshots import OtherModelError, SnapshotWriter, collect, names, newest
from elastane_common.storage import Folder
from elastane_slots.held_slots import SlotRecord
from elastane_slots.tasks import TaskName
from unit.tables.models import part_of, push, small, weights_of

SPEC = small()
SLOT = next(slot for slot in range(SPEC.slots) if SPEC.layout(slot).blocks)


class Held:
    """A slot with its record, that is trained and saved."""

    def __init__(self, folder: Folder, life: int = 0, since: int = 1, ps: str = "ps-0") -> None:
        self.record = SlotRecord(life)
        self.weights = weights_of(SPEC, SLOT)
        self.writer = SnapshotWriter(folder, SPEC, SLOT, since=since, ps=ps)
        self._generator = torch.Generator().manual_seed(life)
        self._mark = 0
        self.digests: dict[int, str] = {}

    def train(self, pushes: int = 1) -> None:
        for _ in range(pushes):
            push(SPEC, self.weights, part_of(SPEC, SLOT, self._generator, rows=3))
            self.record.applied.add(TaskName("clicks", 0, self.record.version))

    def save(self, *, base: bool) -> snapshots.SnapshotName:
        changes = self.weights.changed_since(0 if base else self._mark)
        self._mark = self.weights.mark()
        groups: list[Sequence[Section]] = [[section] for section in self.weights.sections(changes)]
        record = self.record
        saved = self.writer.write(record.life, record.version, record.encode(), groups, base=base)
        self.digests[self.record.version] = self.weights.digest()
        return saved.name


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "slots"), SlotSnapshotError)


def saved(folder: Folder) -> Held:
    held = Held(folder)
    for turn in range(6):
        held.train(2)
        held.save(base=turn % 3 == 0)
    return held


def test_the_newest_is_read_with_all_that_it_follows(folder: Folder) -> None:
    assert newest(folder, SPEC, SLOT) == (None, ())
    held = saved(folder)
    found, rejected = newest(folder, SPEC, SLOT)
    assert found is not None and not rejected
    assert found.weights.digest() == held.weights.digest()
    assert found.record.encode() == held.record.encode()
    assert found.name == f"{SLOT}/0-1-ps-0/delta-12"
    part = part_of(SPEC, SLOT, torch.Generator().manual_seed(9))
    push(SPEC, held.weights, part)
    push(SPEC, found.weights, part)
    assert found.weights.digest() == held.weights.digest()


@pytest.mark.parametrize("url", ["memory://slots-of-a-test"])
def test_any_storage_will_do(url: str) -> None:
    folder = Folder(url, SlotSnapshotError)
    held = saved(folder)
    found, _ = newest(folder, SPEC, SLOT)
    assert found is not None and found.weights.digest() == held.weights.digest()


@pytest.mark.parametrize("position", [0, 5, 20, 30, 200, 5000, -40, -10])
def test_a_changed_byte_anywhere_is_found_and_the_one_before_is_read(
    folder: Folder, tmp_path: Path, position: int
) -> None:
    held = saved(folder)
    path = tmp_path / "slots" / names(folder, SLOT)[-1].path
    content = bytearray(path.read_bytes())
    content[position] ^= 0x20
    path.write_bytes(content)
    found, rejected = newest(folder, SPEC, SLOT)
    assert found is not None and found.record.version == 10 and len(rejected) == 1
    assert found.weights.digest() == held.digests[10]


def test_a_file_cut_anywhere_is_found(folder: Folder, tmp_path: Path) -> None:
    held = saved(folder)
    path = tmp_path / "slots" / names(folder, SLOT)[-1].path
    content = path.read_bytes()
    for size in (0, 3, 16, 24, 100, len(content) // 2, len(content) - 33, len(content) - 1):
        path.write_bytes(content[:size])
        found, _ = newest(folder, SPEC, SLOT)
        assert found is not None and found.weights.digest() == held.digests[10]
    path.write_bytes(content + b"x")
    found, _ = newest(folder, SPEC, SLOT)
    assert found is not None and found.record.version == 10


def test_a_chain_with_a_hole_is_given_up_for_the_one_before(folder: Folder, tmp_path: Path) -> None:
    held = saved(folder)
    there = names(folder, SLOT)
    folder.remove_file(there[3].path)  # the second base
    found, rejected = newest(folder, SPEC, SLOT)
    assert found is not None and found.weights.digest() == held.digests[6] and len(rejected) == 2
    for name in names(folder, SLOT):
        folder.remove_file(name.path)
    assert newest(folder, SPEC, SLOT)[0] is None


def test_a_later_life_is_newer_whatever_its_version(folder: Folder) -> None:
    saved(folder)
    later = Held(folder, life=1, since=7, ps="ps-1")
    later.train(1)
    later.save(base=True)
    found, _ = newest(folder, SPEC, SLOT)
    assert found is not None and (found.record.life, found.record.version) == (1, 1)


def test_snapshots_of_another_model_are_refused(folder: Folder) -> None:
    saved(folder)
    with pytest.raises(OtherModelError, match=r"of another model \("):
        newest(folder, small(dense="sgd"), SLOT)
    with pytest.raises(OtherModelError, match=f"in {SPEC.slots} slots and not {SPEC.slots + 1}"):
        newest(folder, msgspec.structs.replace(SPEC, slots=SPEC.slots + 1), SLOT)


def test_what_two_newer_chains_make_needless_is_removed(folder: Folder) -> None:
    held = saved(folder)
    assert collect(folder, SLOT) == []
    held.train()
    held.save(base=True)
    assert len(collect(folder, SLOT)) == 3
    assert [name.kind for name in names(folder, SLOT)] == ["base", "delta", "delta", "base"]
    found, rejected = newest(folder, SPEC, SLOT)
    assert found is not None and not rejected and found.weights.digest() == held.weights.digest()


def test_deltas_are_folded_when_they_exceed_half_of_the_base(folder: Folder) -> None:
    held = Held(folder)
    assert held.writer.wants_base(0)
    held.train()
    held.save(base=True)
    assert not held.writer.wants_base(1000)
    assert held.writer.wants_base(10**9)
    held.writer.restart()
    assert held.writer.wants_base(0)


def test_a_full_disk_leaves_what_was_there(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    held = saved(folder)
    write = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    held.train()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SlotSnapshotError, match="full"):
        held.save(base=False)
    monkeypatch.setattr(os, "fsync", write)
    found, rejected = newest(folder, SPEC, SLOT)
    assert found is not None and not rejected and found.weights.digest() == held.digests[12]
    held.writer.restart()
    held.save(base=True)
    found, _ = newest(folder, SPEC, SLOT)
    assert found is not None and found.weights.digest() == held.weights.digest()


def test_a_process_killed_while_it_writes_leaves_the_one_before(tmp_path: Path) -> None:
    script = """
        import sys, torch
        from unit.tables.test_snapshots import Held
        from elastane_common.storage import Folder
        held = Held(Folder(sys.argv[1]))
        turn = 0
        while True:
            held.train()
            held.save(base=turn % 4 == 0)
            print(held.record.version, held.weights.digest(), flush=True)
            turn += 1
    """
    root = Path(__file__).parents[3]
    path = [str(root / "tests"), *(p for p in sys.path if p)]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    time.sleep(0.013)
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    process.wait()
    told = dict(line.split() for line in lines if line.endswith("\n"))
    found, rejected = newest(Folder(str(tmp_path), SlotSnapshotError), SPEC, SLOT)
    assert found is not None and not rejected
    # What it had told of is there; of the one after it is not known.
    version = found.record.version
    assert version in (int(max(told, key=int)), int(max(told, key=int)) + 1)
    if str(version) in told:
        assert found.weights.digest() == told[str(version)]


def test_slots_that_are_not_initialised_are_saved_as_that(folder: Folder) -> None:
    weights = SlotWeights(SPEC, SLOT)
    writer = SnapshotWriter(folder, SPEC, SLOT, since=1, ps="ps-0")
    writer.write(0, 0, SlotRecord().encode(), [list(weights.sections())], base=True)
    found, _ = newest(folder, SPEC, SLOT)
    assert found is not None and not found.weights.initialised

"""Writes snapshots of owned slots, one at a time: periodically, and on the master's request.

A snapshot is of one moment, and is written only after all copies have applied its contents, so that no
snapshot is ahead of a backup that may be promoted. Slots without changes are skipped. A failed write keeps
the previous snapshot, is retried later, and never stops training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from elastane.tables.sections import Section
from elastane.tables.snapshot_file import SlotSnapshotError
from elastane.tables.snapshots import SavedFile, SnapshotWriter, collect, newest
from elastane.tables.spec import ModelSpec
from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder
from elastane_proto.v1 import ps_pb2
from elastane_ps.held import HeldSlot, Holdings
from elastane_ps.reading import read_slot
from elastane_slots.held_slots import SlotRecord

_log = structlog.get_logger(__name__)

#: Folder of periodic snapshots, below the job's URL.
CADENCE_FOLDER: Final = "slots"
#: Interval of the checks for slots that are due, in seconds.
_LOOK_SECONDS: Final = 0.1
#: Seconds to wait at the end for a snapshot being written, because storage may hang.
_CLOSE_SECONDS: Final = 10.0
_BACKOFF_SECONDS: Final = 5.0
_BACKOFF_SECONDS_MAX: Final = 300.0


@dataclass
class _Chain:
    """The snapshots of one slot by this owner. mark: of the weights at the last snapshot."""

    held: HeldSlot
    writer: SnapshotWriter
    mark: int = 0
    due: float = 0.0
    saved: int = -1


@dataclass
class Failing:
    """Snapshots have failed since `since` (wall clock), most recently with `error`."""

    since: float
    error: str
    seconds: float = field(default=_BACKOFF_SECONDS)
    again: float = 0.0


class Saving:
    """url: of the job's folder; "": nothing is saved. saved: called with each periodic SlotsSaved."""

    def __init__(
        self,
        holdings: Holdings,
        url: str,
        seconds: float,
        saved: Callable[[ps_pb2.SlotsSaved], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._holdings, self._seconds, self._saved, self._clock = holdings, seconds, saved, clock
        self._folder = Folder(url, SlotSnapshotError) if url else None
        self._chains: dict[int, _Chain] = {}
        #: Guards the chains; one snapshot is written at a time.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.failing: Failing | None = None
        #: Number of snapshots written by this process.
        self.written = 0
        self._thread: threading.Thread | None = None
        if self._folder is not None and seconds > 0:
            self._thread = threading.Thread(target=self._run, name="elastane-ps-saving", daemon=True)
            self._thread.start()

    @property
    def versions(self) -> dict[int, int]:
        """Version of the newest snapshot of each slot that this process has saved."""
        return {slot: chain.saved for slot, chain in list(self._chains.items()) if chain.saved >= 0}

    def close(self) -> None:
        """Write nothing more."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def save(self, request: str, folder: str) -> ps_pb2.SlotsSaved:
        """Save all owned slots on the master's request: below `folder`, or with the periodic snapshots."""
        answer = ps_pb2.SlotsSaved(request=request)
        if self._folder is None:
            answer.error = "this job has no folder for snapshots"
            return answer
        for held in self._owned():
            try:
                with self._lock:
                    if folder and folder != CADENCE_FOLDER:
                        saved = self._elsewhere(held, folder)
                    else:
                        saved = self._next(held, applied=True)
            except ElastaneError as error:
                answer.error = str(error)
                continue
            if saved is not None:
                answer.slots.append(saved)
        return answer

    def write_manifest(self, request: str, folder: str, manifest: bytes) -> ps_pb2.SlotsSaved:
        """Write the manifest of a checkpoint into its folder."""
        answer = ps_pb2.SlotsSaved(request=request)
        try:
            if self._folder is None:
                raise SlotSnapshotError("this job has no folder for snapshots")
            self._folder.within(folder).write("manifest", [manifest])
        except ElastaneError as error:
            answer.error = str(error)
        return answer

    def restore(
        self, spec: ModelSpec, slot: int, source: str
    ) -> tuple[HeldSlot | None, str, tuple[str, ...]]:
        """Read the newest usable snapshot of a slot. source: a checkpoint, or "" for periodic snapshots.

        Returns it, its name, and why newer ones are unusable. Raises SlotSnapshotError if the storage fails.
        """
        if self._folder is None:
            return None, "", ()
        folder = self._folder.within(source or CADENCE_FOLDER)
        found, rejected = newest(folder, spec, slot, self._holdings.arenas)
        if found is None:
            return None, "", rejected
        return (
            HeldSlot(slot, found.record, found.weights),
            f"{source or CADENCE_FOLDER}/{found.name}",
            rejected,
        )

    # ------------------------------------------------------------------ the cadence

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            now = self._clock()
            if self.failing is not None and now < self.failing.again:
                continue
            for held in self._owned():
                if self._closing.is_set():
                    return
                if self._is_due(held, now) and not self._try(held):
                    break

    def _try(self, held: HeldSlot) -> bool:
        try:
            with self._lock:
                saved = self._next(held, applied=False)
        except Exception as error:  # noqa: BLE001 - whatever the storage's driver raises
            self._failed(error)
            return False
        self.failing = None
        if saved is not None:
            self._saved(ps_pb2.SlotsSaved(slots=[saved]))
        return True

    def _failed(self, error: Exception) -> None:
        failing = self.failing or Failing(time.time(), "", _BACKOFF_SECONDS / 2)
        failing.error = str(error)
        failing.seconds = min(failing.seconds * 2, _BACKOFF_SECONDS_MAX)
        failing.again = self._clock() + failing.seconds
        self.failing = failing
        _log.error("a snapshot could not be written; the one before stays", error=str(error))

    def _is_due(self, held: HeldSlot, now: float) -> bool:
        chain = self._chain(held)
        if chain is None:
            return False
        if not chain.due:
            # Slots are saved one after the other, spread over the interval.
            share = held.slot / max(1, len(self._holdings.map.places))
            chain.due = now + self._seconds * (0.5 + share)
        if now < chain.due:
            return False
        chain.due = now + self._seconds
        return held.record.version != chain.saved

    def _owned(self) -> list[HeldSlot]:
        with self._holdings.lock:
            return [held for _, held in sorted(self._holdings.owned.items())]

    def _chain(self, held: HeldSlot) -> _Chain | None:
        """Return the chain of a slot; a new one if the slot has left and come back."""
        spec = self._holdings.spec
        if self._folder is None or spec is None:
            return None
        chain = self._chains.get(held.slot)
        if chain is None or chain.held is not held:
            folder = self._folder.within(CADENCE_FOLDER)
            since = held.record.since
            writer = SnapshotWriter(folder, spec, held.slot, since=since, ps=self._holdings.ps_id)
            chain = self._chains[held.slot] = _Chain(held, writer)
        return chain

    def _next(self, held: HeldSlot, *, applied: bool) -> ps_pb2.SavedSlot | None:
        """Write the next file of a slot's chain. None if the slot has left meanwhile."""
        chain = self._chain(held)
        assert chain is not None and self._folder is not None
        with held.lock:
            size = held.weights.changed_since(chain.mark).bytes
        base = chain.writer.wants_base(size)
        moment = _read(held, 0 if base else chain.mark)
        if moment is None:
            return None
        try:
            saved = chain.writer.write(
                moment.life, moment.version, moment.record, [[s] for s in moment.sections], base=base
            )
        except BaseException:
            chain.writer.restart()
            raise
        self.written += 1
        chain.mark, chain.saved = moment.mark, moment.version
        if base:
            for path in collect(self._folder.within(CADENCE_FOLDER), held.slot):
                _log.debug("a snapshot was removed", snapshot=path)
        return _message(saved, CADENCE_FOLDER, moment.record if applied else b"")

    def _elsewhere(self, held: HeldSlot, folder: str) -> ps_pb2.SavedSlot | None:
        """Write the whole slot into a checkpoint's folder."""
        assert self._folder is not None and self._holdings.spec is not None
        moment = _read(held, 0)
        if moment is None:
            return None
        since, own = held.record.since, self._holdings.ps_id
        writer = SnapshotWriter(
            self._folder.within(folder), self._holdings.spec, held.slot, since=since, ps=own
        )
        saved = writer.write(
            moment.life, moment.version, moment.record, [[s] for s in moment.sections], base=True
        )
        self.written += 1
        return _message(saved, folder, moment.record)


@dataclass(frozen=True)
class _Moment:
    sections: Sequence[Section]
    record: bytes
    life: int
    version: int
    mark: int


def _read(held: HeldSlot, since: int) -> _Moment | None:
    """Read a slot's state at one moment, and wait until its copies have applied it."""
    sections: list[Section] = []
    moments: list[_Moment] = []
    barriers = []

    def take(section: Section) -> bool:
        sections.append(section)
        return True

    def last(rest: list[Section], mark: int) -> None:
        record = held.record
        moments.append(_Moment([*sections, *rest], record.encode(), record.life, record.version, mark))
        barriers.append(held.barrier())

    if not read_slot(held, take, last, since) or not held.wait(barriers[0]):
        return None
    return moments[0]


def _message(saved: SavedFile, folder: str, record: bytes) -> ps_pb2.SavedSlot:
    return ps_pb2.SavedSlot(
        slot=saved.name.slot,
        life=saved.name.life,
        version=saved.name.version,
        folder=f"{folder}/{saved.name.path}",
        bytes=saved.size,
        sha256=saved.digest,
        applied=SlotRecord.decode(record, since=0).applied.encode() if record else b"",
    )

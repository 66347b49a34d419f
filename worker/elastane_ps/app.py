"""A parameter server, whose slots follow the master's slot map.

    owner, served       serves the slot, which was restored here, copied here, or backed up here
    owner, restoring    reads the newest usable snapshot, once per life, and reports it; a later map says when
                        to serve it
    backup              applies what the owner sends
    owner, copying      sends the slot (`copying`); in a move the slot stays frozen until the next map
    none of these       drops the slot

If the map says that the owner serves a slot which it lacks, the process ends, and the slot is restored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import structlog

from elastane.slots.frames import ReplicateClose
from elastane.slots.map_message import ToldMap, map_from_proto, wire_of
from elastane.tables.journal_records import LifeBegun
from elastane.tables.row_arena import RowArenas
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.snapshots import OtherModelError
from elastane.tables.spec import ModelSpec
from elastane.tables.spec_proto import from_proto
from elastane_common.errors import ElastaneError
from elastane_common.process_tls import Offer
from elastane_proto.rendezvous import group_secret
from elastane_proto.v1 import ps_pb2
from elastane_ps.copying import Receiving, Sending
from elastane_ps.figures import Figures
from elastane_ps.held import Copy, HeldSlot, Holdings
from elastane_ps.journal import Journal
from elastane_ps.links import Links, PeerLink
from elastane_ps.memory import Room
from elastane_ps.replication import Replication
from elastane_ps.requests import PsFault, Requests, Settings
from elastane_ps.saving import Saving
from elastane_ps.serving import DataPort
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.slot_map import SlotPlace
from elastane_slots.tasks import TaskName

_log = structlog.get_logger(__name__)

#: Number of snapshots read at the same time.
_READERS: Final = 4
_RESTORE_AGAIN_SECONDS: Final = 2.0
_SAVE_AGAIN_SECONDS: Final = 5.0

#: Messages that are sent again after a reconnect.
Note = ps_pb2.SlotRestored | ps_pb2.SlotCopied


class Tell(Protocol):
    """Sends a message to the master, as `tell(restored=...)`; dropped while there is no session."""

    def __call__(
        self,
        *,
        restored: ps_pb2.SlotRestored | None = None,
        copied: ps_pb2.SlotCopied | None = None,
        copy_broken: ps_pb2.CopyBroken | None = None,
        backup_lost: ps_pb2.BackupLost | None = None,
        saved: ps_pb2.SlotsSaved | None = None,
        closed: ps_pb2.TasksClosed | None = None,
    ) -> None: ...


class PsServer:
    """A parameter server without its session with the master, which passes messages in. Thread-safe.

    host: address to listen at. key: of this process; its secret for the job is derived from it. process: a
    unique name, never reused. fault: called once when the process must end. room: memory for new rows. tls:
    whether it wants, or can take, encrypted connections.
    """

    def __init__(
        self,
        ps_id: str,
        job: str,
        host: str,
        key: bytes,
        *,
        tell: Tell,
        fault: Callable[[BaseException], None],
        process: str,
        room: Room | None = None,
        tls: Offer = "off",
    ) -> None:
        self.ps_id = ps_id
        self.holdings = Holdings(ps_id)
        self.figures = Figures()
        self._tell, self._fault, self._process = tell, fault, process
        self._told = ToldMap(self.holdings.map, ("",), {})
        self._model: ps_pb2.SlotModel | None = None
        self._settings: ps_pb2.PsSettings | None = None
        self._limits = Settings()
        self._saving: Saving | None = None
        self._journal: Journal | None = None
        self._links = Links(self._address_of, self._link_broken, encrypted=tls == "wanted")
        self._sending = Sending(self.holdings, self._links, self._copied, self._copy_broken)
        self._receiving = Receiving(self.holdings, self._copied)
        self._replication = Replication(self.holdings)
        #: By slot, the (life, since) for which its snapshot was read, and what was reported. Reading again
        #: could find another snapshot than the one by which tasks were reopened.
        self._read: dict[int, tuple[int, int]] = {}
        self._restored: dict[int, ps_pb2.SlotRestored] = {}
        #: Complete copies made by this process, by slot, until a map contains their result.
        self._complete: dict[int, ps_pb2.SlotCopied] = {}
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="elastane-restore")
        #: The last request to `save`.
        self._request = ""
        self._closing = threading.Event()
        #: True during the final save, in which slots stay frozen so that it includes all that was applied.
        self._leaving = False
        self._port = DataPort(
            host,
            group_secret(key, job),
            requests=Requests(self.holdings, self._limits, self.figures, room),
            replication=self._replication,
            receiving=self._receiving,
            figures=self.figures,
            fault=self._at_fault,
            tls=tls,
        )
        self.address = self._port.address

    def close(self) -> None:
        """End all threads and connections, without saving."""
        self._closing.set()
        self._port.close()
        self._links.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        with self.holdings.lock:
            # First, so that threads which wait for a copy stop, also those that save a slot.
            for held in (*self.holdings.owned.values(), *self.holdings.others.values()):
                held.release()
        if self._saving is not None:
            self._saving.close()
        if self._journal is not None:
            self._journal.close()

    # ------------------------------------------------------------------ what the master says

    def welcome(self, message: ps_pb2.PsWelcome) -> None:
        """Process the answer to PsHello: settings, model, map."""
        if self._settings is None:
            self._begin(message.settings)
        with self.holdings.lock:
            # Messages that the last stream may have lost; work that this map causes sends its own.
            notes: list[Note] = [*self._restored.values(), *self._complete.values()]
        if message.HasField("model"):
            self.set_model(message.model)
        self.learn(message.map)
        self._repeat(notes)

    def set_model(self, message: ps_pb2.SlotModel) -> None:
        """Set the model, which never changes. Raises PsModelError."""
        assert self._settings is not None
        if self._model is not None:
            return
        spec = from_proto(message, wire_of(self._settings))
        staleness = self._settings.staleness if self._settings.HasField("staleness") else None
        with self.holdings.lock:
            self._model = message
            if self._settings.journal and self._settings.snapshot_url:
                written = ps_pb2.PsWelcome(model=message, settings=self._settings)
                written.settings.ClearField("snapshot_url")
                name = f"{self.ps_id}-{self._process}"
                self._journal = Journal(self._settings.snapshot_url, name, written.SerializeToString())
                self._limits.journal = self._replication.journal = self._journal.add
            self._limits.dense_digest = message.dense_digest
            self.holdings.judge = HeldSlots(spec.slots, staleness)
            self.holdings.judge.learn(self.holdings.map.generation)
            self.holdings.arenas = RowArenas(spec)
            self.holdings.spec = spec
            self._follow()

    def learn(self, message: ps_pb2.SlotMap) -> None:
        """Adopt a map, unless it is not newer than the present one."""
        told = map_from_proto(message)
        with self.holdings.lock:
            if told.map.generation < self.holdings.map.generation or not told.map.places:
                return
            self._told = told
            self.holdings.map = told.map
            fences = (place.fence for place in told.map.places)
            self.holdings.lease_seen = max(self.holdings.lease_seen, *fences)
            if self.holdings.spec is not None:
                self._follow()
            self.holdings.judge.learn(told.map.generation)
            self.holdings.lock.notify_all()

    def save(self, message: ps_pb2.SaveSlots) -> None:
        """Save all slots and report it, without a time limit.

        Failures are reported. The last request is repeated until it succeeds, except for a checkpoint's.
        """
        assert self._saving is not None
        self._request = message.request
        while True:
            answer = self._saving.save(message.request, message.folder)
            self._tell(saved=answer)
            again = answer.error and not message.folder and self._settings and self._settings.snapshot_url
            if not again or self._closing.wait(_SAVE_AGAIN_SECONDS) or self._request != message.request:
                return

    def save_last(self) -> None:
        """Stop accepting requests and copies, and save the slots that no other process takes over."""
        with self.holdings.lock:
            self._leaving = self._receiving.ended = True
            for held in self.holdings.owned.values():
                with held.lock:
                    held.record.frozen = True
        if self.holdings.owned:
            self.save(ps_pb2.SaveSlots())

    def save_manifest(self, message: ps_pb2.SaveManifest) -> None:
        """Write a checkpoint's manifest, and report it."""
        assert self._saving is not None
        self._tell(saved=self._saving.write_manifest(message.request, message.folder, message.manifest))

    def close_tasks(self, message: ps_pb2.CloseTasks) -> None:
        """Refuse these tasks from now on; answers once the slots' copies have recorded it, too."""
        runs = [(run.dataset, run.epoch, run.start, run.end) for run in message.tasks]
        names = [TaskName(d, e, task) for d, e, start, end in runs for task in range(start, end)]
        answer = ps_pb2.TasksClosed(tasks=message.tasks)
        with self.holdings.lock:
            answer.generation = self.holdings.map.generation
            owned = sorted(self.holdings.owned.items())
        waiting = []
        for slot, held in owned:
            with held.lock:
                if held.gone or held.record.frozen:
                    continue  # the master asks the slot's next owner
                applied = [held.record.close(name) for name in names]
                held.send_to_copies(ReplicateClose(answer.generation, self.ps_id, slot, runs))
                closed = ps_pb2.ClosedSlot(slot=slot, applied=applied, life=held.record.life)
                waiting.append((held, closed, held.barrier()))
        for held, closed, barrier in waiting:
            if held.wait(barrier):
                answer.slots.append(closed)
        self._tell(closed=answer)

    # ------------------------------------------------------------------ what the master is told

    def held(self) -> Iterator[ps_pb2.HeldSlot]:
        """The slots held here with their weights, for PsHello."""
        with self.holdings.lock:
            for slot, held in self.holdings.owned.items():
                yield self._held(slot, held, backup=False)
            for slot, held in self.holdings.others.items():
                if self.holdings.map.places[slot].backup == self.ps_id:
                    yield self._held(slot, held, backup=True)

    def heartbeat(self) -> ps_pb2.PsHeartbeat:
        """Generation and figures."""
        saving = self._saving
        figures = self.figures.message(self.holdings, saving.versions if saving is not None else {})
        if saving is not None and saving.failing is not None:
            figures.unsaved_since.FromNanoseconds(int(saving.failing.since * 1e9))
            figures.unsaved_error = saving.failing.error
        return ps_pb2.PsHeartbeat(
            generation=self.holdings.map.generation, figures=figures, lease_seen=self.holdings.lease_seen
        )

    @property
    def saved_count(self) -> int:
        """Snapshots written so far."""
        return self._saving.written if self._saving is not None else 0

    @property
    def generation(self) -> int:
        return self.holdings.map.generation

    @property
    def lives(self) -> list[int]:
        """The lives of all slots in the newest map, for PsHello."""
        return [place.life for place in self.holdings.map.places]

    @property
    def holds_nothing(self) -> bool:
        """True if the process may leave: the map assigns it no slot, and none is in transit."""
        slots = self.holdings.map
        return not slots.held_by(self.ps_id) and all(place.target != self.ps_id for place in slots.places)

    @property
    def is_alone(self) -> bool:
        """True if there is no other process to which its slots could move."""
        return set(self._told.addresses) - self._told.draining <= {self.ps_id}

    @property
    def copies(self) -> bool:
        """True if a slot is being copied from or to this process."""
        return any(
            place.begun and self.ps_id in (place.owner, place.target, place.joining)
            for place in self.holdings.map.places
        )

    # ------------------------------------------------------------------ following the map

    def _begin(self, settings: ps_pb2.PsSettings) -> None:
        self._settings = settings
        self._limits.scale_by_staleness = settings.scale_by_staleness
        self._saving = Saving(
            self.holdings,
            settings.snapshot_url,
            settings.snapshot_seconds,
            lambda saved: self._tell(saved=saved),
        )

    def _follow(self) -> None:
        """Make the slots held match the map. Called with the lock of the holdings."""
        holdings = self.holdings
        for slot, place in enumerate(holdings.map.places):
            if place.owner == self.ps_id:
                if place.restoring:
                    self._restore(slot, place)
                else:
                    self._own(slot, place)
                continue
            if (held := holdings.owned.pop(slot, None)) is not None:
                self._give_up(slot, held, backs_up=place.backup == self.ps_id)
            if self.ps_id not in (place.backup, place.target, place.joining):
                if (other := holdings.others.pop(slot, None)) is not None:
                    other.release()
                self._restored.pop(slot, None)
            if (note := self._complete.get(slot)) is not None and not self._is_wanted(note):
                del self._complete[slot]

    def _give_up(self, slot: int, held: HeldSlot, *, backs_up: bool) -> None:
        """Stop owning a slot; its contents stay if this process is now a backup of it."""
        self.holdings.judge.release(slot)
        held.release()
        if backs_up:
            held.record.frozen = False
            self.holdings.others[slot] = HeldSlot(slot, held.record, held.weights)

    def _own(self, slot: int, place: SlotPlace) -> None:
        """Serve a slot, and keep its copies as the map says."""
        holdings = self.holdings
        held = holdings.owned.get(slot)
        if held is None:
            held = holdings.others.pop(slot, None)
            if held is None:
                self._at_fault(PsFault(f"slot {slot} is served here by the map, and is not here"))
                return
            note = self._restored.pop(slot, None)
            if self._journal is not None and note is not None and note.life == held.record.life:
                self._journal.add(LifeBegun(slot, note.life, note.version, note.snapshot_life))
            self._complete.pop(slot, None)
            held.refused = self._refused
            with held.lock:
                held.record.since, held.record.frozen = place.since, self._leaving
                held.record.fence = max(held.record.fence, place.fence)
                self._keep_copies(held, place)
                holdings.judge.hold(slot, held.record)
                holdings.owned[slot] = held
        else:
            with held.lock:
                held.record.fence = max(held.record.fence, place.fence)
                self._keep_copies(held, place)
                if not place.target and held.record.frozen and not self._leaving:
                    held.record.frozen = False
                held.lock.notify_all()
        if place.target or place.joining:
            self._sending.start(held, place)
        self._report_broken(held)

    def _keep_copies(self, held: HeldSlot, place: SlotPlace) -> None:
        """Make answers wait for exactly the copies that the map names."""
        for name, copy in list(held.copies.items()):
            if name != place.backup and (name != place.joining or copy.begun != place.begun):
                del held.copies[name]
        if place.backup and place.backup not in held.copies:
            # It held the slot before this process became the owner, and was equal at that moment.
            held.copies[place.backup] = Copy(self._links.to(place.backup, anew=True))

    def _repeat(self, notes: list[Note]) -> None:
        """Repeat messages that still matter, and report broken copies."""
        for note in notes:
            if isinstance(note, ps_pb2.SlotCopied):
                if self._is_wanted(note):
                    self._tell(copied=note)
            elif self._is_restoring(note.slot, note.life, note.since):
                self._tell(restored=note)
        with self.holdings.lock:
            owned = list(self.holdings.owned.values())
        for held in owned:
            self._report_broken(held)

    # ------------------------------------------------------------------ restoring

    def _restore(self, slot: int, place: SlotPlace) -> None:
        if self._read.get(slot) == (place.life, place.since):
            return
        self._read[slot] = place.life, place.since
        holdings = self.holdings
        if (held := holdings.owned.pop(slot, None)) is not None:
            holdings.judge.release(slot)
            held.release()
        if (other := holdings.others.pop(slot, None)) is not None:
            other.release()
        self._restored.pop(slot, None)
        assert holdings.spec is not None
        self._readers.submit(self._read_snapshot, holdings.spec, slot, place, self._told.sources[slot])

    def _read_snapshot(self, spec: ModelSpec, slot: int, place: SlotPlace, source: str) -> None:
        try:
            while not self._closing.is_set() and self._is_restoring(slot, place.life, place.since):
                try:
                    self._take_snapshot(spec, slot, place, source)
                    return
                except OtherModelError as error:
                    self._at_fault(error)
                    return
                except ElastaneError as error:
                    _log.error("a slot cannot be restored yet", slot=slot, error=str(error))
                    self._closing.wait(_RESTORE_AGAIN_SECONDS)
        except BaseException as error:  # noqa: BLE001 - of a thread that nobody waits for
            self._at_fault(error)

    def _take_snapshot(self, spec: ModelSpec, slot: int, place: SlotPlace, source: str) -> None:
        assert self._saving is not None
        began = time.monotonic()
        held, name, rejected = self._saving.restore(spec, slot, source)
        snapshot_life = -1
        if held is None:
            record = SlotRecord(place.life, place.fence, place.since)
            held = HeldSlot(slot, record, SlotWeights(spec, slot, self.holdings.arenas))
        else:
            snapshot_life = held.record.life
            if snapshot_life < place.life:
                held.record.restored(place.life, place.fence, place.since)
        note = ps_pb2.SlotRestored(
            slot=slot,
            life=place.life,
            version=held.record.version,
            applied=held.record.applied.encode(),
            snapshot=name,
            rejected=rejected,
            since=place.since,
            snapshot_life=snapshot_life,
        )
        with self.holdings.lock:
            if not self._is_restoring(slot, place.life, place.since):
                return
            # A snapshot of this life or a later one: the master starts a later life, and it is read again.
            if snapshot_life < place.life:
                self.holdings.others[slot] = held
            self._restored[slot] = note
        seconds = round(time.monotonic() - began, 3)
        _log.debug("a slot was restored", slot=slot, snapshot=name, seconds=seconds)
        self._tell(restored=note)

    def _is_restoring(self, slot: int, life: int, since: int) -> bool:
        place = self.holdings.map.places[slot]
        wanted = (place.owner, place.life, place.since)
        return place.restoring and wanted == (self.ps_id, life, since)

    # ------------------------------------------------------------------ copies

    def _copied(self, slot: int, process: str, begun: int, version: int) -> None:
        note = ps_pb2.SlotCopied(slot=slot, ps_id=process, begun=begun, version=version)
        with self.holdings.lock:
            self._complete[slot] = note
            if not self._is_wanted(note):
                del self._complete[slot]
                return
        self._tell(copied=note)

    def _is_wanted(self, note: ps_pb2.SlotCopied) -> bool:
        place = self.holdings.map.places[note.slot]
        return place.begun == note.begun and note.ps_id in (place.target, place.joining)

    def _copy_broken(self, slot: int, process: str, begun: int, error: str) -> None:
        place = self.holdings.map.places[slot]
        if place.begun == begun and process in (place.target, place.joining):
            self._tell(copy_broken=ps_pb2.CopyBroken(slot=slot, ps_id=process, begun=begun, error=error))

    def _refused(self, held: HeldSlot, copy: Copy) -> None:
        """Handle a copy that refuses what this process has applied."""
        self._report_broken(held)

    def _link_broken(self, link: PeerLink, error: Exception) -> None:
        with self.holdings.lock:
            owned = list(self.holdings.owned.values())
        for held in owned:
            with held.lock:
                for copy in held.copies.values():
                    copy.broken = copy.broken or copy.link is link
                held.lock.notify_all()
            self._report_broken(held, str(error))

    def _report_broken(self, held: HeldSlot, error: str = "it does not take what was applied") -> None:
        """Report incomplete copies to the master; answers wait until a map no longer contains them."""
        with held.lock:
            broken = [(name, copy.begun) for name, copy in held.copies.items() if copy.broken]
        place = self.holdings.map.places[held.slot]
        for name, begun in broken:
            if name == place.backup:
                lost = ps_pb2.BackupLost(slot=held.slot, ps_id=name, generation=self.generation, error=error)
                self._tell(backup_lost=lost)
            else:
                self._copy_broken(held.slot, name, begun, error)

    def _address_of(self, ps_id: str) -> tuple[str, bytes] | None:
        return self._told.addresses.get(ps_id)

    # ------------------------------------------------------------------ internals

    def _held(self, slot: int, held: HeldSlot, *, backup: bool) -> ps_pb2.HeldSlot:
        with held.lock:
            record = held.record
            return ps_pb2.HeldSlot(
                slot=slot,
                life=record.life,
                version=record.version,
                since=record.since,
                backup=backup,
                frozen=record.frozen,
            )

    def _at_fault(self, error: BaseException) -> None:
        if not self._closing.is_set():
            _log.error("this parameter server cannot go on", error=repr(error))
            self._fault(error)

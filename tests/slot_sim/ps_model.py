"""A parameter server in virtual time: the rules of `elastane_ps`, around the unmodified `HeldSlots`.

Weights are the names applied, in their order. What `elastane_ps` does with threads and tensors is done here
by callbacks of one virtual process: frames are messages on the `Wire`, the session is a stream of the
simulated network to the unmodified master, snapshots are on a `Disk` that outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from elastane_proto import versions
from elastane_proto.v1 import ps_pb2
from elastane_slots.applied import AppliedSet
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import DONE_VERDICTS, Answer, Pulled, Push, Verdict
from elastane_slots.slot_map import SlotMap, SlotPlace
from elastane_slots.tasks import TaskName
from sim.master_model import MasterModel
from sim.network import Ended, Network, Stream
from sim.process import Process
from sim.world import World
from slot_sim.checkers import SlotCheckers
from slot_sim.disk import COPY_SECONDS, Disk, Image
from slot_sim.wire import Wire

ATTEND = "/elastane.v1.SlotService/AttendSlots"
BEAT_SECONDS = 0.5
AGAIN_SECONDS = (0.02, 0.2, 1.0)


@dataclass
class Copy:
    """As `elastane_ps.held.Copy`."""

    begun: int = 0
    sent: int = 0
    acked: int = 0
    broken: bool = False


@dataclass
class Held:
    """A slot here: its record, its weights, and its copies at other processes."""

    record: SlotRecord
    names: list[TaskName]
    copies: dict[str, Copy] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[list[tuple[str, Copy, int]], Callable[[bool], None]]] = field(default_factory=list)
    gone: bool = False

    def barrier(self) -> list[tuple[str, Copy, int]]:
        return [(name, copy, copy.sent) for name, copy in self.copies.items() if copy.acked < copy.sent]

    def when(self, barrier: list[tuple[str, Copy, int]], then: Callable[[bool], None]) -> None:
        """Call `then` once all copies have what they were sent, or with False once the slot is gone."""
        self.waiting.append((barrier, then))
        self.look()

    def look(self) -> None:
        waiting, self.waiting = self.waiting, []
        for barrier, then in waiting:
            if self.gone:
                then(False)
            elif all(self.copies.get(name) is not copy or copy.acked >= sent for name, copy, sent in barrier):
                then(True)
            else:
                self.waiting.append((barrier, then))


class PsModel:
    """One process. peers: all that were started under each name, the newest counts.

    masters: those that a connection may reach now.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        wire: Wire,
        checkers: SlotCheckers,
        disk: Disk,
        masters: Callable[[], list[MasterModel]],
        peers: dict[str, PsModel],
        name: str,
        number: int,
        limit: int | None,
    ) -> None:
        self.world, self.network, self.wire, self.checkers, self.disk = world, network, wire, checkers, disk
        self.masters, self.peers, self.name = masters, peers, name
        self.token = f"{name}#{number}".encode()
        self.started_at = world.now
        self.process = Process(world, name)
        self.limit = limit
        self.map = SlotMap.empty(1)
        self.sources: tuple[str, ...] = ("",)
        self.addresses: dict[str, str] = {}
        self.judge: HeldSlots | None = None
        self.owned: dict[int, Held] = {}
        self.others: dict[int, Held] = {}
        self.read: dict[int, tuple[int, int]] = {}
        self.restored: dict[int, ps_pb2.SlotRestored] = {}
        self.complete: dict[int, ps_pb2.SlotCopied] = {}
        self.lease_seen = 0
        self.draining = False
        #: It saves what it has, and goes: it applies nothing any more.
        self.leaving = self.said_bye = False
        self.has_model = False
        self.stream: Stream | None = None
        self.welcomed = False
        #: What came with a newer map than this process knows.
        self.early: list[tuple[int, Callable[[], None]]] = []
        self.saves: set[str] = set()

    # ------------------------------------------------------------------ process

    def start(self) -> None:
        self.peers[self.name] = self
        self.world.log(f"{self.name} starts as {self.token.decode()}")
        self.process.call_soon(self._connect)
        self.process.call_later(BEAT_SECONDS, self._beat)

    @property
    def is_alive(self) -> bool:
        return self.process.alive

    def kill(self) -> None:
        """SIGKILL: its sockets are closed."""
        if not self.process.alive:
            return
        self.world.log(f"{self.token.decode()} is killed")
        self.process.kill()
        if self.stream is not None:
            self.stream.reset()
        for other in list(self.peers.values()):
            if other is not self and other.is_alive:
                self.world.after(
                    0.004, lambda other=other: other.process.call_soon(other._peer_gone, self.name)
                )

    def leave(self) -> None:
        """SIGTERM."""
        if self.process.alive and not self.draining:
            self.world.log(f"{self.name} is told to leave")
            self.process.call_soon(self._drain)

    def blip(self) -> None:
        """Break the connection to the master."""
        if self.stream is not None and self.process.alive:
            self.process.call_soon(self.stream.give_up, "connection reset")

    def _drain(self) -> None:
        self.draining = True
        self._say_leaving()
        self._look_whether_to_leave()

    def _say_leaving(self) -> None:
        self.tell(leaving=ps_pb2.PsLeaving(reason="asked"))

    def _look_whether_to_leave(self) -> None:
        slots = self.map
        nothing = not slots.held_by(self.name) and all(place.target != self.name for place in slots.places)
        alone = set(self.addresses) <= {self.name}
        copies = any(
            place.begun and self.name in (place.owner, place.target, place.joining) for place in slots.places
        )
        if self.welcomed and (nothing or (alone and not copies)):
            self._save_and_leave()
            return
        self.process.call_later(0.1, self._look_whether_to_leave)

    def _save_and_leave(self) -> None:
        self.leaving = True
        open_slots = set(self.owned)
        for held in self.owned.values():
            held.record.frozen = True

        def saved(slot: int) -> None:
            open_slots.discard(slot)
            if not open_slots:
                self._bye()

        for slot in sorted(self.owned):
            self._save(slot, "", then=lambda slot=slot: saved(slot))
        if not self.owned:
            self._bye()

    def _bye(self) -> None:
        self.said_bye = True
        self.tell(bye=ps_pb2.PsBye(reason="drained"))
        self.process.call_later(0.2, self.kill)

    # ------------------------------------------------------------------ session

    def _connect(self) -> None:
        masters = self.masters()
        if not masters:
            self.process.call_later(self.world.rng.choice(AGAIN_SECONDS), self._connect)
            return
        self.welcomed = False
        master = self.world.rng.choice(masters)
        self.stream = stream = Stream(
            self.network, self.process, master, self._received, self._ended, method=ATTEND
        )
        hello = ps_pb2.PsHello(
            job=self.checkers.job,
            ps_id=self.name,
            host="host",
            pid=1,
            address=f"{self.token.decode()}:1",
            key=self.token.ljust(32, b"k")[:32],
            process=self.token,
            process_clock="boot",
            version=str(versions.PROTOCOL),
            generation=self.map.generation,
            lease_seen=self.lease_seen,
            held=self._held(),
            lives=[place.life for place in self.map.places],
        )
        hello.process_started.FromNanoseconds(int(self.started_at * 1e9))
        stream.write(ps_pb2.AttendSlotsRequest(hello=hello).SerializeToString())

    def _held(self) -> list[ps_pb2.HeldSlot]:
        found = []
        for slot, held in self.owned.items():
            record = held.record
            found.append(
                ps_pb2.HeldSlot(slot=slot, life=record.life, version=record.version, since=record.since)
            )
        for slot, held in self.others.items():
            if self.map.places[slot].backup == self.name:
                record = held.record
                found.append(
                    ps_pb2.HeldSlot(
                        slot=slot, life=record.life, version=record.version, since=record.since, backup=True
                    )
                )
        return found

    def _received(self, payload: bytes) -> None:
        message = ps_pb2.AttendSlotsResponse.FromString(payload)
        match message.WhichOneof("message"):
            case "welcome":
                self._welcome(message.welcome)
            case "map":
                self.learn(message.map)
            case "model":
                self._set_model()
            case "save":
                self._save_all(message.save)
            case "save_manifest":
                saved = ps_pb2.SlotsSaved(request=message.save_manifest.request)
                self.tell(saved=saved)
            case "close":
                self._close(message.close)
            case "drain":
                if not self.draining:
                    self._drain()
            case "done":
                self.kill()

    def _ended(self, ended: Ended | None) -> None:
        self.welcomed = False
        if self.said_bye or (ended is not None and ended.detail.reason == "REASON_REPLACED"):
            self.kill()
            return
        text = str(ended)
        if "joined later as" in text:
            self.kill()
            return
        self.process.call_later(self.world.rng.choice(AGAIN_SECONDS), self._connect)

    def tell(self, **message: Any) -> None:
        """Send a message to the master; dropped while there is no session."""
        if self.stream is not None and self.welcomed:
            self.stream.write(ps_pb2.AttendSlotsRequest(**message).SerializeToString())

    def _beat(self) -> None:
        self.tell(heartbeat=ps_pb2.PsHeartbeat(generation=self.map.generation, lease_seen=self.lease_seen))
        self.process.call_later(BEAT_SECONDS, self._beat)

    def _welcome(self, welcome: ps_pb2.PsWelcome) -> None:
        self.welcomed = True
        notes = [*self.restored.values(), *self.complete.values()]
        if welcome.HasField("model"):
            self._set_model(follow=False)
        self.learn(welcome.map)
        for note in notes:
            if isinstance(note, ps_pb2.SlotCopied):
                if self._is_wanted(note):
                    self.tell(copied=note)
            elif self._is_restoring(note.slot, note.life, note.since):
                self.tell(restored=note)
        for slot, held in self.owned.items():
            self._report_broken(slot, held)
        if self.draining:
            self._say_leaving()

    def _set_model(self, *, follow: bool = True) -> None:
        if not self.has_model:
            self.has_model = True
            if follow and self.judge is not None:
                self._follow()

    # ------------------------------------------------------------------ following the map

    def learn(self, message: ps_pb2.SlotMap) -> None:
        """Take a map; an older one changes nothing."""
        if not message.places or message.generation < self.map.generation:
            return
        self.map = _map_of(message)
        self.lease_seen = max(self.lease_seen, *(place.fence for place in self.map.places))
        self.sources = tuple(place.source for place in message.places)
        self.addresses = {one.ps_id: one.address for one in message.processes if not one.draining}
        self.checkers.learned(self.token.decode(), self.map)
        if self.judge is None:
            self.judge = HeldSlots(len(self.map.places), self.limit)
        if self.has_model:
            self._follow()
        self.judge.learn(self.map.generation)
        early, self.early = self.early, []
        for generation, action in early:
            self._when_known(generation, action)

    def _when_known(self, generation: int, action: Callable[[], None]) -> None:
        """What comes with a newer map waits for it."""
        if generation <= self.map.generation:
            action()
        else:
            self.early.append((generation, action))

    def _follow(self) -> None:
        for slot, place in enumerate(self.map.places):
            if place.owner == self.name:
                if place.restoring:
                    self._restore(slot, place)
                else:
                    self._own(slot, place)
                continue
            if (held := self.owned.pop(slot, None)) is not None:
                self._give_up(slot, held, backs_up=place.backup == self.name)
            if self.name not in (place.backup, place.target, place.joining):
                if (other := self.others.pop(slot, None)) is not None:
                    self._release(other)
                self.restored.pop(slot, None)
            if (note := self.complete.get(slot)) is not None and not self._is_wanted(note):
                del self.complete[slot]

    def _give_up(self, slot: int, held: Held, *, backs_up: bool) -> None:
        assert self.judge is not None
        self.judge.release(slot)
        self._release(held)
        if backs_up:
            held.record.frozen = False
            self.others[slot] = Held(held.record, held.names)

    def _release(self, held: Held) -> None:
        held.gone = True
        held.look()

    def _own(self, slot: int, place: SlotPlace) -> None:
        assert self.judge is not None
        held = self.owned.get(slot)
        if held is None:
            held = self.others.pop(slot, None)
            if held is None:
                self.checkers.lacks(self.name, slot)
                self.kill()
                return
            self.restored.pop(slot, None)
            self.complete.pop(slot, None)
            held.record.since, held.record.frozen = place.since, self.leaving
            self.judge.hold(slot, held.record)
            self.owned[slot] = held
        elif not place.target and held.record.frozen and not self.leaving:
            held.record.frozen = False
        held.record.fence = max(held.record.fence, place.fence)
        for name, copy in list(held.copies.items()):
            if name != place.backup and (name != place.joining or copy.begun != place.begun):
                del held.copies[name]
        if place.backup and place.backup not in held.copies:
            held.copies[place.backup] = Copy()
        held.look()
        if place.target or place.joining:
            self._begin_copy(slot, held, place)
        self._report_broken(slot, held)

    # ------------------------------------------------------------------ restoring

    def _restore(self, slot: int, place: SlotPlace) -> None:
        assert self.judge is not None
        if self.read.get(slot) == (place.life, place.since):
            return
        self.read[slot] = place.life, place.since
        if (held := self.owned.pop(slot, None)) is not None:
            self.judge.release(slot)
            self._release(held)
        if (other := self.others.pop(slot, None)) is not None:
            self._release(other)
        self.restored.pop(slot, None)
        self.process.call_later(self.world.rng.choice(COPY_SECONDS), self._read, slot, place)

    def _read(self, slot: int, place: SlotPlace) -> None:
        if not self._is_restoring(slot, place.life, place.since):
            return
        image = self.disk.newest(slot)
        snapshot_life = -1
        if image is None:
            held = Held(SlotRecord(place.life, place.fence, place.since), [])
        else:
            held = Held(SlotRecord.decode(image.record, since=0), list(image.names))
            snapshot_life = held.record.life
            if snapshot_life < place.life:
                held.record.restored(place.life, place.fence, place.since)
        note = ps_pb2.SlotRestored(
            slot=slot,
            life=place.life,
            version=held.record.version,
            applied=held.record.applied.encode(),
            snapshot=image.name if image is not None else "",
            since=place.since,
            snapshot_life=snapshot_life,
        )
        if snapshot_life < place.life:
            self.others[slot] = held
        self.restored[slot] = note
        self.checkers.moment("slot read", self, slot)
        self.tell(restored=note)

    def _is_restoring(self, slot: int, life: int, since: int) -> bool:
        place = self.map.places[slot]
        return place.restoring and (place.owner, place.life, place.since) == (self.name, life, since)

    # ------------------------------------------------------------------ copies

    def _peer(self, name: str) -> PsModel | None:
        """The process under a name that the map names; None if it has gone."""
        peer = self.peers.get(name)
        return peer if peer is not None and peer.is_alive else None

    def _begin_copy(self, slot: int, held: Held, place: SlotPlace) -> None:
        name = place.target or place.joining
        if held.started.get(name) == place.begun:
            return
        held.started[name] = place.begun
        peer, begun, move = self._peer(name), place.begun, bool(place.target)
        if peer is None:
            self._copy_broken(slot, name, begun)
            return
        base = list(held.names)
        self.checkers.moment("copy begins", self, slot)
        seconds = self.disk.copy_seconds()
        self.process.call_later(seconds, self._last_part, slot, held, peer, begun, move, base)

    def _last_part(
        self, slot: int, held: Held, peer: PsModel, begun: int, move: bool, base: list[TaskName]
    ) -> None:
        """The rest, with the record, of one moment: a move freezes the slot, a backup is waited for."""
        place = self.map.places[slot]
        if held.gone or place.begun != begun or peer.name not in (place.target, place.joining):
            return
        record, rest = held.record.encode(), held.names[len(base) :]
        # Before there is this copy: a move waits for the backup, which may stay that of the new owner.
        barrier = held.barrier() if move else []
        if move:
            held.record.frozen = True
        else:
            held.copies[peer.name] = Copy(begun)
        names = [*base, *rest]
        generation = self.map.generation

        def answered(version: int) -> None:
            if version < 0:
                self._copy_broken(slot, peer.name, begun)
            elif not move:
                self._copied(slot, peer.name, begun, version)

        def arrive() -> None:
            peer._when_known(
                generation, lambda: peer._take_copy(self, slot, begun, move, record, names, answered)
            )

        def send(there: bool) -> None:
            if there and self.map.places[slot].begun == begun:
                self.checkers.moment("copy ends", self, slot)
                self.wire.send(self.process, peer.process, arrive, lambda: answered(-1))

        held.when(barrier, send)

    def _take_copy(
        self,
        owner: PsModel,
        slot: int,
        begun: int,
        move: bool,
        record: bytes,
        names: list[TaskName],
        answered: Callable[[int], None],
    ) -> None:
        place = self.map.places[slot]
        wanted = place.target if move else place.joining
        version = -1
        if self.leaving:
            wanted = ""  # it would be lost with it
        if (place.owner, wanted, place.begun) == (owner.name, self.name, begun) and slot not in self.owned:
            decoded = SlotRecord.decode(record, since=0)
            if (before := self.others.get(slot)) is not None:
                self._release(before)
            self.others[slot] = Held(decoded, list(names))
            version = decoded.version
            self.checkers.moment("copy taken", self, slot)
            if move:
                self._copied(slot, self.name, begun, version)
        self.wire.send(self.process, owner.process, lambda: answered(version))

    def _copied(self, slot: int, process: str, begun: int, version: int) -> None:
        note = ps_pb2.SlotCopied(slot=slot, ps_id=process, begun=begun, version=version)
        if self._is_wanted(note):
            self.complete[slot] = note
            self.tell(copied=note)

    def _is_wanted(self, note: ps_pb2.SlotCopied) -> bool:
        place = self.map.places[note.slot]
        return place.begun == note.begun and note.ps_id in (place.target, place.joining)

    def _copy_broken(self, slot: int, process: str, begun: int) -> None:
        place = self.map.places[slot]
        if place.begun == begun and process in (place.target, place.joining):
            self.tell(copy_broken=ps_pb2.CopyBroken(slot=slot, ps_id=process, begun=begun, error="broken"))

    def _peer_gone(self, name: str) -> None:
        """A connection to another process broke."""
        for slot, held in self.owned.items():
            if name in held.copies:
                held.copies[name].broken = True
            self._report_broken(slot, held)

    def _report_broken(self, slot: int, held: Held) -> None:
        place = self.map.places[slot]
        for name, copy in held.copies.items():
            if not copy.broken:
                continue
            if name == place.backup:
                lost = ps_pb2.BackupLost(slot=slot, ps_id=name, generation=self.map.generation, error="gone")
                self.tell(backup_lost=lost)
            else:
                self._copy_broken(slot, name, copy.begun)

    def _to_copies(self, slot: int, held: Held, change: Callable[[Held], bool]) -> None:
        """Have all copies make a change of the slot, in the order of changes."""
        generation = self.map.generation
        for name, copy in held.copies.items():
            copy.sent += 1
            peer = self._peer(name)
            if copy.broken or peer is None:
                continue
            self._replicate(slot, held, peer, copy, copy.sent, generation, change)

    def _replicate(
        self,
        slot: int,
        held: Held,
        peer: PsModel,
        copy: Copy,
        number: int,
        generation: int,
        change: Callable[[Held], bool],
    ) -> None:
        def told(applied: bool) -> None:
            if applied and not copy.broken:
                copy.acked = max(copy.acked, number)
            elif not copy.broken:
                copy.broken = True
                self._report_broken(slot, held)
            held.look()

        def arrive() -> None:
            peer._when_known(generation, lambda: peer._take_change(self, slot, change, told))

        self.wire.send(self.process, peer.process, arrive, lambda: told(False))

    def _take_change(
        self, owner: PsModel, slot: int, change: Callable[[Held], bool], told: Callable[[bool], None]
    ) -> None:
        held, place = self.others.get(slot), self.map.places[slot]
        applied = held is not None and place.owner == owner.name and change(held)
        self.wire.send(self.process, owner.process, lambda: told(applied))

    # ------------------------------------------------------------------ pulls and pushes

    def pull(
        self, slot: int, lease: int, generation: int, answer: Callable[[Verdict | Pulled], None]
    ) -> None:
        """Answer a pull: a verdict that refuses it, or the state that was pulled."""
        held = self.owned.get(slot)
        if held is None or self.judge is None:
            newer = self.judge is None or generation > self.judge.generation
            answer(Verdict.NOT_YET if newer else Verdict.MOVED)
        elif (refused := self.judge.judge_pull(slot, lease, generation)) is not None:
            answer(refused)
        else:
            pulled = held.record.pulled()
            held.when(held.barrier(), lambda there: answer(pulled if there else Verdict.MOVED))

    def push(self, slot: int, push: Push, attempt: int, answer: Callable[[Answer], None]) -> None:
        """Judge, apply and record a push; answered once all copies have it."""
        self.lease_seen = max(self.lease_seen, push.lease)
        held = self.owned.get(slot)
        if held is None or self.judge is None:
            newer = self.judge is None or push.generation > self.judge.generation
            answer(Answer(Verdict.NOT_YET if newer else Verdict.MOVED, self.map.generation))
            return
        told = self.judge.judge(slot, push)
        if told.verdict is Verdict.APPLIED:
            self._apply(slot, held, push, told, attempt)
        if told.verdict not in DONE_VERDICTS:
            self.checkers.refused_push(slot, push, told, attempt)
            answer(told)
            return

        def then(there: bool) -> None:
            if there:
                self.checkers.answered(self.token.decode(), slot, push, told)
                answer(told)
            else:
                answer(Answer(Verdict.MOVED, self.map.generation))

        held.when(held.barrier(), then)

    def _apply(self, slot: int, held: Held, push: Push, told: Answer, attempt: int) -> None:
        assert self.judge is not None
        self.checkers.applies(self.token.decode(), slot, held.names, push, told, attempt)
        self.judge.record(slot, push)
        held.names.append(push.name)
        self.checkers.moment("push applied" if attempt == 1 else "push of a second lease applied", self, slot)
        life, version, name = held.record.life, held.record.version, push.name

        def change(copy: Held) -> bool:
            record = copy.record
            if life != record.life or version != record.version + 1 or name in record.applied:
                return False
            record.applied.add(name)
            copy.names.append(name)
            return True

        self._to_copies(slot, held, change)

    # ------------------------------------------------------------------ closing, saving

    def _close(self, order: ps_pb2.CloseTasks) -> None:
        names = [
            TaskName(run.dataset, run.epoch, task)
            for run in order.tasks
            for task in range(run.start, run.end)
        ]
        answer = ps_pb2.TasksClosed(tasks=order.tasks, generation=self.map.generation)
        pending = [slot for slot in sorted(self.owned) if not self.owned[slot].record.frozen]
        left = len(pending)
        if not pending:
            self.tell(closed=answer)

        def closed(slot: int, life: int, applied: list[bool], there: bool) -> None:
            nonlocal left
            left -= 1
            if there:
                answer.slots.append(ps_pb2.ClosedSlot(slot=slot, life=life, applied=applied))
                self.checkers.closed(
                    slot, life, [n for n, has in zip(names, applied, strict=True) if not has]
                )
            if not left:
                self.tell(closed=answer)
                self.checkers.moment("tasks closed", self, slot)

        def change(copy: Held) -> bool:
            for name in names:
                copy.record.close(name)
            return True

        for slot in pending:
            held = self.owned[slot]
            applied = [held.record.close(name) for name in names]
            self._to_copies(slot, held, change)
            life = held.record.life
            held.when(
                held.barrier(),
                lambda there, slot=slot, life=life, applied=applied: closed(slot, life, applied, there),
            )

    def _save_all(self, order: ps_pb2.SaveSlots) -> None:
        answer = ps_pb2.SlotsSaved(request=order.request)
        slots = sorted(self.owned)
        left = len(slots)
        if not slots:
            self.tell(saved=answer)

        def saved(slot: int, image: Image | None) -> None:
            nonlocal left
            left -= 1
            if image is not None:
                record = SlotRecord.decode(image.record, since=0)
                answer.slots.append(
                    ps_pb2.SavedSlot(
                        slot=slot,
                        life=record.life,
                        version=record.version,
                        folder=f"{order.folder}/{slot}",
                        bytes=len(image.record),
                        sha256=b"s" * 32,
                        applied=record.applied.encode(),
                    )
                )
            if not left:
                self.tell(saved=answer)

        for slot in slots:
            self._save_then(slot, saved)

    def save_some(self) -> None:
        """The cadence: save one slot now."""
        if self.owned:
            self._save(self.world.rng.choice(sorted(self.owned)), "", then=lambda: None)

    def _save(self, slot: int, request: str, then: Callable[[], None]) -> None:
        def saved(slot: int, image: Image | None) -> None:
            if image is not None:
                record = SlotRecord.decode(image.record, since=0)
                part = ps_pb2.SavedSlot(slot=slot, life=record.life, version=record.version)
                self.tell(saved=ps_pb2.SlotsSaved(request=request, slots=[part]))
            then()

        self._save_then(slot, saved)

    def _save_then(self, slot: int, then: Callable[[int, Image | None], None]) -> None:
        """Record and weights of one moment, written once all copies have them."""
        held = self.owned[slot]
        record, names = held.record.encode(), tuple(held.names)
        life, version, since = held.record.life, held.record.version, held.record.since

        def write(there: bool) -> None:
            if not there:
                then(slot, None)
                return
            image = Image(life, version, since, self.token.decode(), record, names)
            self.process.call_later(self.disk.seconds(), written, image)

        def written(image: Image) -> None:
            self.checkers.written(slot, image)
            self.disk.write(slot, image)
            then(slot, image)

        held.when(held.barrier(), write)


def names_of(applied: AppliedSet) -> Iterable[TaskName]:
    """Yield the names of a set."""
    for run in applied.runs():
        for task in range(run.start, run.end):
            yield TaskName(run.dataset, run.epoch, task)


def _map_of(message: ps_pb2.SlotMap) -> SlotMap:
    return SlotMap(
        message.generation,
        tuple(
            SlotPlace(
                owner=place.owner,
                backup=place.backup,
                target=place.target,
                joining=place.joining,
                begun=place.begun,
                life=place.life,
                fence=place.fence,
                since=place.since,
                restoring=place.restoring,
            )
            for place in message.places
        ),
    )

"""Parameter servers on real sockets, a master of a few lines, and workers that push.

The master keeps the map with the product's own `SlotMap`, and opens tasks again; it stores nothing. Servers
are `PsServer`s in this process: `kill` ends one without a word.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from elastane.slots.connection import PsConnection, Reply
from elastane.slots.frames import (
    CODE_OK,
    CODE_UNINITIALISED,
    CODES,
    Init,
    Inspect,
    Inspected,
    Pull,
    Pulled,
    Push,
    Pushed,
    SlotFrameError,
)
from elastane.slots.handshake import PsHandshakeError
from elastane.slots.wire import Piece, pad
from elastane.tables.layout import Ids, cut, padded, padded_sum
from elastane.tables.spec import ModelSpec
from elastane.tables.spec_proto import to_proto
from elastane_proto.rendezvous import group_secret
from elastane_proto.v1 import ps_pb2
from elastane_ps.app import PsServer
from elastane_shards.errors import IllegalTransition
from elastane_slots.applied import AppliedSet
from elastane_slots.held_slots import SlotRecord
from elastane_slots.pushes import Verdict
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskName
from unit.tables.models import ids_of, initial, rates

DATASET, JOB = "clicks", "job"
DIGEST = b"d" * 32
WAIT_SECONDS = 60.0
_threads = ThreadPoolExecutor(16)
DONE = {CODES[Verdict.APPLIED], CODES[Verdict.APPLIED_BEFORE]}
RETURNED = {CODES[Verdict.RESTORED], CODES[Verdict.TOO_OLD]}


class FakeMaster:
    """copies: of each slot. url, seconds: of snapshots. encrypted: servers and workers use TLS. faults: what
    servers could not go on with. held_from: the first task that no worker gets for now.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        copies: int = 1,
        url: str = "",
        seconds: float = 0.0,
        encrypted: bool = False,
        **settings: Any,
    ) -> None:
        self.encrypted = encrypted
        self.spec, self.copies = spec, copies
        self.settings = ps_pb2.PsSettings(snapshot_url=url, snapshot_seconds=seconds, **settings)
        self.map = SlotMap.empty(spec.slots)
        self.sources = [""] * spec.slots
        self.servers: dict[str, PsServer] = {}
        self.addresses: dict[str, tuple[str, bytes]] = {}
        self.draining: set[str] = set()
        self.leases = 0
        self.done: set[int] = set()
        self.held_from = sys.maxsize
        self.reopened: list[int] = []
        self.faults: list[BaseException] = []
        self.closed: list[ps_pb2.TasksClosed] = []
        self.saved: list[ps_pb2.SlotsSaved] = []
        self.restored: list[ps_pb2.SlotRestored] = []
        self.refused: list[str] = []
        self.changed = threading.Condition(threading.RLock())
        self._told: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ processes

    def add(self, ps_id: str) -> PsServer:
        key = ps_id.encode() * 8
        server = PsServer(
            ps_id,
            JOB,
            "127.0.0.1",
            key,
            tell=lambda **message: self._told.put((ps_id, message)),
            fault=self.faults.append,
            process=f"{ps_id}-{time.monotonic_ns()}",
            tls="wanted" if self.encrypted else "off",
        )
        with self.changed:
            self.servers[ps_id] = server
            self.addresses[ps_id] = (server.address, group_secret(key, JOB))
            self._set(self.map.adopted(self.servers))
            server.welcome(
                ps_pb2.PsWelcome(
                    map=self.proto(), model=to_proto(self.spec, dense_digest=DIGEST), settings=self.settings
                )
            )
        self.balance()
        return server

    def kill(self, ps_id: str) -> None:
        """It is gone, without a word; a moment later the master notices."""
        with self.changed:
            server = self.servers.pop(ps_id)
            self.addresses.pop(ps_id)
        server.close()
        with self.changed:
            self._set(self.map.left(ps_id, self.servers, self.leases))
        self.balance()

    def balance(self) -> None:
        with self.changed:
            staying = set(self.servers) - self.draining
            for wish in self.map.wishes(staying, self.copies, most=4):
                self._set(self.map.copying(wish))

    def rewind(self, source: str = "") -> None:
        with self.changed:
            self.sources = [source] * self.spec.slots
            self._set(self.map.rewound(self.leases))

    def settled(self) -> None:
        """Wait until all slots are where they should be."""

        def is_settled() -> bool:
            self.balance()
            served = all(place.served for place in self.map.places)
            moving = any(place.target or place.joining for place in self.map.places)
            return (
                served
                and not moving
                and not self.map.wishes(set(self.servers) - self.draining, self.copies, 1)
            )

        with self.changed:
            assert self.changed.wait_for(is_settled, WAIT_SECONDS), (self.map, self.faults)

    @contextmanager
    def holding(self, task: int) -> Iterator[None]:
        """Keep tasks from this one on within the block, so that workers still train at its end."""
        self.held_from = task
        yield
        with self.changed:
            self.held_from = sys.maxsize
            self.changed.notify_all()

    def trained(self, tasks: int) -> None:
        """Wait until as many tasks are done."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.done) >= tasks, WAIT_SECONDS), self.done

    def leasing(self, task: int) -> None:
        """Wait while the task is held."""
        with self.changed:
            assert self.changed.wait_for(lambda: task < self.held_from, WAIT_SECONDS)

    def served(self) -> None:
        with self.changed:
            served = self.changed.wait_for(lambda: all(p.served for p in self.map.places), WAIT_SECONDS)
            assert served, (self.map, self.faults)

    def close(self) -> None:
        self._told.put(None)
        self._thread.join()
        for server in self.servers.values():
            server.close()

    def proto(self) -> ps_pb2.SlotMap:
        message = ps_pb2.SlotMap(generation=self.map.generation)
        for place, source in zip(self.map.places, self.sources, strict=True):
            message.places.add(
                owner=place.owner,
                backup=place.backup,
                target=place.target,
                joining=place.joining,
                begun=place.begun,
                life=place.life,
                fence=place.fence,
                since=place.since,
                restoring=place.restoring,
                source=source,
            )
        for ps_id, (address, secret) in self.addresses.items():
            message.processes.add(ps_id=ps_id, address=address, secret=secret)
        return message

    # ------------------------------------------------------------------ what it is told

    def _hear(self) -> None:
        while (told := self._told.get()) is not None:
            ps_id, message = told
            ((kind, value),) = message.items()
            with self.changed:
                try:
                    getattr(self, f"_hear_{kind}")(ps_id, value)
                except IllegalTransition as error:
                    self.refused.append(str(error))  # late
                self.changed.notify_all()
            self.balance()

    def _hear_restored(self, ps_id: str, note: ps_pb2.SlotRestored) -> None:
        self.restored.append(note)
        new = self.map.restored(note.slot, ps_id, note.life)
        applied = AppliedSet.decode(note.applied)
        for task in sorted(self.done):
            if TaskName(DATASET, 0, task) not in applied:
                self.done.discard(task)
                self.reopened.append(task)
        self._set(new)

    def _hear_copied(self, ps_id: str, note: ps_pb2.SlotCopied) -> None:
        staying = set(self.servers) - self.draining
        self._set(self.map.copied(note.slot, note.ps_id, note.begun, staying))

    def _hear_copy_broken(self, ps_id: str, note: ps_pb2.CopyBroken) -> None:
        if self.map.places[note.slot].begun == note.begun:
            self._set(self.map.cancelled(note.slot))

    def _hear_backup_lost(self, ps_id: str, note: ps_pb2.BackupLost) -> None:
        if self.map.places[note.slot].owner == ps_id:
            self._set(self.map.backup_lost(note.slot, note.ps_id))

    def _hear_saved(self, ps_id: str, note: ps_pb2.SlotsSaved) -> None:
        self.saved.append(note)

    def _hear_closed(self, ps_id: str, note: ps_pb2.TasksClosed) -> None:
        self.closed.append(note)

    def _set(self, new: SlotMap) -> None:
        if new is self.map:
            return
        new.validate()
        self.map = new
        message = self.proto()
        for server in self.servers.values():
            server.learn(message)
        self.changed.notify_all()


class Worker:
    """Pulls, computes and pushes tasks, one slot map behind at times.

    Values of gradients follow from what was pulled and from the task, so that two runs are equal only if all
    pulls were.
    """

    def __init__(self, master: FakeMaster, rows: int = 5) -> None:
        self.master, self.spec, self.rows = master, master.spec, rows
        self.map, self.addresses = master.map, dict(master.addresses)
        self._connections: dict[str, PsConnection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def refresh(self) -> None:
        with self.master.changed:
            self.map, self.addresses = self.master.map, dict(self.master.addresses)

    def connection(self, ps_id: str) -> PsConnection:
        connection = self._connections.get(ps_id)
        if (
            connection is None
            or connection.error is not None
            or connection.address != self.addresses[ps_id][0]
        ):
            if connection is not None:
                connection.close()
            connection = self._connections[ps_id] = PsConnection(
                *self.addresses[ps_id], encrypted=self.master.encrypted
            )
        return connection

    def by_owner(self, slots: Sequence[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for slot in sorted(slots):
            found.setdefault(self.map.places[slot].owner, []).append(slot)
        return found

    def each(self, slots: Sequence[int], ask: Callable[[PsConnection, list[int]], dict[int, bool]]) -> None:
        """Ask for slots at their owners until all are answered; `ask` says which are."""
        open_slots, until = list(slots), time.monotonic() + WAIT_SECONDS
        while open_slots:
            assert time.monotonic() < until, f"slots {open_slots} do not answer: {self.map}"
            for owner, own in self.by_owner(open_slots).items():
                try:
                    answered = ask(self.connection(owner), own)
                except (SlotFrameError, PsHandshakeError, OSError, KeyError):
                    continue
                open_slots = [slot for slot in open_slots if not answered.get(slot)]
            if open_slots:
                time.sleep(0.01)
                self.refresh()

    def initialise(self, seed: int = 0, slots: Sequence[int] | None = None) -> None:
        def ask(connection: PsConnection, own: list[int]) -> dict[int, bool]:
            body = [part for slot in own for part in pad(initial(self.spec, slot, seed))]
            reply = connection.send(Init(self.map.generation, DIGEST, own), body).result(WAIT_SECONDS)
            return {slot: code == CODE_OK for slot, code in reply.header.slots}  # type: ignore[union-attr]

        self.each(range(self.spec.slots) if slots is None else slots, ask)

    def ids(self, task: int, slot: int) -> list[tuple[int, Ids]]:
        generator = np.random.default_rng([task, slot])
        found = []
        for table in range(len(self.spec.tables)):
            known = ids_of(self.spec, table, slot, 200)
            if len(known):
                found.append((table, np.sort(generator.permutation(known)[: self.rows])))
        return found

    def pull(
        self, task: int, lease: int, slots: Sequence[int] | None = None
    ) -> dict[int, tuple[int, int, list[memoryview]]]:
        """(life, version, sections) by slot."""
        found: dict[int, tuple[int, int, list[memoryview]]] = {}

        def ask(connection: PsConnection, own: list[int]) -> dict[int, bool]:
            rows, body = self.rows_of({slot: self.ids(task, slot) for slot in own})
            asked = Pull(self.map.generation, lease, own, own, rows)
            reply = connection.send(asked, pad(body)).result(WAIT_SECONDS)
            assert isinstance(reply.header, Pulled)
            answered, seen = {}, {}
            for entry in reply.header.answers:
                answered.update(dict.fromkeys(entry.slots, entry.code == CODE_OK))
                if entry.code == CODE_UNINITIALISED:  # it began again without a snapshot
                    self.initialise(slots=entry.slots)
                if entry.code == CODES[Verdict.RESTORED]:
                    raise Returned
                if entry.code == CODE_OK:
                    seen.update(dict.fromkeys(entry.slots, (entry.life, entry.version)))
            for slot, sections in self.read(rows, own, sorted(seen), reply).items():
                found[slot] = (*seen[slot], sections)
            return answered

        self.each(range(self.spec.slots) if slots is None else slots, ask)
        return found

    def rows_of(
        self, ids: dict[int, list[tuple[int, Ids]]]
    ) -> tuple[list[tuple[int, list[int]]], list[memoryview]]:
        """Numbers of rows and ids by table, as a request has them."""
        rows, body = [], []
        for table in range(len(self.spec.tables)):
            own = [dict(found).get(table, np.empty(0, np.int64)) for found in ids.values()]
            rows.append((table, [len(one) for one in own]))
            if len(joined := np.concatenate(own)):
                body.append(memoryview(joined).cast("B"))
        return rows, body

    def read(
        self, rows: list[tuple[int, list[int]]], asked: list[int], there: list[int], reply: Reply
    ) -> dict[int, list[memoryview]]:
        """Sections of the slots in an answer: blocks, then rows by table."""
        rest, found = reply.body[0] if reply.body else memoryview(b""), dict[int, list[memoryview]]()
        for slot in there:
            sizes = self.spec.layout(slot).block_sizes
            found[slot] = cut(rest, sizes)
            rest = rest[padded_sum(sizes) :]
        for table, counts in rows:
            sizes = [counts[asked.index(slot)] * self.spec.layouts[0].wire_rows[table] for slot in there]
            at = 0
            for slot, size in zip(there, sizes, strict=True):
                if size:
                    found[slot].append(rest[at : at + size])
                at += size
            rest = rest[padded(at) :]
        return found

    def gradients(self, task: int, slot: int, sections: list[memoryview]) -> list[memoryview]:
        """Sections of a push."""
        layout = self.spec.layout(slot)
        generator = torch.Generator().manual_seed(task * 1000 + slot)
        made = []
        for number, section in enumerate(sections):
            values = torch.frombuffer(section, dtype=torch.float32)
            made.append(values * 0.01 + torch.randn(len(values), generator=generator))
            if number >= len(layout.blocks):
                _, ids = self.ids(task, slot)[number - len(layout.blocks)]
                made.insert(-1, torch.from_numpy(ids))
        return [memoryview(tensor.view(torch.uint8).numpy()) for tensor in made]

    def push(
        self,
        task: int,
        lease: int,
        pulled: dict[int, tuple[int, int, list[memoryview]]],
        slots: Sequence[int] | None = None,
        attempt: int = 1,
    ) -> int:
        """Push to all slots; return the sum of the lives in the answers. Raises Returned."""
        lives: dict[int, int] = {}
        made = {slot: self.gradients(task, slot, sections) for slot, (_, _, sections) in pulled.items()}

        def ask(connection: PsConnection, own: list[int]) -> dict[int, bool]:
            told = {slot: pulled[slot] for slot in own}
            header, body = self.push_of(task, lease, told, {slot: made[slot] for slot in own}, attempt)
            reply = connection.send(header, body).result(WAIT_SECONDS)
            assert isinstance(reply.header, Pushed)
            for entry in reply.header.answers:
                if entry.code in RETURNED:
                    raise Returned
                if entry.code in DONE:
                    lives.update(dict.fromkeys(entry.slots, entry.life))
            return {slot: entry.code in DONE for entry in reply.header.answers for slot in entry.slots}

        self.each(list(pulled) if slots is None else slots, ask)
        return sum(lives.values())

    def push_of(
        self,
        task: int,
        lease: int,
        pulled: dict[int, tuple[int, int, list[memoryview]]],
        made: dict[int, list[memoryview]] | None = None,
        attempt: int = 1,
    ) -> tuple[Push, list[Piece]]:
        """Header and body of a push of these slots."""
        if made is None:
            made = {slot: self.gradients(task, slot, sections) for slot, (_, _, sections) in pulled.items()}
        layouts, own = self.spec.layouts, sorted(pulled)
        rows, _ = self.rows_of({slot: self.ids(task, slot) for slot in own})
        body = [part for slot in own for part in made[slot][: len(layouts[slot].blocks)]]
        rest = {slot: made[slot][len(layouts[slot].blocks) :] for slot in own}
        for _, counts in rows:
            with_rows = [slot for slot, count in zip(own, counts, strict=True) if count]
            for _ in range(2):  # ids, gradients
                body.append(memoryview(b"".join([rest[slot].pop(0) for slot in with_rows])))
        blocks = [(slot, layouts[slot].bitmap(range(len(layouts[slot].blocks)))) for slot in own]
        header = Push(
            self.map.generation,
            lease,
            attempt,
            DATASET,
            0,
            task,
            rates(self.spec),
            own,
            [pulled[slot][:2] for slot in own],
            [(slot, bitmap) for slot, bitmap in blocks if bitmap],
            rows,
        )
        return header, pad(body)

    def start(self, tasks: Sequence[int]) -> Future[None]:
        """Run in a thread."""
        return _threads.submit(self.run, tasks)

    def run(self, tasks: Sequence[int]) -> None:
        """Do tasks one after the other, as the master leases them; those opened again come first."""
        todo = list(tasks)
        while todo:
            task = todo.pop(0)
            with self.master.changed:
                self.master.leasing(task)
                self.master.served()
                self.master.leases += 1
                lease = self.master.leases
            self.refresh()
            try:
                lives = self.push(task, lease, self.pull(task, lease))
            except Returned:
                todo.insert(0, task)
                continue
            with self.master.changed:
                if lives == self.master.map.lives_sum:
                    self.master.done.add(task)
                    self.master.changed.notify_all()
                else:
                    todo.insert(0, task)
                todo[:0] = [again for again in self.master.reopened if again not in todo]
                self.master.reopened.clear()

    def inspect(self) -> dict[int, Inspected]:
        """Record and digest of every slot."""
        found: dict[int, Inspected] = {}

        def ask(connection: PsConnection, own: list[int]) -> dict[int, bool]:
            for slot in own:
                reply: Reply = connection.send(Inspect(slot)).result(WAIT_SECONDS)
                assert isinstance(reply.header, Inspected)
                if reply.header.record:
                    found[slot] = reply.header
            return {slot: slot in found for slot in own}

        self.each(range(self.spec.slots), ask)
        return found

    def digests(self) -> list[str]:
        return [entry.digest for _, entry in sorted(self.inspect().items())]

    def applied(self) -> list[set[int]]:
        """Tasks that each slot has applied."""
        result = []
        for _, entry in sorted(self.inspect().items()):
            record = SlotRecord.decode(entry.record, since=0)
            runs = [range(run.start, run.end) for run in record.applied.runs()]
            result.append({task for run in runs for task in run})
        return result


class Returned(Exception):  # noqa: N818 - as the protocol calls it
    """The task is given back, uncounted."""


@contextmanager
def cluster(spec: ModelSpec, processes: int = 1, **options: Any) -> Iterator[tuple[FakeMaster, Worker]]:
    """A master, servers `ps-0`.., and a worker; all slots are initialised and where they should be."""
    master = FakeMaster(spec, **options)
    try:
        for number in range(processes):
            master.add(f"ps-{number}")
        master.settled()
        worker = Worker(master)
        worker.refresh()
        worker.initialise()
        yield master, worker
        worker.close()
        assert not master.faults
    finally:
        master.close()

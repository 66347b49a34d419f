"""Schedules of `schedules` with several processes: owners, backups, moves, deaths, late news, and processes
that the master thinks dead and workers still reach.

Weights are the names applied, in their order. Every message waits in a queue of its own until it is its turn:
maps to processes and to workers, pushes to backups, copies, what processes tell the master. The rules of
owners and backups stand here once more, in a few lines each; the map, the judgement of pushes, the gate and
the re-opening are the product's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastane_shards.errors import IllegalTransition
from elastane_shards.intervals import IntervalSet
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import AGAIN_VERDICTS, DONE_VERDICTS, Answer, Push, Verdict
from elastane_slots.reopening import DoneTasks, missing
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskName
from unit.slots.schedules import DATASET, FAULT_RATE, Actor, Broken, Plan, Run

PROCESSES = 4
RESEND_RATE = 0.002


@dataclass
class ClusterPlan(Plan):
    """copies: of each slot. kills, cuts: of processes, and of their connection to the master alone."""

    copies: int = 1
    kills: int = 3
    cuts: int = 0
    joins: int = 3
    #: How readily processes learn a map.
    learns: float = 1.0
    #: Broken rules, for controls.
    waits_for_backups: bool = True
    waits_before_telling: bool = True
    stays_frozen: bool = True
    sets_move: bool = True
    reopens_first: bool = True
    late_copies_end: bool = True


@dataclass
class Replica:
    """A slot at a process that does not own it, or not yet: its record and its weights."""

    record: SlotRecord
    names: list[TaskName]


@dataclass
class Server:
    """A process. names: weights of the slots it owns. copies: slots that it has for others.

    synchronous: by slot, who must have applied a push before it is answered. waiting: answers that may leave.
    frozen_for: by slot, the copy that it is frozen for; copied_for: the copy to a backup that it has begun.
    maps: those it has not learned. cut: the master does not hear it.
    """

    name: str
    held: HeldSlots
    map: SlotMap
    names: dict[int, list[TaskName]] = field(default_factory=dict)
    copies: dict[int, Replica] = field(default_factory=dict)
    synchronous: dict[int, set[str]] = field(default_factory=dict)
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    frozen_for: dict[int, int] = field(default_factory=dict)
    copied_for: dict[int, int] = field(default_factory=dict)
    #: By slot: for which life, as given by which map, a snapshot was read.
    read: dict[int, tuple[int, int]] = field(default_factory=dict)
    maps: deque[SlotMap] = field(default_factory=deque)
    cut: bool = False


class ClusterRun(Run):
    plan: ClusterPlan

    def __init__(self, plan: ClusterPlan) -> None:
        super().__init__(plan)
        self.map = SlotMap.empty(plan.slots)
        self.servers: dict[str, Server] = {}
        #: What the master knows of; and all that has a process still.
        self.present: set[str] = set()
        self.started = 0
        self.kills, self.cuts, self.joins = plan.kills, plan.cuts, plan.joins
        self.links: dict[tuple[str, str], deque[tuple[int, Callable[[], None]]]] = {}
        self.to_master: dict[str, deque[Callable[[], None]]] = {}
        self.lost: list[str] = []
        self.stored: list[list[tuple[bytes, list[TaskName]]]] = [[] for _ in range(plan.slots)]
        self.known: dict[int, SlotMap] = {}  # by lease: the map of its worker
        #: By slot, life and task: whose push was applied.
        self.appliers: dict[tuple[int, int, TaskName], Actor] = {}
        self.busy: dict[int, str] = {}  # by lease: the process whose answer its worker waits for
        for _ in range(2):
            self._join()

    # ------------------------------------------------------------------ what can happen next

    def _possible(self) -> Iterator[Callable[[], None]]:
        yield from super()._possible()
        for server in self.servers.values():
            late = self.plan.learns < 1 and self.actors and self.rng.random() > self.plan.learns
            if server.maps and not server.cut and not late:
                yield lambda server=server: self._learn(server, server.maps.popleft())
        for (_, name), link in self.links.items():
            # What is sent with a newer map than the receiver's waits there.
            if link and (name not in self.servers or self._knows(name, link[0][0])):
                yield lambda link=link: link.popleft()[1]()
        for queue in self.to_master.values():
            if queue:
                yield lambda queue=queue: queue.popleft()()
        for name in self.lost:
            yield lambda name=name: self._left(name)
        if self.map.wishes(self.present, self.plan.copies, 2):
            yield self._wish
        faults = self.rng.random() < FAULT_RATE / 2
        if faults and self.kills and self._may_lose():
            yield self._kill
        if faults and self.cuts and self._may_lose():
            yield self._cut
        if faults and self.joins and len(self.present) < PROCESSES:
            yield self._join
        if self.rng.random() < FAULT_RATE:
            yield self._save
        if not self.present:
            yield self._join
        for server in self.servers.values():
            if server.waiting:
                yield lambda server=server: server.waiting.popleft()()

    def _may_lose(self) -> bool:
        """With copies one is lost at a time, so that no life may change."""
        if self.plan.copies == 1 or self.plan.restores:
            return bool(self.present)
        return (
            len(self.present) > 2
            and not self.lost
            and all(place.backup and place.served for place in self.map.places)
        )

    # ------------------------------------------------------------------ the master

    def _set_map(self, new: SlotMap) -> None:
        if new is self.map:
            return
        new.validate()
        self.map = new
        self.lives = [place.life for place in new.places]
        for name in sorted(self.present):
            self.servers[name].maps.append(new)

    def _join(self) -> None:
        self.joins -= bool(self.joins and self.started >= 2)
        name = f"ps-{self.started}"
        self.started += 1
        self.servers[name] = Server(name, HeldSlots(self.plan.slots, self.plan.limit), self.map)
        self.to_master[name] = deque()
        self.present.add(name)
        if self.started >= 2:
            self._set_map(self.map.adopted(self.present))
        self.servers[name].maps.append(self.map)

    def _kill(self) -> None:
        self.kills -= 1
        name = self.rng.choice(sorted(self.present))
        del self.servers[name]
        self._forget(name)

    def _cut(self) -> None:
        """The master hears nothing of it any more, but workers and other processes do."""
        self.cuts -= 1
        name = self.rng.choice(sorted(self.present))
        self.servers[name].cut = True
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.to_master.pop(name)
        self.present.discard(name)
        self.lost.append(name)

    def _left(self, name: str) -> None:
        self.lost.remove(name)
        self._set_map(self.map.left(name, self.present, self.leases))

    def _wish(self) -> None:
        for wish in self.map.wishes(self.present, self.plan.copies, 2):
            self._set_map(self.map.copying(wish))

    def _tell(self, server: Server, news: Callable[[], None]) -> None:
        if server.name in self.to_master:
            self.to_master[server.name].append(news)

    def _copied(self, slot: int, name: str, begun: int) -> None:
        try:
            self._set_map(self.map.copied(slot, name, begun, self.present))
        except IllegalTransition:
            return

    def _was_restored(
        self, slot: int, name: str, life: int, applied: list[TaskName], since: int, snapshot_life: int
    ) -> None:
        place = self.map.places[slot]
        if not place.restoring or (place.owner, place.life, place.since) != (name, life, since):
            return
        record = SlotRecord()
        for task in applied:
            record.applied.add(task)
        done = DoneTasks(DATASET, 0, IntervalSet((t.task, t.task + 1) for t in self.done), self.plan.tasks)
        if self.plan.reopens_first:
            for run in missing(done, record.applied):
                for index in range(run.start, run.end):
                    self.done.remove(TaskName(DATASET, 0, index))
                    self.reopened.append(TaskName(DATASET, 0, index))
        self._set_map(self.map.restored(slot, name, life))

    def _next(self) -> TaskName | None:
        return super()._next() if all(place.served for place in self.map.places) else None

    def _lease(self) -> None:
        super()._lease()
        self.known[self.leases] = self.map

    def _close(self) -> None:
        """Tell the owner of a slot; it answers once its backup knows."""
        name, slot = self.closing[self.rng.randrange(len(self.closing))]
        place = self.map.places[slot]
        server = self.servers.get(place.owner)
        if server is None or slot not in server.held or server.cut or server.held[slot].frozen:
            return
        server.held[slot].close(name)
        for copy in sorted(server.synchronous.get(slot, ())):
            self._link(server.name, copy, lambda copy=copy: self._close_copy(copy, slot, name))
        self._mark(server, slot, lambda: self._tell(server, lambda: self._is_closed(name, slot)))

    def _is_closed(self, name: TaskName, slot: int) -> None:
        if (name, slot) in self.closing:
            self.closing.remove((name, slot))
            if not any(waiting == name for waiting, _ in self.closing):
                self.gate.closed(name)

    def _close_copy(self, copy: str, slot: int, name: TaskName) -> None:
        server = self.servers.get(copy)
        if server is not None and slot in server.copies:
            server.copies[slot].record.close(name)

    # ------------------------------------------------------------------ processes

    def _link(self, source: str, target: str, message: Callable[[], None]) -> None:
        generation = self.servers[source].map.generation if source in self.servers else 0
        self.links.setdefault((source, target), deque()).append((generation, message))

    def _knows(self, name: str, generation: int) -> bool:
        server = self.servers[name]
        return server.cut or server.map.generation >= generation

    def _mark(self, server: Server, slot: int, then: Callable[[], None]) -> None:
        """Do something once all synchronous copies have what was sent to them so far."""
        copies = sorted(server.synchronous.get(slot, ())) if self.plan.waits_for_backups else []
        pending = set(copies)

        def arrived(copy: str) -> None:
            pending.discard(copy)
            if not pending:
                then()

        if not copies:
            then()
        for copy in copies:
            self._link(server.name, copy, lambda copy=copy: self._echo(server, copy, slot, arrived))

    def _echo(self, server: Server, copy: str, slot: int, arrived: Callable[[str], None]) -> None:
        there = self.servers.get(copy)
        if there is not None and slot in there.copies and self._accepts(there, slot, server.name):
            self._link(copy, server.name, lambda: arrived(copy) if server.name in self.servers else None)

    def _accepts(self, there: Server, slot: int, owner: str) -> bool:
        """A backup takes nothing from who is not the owner any more."""
        return there.map.places[slot].owner == owner

    def _learn(self, server: Server, new: SlotMap) -> None:
        server.map = new
        server.held.learn(new.generation)
        for slot, place in enumerate(new.places):
            if place.owner == server.name:
                self._own(server, slot, new)
            else:
                if slot in server.held:
                    record, names = server.held.release(slot), server.names.pop(slot)
                    record.frozen = False
                    if place.backup == server.name:
                        server.copies[slot] = Replica(record, names)
                server.synchronous.pop(slot, None)
                server.frozen_for.pop(slot, None)
                if server.name not in (place.backup, place.target, place.joining):
                    server.copies.pop(slot, None)

    def _own(self, server: Server, slot: int, new: SlotMap) -> None:
        place = new.places[slot]
        if place.restoring:
            if server.read.get(slot) == (place.life, place.since):
                return  # read once: the master opens tasks again by what it was told
            server.read[slot] = place.life, place.since
            server.copies.pop(slot, None)
            if slot in server.held:
                server.held.release(slot)
            stored, names = SlotRecord().encode(), list[TaskName]()
            if self.stored[slot]:
                stored, names = self.rng.choice(self.stored[slot][-3:])
            record = SlotRecord.decode(stored, since=place.since)
            told, snapshot_life = list(names), record.life if self.stored[slot] else -1
            if snapshot_life < place.life:
                record.restored(place.life, place.fence if self.plan.fences else 0, place.since)
                server.copies[slot] = Replica(record, list(names))
            news = slot, server.name, place.life, told, place.since, snapshot_life
            self._tell(server, lambda: self._was_restored(*news))
            return
        if slot not in server.held:
            replica = server.copies.pop(slot, None)
            if replica is None:
                raise Broken("a slot has an owner that does not have it")
            replica.record.since, replica.record.frozen = place.since, False
            server.held.hold(slot, replica.record)
            server.names[slot] = replica.names
        synchronous = server.synchronous.setdefault(slot, set())
        synchronous &= {place.backup, place.joining}
        if place.backup:
            synchronous.add(place.backup)
        if place.joining and server.copied_for.get(slot) != place.begun:
            server.copied_for[slot] = place.begun
            if self.plan.waits_before_telling:
                synchronous.add(place.joining)
            self._send_base(server, slot, place.joining)
            joining, begun = place.joining, place.begun

            def ready() -> None:
                self._tell(server, lambda: self._copied(slot, joining, begun))

            self._link(server.name, joining, lambda: self._link(joining, server.name, ready))
        record = server.held[slot]
        record.fence = max(record.fence, place.fence if self.plan.fences else 0)
        if place.target and server.frozen_for.get(slot) != place.begun:
            record.frozen = self.plan.stays_frozen
            server.frozen_for[slot] = place.begun
            target, begun = place.target, place.begun
            self._send_base(server, slot, target)
            there = target

            def installed() -> None:
                if there in self.servers:
                    self._tell(self.servers[there], lambda: self._copied(slot, target, begun))

            self._link(server.name, target, installed)
        elif not place.target and record.frozen:
            record.frozen = False
            server.frozen_for.pop(slot, None)

    def _send_base(self, server: Server, slot: int, target: str) -> None:
        begun = server.map.places[slot].begun
        stored, names = server.held[slot].encode(), list(server.names[slot])
        if not self.plan.sets_move:
            blank = SlotRecord(server.held[slot].life, server.held[slot].fence)
            stored = blank.encode()

        def install() -> None:
            there = self.servers.get(target)
            # A copy that is given up may still arrive.
            wanted = there is not None and there.map.places[slot].begun == begun
            if there is not None and slot not in there.held and (wanted or not self.plan.late_copies_end):
                there.copies[slot] = Replica(SlotRecord.decode(stored, since=0), list(names))

        self._link(server.name, target, install)

    def _save(self) -> None:
        owners = [(server, slot) for server in self.servers.values() for slot in server.held]
        if owners:
            server, slot = self.rng.choice(owners)
            image = (server.held[slot].encode(), list(server.names[slot]))
            self._mark(server, slot, lambda: self.stored[slot].append(image))

    # ------------------------------------------------------------------ workers

    def _step(self, actor: Actor) -> None:
        if actor.lease in self.busy:
            return
        if actor.pulls:
            self._pull(actor, actor.pulls[-1])
        elif actor.pushes:
            self._push(actor, actor.pushes[-1])
        else:
            self._report(actor)

    def _owner(self, actor: Actor, slot: int) -> Server | None:
        """The owner by the worker's map; if nobody answers there, it asks for the newest map."""
        known = self.known[actor.lease]
        server = self.servers.get(known.places[slot].owner)
        if server is None:
            self.known[actor.lease] = self.map
        return server

    def _pull(self, actor: Actor, slot: int) -> None:
        server = self._owner(actor, slot)
        known = self.known[actor.lease].generation
        refused = server.held.judge_pull(slot, 0, known) if server is not None else Verdict.MOVED
        if server is None or slot not in server.held or refused is not None:
            self.known[actor.lease] = self.map
            return
        pulled, before = server.held[slot].pulled(), len(server.names[slot])

        def answered() -> None:
            self.busy.pop(actor.lease, None)
            if actor.pulls and actor.pulls[-1] == slot:
                actor.pulls.pop()
                actor.pulled[slot] = pulled
                actor.values[slot] = before

        self.busy[actor.lease] = server.name
        self._mark(server, slot, lambda: server.waiting.append(answered))

    def _push(self, actor: Actor, slot: int) -> None:
        server = self._owner(actor, slot)
        if server is None:
            return
        known = self.known[actor.lease]
        push = Push(actor.name, actor.lease, known.generation, actor.pulled[slot])
        answer = server.held.judge(slot, push)
        if answer.verdict is Verdict.TOO_OLD and self.holders.get(actor.name) is actor:
            names = server.names[slot][actor.values[slot] :]
            self._check_late(answer.staleness, [self.appliers[slot, answer.life, name] for name in names])
        if answer.verdict is Verdict.APPLIED:
            server.held.record(slot, push)
            server.names[slot].append(actor.name)
            self.appliers[slot, answer.life, actor.name] = actor
            weights = self.weights[slot]
            weights.staleness.append((actor.name, answer.staleness))
            since = len(server.names[slot]) - 1 - actor.values[slot]
            if since != answer.staleness:
                raise Broken("a staleness is not what was applied since the pull")
            copies = sorted(server.synchronous.get(slot, ()))
            if not self.plan.waits_before_telling and (joining := server.map.places[slot].joining):
                copies.append(joining)
            for copy in copies:
                self._link(
                    server.name, copy, lambda copy=copy: self._replicate(server, copy, slot, actor.name)
                )
        self.busy[actor.lease] = server.name

        def answered() -> None:
            server.waiting.append(lambda: self._answered(actor, slot, answer))

        if answer.verdict in DONE_VERDICTS:
            self._mark(server, slot, answered)
        else:
            answered()

    def _replicate(self, server: Server, copy: str, slot: int, name: TaskName) -> None:
        there = self.servers.get(copy)
        if there is None or slot not in there.copies or not self._accepts(there, slot, server.name):
            return
        replica = there.copies[slot]
        if replica.record.applied.add(name):
            replica.names.append(name)

    def _check_late(self, staleness: int, appliers: list[Actor]) -> None:
        """A push of a live lease is too old. appliers: who was applied since its pull."""
        raise Broken("a push of a live lease was refused")

    def _answered(self, actor: Actor, slot: int, answer: Answer) -> None:
        self.busy.pop(actor.lease, None)
        if answer.verdict in AGAIN_VERDICTS:
            self.known[actor.lease] = self.map
            return
        if actor not in self.actors or not actor.pushes or actor.pushes[-1] != slot:
            return
        live = self.holders.get(actor.name) is actor
        if answer.verdict in DONE_VERDICTS:
            actor.pushes.pop()
            actor.lives[slot] = answer.life
            return
        self.refused[answer.verdict] = self.refused.get(answer.verdict, 0) + 1
        self.actors.remove(actor)
        if live:
            self._give_back(actor.name, counts=False)

    # ------------------------------------------------------------------ properties

    def check(self) -> None:
        for slot, place in enumerate(self.map.places):
            server = self.servers.get(place.owner)
            if not place.served or server is None or slot not in server.held or place.owner in self.lost:
                continue
            names = server.names[slot]
            if len(set(names)) < len(names):
                raise Broken("a task was applied twice")
            if set(names) != {
                TaskName(r.dataset, r.epoch, i)
                for r in server.held[slot].applied.runs()
                for i in range(r.start, r.end)
            }:
                raise Broken("the weights and the set differ")
            if server.map.places[slot].since == place.since and not self.done <= set(names):
                raise Broken("a task that is DONE is not applied")

    def outcome(self) -> ClusterRun:
        for _ in range(16_000):
            if self._is_over():
                break
            acts = list(self._possible())
            if not acts:
                break
            self.rng.choice(acts)()
            self._unanswered()
            self.gate.validate()
            self.check()
        else:
            raise Broken("it does not end")
        self._check_end()
        return self

    def _is_over(self) -> bool:
        everything = len(self.done) + len(self.failed) == self.plan.tasks
        return everything and not self.closing and not self.lost and all(p.served for p in self.map.places)

    def _unanswered(self) -> None:
        """A worker whose process has died, or is not answered for long, sends the same again."""
        for lease, name in list(self.busy.items()):
            if name not in self.servers or self.rng.random() < RESEND_RATE:
                del self.busy[lease]
                self.known[lease] = self.map

    def _check_end(self) -> None:
        everything = {TaskName(DATASET, 0, index) for index in range(self.plan.tasks)}
        if self.done | self.failed != everything:
            raise Broken(f"it stands still with {len(self.done)} tasks DONE")
        if self.worst > (self.plan.limit if self.plan.limit is not None else 10**9):
            raise Broken(f"a staleness of {self.worst}")
        if self.plan.copies == 2 and any(self.lives):
            raise Broken("a slot with a backup went back")


def run_cluster(plan: ClusterPlan) -> ClusterRun:
    """Run one schedule to its end. Raises Broken if a property does not hold."""
    return ClusterRun(plan).outcome()

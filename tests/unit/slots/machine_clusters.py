"""Schedules of `clusters` in which the master is the product's: every decision is made by a JobMachine.

Beside the faults of `clusters` the master is restarted, also from a snapshot of before, as a store leaves it
that has lost writes. After every event its books must agree with one another and with the queue.

A push of a live lease is too old for its slot only where pushes came before it whose leases the store has
lost: the gate leases as if there were none. They cannot be kept out, since whoever holds such a lease has
heard of it before the loss, and neither it nor the slot hears of the loss in time. Without them the push
must be within the limit. What is applied never exceeds it, whatever was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from elastane_master.decisions import events, slot_effects, slot_events
from elastane_master.decisions.lease_answers import LeaseResult
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.slot_model import DenseTensor, SlotModel
from elastane_master.decisions.slots import leasing
from elastane_proto.job_settings import JobSettings
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome, QueueStatus
from elastane_slots.applied import AppliedSet
from elastane_slots.held_slots import HeldSlots
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskName, TaskRun
from unit.slots.clusters import ClusterPlan, ClusterRun, Server
from unit.slots.schedules import DATASET, FAULT_RATE, Actor, Broken

OLD_SNAPSHOTS = 6
OTHER = "views"
OTHER_TASKS = 4


@dataclass
class MachinePlan(ClusterPlan):
    """restarts: of the master; losses: restarts from an older snapshot. epochs: of the data set.

    others: at some moment all workers leave the data set for another one, and come back once it is complete.
    """

    restarts: int = 0
    losses: int = 0
    epochs: int = 1
    others: bool = False


class MachineRun(ClusterRun):
    plan: MachinePlan

    def __init__(self, plan: MachinePlan) -> None:
        settings = JobSettings(
            ests=1,
            ps_slots=plan.slots,
            ps_staleness=plan.limit,
            ps_replicas=plan.copies - 1,
            checkpoint_url="memory://slots",
        )
        self.machine = JobMachine.create("job", settings, 0.0)
        self.now, self.requests = 1.0, 0
        self.sessions: dict[str, str] = {}
        self.attempts_of: dict[int, tuple[str, int]] = {}
        #: With the number of requests, of which the last may be the one that it was taken after.
        self.snapshots_before: deque[tuple[bytes, int]] = deque(maxlen=OLD_SNAPSHOTS)
        self.granted_by: dict[Actor, int] = {}
        #: Those whose lease the store has lost.
        self.unknown: set[Actor] = set()
        self.restarts, self.losses = plan.restarts, plan.losses
        self.started = 0
        self.told_copies: list[tuple[str, int, str, int]] = []
        self.doing: dict[TaskName, str] = {}
        self.dataset = DATASET
        super().__init__(plan)

    # ------------------------------------------------------------------ the master

    def do(self, event: events.Event) -> Any:
        """Decide on an event, carry its effects out, and check the books."""
        self.now += 0.001
        before = self.machine.state.slots.map
        decision = self.machine.handle(event, self.now)  # type: ignore[arg-type]
        if self.rng.random() < 0.02:
            snapshot = self.machine.snapshot()
            self.machine = JobMachine.restore(snapshot)
            if self.machine.snapshot() != snapshot:
                raise Broken("a snapshot is not read as it was written")
        for effect in decision.effects:
            match effect:
                case slot_effects.SendMap(told):
                    self._tell_map(told.map, before)
                case slot_effects.SendPs(ps, slot_effects.PsWelcome(told)):
                    self.servers[ps].maps.append(told.map)
                case slot_effects.SendPs(ps, slot_effects.CloseTasks() | slot_effects.SaveSlots() as order):
                    self.closing.append((ps, order))  # type: ignore[arg-type]
        if decision.durable and self.rng.random() < 0.3:
            self.snapshots_before.append((self.machine.snapshot(), self.requests))
        self._check_books()
        return decision.result

    def _tell_map(self, slot_map: SlotMap, before: SlotMap | None) -> None:
        """A map is told again, beside other processes, where one has left that held nothing."""
        if slot_map == before:
            return
        if before is not None and slot_map.generation <= before.generation:
            raise Broken("a map of an older generation was told")
        self.map = slot_map
        self.lives = [place.life for place in slot_map.places]
        for name in sorted(self.present):
            self.servers[name].maps.append(slot_map)

    def _check_books(self) -> None:
        book, queues = self.machine.state.slots, self.machine.queues.dynamic
        book.gate.validate()
        if book.map is not None:
            book.map.validate()
            self.map = book.map
            self.lives = [place.life for place in book.map.places]
        doing: dict[TaskName, str] = {}
        returned: set[TaskName] = set()
        self.done, self.failed = set(), set()
        for name, queue in queues.items():
            queue.validate()
            for epoch, tasks in queue._epochs():
                doing |= {TaskName(name, epoch, index): held.worker for index, held in tasks.doing.items()}
                returned |= {TaskName(name, epoch, index) for index in tasks.requeued}
            epoch, done, count, not_done = queue.done_tasks()
            self.done |= {TaskName(name, epoch, index) for index in done}
            for number in range(epoch):
                missing = not_done.get(number, ())
                self.done |= {TaskName(name, number, i) for i in range(count) if i not in missing}
            self.failed |= {
                TaskName(name, one.epoch, one.index)
                for one in queue.list_tasks(limit=1000)
                if one.state == "failed"
            }
        forgotten = returned - book.gate.returned.keys()
        self.forgotten += sorted(forgotten)
        if doing.keys() != book.gate.outstanding.keys() or not book.gate.returned.keys() <= returned:
            raise Broken("the gate and the queue differ")
        if forgotten and (not self.plan.others or self.plan.limit is None):
            raise Broken("the gate has forgotten tasks that nobody had to wait for")
        self.done_count = book.gate.finished
        self.doing = doing
        for name, actor in list(self.holders.items()):
            if doing.get(name) != self.attempts_of[actor.lease][0]:
                del self.holders[name]
        if not self.plan.losses:
            over = {name for name in self.done if name.dataset in book.finished}
            for slot, images in enumerate(self.stored):
                if over and not any(over <= set(names) for _, names in images):
                    raise Broken(f"workers are told of the end, and slot {slot} is not saved")

    def _request(self, dataset: str, worker: str, *reports: events.TaskReport, most: int = 0) -> LeaseResult:
        self.requests += 1
        event = events.TasksRequested(f"r{self.requests}", dataset, worker, reports, most)
        result = self.do(event)
        assert isinstance(result, LeaseResult)
        return result

    # ------------------------------------------------------------------ what can happen next

    def _possible(self) -> Iterator[Callable[[], None]]:
        yield from super()._possible()
        if self.rng.random() < FAULT_RATE / 2 and self.leases:
            if self.restarts:
                yield self._restart
            if self.losses and self.snapshots_before:
                yield self._lose_writes
        if len(self.holders) < len(self.doing):
            yield self._time_out

    def _join(self) -> None:
        if not self.started:
            dataset = QueueSettings(
                task_size=1,
                size=self.plan.tasks // self.plan.epochs,
                epochs=self.plan.epochs,
                lease_seconds=1e6,
                max_attempts=self.plan.attempts,
                pushes=True,
            )
            self.do(events.DatasetCreated("c", DATASET, dataset))
            self.other = events.DatasetCreated(
                "d", OTHER, msgspec.structs.replace(dataset, size=OTHER_TASKS, epochs=1)
            )
            if self.plan.others:
                self.do(self.other)
        self.joins -= bool(self.joins and self.started >= 2)
        name = f"ps-{self.started}"
        self.started += 1
        empty = SlotMap.empty(self.plan.slots)
        self.servers[name] = Server(name, HeldSlots(self.plan.slots, self.plan.limit), empty)
        self.to_master[name] = deque()
        self.present.add(name)
        self._hello(name)
        if self.started == 2:
            self._register()

    def _register(self) -> None:
        tensor = DenseTensor("w", (1,), "float32", "sgd")
        self.do(slot_events.ModelRegistered("w", SlotModel(self.plan.slots, 0, (tensor,))))

    def _hello(self, name: str) -> None:
        server = self.servers[name]
        self.sessions[name] = f"{name}-{self.now}"
        held = [
            slot_events.HeldSlot(slot, record.life, since=record.since)
            for slot in server.held
            for record in [server.held[slot]]
        ]
        held += [
            slot_events.HeldSlot(slot, copy.record.life, since=copy.record.since, backup=True)
            for slot, copy in server.copies.items()
            if not server.map.places[slot].restoring
        ]
        self.do(
            slot_events.PsJoined(
                name,
                self.sessions[name],
                address=name,
                process=name.encode(),
                held=tuple(held),
                generation=server.map.generation,
                lease_seen=self.leases,
                lives=tuple(place.life for place in server.map.places),
            )
        )
        for slot, (life, since) in server.read.items():
            place = server.map.places[slot]
            given = (place.owner, place.life, place.since) == (name, life, since)
            if place.restoring and given and slot in server.copies:
                again = slot, name, life, list(server.copies[slot].names), since, -1
                self._tell(server, lambda again=again: self._was_restored(*again))

    def _forget(self, name: str) -> None:
        super()._forget(name)
        self.do(slot_events.PsStreamLost(name, self.sessions.pop(name), "its stream broke"))

    def _left(self, name: str) -> None:
        self.lost.remove(name)
        self.now += 11.0
        self.do(events.Tick())

    def _wish(self) -> None:
        self.do(events.Tick())

    def _restart(self, snapshot: bytes = b"") -> None:
        """Another master takes over; every process says Hello again with what it has."""
        self.restarts -= not snapshot
        self.machine = JobMachine.restore(snapshot or self.machine.snapshot())
        self.closing.clear()
        self.do(events.MasterStarted("m"))
        for name in sorted(self.present):
            self.servers[name].maps.clear()
            self._hello(name)
            self._say_again(self.servers[name])
        for name in self.machine.state.slots.processes:
            if name not in self.present and name not in self.lost:
                self.lost.append(name)

    def _lose_writes(self) -> None:
        self.losses -= 1
        snapshot, last = self.rng.choice(list(self.snapshots_before))
        self.unknown |= {actor for actor, request in self.granted_by.items() if request > last}
        self._restart(snapshot)
        self.snapshots_before.clear()
        if self.plan.others and OTHER not in self.machine.queues.dynamic:
            self.do(self.other)
        if self.machine.state.slots.model is None:
            self._register()

        for actor in self.actors:
            if self.doing.get(actor.name) == self.attempts_of[actor.lease][0]:
                self.holders[actor.name] = actor

    def _time_out(self) -> None:
        """A lease ends that the store still has, and nobody works on."""
        name = self.rng.choice(sorted(self.doing.keys() - self.holders.keys()))
        held = self.machine.queues.dynamic[name.dataset]._tasks_of(name.epoch).doing[name.task]
        report = events.TaskReport(name.epoch, name.task, held.attempt, "timed out")
        self._request(name.dataset, held.worker, report)

    def _say_again(self, server: Server) -> None:
        """Copies that were complete, of which no master may have heard."""
        for told in self.told_copies:
            teller, slot, _, begun = told
            if teller == server.name and self.map.places[slot].begun == begun:
                self._tell(server, lambda told=told: self._copied(*told[1:]))

    # ------------------------------------------------------------------ what processes say

    def _copied(self, slot: int, name: str, begun: int) -> None:
        place = self.map.places[slot]
        teller = place.owner if place.joining == name else name
        self.told_copies.append((teller, slot, name, begun))
        if teller in self.sessions:
            self.do(slot_events.SlotCopied(teller, self.sessions[teller], slot, name, begun))

    def _was_restored(
        self, slot: int, name: str, life: int, applied: list[TaskName], since: int, snapshot_life: int
    ) -> None:
        names = AppliedSet()
        for task in applied:
            names.add(task)
        snapshot = "snapshot" if life or applied or snapshot_life >= 0 else ""
        self.do(
            slot_events.SlotRestored(
                name,
                self.sessions[name],
                slot,
                life,
                names.count,
                names.encode(),
                snapshot,
                (),
                since,
                snapshot_life,
            )
        )

    def _close(self) -> None:
        """An order of the master: to close tasks, or to save slots."""
        name, order = self.closing.pop(self.rng.randrange(len(self.closing)))  # type: ignore[assignment]
        server: Server | None = self.servers.get(name)  # type: ignore[call-overload]
        if server is None or server.cut:
            return
        if server.maps:  # what was said before it comes first
            self.closing.append((name, order))
            return
        for slot in list(server.held):
            if isinstance(order, slot_effects.CloseTasks):
                self._close_tasks(server, slot, order.tasks)
            elif not server.held[slot].frozen:
                self._save_slot(server, slot, order.request)  # type: ignore[attr-defined]

    def _close_tasks(self, server: Server, slot: int, runs: tuple[TaskRun, ...]) -> None:
        record = server.held[slot]
        if record.frozen:
            return
        names = [
            TaskName(run.dataset, run.epoch, index) for run in runs for index in range(run.start, run.end)
        ]
        part = slot_events.ClosedPart(slot, tuple(record.close(name) for name in names), record.life)
        for copy in sorted(server.synchronous.get(slot, ())):
            for name in names:
                self._link(server.name, copy, lambda copy=copy, name=name: self._close_copy(copy, slot, name))

        def tell() -> None:
            if server.name in self.sessions:
                self.do(slot_events.TasksClosed(server.name, self.sessions[server.name], runs, (part,)))

        self._mark(server, slot, lambda: self._tell(server, tell))

    def _save_slot(self, server: Server, slot: int, request: str) -> None:
        record = server.held[slot]
        image = (record.encode(), list(server.names[slot]))
        part = slot_events.SavedPart(slot, record.life, record.version)

        def tell() -> None:
            if server.name in self.sessions:
                session = self.sessions[server.name]
                self.do(slot_events.SlotsSaved(server.name, session, request, (part,)))

        def write() -> None:
            self.stored[slot].append(image)
            self._tell(server, tell)

        self._mark(server, slot, write)

    # ------------------------------------------------------------------ workers

    def _next(self) -> TaskName | None:
        if self.plan.others and self.rng.random() < FAULT_RATE / 10:
            self.dataset = OTHER
        if self.plan.others and self._status() is QueueStatus.COMPLETE:
            self.dataset = OTHER if self.dataset == DATASET else DATASET
        return TaskName(self.dataset, 0, 0) if self._status() is QueueStatus.HAS_TODO else None

    def _status(self) -> QueueStatus:
        book, queue = self.machine.state.slots, self.machine.queues.dynamic[self.dataset]
        return leasing.status(book, queue, self.dataset, self.now)

    def _lease(self) -> None:
        worker = f"w{self.requests}"
        tasks = self._request(self.dataset, worker, most=1).tasks
        if not tasks:
            if self._next() is not None and not self.plan.others:
                raise Broken("no task is leased, and none is waited for")
            return
        [task] = tasks
        if not all(place.served for place in self.map.places):
            raise Broken("a task is leased while a slot is not served")
        if task.number <= self.leases and not self.plan.losses:
            raise Broken("the number of a lease was there before")
        self.leases = max(self.leases, task.number)
        name = TaskName(self.dataset, task.epoch, task.index)
        slots = list(range(self.plan.slots))
        pulls, pushes = self.rng.sample(slots, len(slots)), self.rng.sample(slots, len(slots))
        actor = Actor(name, task.number, pulls, pushes, self.done_count)
        self.attempts_of[actor.lease] = worker, task.attempt
        self.known[actor.lease] = self.map
        self.actors.append(actor)
        self.granted_by[actor] = self.requests
        self.holders[name] = actor

    def _check_late(self, staleness: int, appliers: list[Actor]) -> None:
        assert self.plan.limit is not None
        if staleness - len(self.unknown.intersection(appliers)) > self.plan.limit:
            super()._check_late(staleness, appliers)

    def _tell_report(self, actor: Actor, **report: Any) -> Outcome:
        worker, attempt = self.attempts_of[actor.lease]
        made = events.TaskReport(actor.name.epoch, actor.name.task, attempt, **report)
        [outcome] = self._request(actor.name.dataset, worker, made).outcomes
        return outcome.outcome

    def _report(self, actor: Actor) -> None:
        self.actors.remove(actor)
        self._tell_report(actor, lives_sum=sum(actor.lives.values()))

    def _give_back(self, name: TaskName, *, counts: bool) -> None:
        actor = self.holders.pop(name)
        if counts:
            self._tell_report(actor, error="it died")
        else:
            self._tell_report(actor, error="a slot went back", returned=True)

    # ------------------------------------------------------------------ properties

    def _is_over(self) -> bool:
        book = self.machine.state.slots
        return self._all_finished() and not book.closings and not self.lost and not self.closing

    def _all_finished(self) -> bool:
        return self.machine.queues.dynamic.keys() <= self.machine.state.slots.finished.keys()

    def _check_end(self) -> None:
        tasks, epochs = self.plan.tasks // self.plan.epochs, range(self.plan.epochs)
        everything = {TaskName(DATASET, epoch, index) for epoch in epochs for index in range(tasks)}
        if self.plan.others:
            everything |= {TaskName(OTHER, 0, index) for index in range(OTHER_TASKS)}
        book = self.machine.state.slots
        if self.done | self.failed != everything or not self._all_finished():
            raise Broken(f"it stands still with {len(self.done)} tasks DONE: {leasing.waits(book)}")
        limit = self.plan.limit
        if limit is not None and self.worst > limit:
            raise Broken(f"a staleness of {self.worst}")
        if self.plan.copies == 2 and any(self.lives) and not (self.plan.restarts or self.plan.losses):
            raise Broken("a slot with a backup went back")
        for server in self.servers.values():  # a slot is held once its owner has heard of that
            while server.maps:
                self._learn(server, server.maps.popleft())
        for slot, place in enumerate(self.map.places):
            if place.owner not in self.servers or not place.served:
                raise Broken("a slot is not served in the end")
            names = set(self.servers[place.owner].names[slot])
            left = {name for name, slots in book.left_parts.items() if slot in slots}
            if names != self.done | left:
                raise Broken(f"slot {slot} has {names ^ (self.done | left)} beside what is told")


def run_machine(plan: MachinePlan) -> MachineRun:
    """Run one schedule to its end. Raises Broken if a property does not hold."""
    run = MachineRun(plan)
    run.outcome()
    return run

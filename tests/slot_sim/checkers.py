"""The checked properties of pushes to slots. They count beside the slots, in lists of names.

once             no name is twice in a slot's weights
done is applied  what is DONE is in every slot that is served, at every look
exact at rest    in the end a slot has what is DONE and what FAILED tasks have left in it, as it is listed
stale            nothing is applied that was pulled more than the limit of tasks before; no push of a live
                 lease is refused as too old, nor as restored in a slot that never was
one owner        of a state (slot, life, version) one process says that it has applied it
nothing back     with backups, whatever single process dies, no slot goes back
settles          after the faults: all is DONE, slots are where they belong, nothing is outstanding
serial           one worker alone: every slot applies the same tasks in the same order, but for those that
                 were torn: their worker died between two slots, or they were given back or opened again
monotone         generations and lives that a process is told never go back; a lease's number is of one lease
closed           what is told to be closed is not applied any more in that life, by whoever owns the slot
saved            workers are told of the end when every slot is saved with all that is DONE; so is every slot
                 when all processes have left in order. A snapshot is of one moment, and
                 a checkpoint that waits, too: what one of its slots applies after it is in none of it
no crash         nobody crashes, and nobody lacks a slot that the map says it serves
no refusal       a well-behaved caller's requests are not refused as wrong
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from elastane_master.decisions.machine import JobMachine
from elastane_shards.dynamic import DynamicQueue
from elastane_slots.assignment import holders
from elastane_slots.held_slots import SlotRecord
from elastane_slots.pushes import Answer, Push, Verdict
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskName
from sim.world import World

if TYPE_CHECKING:
    from sim.network import Ended, Stream
    from slot_sim.disk import Disk, Image
    from slot_sim.ps_model import PsModel

JOB, DATASET, OTHER = "job", "clicks", "views"
WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND)


@dataclass
class SlotCheckers:
    """All checkers of one run. lossy: the store may lose what it has acknowledged.

    went_back: slots that did, as maps tell. machine, now: the newest master's and its time; None while none
    serves.
    """

    world: World
    limit: int | None
    copies: int
    disk: Disk
    lossy: bool = False
    job: str = JOB
    machine: Callable[[], JobMachine | None] = lambda: None
    now: Callable[[], float] = lambda: 0.0
    servers: Callable[[], Collection[PsModel]] = list
    applied_count: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    worst: int = 0
    ends_told: int = 0
    went_back: set[int] = field(default_factory=set)
    #: Tasks whose pushes reached some slots earlier than others for a known cause.
    torn: set[TaskName] = field(default_factory=set)
    #: Called at moments of a parameter server's work: faults are aimed at them.
    moment: Callable[[str, PsModel, int], None] = lambda moment, server, slot: None
    _said: dict[tuple[int, int, int], str] = field(default_factory=dict)
    _closed: dict[tuple[int, int], set[TaskName]] = field(default_factory=dict)
    _told: dict[str, SlotMap] = field(default_factory=dict)
    _leases: dict[int, tuple[TaskName, int]] = field(default_factory=dict)
    _refusals: dict[str, int] = field(default_factory=dict)

    def fail(self, checker: str, text: str) -> None:
        self.world.fail(checker, text)

    # ------------------------------------------------------------------ what models say

    def applies(
        self, ps: str, slot: int, names: list[TaskName], push: Push, told: Answer, attempt: int
    ) -> None:
        """A push is applied to the weights `names` of a slot."""
        self.applied_count += 1
        self._count("applied")
        self.worst = max(self.worst, told.staleness)
        if push.name in names:
            self.fail("once", f"{ps} applies task {push.name.task} to slot {slot} again")
        since = len(names) - push.pulled.version if push.pulled is not None else 0
        if self.limit is not None and since > self.limit:
            self.fail("stale", f"{ps} applies to slot {slot} what is {since} tasks old")
        if push.name in self._closed.get((slot, told.life), ()) and self._owns(ps, slot):
            self.fail("closed", f"{ps} applies task {push.name.task} to slot {slot}, which has closed it")
        if self._is_saved(ps, slot):
            self.fail("saved", f"{ps} applies task {push.name.task} to slot {slot}, which a checkpoint has")
        lease = push.name, attempt
        if self._leases.setdefault(push.lease, lease) != lease:
            self.fail("monotone", f"lease {push.lease} is of two leases: {lease}, {self._leases[push.lease]}")

    def answered(self, ps: str, slot: int, push: Push, told: Answer) -> None:
        """A worker is told that its push was applied, now or before."""
        self._count(f"told {told.verdict}")
        if told.verdict is Verdict.APPLIED:
            state = slot, told.life, told.version
            if self._said.setdefault(state, ps) != ps:
                self.fail("one owner", f"{ps} and {self._said[state]} both said to have made {state}")

    def refused_push(self, slot: int, push: Push, told: Answer, attempt: int) -> None:
        """A push is not applied."""
        self._count(str(told.verdict))
        if self.lossy:
            return
        if told.verdict is Verdict.TOO_OLD and self._is_live(push, attempt):
            self.fail("stale", f"a push of a live lease of task {push.name.task} is too old for slot {slot}")
        if told.verdict is Verdict.RESTORED and told.life == 0 and self._is_live(push, attempt):
            self.fail("stale", f"slot {slot} refuses a push of a live lease as restored, and never was")

    def closed(self, slot: int, life: int, names: Collection[TaskName]) -> None:
        """A slot has told that it closed tasks that it had not applied."""
        self._closed.setdefault((slot, life), set()).update(names)

    def learned(self, ps: str, told: SlotMap) -> None:
        """A process takes a map."""
        before = self._told.get(ps)
        self._told[ps] = told
        if before is None:
            return
        if told.generation < before.generation:
            self.fail("monotone", f"{ps} was told map {told.generation} after {before.generation}")
        for slot, (old, new) in enumerate(zip(before.places, told.places, strict=False)):
            if old.served and new.life > old.life:
                self.went_back.add(slot)
            if new.life < old.life:
                self.fail("monotone", f"{ps} was told life {new.life} of slot {slot} after {old.life}")

    def lacks(self, ps: str, slot: int) -> None:
        self.fail("no crash", f"{ps} is told to serve slot {slot}, which it does not have")

    def told_of_the_end(self, dataset: str) -> None:
        """A worker was told that a data set is complete."""
        self.ends_told += 1
        machine = self.machine()
        if machine is not None:
            self.all_saved(machine, "the end is told", dataset)

    def all_saved(self, machine: JobMachine, when: str, dataset: str = "") -> None:
        """All that is DONE, of one data set or of all, must have been saved in every slot."""
        done = {name for name in done_of(machine) if dataset in ("", name.dataset)}
        for slot in range(len(machine.state.slots.map.places if machine.state.slots.map else ())):
            image = self.disk.written.get(slot)
            if image is None or not done <= set(image.names):
                self.fail("saved", f"{when}, and slot {slot} is not saved with all that is DONE")

    def written(self, slot: int, image: Image) -> None:
        """A snapshot is written."""
        if set(image.names) != set(_names(SlotRecord.decode(image.record, since=0))):
            self.fail("saved", f"a snapshot of slot {slot} has weights and a record of two moments")

    # ------------------------------------------------------------------ looks

    def look(self) -> None:
        """Look at all slots that are served now."""
        machine = self.machine()
        if machine is None or machine.state.slots.map is None:
            return
        done = done_of(machine)
        servers = {server.name: server for server in self.servers() if server.is_alive}
        for slot, place in enumerate(machine.state.slots.map.places):
            server = servers.get(place.owner)
            if not place.served or server is None or slot not in server.owned:
                continue
            if machine.state.slots.processes[place.owner].process != server.token:
                continue  # the master does not know yet that another process has its name
            names = server.owned[slot].names
            if len(set(names)) < len(names):
                self.fail("once", f"slot {slot} of {place.owner} has a task twice")
            if set(names) != set(_names(server.owned[slot].record)):
                self.fail("once", f"weights and record of slot {slot} of {place.owner} differ")
            known = server.map.places[slot]
            same = (known.since, known.life) == (place.since, place.life)
            if same and not done <= set(names):
                lost = sorted(name.task for name in done - set(names))[:5]
                self.fail("done is applied", f"slot {slot} of {place.owner} lacks DONE tasks {lost}")

    def finished(self, tasks: int, epochs: int, *, alone: bool, gentle: bool) -> None:
        """The end: alone: one worker, one task at a time. gentle: one process at a time was lost."""
        machine = self.machine()
        if machine is None or machine.state.slots.map is None:
            self.fail("settles", "no master serves the job")
            return
        self.look()
        book, queues = machine.state.slots, machine.queues.dynamic
        assert book.map is not None
        done = done_of(machine)
        failed = {TaskName(name, *one) for name, queue in queues.items() for one in queue.failed_tasks()}
        everything = {TaskName(DATASET, epoch, task) for epoch in range(epochs) for task in range(tasks)}
        if OTHER in queues:
            everything |= {TaskName(OTHER, epoch, task) for epoch in range(epochs) for task in range(tasks)}
        if done | failed != everything or done & failed:
            self.fail("settles", f"{len(done)} tasks are DONE and {len(failed)} FAILED of {len(everything)}")
        if book.gate.outstanding or book.gate.returned or book.gate.closing:
            self.fail("settles", "the gate is not empty")
        staying = book.staying()
        for slot, (place, wanted) in enumerate(
            zip(book.map.places, holders(len(book.map.places), staying, self.copies), strict=True)
        ):
            backup = wanted[1] if len(wanted) > 1 else ""
            if (place.owner, place.backup) != (wanted[0], backup):
                self.fail("settles", f"slot {slot} is at {place.owner}, {place.backup}, not at {wanted}")
        servers = {server.name: server for server in self.servers() if server.is_alive}
        orders = set()
        for slot, place in enumerate(book.map.places):
            names = servers[place.owner].owned[slot].names
            left = {name for name, slots in book.left_parts.items() if slot in slots}
            if set(names) != done | left:
                self.fail(
                    "exact at rest", f"slot {slot} has {set(names) ^ (done | left)} beside what is told"
                )
            if place.backup and servers[place.backup].others[slot].names != names:
                self.fail("exact at rest", f"the backup of slot {slot} is another")
            orders.add(tuple(name for name in names if not self._is_torn(name, queues[name.dataset])))
        if gentle and self.copies == 2 and self.went_back:
            self.fail("nothing back", "a slot went back, though all had backups")
        if alone and len(orders) > 1:
            self.fail("serial", "one worker's tasks were applied in different orders")

    # ------------------------------------------------------------------ of the master's model

    def sent(self, master: str, stream: Stream, message: Any) -> None:
        """Of a ring, which there is none of."""

    def heard(self, worker: str, message: Any) -> None:
        """As `sent`."""

    def refused(self, method: str, ended: Ended) -> None:
        self._refusals[method] = self._refusals.get(method, 0) + 1

    def refused_wrongly(self, what: str, ended: Ended) -> None:
        if ended.code in WRONG and not self.lossy:
            self.fail("no refusal", f"{what}: {ended}")

    # ------------------------------------------------------------------ inside

    def _count(self, verdict: str) -> None:
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1

    def _owns(self, token: str, slot: int) -> bool:
        """True if a process owns a slot by the master's map: what others apply meanwhile changes nothing."""
        machine = self.machine()
        if machine is None or machine.state.slots.map is None:
            return False
        owner = machine.state.slots.processes.get(machine.state.slots.map.places[slot].owner)
        return owner is not None and owner.process.decode() == token

    def _is_saved(self, ps: str, slot: int) -> bool:
        """True if a checkpoint has the slot, still lacks others, and was to have nothing in flight."""
        machine = self.machine()
        flight = machine.state.slots.checkpoint if machine is not None else None
        if machine is None or flight is None or flight.in_flight or self.lossy:
            return False
        return slot in flight.parts and not machine.state.slots.gate.outstanding and self._owns(ps, slot)

    def _is_torn(self, name: TaskName, queue: DynamicQueue) -> bool:
        return name in self.torn or queue.times_reopened(name.epoch, name.task) > 0

    def _is_live(self, push: Push, attempt: int) -> bool:
        machine = self.machine()
        if machine is None or push.name.dataset not in machine.queues.dynamic:
            return False
        queue = machine.queues.dynamic[push.name.dataset]
        for epoch, tasks in queue._epochs():
            held = tasks.doing.get(push.name.task) if epoch == push.name.epoch else None
            if held is not None and held.attempt == attempt and held.deadline > self.now():
                return True
        return False


def done_of(machine: JobMachine) -> set[TaskName]:
    """Return the DONE tasks, by the queues themselves."""
    found: set[TaskName] = set()
    for name, queue in machine.queues.dynamic.items():
        epoch, done, count, not_done = queue.done_tasks()
        found |= {TaskName(name, epoch, task) for task in done}
        for number in range(epoch):
            missing = not_done.get(number, ())
            found |= {TaskName(name, number, task) for task in range(count) if task not in missing}
    return found


def _names(record: Any) -> list[TaskName]:
    return [
        TaskName(run.dataset, run.epoch, task)
        for run in record.applied.runs()
        for task in range(run.start, run.end)
    ]

"""Seeded schedules of workers that lease, pull, push and report, while they die, wake up, and slots go back.

The queue here is lists and nothing else; the gate, the slots and the re-opening are those of the product. A
worker whose lease has ended goes on as it is, as one does that was frozen: it pulls, pushes and reports. The
checks know no internals: they count what was applied to each slot, in a list beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastane_shards.intervals import IntervalSet
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import DONE_VERDICTS, Pulled, Push, Verdict
from elastane_slots.reopening import DoneTasks, missing
from elastane_slots.staleness import StalenessGate
from elastane_slots.tasks import TaskName

DATASET = "clicks"
FAULT_RATE = 0.2


class Broken(AssertionError):  # noqa: N818 - as the checkers of the simulation say it
    """A property does not hold."""


@dataclass
class Plan:
    """What happens. deaths: of workers, or ends of leases; restores: of slots; attempts: until FAILED."""

    seed: int
    limit: int | None
    tasks: int = 10
    slots: int = 3
    workers: int = 4
    deaths: int = 8
    restores: int = 0
    attempts: int = 1000
    #: Nobody leases returned tasks before the others are over, as those of a data set that nobody asks for.
    deserted: bool = False
    gate: Callable[[int | None], StalenessGate] = lambda limit: StalenessGate(limit=limit)
    #: Broken rules, for controls.
    returned_first: bool = True
    fences: bool = True
    fences_ended: bool = True
    names: bool = True
    closes: bool = True
    lives: bool = True


@dataclass(eq=False)
class Actor:
    """A process at work on one lease, whether it still holds it or not."""

    name: TaskName
    lease: int
    pulls: list[int]
    pushes: list[int]
    done_before: int
    pulled: dict[int, Pulled] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)


@dataclass
class Weights:
    """What a slot holds: a number that depends on all that was applied and in which order, and the names."""

    value: int = 1
    names: list[TaskName] = field(default_factory=list)
    #: (name, staleness) of every application, also of those that a restore undid.
    staleness: list[tuple[TaskName, int]] = field(default_factory=list)
    pulled_at: dict[int, tuple[int, int]] = field(default_factory=dict)  # by lease: (restores, names)
    restores: int = 0


class Run:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.rng = plan, random.Random(plan.seed)
        self.gate = plan.gate(plan.limit)
        self.held = HeldSlots(plan.slots, plan.limit)
        self.weights = [Weights() for _ in range(plan.slots)]
        for slot in range(plan.slots):
            self.held.hold(slot, SlotRecord())
        self.snapshots = [(SlotRecord().encode(), 1, list[TaskName]()) for _ in range(plan.slots)]
        self.lives = [0] * plan.slots
        self.cursor, self.leases = 0, 0
        self.returned: list[TaskName] = []  # a stack
        self.reopened: list[TaskName] = []
        #: Returned ones that the gate has forgotten.
        self.forgotten: list[TaskName] = []
        self.attempts: dict[TaskName, int] = {}
        self.done: set[TaskName] = set()
        self.done_count = 0
        self.failed: set[TaskName] = set()
        self.closing: list[tuple[TaskName, int]] = []
        self.holders: dict[TaskName, Actor] = {}
        self.actors: list[Actor] = []
        self.asleep: list[Actor] = []
        self.deaths, self.restores = plan.deaths, plan.restores
        self.refused: dict[Verdict, int] = {}

    def outcome(self) -> Run:
        for _ in range(100_000):
            acts = list(self._possible())
            if not acts:
                break
            self.rng.choice(acts)()
            self.gate.validate()
        else:
            raise Broken("it does not end")
        self._check_end()
        return self

    # ------------------------------------------------------------------ what can happen next

    def _possible(self) -> Iterator[Callable[[], None]]:
        if len(self.holders) < self.plan.workers and self._next() is not None:
            yield self._lease
            yield self._lease
        for actor in self.actors:
            yield lambda actor=actor: self._step(actor)
        if (self.asleep and self.rng.random() < FAULT_RATE) or not (self.actors or self.closing):
            yield from [self._wake] if self.asleep else []
        if self.closing:
            yield self._close
        faults = self.rng.random() < FAULT_RATE  # else they are over before much has happened
        if faults and self.deaths and self.actors:
            yield self._die
            yield self._expire
        if faults and self.restores and self.leases:
            yield self._restore
            yield self._snapshot

    def _next(self) -> TaskName | None:
        """The task that is leased next: returned ones first, then those opened again, then new ones."""
        new = TaskName(DATASET, 0, self.cursor) if self.cursor < self.plan.tasks else None
        new = self.reopened[0] if self.reopened else new
        returned = self.returned[-1] if self.returned else None
        if self.plan.deserted:
            if returned is not None and new is None:
                return returned
            new = self.forgotten[0] if new is None and self.forgotten else new
            if self.gate.room() == 0 and new is not None:
                self._fence()
        elif returned is not None and (self.plan.returned_first or new is None):
            return returned
        room = self.gate.room()
        plain = not self.returned and not self.failed and not self.plan.deserted
        if plain and self._reference() != (room != 0):
            raise Broken("the gate does not say what the formula says")
        return new if room != 0 else None

    def _fence(self) -> None:
        """Leases that have ended are refused from now on, so that the gate forgets their tasks."""
        fence = self.gate.fence(self.leases)
        names = self.gate.forgettable(fence)
        if names:
            self.gate.fenced(fence)
            self.forgotten += names
            self.returned = [name for name in self.returned if name not in names]
            for slot in range(self.plan.slots if self.plan.fences_ended else 0):
                self.held[slot].fence = max(self.held[slot].fence, fence)

    def _reference(self) -> bool:
        """Lease one more iff |O| <= s and for every u in O: F(u) + (|O| - 1) + 1 <= s."""
        limit, outstanding = self.plan.limit, len(self.holders)
        return limit is None or (
            outstanding <= limit
            and all(
                self.done_count - actor.done_before + (outstanding - 1) + 1 <= limit
                for actor in self.holders.values()
            )
        )

    def _lease(self) -> None:
        name = self._next()
        assert name is not None
        if name in self.returned:
            self.returned.remove(name)
        elif name in self.reopened:
            self.reopened.remove(name)
        elif name in self.forgotten:
            self.forgotten.remove(name)
        else:
            self.cursor += 1
        self.leases += 1
        self.gate.leased(name, self.leases)
        slots = list(range(self.plan.slots))
        pulls, pushes = self.rng.sample(slots, len(slots)), self.rng.sample(slots, len(slots))
        actor = Actor(name, self.leases, pulls, pushes, self.done_count)
        self.actors.append(actor)
        self.holders[name] = actor

    def _step(self, actor: Actor) -> None:
        if actor.pulls:
            slot = actor.pulls.pop()
            actor.pulled[slot] = self.held[slot].pulled()
            weights = self.weights[slot]
            weights.pulled_at[actor.lease] = (weights.restores, len(weights.names))
            actor.values[slot] = weights.value
        elif actor.pushes:
            self._push(actor, actor.pushes[-1])
        else:
            self._report(actor)

    def _push(self, actor: Actor, slot: int) -> None:
        push = Push(actor.name, actor.lease, 0, actor.pulled[slot])
        answer = self.held.judge(slot, push)
        weights, live = self.weights[slot], self.holders.get(actor.name) is actor
        if answer.verdict is Verdict.APPLIED or (
            answer.verdict is Verdict.APPLIED_BEFORE and not self.plan.names
        ):
            if answer.verdict is Verdict.APPLIED:
                self.held.record(slot, push)
            restores, before = weights.pulled_at[actor.lease]
            weights.staleness.append((actor.name, len(weights.names) - before))
            if restores != weights.restores:
                raise Broken("a gradient of weights that were lost was applied")
            weights.names.append(actor.name)
            weights.value = applied(weights.value, slot, actor.name, actor.values)
        if answer.verdict in DONE_VERDICTS:
            actor.pushes.pop()
            actor.lives[slot] = answer.life
            return
        self.refused[answer.verdict] = self.refused.get(answer.verdict, 0) + 1
        if live and (answer.verdict is Verdict.TOO_OLD or not any(self.lives)):
            raise Broken("a push of a live lease was refused")
        self.actors.remove(actor)
        if live:  # given back: not counted
            self._give_back(actor.name, counts=False)

    def _report(self, actor: Actor) -> None:
        self.actors.remove(actor)
        name, live = actor.name, self.holders.get(actor.name) is actor
        # The work of an ended lease counts while its task waits in TODO.
        waiting = next((tasks for tasks in (self.returned, self.forgotten) if name in tasks), None)
        if not live and waiting is None:
            return
        if self.plan.lives and sum(actor.lives.values()) != sum(self.lives):
            if live:
                self._give_back(name, counts=False)
            return
        if live:
            del self.holders[name]
        else:
            assert waiting is not None
            waiting.remove(name)
        self.gate.done(name)
        self.done.add(name)
        self.done_count += 1

    # ------------------------------------------------------------------ faults

    def _die(self) -> None:
        """A worker is killed, between any two of its steps."""
        self.deaths -= 1
        actor = self.actors.pop(self.rng.randrange(len(self.actors)))
        if self.holders.get(actor.name) is actor:
            self._give_back(actor.name, counts=True)

    def _expire(self) -> None:
        """A worker freezes, and its lease ends; it will go on as if nothing had been."""
        self.deaths -= 1
        live = [actor for actor in self.actors if self.holders.get(actor.name) is actor]
        if live:
            actor = self.rng.choice(live)
            self.actors.remove(actor)
            self.asleep.append(actor)
            self._give_back(actor.name, counts=True)

    def _wake(self) -> None:
        self.actors.append(self.asleep.pop(self.rng.randrange(len(self.asleep))))

    def _give_back(self, name: TaskName, *, counts: bool) -> None:
        del self.holders[name]
        self.attempts[name] = self.attempts.get(name, 0) + counts
        if self.attempts[name] < self.plan.attempts:
            self.gate.gave_back(name)
            self.returned.append(name)
            return
        self.gate.failed(name)
        self.failed.add(name)
        if self.plan.closes:
            self.closing += [(name, slot) for slot in range(self.plan.slots)]
        else:
            self.gate.closed(name)

    def _close(self) -> None:
        name, slot = self.closing.pop(self.rng.randrange(len(self.closing)))
        self.held[slot].close(name)
        if not any(waiting == name for waiting, _ in self.closing):
            self.gate.closed(name)

    def _snapshot(self) -> None:
        slot = self.rng.randrange(self.plan.slots)
        weights = self.weights[slot]
        self.snapshots[slot] = (self.held[slot].encode(), weights.value, list(weights.names))

    def _restore(self) -> None:
        self.restores -= 1
        slot = self.rng.randrange(self.plan.slots)
        stored, value, names = self.snapshots[slot]
        record = SlotRecord.decode(stored, since=0)
        self.lives[slot] += 1
        record.restored(self.lives[slot], self.leases if self.plan.fences else record.fence, since=0)
        self.held.hold(slot, record)
        weights = self.weights[slot]
        weights.value, weights.names = value, list(names)
        weights.restores += 1
        ranges = [(name.task, name.task + 1) for name in self.done]
        done = DoneTasks(DATASET, 0, IntervalSet(ranges), self.plan.tasks)
        for run in missing(done, record.applied):
            for index in range(run.start, run.end):
                name = TaskName(DATASET, 0, index)
                self.done.remove(name)
                self.reopened.append(name)

    # ------------------------------------------------------------------ properties

    def _check_end(self) -> None:
        everything = {TaskName(DATASET, 0, index) for index in range(self.plan.tasks)}
        if self.done | self.failed != everything:
            raise Broken(f"it stands still with {len(self.done)} tasks DONE")
        for weights in self.weights:
            if len(set(weights.names)) < len(weights.names):
                raise Broken("a task was applied twice")
            if not self.done <= set(weights.names) <= everything:
                raise Broken("a task that is DONE is not applied")
        if self.worst > (self.plan.limit if self.plan.limit is not None else self.plan.tasks * 1000):
            raise Broken(f"a staleness of {self.worst}")

    @property
    def worst(self) -> int:
        return max((tau for weights in self.weights for _, tau in weights.staleness), default=0)


def applied(value: int, slot: int, name: TaskName, pulled: dict[int, int]) -> int:
    """An optimizer's step: the gradient depends on the task and on the weights of all slots."""
    gradient = sum((slot + 2) ** place * weight for place, weight in pulled.items()) + 7 * name.task + 3
    return (value * 31 + gradient) % 1_000_003


def serial(tasks: int, slots: int) -> list[int]:
    """The values after one task after the other."""
    values = dict.fromkeys(range(slots), 1)
    for index in range(tasks):
        pulled = dict(values)
        for slot in range(slots):
            values[slot] = applied(values[slot], slot, TaskName(DATASET, 0, index), pulled)
    return list(values.values())


def run(plan: Plan) -> Run:
    """Run one schedule to its end. Raises Broken if a property does not hold."""
    return Run(plan).outcome()

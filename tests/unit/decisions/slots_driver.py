"""Feeds a JobMachine what parameter servers and workers that push say; checks the books after each event."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions import slot_effects as told
from elastane_master.decisions import slot_events as said
from elastane_master.decisions.events import TaskReport
from elastane_master.decisions.lease_answers import LeaseResult
from elastane_master.decisions.slot_model import DenseTensor, RowTable, SlotModel
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import TaskLease, TaskState
from elastane_slots.applied import AppliedSet
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskName

DATASET = "clicks"
SLOTS = 4
MODEL = SlotModel(
    SLOTS,
    7,
    (DenseTensor("fc.weight", (8, 4), "float32", "sgd"),),
    (RowTable("ids", 1000, 8, "float32", "normal", "rowwise_adagrad", scale=0.1),),
    bytes(32),
)
Told = TypeVar("Told", bound=effects.Message)


class SlotsDriver(JobDriver):
    """told: (parameter server, message) since the last `heard`. maps: all that were told, in order."""

    def __init__(
        self, *, tasks: int = 6, task_size: int = 10, dataset: dict[str, Any] | None = None, **job: Any
    ):
        super().__init__(settings(**{"ps_slots": SLOTS, "checkpoint_url": "memory://m", **job}))
        self.told: list[tuple[str, told.PsMessage]] = []
        self.maps: list[told.ToldMap] = []
        self.gone: list[str] = []
        self.task_commits: list[effects.TaskCommit] = []
        self.sessions: dict[str, str] = {}
        self.requests = 0
        queue = {"task_size": task_size, "size": tasks * task_size, "lease_seconds": 10.0, **(dataset or {})}
        self.do(events.DatasetCreated("c", DATASET, QueueSettings(pushes=True, **queue)))

    # ------------------------------------------------------------------ events

    def do(self, event: events.Event, *, after: float = 0.001) -> effects.Decision:
        decision = super().do(event, after=after)
        for effect in decision.effects:
            match effect:
                case told.SendPs(ps, message):
                    self.told.append((ps, message))
                case told.SendMap(map):
                    self.maps.append(map)
                case told.ClosePs(ps):
                    self.gone.append(ps)
                case effects.TaskCommit():
                    self.task_commits.append(effect)
        self.check()
        return decision

    def ps(
        self, name: str, *, process: str = "", held: Collection[said.HeldSlot] = (), **changes: Any
    ) -> None:
        session = f"{name}-session-{len(self.sessions)}"
        hello = said.PsJoined(
            name, session, "host", 1, f"{name}:1", b"k" * 32, (process or name).encode(), held=tuple(held)
        )
        self.do(msgspec.structs.replace(hello, **changes))
        self.sessions[name] = session
        self.sessions[session] = name

    def begin(self, *names: str) -> None:
        """Parameter servers come, a worker registers the model, and all slots are served."""
        for name in names:
            self.ps(name)
        assert self.do(said.ModelRegistered("w", MODEL)).result is True
        self.restore_all()
        self.settle_copies()

    def lose(self, name: str, *, after: float = 0.001) -> None:
        self.do(said.PsStreamLost(name, self.sessions[name], "its stream broke"), after=after)

    def restore(
        self, slot: int, applied: Collection[int] = (), *, snapshot: str = "", epoch: int = 0
    ) -> None:
        names = AppliedSet()
        for task in applied:
            names.add(TaskName(DATASET, epoch, task))
        place = self.map.places[slot]
        self.do(
            said.SlotRestored(
                place.owner,
                self.sessions[place.owner],
                slot,
                place.life,
                names.count,
                names.encode(),
                snapshot or ("s" if applied else ""),
                since=place.since,
            )
        )

    def restore_all(self, applied: Collection[int] = (), *, snapshot: str = "") -> None:
        for slot, place in enumerate(self.map.places):
            if place.restoring:
                self.restore(slot, applied, snapshot=snapshot)

    def copy(self, slot: int) -> None:
        """A copy under way is complete."""
        place = self.map.places[slot]
        teller, holder = (place.target,) * 2 if place.target else (place.owner, place.joining)
        self.do(said.SlotCopied(teller, self.sessions[teller], slot, holder, place.begun))

    def settle_copies(self) -> None:
        while found := [slot for slot, place in enumerate(self.map.places) if place.begun]:
            self.copy(found[0])

    def ask(
        self, most: int = 1, *reports: TaskReport, worker: str = "w", dataset: str = DATASET, **fields: Any
    ) -> LeaseResult:
        self.requests += 1
        event = events.TasksRequested(f"r{self.requests}", dataset, worker, reports, most, **fields)
        result = self.do(event).result
        assert isinstance(result, LeaseResult)
        return result

    def lease(self, most: int = 1, worker: str = "w") -> tuple[TaskLease, ...]:
        return self.ask(most, worker=worker).tasks

    def done(self, task: TaskLease, *, lives: int | None = None) -> str:
        sum_of_lives = self.map.lives_sum if lives is None else lives
        return self.report(task, lives_sum=sum_of_lives)

    def report(self, task: TaskLease, error: str = "", **changes: Any) -> str:
        report = TaskReport(task.epoch, task.index, task.attempt, error, **changes)
        [outcome] = self.ask(0, report, worker=task.worker).outcomes
        return outcome.outcome.value

    def do_all(self) -> None:
        while tasks := self.lease(1):
            assert self.done(tasks[0]) == "accepted"

    # ------------------------------------------------------------------ what was said

    @property
    def map(self) -> SlotMap:
        found = self.machine.state.slots.map
        assert found is not None
        return found

    def heard(self, kind: type[Told]) -> list[tuple[str, Told]]:
        """Messages of a kind since the last call; all others are dropped."""
        found = [(ps, message) for ps, message in self.told if isinstance(message, kind)]
        self.told.clear()
        return found

    @property
    def states(self) -> dict[str, int]:
        progress = self.machine.queues.dynamic[DATASET].progress(self.now)
        return {
            "todo": progress.todo,
            "doing": progress.doing,
            "done": progress.done,
            "failed": progress.failed,
        }

    def check(self) -> None:
        book = self.machine.state.slots
        book.gate.validate()
        if book.map is not None:
            book.map.validate()
            known = {one for place in book.map.places for one in (place.owner, place.backup)} - {""}
            assert known <= book.processes.keys(), "a slot is at a process that nobody knows"
            if self.maps:
                assert self.maps[-1].map.generation <= book.map.generation
        doing: set[TaskName] = set()
        returned: set[TaskName] = set()
        for name, queue in self.machine.queues.dynamic.items():
            queue.validate()
            for epoch, tasks in queue._epochs():
                doing |= {TaskName(name, epoch, index) for index in tasks.doing}
                returned |= {TaskName(name, epoch, index) for index in tasks.requeued}
        assert doing == book.gate.outstanding.keys() and returned >= book.gate.returned.keys()
        assert book.gate.closing.keys() == book.closings.keys()
        failed = {
            TaskName(name, one.epoch, one.index)
            for name, queue in self.machine.queues.dynamic.items()
            for one in queue.list_tasks(TaskState.FAILED, limit=1000)
        }
        assert book.closings.keys() <= failed and book.left_parts.keys() <= failed

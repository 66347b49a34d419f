"""A worker that leases dynamic tasks: it retries with the same request id until it has its answer.

It forgets tasks now and then (its process died between lease and report), so leases run out; it never
reports an error, so no task may end as FAILED as long as attempts are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastane_master.decisions import events
from elastane_master.decisions.datasets import LeaseResult
from sim.master_model import MasterModel
from sim.world import World

TASKS, EPOCHS = 40, 2
SETTINGS = events.DatasetSettings(
    task_size=4, size=TASKS * 4 - 1, epochs=EPOCHS, lease_seconds=2.0, max_attempts=1000
)


@dataclass(eq=False)
class TaskClient:
    """completed: reports of the request to be made next."""

    world: World
    master: MasterModel
    name: str
    number: int = 0
    is_through: bool = False
    completed: list[events.TaskReport] = field(default_factory=list)
    request: events.TasksRequested | None = None

    def start(self) -> None:
        """Creates the dataset, or finds it."""
        self._create()

    def _create(self) -> None:
        if self.number:
            return
        created = events.DatasetCreated(f"create-{self.name}", "evaluation", SETTINGS)
        self.master.call(created, lambda result: self._next() if self.number == 0 else None)
        self.world.after(0.5, self._create)

    def _next(self) -> None:
        self.number += 1
        reports, self.completed = tuple(self.completed), []
        wanted = self.world.rng.randint(1, 4)
        request_id = f"{self.name}-{self.number}"
        self.request = events.TasksRequested(
            request_id, "evaluation", self.name, reports, wanted, {"rng/python": request_id.encode()}
        )
        self._ask(self.request)

    def _ask(self, request: events.TasksRequested) -> None:
        if self.request is not request or self.is_through:
            return
        self.master.call(request, lambda result: self._answered(request, result))
        self.world.after(0.4, lambda: self._ask(request))

    def _answered(self, request: events.TasksRequested, result: object) -> None:
        if self.request is not request or (isinstance(result, LeaseResult) and result.wait):
            return  # an old answer, or one that says: ask again, as the edge does on the client's behalf
        self.request = None
        if not isinstance(result, LeaseResult):  # refused while the job is suspended or failed
            self.completed = list(request.completed)
            self.world.after(1.0, self._next)
        elif result.complete and not result.tasks:
            self.is_through = True
        else:
            forgets = self.world.rng.random() < 0.05
            done = () if forgets else result.tasks
            self.completed = [events.TaskReport(task.epoch, task.index, task.attempt) for task in done]
            self.world.after(self.world.rng.choice((0.01, 0.1, 0.5)), self._next)

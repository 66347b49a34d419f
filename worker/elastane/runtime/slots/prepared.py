"""A model whose weights are in slots, and the task that a script is working on.

begin       a task was leased
push        its block: weights are pulled, the script computes gradients, they are pushed
end         what became of it, for the report
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import structlog
import torch
from torch import Tensor

from elastane.runtime import probes
from elastane.runtime.slots.clips import refuse_clips
from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.errors import (
    NonFiniteGradientError,
    NotPushedError,
    PsModeError,
    PsOptimizerError,
    RowIdError,
)
from elastane.runtime.slots.gradients import non_finite, row_gradients, task_gradients
from elastane.runtime.slots.model import ModelParts, PsArguments, refuse_loading
from elastane.runtime.slots.model_guard import ModelGuard
from elastane.runtime.slots.pulls import Pulls, distinct
from elastane.runtime.slots.remote_embedding import make_remote
from elastane.runtime.slots.task import PushTask, TaskEnd
from elastane.slots.access import PushedTask, PushOutcome, SlotAccess
from elastane.tables.by_slot import TaskGradients
from elastane.tables.layout import Ids, Values

_log = structlog.get_logger(__name__)

NonFinite = Literal["refuse", "skip", "fail"]


class Push:
    """One task's block, `with job.push(task) as push`."""

    def __init__(self, prepared: PreparedPs, task: PushTask) -> None:
        self._prepared, self.task = prepared, task
        self._end: Future[TaskEnd] | None = None

    def __enter__(self) -> Push:
        self._prepared._enter(self.task)
        probes.reached("forward", self.task.index)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._prepared._abandon()
            return
        self._end = self._prepared._finish(self.task)
        probes.reached("pushed", self.task.index)

    @property
    def applied(self) -> bool:
        """True if every slot has the gradients; else the task is given back or FAILED, and the loop goes on.

        With prefetch, the first reading of this or of the others waits for the answers.
        """
        return self._answer().kind == "done"

    @property
    def staleness(self) -> int:
        """Most tasks that any slot applied between the pull and this push; 0 if it was not applied."""
        return self._answer().staleness

    @property
    def versions(self) -> dict[int, int]:
        """By slot, the number of tasks applied in it when this one was."""
        return self._answer().versions

    def _answer(self) -> TaskEnd:
        if self._end is None:
            raise NotPushedError(f"task {self.task.index} is not pushed yet", hint="read it after the block")
        return self._end.result()


class PreparedPs:
    """What `job.prepare_ps` has made of a model. Used from the script's thread."""

    def __init__(
        self,
        given: PsArguments,
        parts: ModelParts,
        memory: DenseMemory,
        access: SlotAccess,
        nonfinite: NonFinite,
        *,
        journal: bool = False,
    ) -> None:
        self._parts, self._memory, self._access = parts, memory, access
        self._rows_of = given.rows
        self._nonfinite = nonfinite
        self.journal = journal
        #: Pushes are answered while the script works on.
        self.in_background = False
        #: Pulls of tasks that the script has not begun yet, by lease.
        self._ahead: dict[int, Pulls] = {}
        self._names = [tensor.name for tensor in parts.spec.tensors]
        self._tables = {table.name: number for number, table in enumerate(parts.spec.tables)}
        self._pulls: Pulls | None = None
        #: In a task, by table, the uses of its rows: ids and leaf.
        self._used: dict[int, list[tuple[Ids, Tensor]]] = {}
        self._evaluating = False
        self._said_lost = self._said_schedulers = False
        self._in_hand: PushTask | None = None
        self._end: Future[TaskEnd] | None = None
        weights = {id(module.weight): name for name, module in parts.tables.items()}
        parts.groups.release(weights)
        if parts.tables:
            refuse_clips(parts.dense)
        refuse_loading(given.net)
        known = {id(parameter) for parameter in parts.dense}
        self._frozen = {
            name: p for name, p in given.net.named_parameters() if id(p) not in known | weights.keys()
        }
        for name, module in parts.tables.items():
            make_remote(module, name, self._tables[name], self._use)
        self._guard = ModelGuard(given.net, dict(zip(self._names, parts.dense, strict=True)))

    # ------------------------------------------------------------------ the loop over tasks

    def begin(self, task: PushTask) -> None:
        """The script gets a task."""
        self._in_hand, self._end = task, None

    def pull_ahead(self, task: PushTask) -> None:
        """Begin to pull what a task needs that the script gets later."""
        in_hand = self._in_hand.lease if self._in_hand is not None else 0
        self._ahead = {lease: pulls for lease, pulls in self._ahead.items() if lease in (in_hand, task.lease)}
        if task.lease not in self._ahead:
            pulls = self._ahead[task.lease] = self._new_pulls(task)
            pulls.begin(self._memory, self._ids_of(task))

    def leave(self) -> None:
        """The script has left its loop: no task is in hand any more."""
        self._in_hand, self._ahead = None, {}

    @property
    def ended(self) -> bool:
        """True once the task in hand is pushed or skipped."""
        return self._end is not None

    def end(self) -> Future[TaskEnd]:
        """Return what becomes of the task in hand. Raises NotPushedError."""
        task, end = self._in_hand, self._end
        if task is None:
            raise NotPushedError("no task is in hand", hint="one loop over job.tasks after the other")
        if end is None:
            raise NotPushedError(
                f"task {task.index} was neither pushed nor skipped",
                hint="write `with job.push(task):` around the loss and backward(), or job.skip(task)",
                task=task.index,
            )
        self._in_hand = None
        return end

    def push(self, task: Any) -> Push:
        """Return the block of a task. Raises NotPushedError."""
        self._require_in_hand(task, "push")
        return Push(self, task)

    def skip(self, task: Any) -> None:
        """Count a task as done without gradients: its name alone goes to all slots."""
        self._require_in_hand(task, "skip")
        self._end = self._send(self._pushed(task, TaskGradients()))

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Pull the newest weights for a block without gradients."""
        if self._pulls is not None:
            raise NotPushedError("job.evaluate was called in the block of a task", hint="evaluate after it")
        self._guard.check()
        self._pulls = Pulls(self._access, self._parts.spec)
        self._evaluating = True
        try:
            self._pulls.dense(self._memory)
            self._guard.pulled()
            with torch.no_grad():
                yield
        finally:
            self._evaluating = False
            self._guard.pulled()
            self._leave()

    # ------------------------------------------------------------------ one block

    def _enter(self, task: PushTask) -> None:
        self._require_in_hand(task, "push")
        if self._pulls is not None:
            raise NotPushedError("blocks of tasks cannot be nested")
        self._guard.check()
        for name, parameter in zip(self._names, self._parts.dense, strict=True):
            if parameter.grad is not None and not self._said_lost and parameter.grad.any():
                self._said_lost = True
                _log.warning(
                    "gradients that were computed outside of a task's block are not pushed: write backward()"
                    " inside of it",
                    name=name,
                )
            parameter.grad = None
        self._pulls = self._pulled(task)
        self._guard.pulled()

    def _pulled(self, task: PushTask) -> Pulls:
        if (pulls := self._ahead.pop(task.lease, None)) is not None:
            pulls.take(self._memory)
            return pulls
        pulls = self._new_pulls(task)
        pulls.dense(self._memory, self._ids_of(task))
        return pulls

    def _new_pulls(self, task: PushTask) -> Pulls:
        return Pulls(self._access, self._parts.spec, task.lease, task.generation)

    def _finish(self, task: PushTask) -> Future[TaskEnd]:
        pulls, used = self._pulls, self._used
        assert pulls is not None
        dense = self._memory.gradients()
        self._leave()
        self._guard.check()
        if pulls.returned:
            self._end = _ended(TaskEnd("returned", error=pulls.returned))
            return self._end
        self._check_gradients(task, dense, used)
        spec = self._parts.spec
        tables = {table: row_gradients(spec, table, uses) for table, uses in used.items()}
        named = {spec.tables[table].name: found for table, found in tables.items()}
        wrong = non_finite(self._names, dense, named)
        if wrong and self._nonfinite != "skip":
            self._end = self._refused(task, wrong)
            return self._end
        if wrong:
            _log.warning("a task has a gradient that is not finite: skipped", task=task.index, name=wrong)
        gradients = TaskGradients()
        if not wrong:
            gradients = task_gradients(spec, self._memory, dense, tables, pulls.divided)
        self._end = self._send(self._pushed(task, gradients, pulls))
        return self._end

    def _check_gradients(
        self, task: PushTask, dense: list[Values | None], used: dict[int, list[tuple[Ids, Tensor]]]
    ) -> None:
        """Raise for gradients that parameter servers would not hear of. The task stays in hand."""
        thawed = next((name for name, parameter in self._frozen.items() if parameter.requires_grad), "")
        if thawed:
            raise PsOptimizerError(
                f"{thawed!r} requires a gradient since prepare_ps: no parameter server has it",
                hint="have it require one before prepare_ps; for layers that are trained later use lr=0",
                tensor=thawed,
            )
        leaves = (leaf for uses in used.values() for _, leaf in uses)
        if all(gradient is None for gradient in dense) and all(leaf.grad is None for leaf in leaves):
            raise NotPushedError(
                f"the block of task {task.index} has computed no gradient",
                hint="call backward() in it; job.skip(task) counts a task without gradients",
                task=task.index,
            )

    def _refused(self, task: PushTask, name: str) -> Future[TaskEnd]:
        error = NonFiniteGradientError(
            f"the gradient of {name!r} has a NaN or an infinity in task {task.index}",
            hint="look at the learning rate and at the data of this task; --non-finite skip leaves it out",
            name=name,
            task=task.index,
        )
        if not task.lease:
            raise error
        _log.warning(str(error))
        return _ended(TaskEnd("failed", error=str(error)))

    def _send(self, pushed: PushedTask) -> Future[TaskEnd]:
        if not self.in_background:
            return _ended(_end_of(self._access.push(pushed)))
        end: Future[TaskEnd] = Future()

        def answered(outcome: Future[PushOutcome]) -> None:
            if (error := outcome.exception()) is not None:
                end.set_exception(error)
            else:
                end.set_result(_end_of(outcome.result()))

        self._access.begin_push(pushed).add_done_callback(answered)
        return end

    def _pushed(self, task: PushTask, gradients: TaskGradients, pulls: Pulls | None = None) -> PushedTask:
        if task.lease and not self._said_schedulers and self._parts.groups.have_schedulers:
            self._said_schedulers = True
            _log.warning(
                "schedulers begin anew in a worker that starts anew or joins: set the rates by task.epoch and"
                " task.index where that matters"
            )
        return PushedTask(
            task.dataset,
            task.epoch,
            task.index,
            task.attempt,
            task.lease,
            task.generation,
            self._parts.groups.rates(),
            gradients,
            dict(pulls.seen) if pulls is not None else {},
            pulls.later if pulls is not None else [],
        )

    def _abandon(self) -> None:
        """An error ended the block: the task stays in hand."""
        for parameter in self._parts.dense:
            parameter.grad = None
        self._leave()

    def _leave(self) -> None:
        self._pulls, self._used = None, {}

    def _use(self, table: int, ids: Ids) -> Tensor:
        """Return rows for a forward: a leaf in a task."""
        if self._pulls is None:
            name = self._parts.spec.tables[table].name
            raise NotPushedError(
                f"{name!r} was used outside of a task",
                hint="use the model in `with job.push(task):` or `with job.evaluate():`",
                table=name,
            )
        rows = self._pulls.rows(table, ids)
        if self._evaluating or not torch.is_grad_enabled():
            return rows
        leaf = rows.requires_grad_()
        self._used.setdefault(table, []).append((ids, leaf))
        return leaf

    def _ids_of(self, task: PushTask) -> Mapping[int, Ids]:
        """What `rows` says that a task will use; the rest is pulled when it is used."""
        if self._rows_of is None:
            return {}
        found = {}
        told = self._rows_of(task.indices)
        if not isinstance(told, Mapping):
            raise PsModeError(
                f"rows returned a {type(told).__name__}",
                hint="a dict of the ids that the task will use, by name of the embedding",
            )
        for name, given in told.items():
            if name not in self._tables:
                raise PsModeError(
                    f"rows names {name!r}, which is no embedding with sparse=True",
                    hint=f"the embeddings are {', '.join(self._tables)}",
                )
            ids = distinct(np.asarray(given, dtype=np.int64).reshape(-1))
            table = self._tables[name]
            if len(ids) and not 0 <= ids[0] <= ids[-1] < self._parts.spec.tables[table].rows:
                row = int(ids[0] if ids[0] < 0 else ids[-1])
                raise RowIdError(f"rows: {name!r} has no row {row}", table=name, row=row)
            found[table] = ids
        return found

    def _require_in_hand(self, task: Any, what: str) -> None:
        if task is not self._in_hand or task is None:
            raise NotPushedError(
                f"job.{what} was called for a task that is not in hand",
                hint="pass it the task that the loop over job.tasks has yielded last; one of a loop that is"
                " left is given back",
            )
        if self._end is not None:
            raise NotPushedError(f"task {task.index} was pushed or skipped already", task=task.index)


def _end_of(outcome: PushOutcome) -> TaskEnd:
    return TaskEnd(
        outcome.kind,
        outcome.lives_sum,
        outcome.reason,
        outcome.staleness,
        outcome.versions,
        outcome.map_generations,
    )


def _ended(end: TaskEnd) -> Future[TaskEnd]:
    future: Future[TaskEnd] = Future()
    future.set_result(end)
    return future

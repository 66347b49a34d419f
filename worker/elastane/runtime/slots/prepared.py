"""A model whose weights are in slots, and the task that a script is working on.

begin       a task was leased
push        its block: weights are pulled, the script computes gradients, they are pushed
end         what became of it, for the report
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import structlog
import torch
from torch import Tensor

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.errors import NonFiniteGradientError, NotPushedError, PsModeError, RowIdError
from elastane.runtime.slots.gradients import non_finite, parts_of, row_gradients
from elastane.runtime.slots.model import ModelParts, PsArguments
from elastane.runtime.slots.pulls import Pulls
from elastane.runtime.slots.remote_embedding import make_remote
from elastane.runtime.slots.task import PushTask, TaskEnd
from elastane.slots.access import PushedTask, PushOutcome, SlotAccess
from elastane.tables.layout import Ids

_log = structlog.get_logger(__name__)

NonFinite = Literal["refuse", "skip", "fail"]


class Push:
    """One task's block, `with job.push(task) as push`. After it:

    applied: every slot has the gradients; else the task is given back or FAILED, and the loop goes on.
    staleness: most tasks that any slot applied between the pull and this push.
    """

    def __init__(self, prepared: PreparedPs, task: PushTask) -> None:
        self._prepared, self.task = prepared, task
        self.applied = False
        self.staleness = 0
        self.versions: dict[int, int] = {}

    def __enter__(self) -> Push:
        self._prepared._enter(self.task)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._prepared._leave()
            return
        outcome = self._prepared._finish(self.task)
        if outcome is not None:
            self.applied = outcome.kind == "done"
            self.staleness, self.versions = outcome.staleness, outcome.versions


class PreparedPs:
    """What `job.prepare_ps` has made of a model. Used from the script's thread."""

    def __init__(
        self,
        given: PsArguments,
        parts: ModelParts,
        memory: DenseMemory,
        access: SlotAccess,
        nonfinite: NonFinite,
    ) -> None:
        self._parts, self._memory, self._access = parts, memory, access
        self._rows_of = given.rows
        self._nonfinite = nonfinite
        self._names = [tensor.name for tensor in parts.spec.tensors]
        self._tables = {table.name: number for number, table in enumerate(parts.spec.tables)}
        self._pulls: Pulls | None = None
        #: In a task, by table, the uses of its rows: ids and leaf.
        self._used: dict[int, list[tuple[Ids, Tensor]]] = {}
        self._evaluating = False
        self._in_hand: PushTask | None = None
        self._end: TaskEnd | None = None
        weights = {id(module.weight): name for name, module in parts.tables.items()}
        parts.groups.release(weights)
        for name, module in parts.tables.items():
            make_remote(module, name, self._tables[name], self._use)

    # ------------------------------------------------------------------ the loop over tasks

    def begin(self, task: PushTask) -> None:
        """The script gets a task."""
        self._in_hand, self._end = task, None

    def end(self) -> TaskEnd:
        """Return what became of the task in hand. Raises NotPushedError."""
        task, end = self._in_hand, self._end
        assert task is not None
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
        self._outcome(self._access.push(self._pushed(task, {}, {})))

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Pull the newest weights for a block without gradients."""
        if self._pulls is not None:
            raise NotPushedError("job.evaluate was called in the block of a task", hint="evaluate after it")
        self._pulls = Pulls(self._access, self._parts.spec)
        self._evaluating = True
        try:
            self._pulls.dense(self._memory)
            with torch.no_grad():
                yield
        finally:
            self._evaluating = False
            self._leave()

    # ------------------------------------------------------------------ one block

    def _enter(self, task: PushTask) -> None:
        self._require_in_hand(task, "push")
        if self._pulls is not None:
            raise NotPushedError("blocks of tasks cannot be nested")
        for parameter in self._parts.dense:
            parameter.grad = None
        pulls = Pulls(self._access, self._parts.spec, task.lease, task.generation)
        pulls.dense(self._memory, self._ids_of(task))
        self._pulls = pulls

    def _finish(self, task: PushTask) -> PushOutcome | None:
        pulls, used = self._pulls, self._used
        assert pulls is not None
        dense = self._memory.gradients()
        self._leave()
        spec = self._parts.spec
        if pulls.returned:
            self._end = TaskEnd("returned", error=pulls.returned)
            return None
        tables = {table: row_gradients(spec, table, uses) for table, uses in used.items()}
        named = {spec.tables[table].name: found for table, found in tables.items()}
        wrong = non_finite(self._names, dense, named)
        if wrong and self._nonfinite != "skip":
            self._refuse(task, wrong)
            return None
        if wrong:
            _log.warning("a task has a gradient that is not finite: skipped", task=task.index, name=wrong)
        parts = {} if wrong else parts_of(spec, self._memory, dense, tables)
        return self._outcome(self._access.push(self._pushed(task, parts, pulls.seen)))

    def _refuse(self, task: PushTask, name: str) -> None:
        error = NonFiniteGradientError(
            f"the gradient of {name!r} has a NaN or an infinity in task {task.index}",
            hint="look at the learning rate and at the data of this task; --non-finite skip leaves it out",
            name=name,
            task=task.index,
        )
        if not task.lease:
            raise error
        _log.warning(str(error))
        self._end = TaskEnd("failed", error=str(error))

    def _pushed(self, task: PushTask, parts: Any, seen: Any) -> PushedTask:
        return PushedTask(
            task.dataset,
            task.epoch,
            task.index,
            task.attempt,
            task.lease,
            task.generation,
            self._parts.groups.rates(),
            parts,
            dict(seen),
        )

    def _outcome(self, outcome: PushOutcome) -> PushOutcome:
        self._end = TaskEnd(outcome.kind, outcome.lives_sum, outcome.reason)
        return outcome

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
        for name, given in self._rows_of(task.indices).items():
            if name not in self._tables:
                raise PsModeError(
                    f"rows names {name!r}, which is no embedding with sparse=True",
                    hint=f"the embeddings are {', '.join(self._tables)}",
                )
            ids = np.unique(np.asarray(given, dtype=np.int64).reshape(-1))
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
                hint="pass it the task that the loop over job.tasks has yielded last",
            )
        if self._end is not None:
            raise NotPushedError(f"task {task.index} was pushed or skipped already", task=task.index)

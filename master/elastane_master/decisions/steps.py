"""Bookkeeping of the steps: reported, prepared, applied, committed.

    reported    a member has done forward and backward of its ESTs
    prepared    all N contexts after the step are in
    committed   every member of the ring has applied it

At any time one step is being reported, `prepared + 1`; a worker starts the one after it only once
it has applied it, which it does only when it is prepared. What a prepared step consisted of is
kept until it is committed, also across changes of the ring: whoever applied it holds a state
from which the job may go on.
"""

from __future__ import annotations

from typing import cast

import msgspec

from elastane_master.decisions.effects import Commit
from elastane_master.decisions.events import Change, ContextDelta, Parts, StepTask


class Report(msgspec.Struct):
    """One member's part of the step being reported: contexts after it by virtual rank, its tasks, and the
    digests of its hyperparameters and of a part of its state."""

    contexts: dict[int, Parts]
    tasks: tuple[StepTask, ...]
    epoch: int
    settings_digest: int | None = None
    state_digest: int | None = None


class PreparedStep(msgspec.Struct):
    """What a prepared step consisted of, until it is committed."""

    epoch: int
    generation: int
    tasks: tuple[tuple[str, StepTask], ...]


class IntervalReport(msgspec.Struct, frozen=True):
    """What a worker says of the code between two epochs that it ran (see ring.proto)."""

    changes: dict[str, Change] = {}
    contexts: dict[int, Parts] = {}
    as_leader: bool = False
    asked: bool = False
    uncertain: str = ""
    fault: str = ""
    each_rank: bool = False


class Interval(msgspec.Struct):
    """The script's code before the first step of an epoch (intervals.py).

    reports: of those who ran it, by worker. here: the generation in which each worker last said that it is
    before the step. changes: what is decided, None before. whole: ESTs whose contexts of the step are behind
    the code.
    """

    reports: dict[str, IntervalReport] = {}
    here: dict[str, int] = {}
    changes: dict[str, Change] | None = None
    whole: set[int] = set()


class Brought(msgspec.Struct, frozen=True):
    """A member's part of a step that the store has lost, as its report was (forgotten.py)."""

    worker: str
    generation: int
    epoch: int
    contexts: tuple[ContextDelta, ...]
    tasks: tuple[StepTask, ...]


class StepBook(msgspec.Struct, dict=True):
    """Where the steps stand.

    committed: the next step to commit. prepared: the newest prepared step of this generation, resume_step - 1
    before the first. prepared_at: when that was, or when the ring started. prepared_count: steps
    prepared in all. epoch: of the newest prepared step. reports: of step prepared + 1, by worker.
    prepared_steps: by step, until committed. hold: Prepared is held back until the checkpoint in flight is
    saved, because the ring ends with it. ready_order: gradient-ready order of EST 0. intervals: by the step
    that they precede, until it is committed. brought, catching_up, catch_up_until: see forgotten.py.
    """

    committed: int = 0
    prepared: int = -1
    prepared_at: float = 0.0
    prepared_count: int = 0
    epoch: int = 0
    reports: dict[str, Report] = {}
    prepared_steps: dict[int, PreparedStep] = {}
    hold: bool = False
    ready_order: tuple[int, ...] = ()
    intervals: dict[int, Interval] = {}
    brought: dict[int, list[Brought]] = {}
    catching_up: bool = False
    catch_up_until: float | None = None

    @property
    def whole_until(self) -> int:
        """The first step of which nothing is known: all before it are committed, or prepared."""
        step = self.committed
        while step in self.prepared_steps:
            step += 1
        return step

    def interval(self, step: int) -> Interval:
        """The code before `step`."""
        return self.intervals.setdefault(step, Interval())

    def before_epoch(self, generation: int) -> list[str]:
        """Workers that stand before the current step of that ring, where it is the first of an epoch."""
        interval = self.intervals.get(self.current)
        here = interval.here if interval is not None else {}
        return [worker for worker, told in here.items() if told == generation]

    @property
    def current(self) -> int:
        """The step being reported."""
        return self.prepared + 1

    def start(self, resume_step: int, now: float) -> None:
        """A ring goes on from `resume_step`."""
        self.prepared = resume_step - 1
        self.prepared_at = now
        self.hold = False
        self.reports = {}
        self._caught_up()

    def drop_reports(self) -> None:
        """The ring changes: what was not prepared is done again."""
        self.reports = {}
        self.hold = False

    def report(
        self,
        worker: str,
        contexts: dict[int, Parts],
        tasks: tuple[StepTask, ...],
        epoch: int,
        digests: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """A member's part of the current step is in."""
        before = self.reports.get(worker)
        known = self.reported_ranks() - (len(before.contexts) if before else 0)
        self.reports[worker] = Report(contexts, tasks, epoch, *digests)
        self.__dict__["reported"] = (self.reports, len(self.reports), known + len(contexts))

    def reported_ranks(self) -> int:
        """How many contexts of the current step are in."""
        reports, count, ranks = self.__dict__.get("reported", (None, 0, 0))
        if reports is not self.reports or count != len(self.reports):
            return sum(len(report.contexts) for report in self.reports.values())
        return cast("int", ranks)

    def prepare(self, generation: int, now: float) -> list[Parts]:
        """All contexts are in: the current step is prepared. Returns the contexts after it, by rank."""
        contexts: dict[int, Parts] = {}
        tasks: list[tuple[str, StepTask]] = []
        for worker, report in self.reports.items():
            contexts |= report.contexts
            self.epoch = report.epoch
            tasks += [(worker, task) for task in report.tasks]
        tasks.sort(key=lambda item: item[1].virtual_rank)
        self.prepared += 1
        self.prepared_count += 1
        self.prepared_steps[self.prepared] = PreparedStep(self.epoch, generation, tuple(tasks))
        self.reports = {}
        self.prepared_at = now
        return [contexts[rank] for rank in sorted(contexts)]

    def commit(self, applied_step: int) -> list[Commit]:
        """Every member has applied the steps below `applied_step`; returns those that this commits."""
        commits = []
        while self.committed < applied_step and self.committed in self.prepared_steps:
            step = self.prepared_steps.pop(self.committed)
            commits.append(Commit(self.committed, step.epoch, step.generation, step.tasks))
            self.committed += 1
        for old in [step for step in self.intervals if step < self.committed]:
            del self.intervals[old]
        return commits

    def rewind(self, step: int) -> None:
        """History goes on from `step`, whose contexts came with a checkpoint or the initial state."""
        self.committed = step
        self.prepared_steps = {}
        self.intervals = {}
        self.drop_reports()
        self._caught_up()

    def _caught_up(self) -> None:
        self.brought, self.catching_up, self.catch_up_until = {}, False, None

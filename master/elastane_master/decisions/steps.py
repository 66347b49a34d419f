"""Bookkeeping of the steps: reported, prepared, applied, committed.

  reported    a member has done forward and backward of its ESTs
  prepared    all N contexts after the step are in
  committed   every member of the ring has applied it

At any time one step is being reported, `prepared + 1`; a worker starts the next one only after it has applied
this one, for which it must be prepared. The parts of a prepared step are kept until it is committed, even
across ring changes: any worker that applied it holds a state from which the job may continue.
"""

from __future__ import annotations

from typing import cast

import msgspec

from elastane_master.decisions.effects import Commit
from elastane_master.decisions.events import Change, ContextDelta, Parts, StepTask


class Report(msgspec.Struct):
    """One member's part of the step being reported.

    contexts: after the step, by virtual rank. settings_digest, state_digest: digests of its hyperparameters
    and of part of its state. goes_ahead: it may begin the next step before Prepared comes.
    """

    contexts: dict[int, Parts]
    tasks: tuple[StepTask, ...]
    epoch: int
    settings_digest: int | None = None
    state_digest: int | None = None
    goes_ahead: bool = False


class PreparedStep(msgspec.Struct):
    """Parts of a prepared step, kept until it is committed."""

    epoch: int
    generation: int
    tasks: tuple[tuple[str, StepTask], ...]


class IntervalReport(msgspec.Struct, frozen=True):
    """A worker's report on the code between two epochs that it ran (see ring.proto)."""

    changes: dict[str, Change] = {}
    contexts: dict[int, Parts] = {}
    as_leader: bool = False
    asked: bool = False
    uncertain: str = ""
    fault: str = ""
    each_rank: bool = False


class Interval(msgspec.Struct):
    """The script's code before the first step of an epoch (intervals.py).

    reports: by worker, of those that ran it. here: generation in which each worker last reported that it has
    reached the step. changes: the decision, None before it. whole: ESTs whose stored contexts are those after
    the code.
    """

    reports: dict[str, IntervalReport] = {}
    here: dict[str, int] = {}
    changes: dict[str, Change] | None = None
    whole: set[int] = set()


class Brought(msgspec.Struct, frozen=True):
    """A member's resent report of a step that the store has lost (forgotten.py)."""

    worker: str
    generation: int
    epoch: int
    contexts: tuple[ContextDelta, ...]
    tasks: tuple[StepTask, ...]


class StepBook(msgspec.Struct, dict=True):
    """Progress of the steps.

    committed: the next step to commit. prepared: newest prepared step of this generation, resume_step - 1
    before the first. prepared_at: time of that, or of the ring's start. prepared_count: total number of
    prepared steps. epoch: of the newest prepared step. reports: of step prepared + 1, by worker.
    prepared_steps: by step, until committed. hold: Prepared is held back until the checkpoint in flight is
    saved, because the ring ends with it. change_waits: a planned change is put off until no member goes ahead
    (going_ahead.py). ready_order: gradient-ready order of EST 0. intervals: by the step
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
    change_waits: bool = False

    @property
    def whole_until(self) -> int:
        """First step that is neither committed nor prepared."""
        step = self.committed
        while step in self.prepared_steps:
            step += 1
        return step

    def interval(self, step: int) -> Interval:
        """Return the record of the code before `step`, creating it on first use."""
        return self.intervals.setdefault(step, Interval())

    def before_epoch(self, generation: int) -> list[str]:
        """Workers of that ring waiting before the current step, if it is the first of an epoch."""
        interval = self.intervals.get(self.current)
        here = interval.here if interval is not None else {}
        return [worker for worker, reported in here.items() if reported == generation]

    @property
    def current(self) -> int:
        """The step being reported."""
        return self.prepared + 1

    def start(self, resume_step: int, now: float) -> None:
        """Start a ring at `resume_step`."""
        self.prepared = resume_step - 1
        self.prepared_at = now
        self.hold = self.change_waits = False
        self.reports = {}
        self._caught_up()

    def drop_reports(self) -> None:
        """Drop the reports for a ring change: steps that were not prepared are repeated."""
        self.reports = {}
        self.hold = self.change_waits = False

    def report(
        self,
        worker: str,
        contexts: dict[int, Parts],
        tasks: tuple[StepTask, ...],
        epoch: int,
        digests: tuple[int | None, int | None] = (None, None),
        *,
        goes_ahead: bool = False,
    ) -> None:
        """Add a member's part of the current step."""
        before = self.reports.get(worker)
        known = self.reported_ranks() - (len(before.contexts) if before else 0)
        self.reports[worker] = Report(contexts, tasks, epoch, *digests, goes_ahead)
        # Cached, because counting all reports at each of N messages would cost N^2 per step.
        self.__dict__["reported"] = (self.reports, len(self.reports), known + len(contexts))

    def reported_ranks(self) -> int:
        """Number of contexts received for the current step."""
        reports, count, ranks = self.__dict__.get("reported", (None, 0, 0))
        if reports is not self.reports or count != len(self.reports):
            return sum(len(report.contexts) for report in self.reports.values())
        return cast("int", ranks)

    def goes_ahead(self) -> bool:
        """True if some member may begin the next step before the Prepared of the current one comes."""
        return any(report.goes_ahead for report in self.reports.values())

    def prepare(self, generation: int, now: float) -> list[Parts]:
        """Prepare the current step once all contexts are in; return the contexts after it, by rank."""
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
        """Commit the steps below `applied_step`, which every member has applied; return them."""
        commits = []
        while self.committed < applied_step and self.committed in self.prepared_steps:
            step = self.prepared_steps.pop(self.committed)
            commits.append(Commit(self.committed, step.epoch, step.generation, step.tasks))
            self.committed += 1
        for old in [step for step in self.intervals if step < self.committed]:
            del self.intervals[old]
        return commits

    def rewind(self, step: int) -> None:
        """Restart history at `step`, whose contexts came with a checkpoint or the initial state."""
        self.committed = step
        self.prepared_steps = {}
        self.intervals = {}
        self.drop_reports()
        self._caught_up()

    def _caught_up(self) -> None:
        self.brought, self.catching_up, self.catch_up_until = {}, False, None

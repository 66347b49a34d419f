"""Counters of a job, increased by its decisions while this master serves it.

The state shows the current situation, counters show how often something happened. They start at 0 in each
master, as Prometheus expects of counters. Pure: the input is the events of the history.
"""

from __future__ import annotations

from collections import Counter

from elastane_master.decisions.effects import Commit, Note
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState
from elastane_master.metrics.measures import LONG_SECONDS, STEP_SECONDS, Histogram
from elastane_proto.history import events as history
from elastane_proto.history.fold import Cause, RingFold

RHO_BOUNDS = (0.5, 0.75, 1.0, 1.15, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0)
"""Histogram bounds of rho. The policy foresight stays below 1.3 in light load and 2 in heavy load."""


class RunCounters:
    """Counters of the training service.

    ended: runs by final state. launches_failed: on any runner. scheduling: decisions of the scheduling
    policy, by whether they came about; scheduling_seconds: that the last one took. rho: of runs, as
    `decisions.runs.fairness`.
    """

    __slots__ = ("ended", "launches_failed", "rho", "scheduling", "scheduling_seconds")

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.launches_failed = 0
        self.scheduling: Counter[str] = Counter()
        self.scheduling_seconds = 0.0
        self.rho = Histogram(RHO_BOUNDS)


class JobCounters:
    """Counters of one job. Used from one event loop.

    events: by kind. ring_changes: by cause; last_cause: that of the newest change, including the end of a
    ring. losses: of workers, by "death" or "eviction". drains: by who requested them: "operator", "signal",
    "reclaim" (announced end of the node), "straggler" (replaced). steps_replayed: steps that had begun and
    were run again. checkpoints: by outcome; "repeated" if a change of the ring interrupted it. step_seconds:
    from commit to commit within a ring. commit_seconds: from a step's first report until every member has
    applied it. checkpoint_seconds: from request to manifest. checkpoint_bytes: size of the last saved
    checkpoint.
    """

    __slots__ = (
        "_begun_until",
        "_checkpoint",
        "_fold",
        "_last_commit",
        "_reported",
        "_running",
        "checkpoint_bytes",
        "checkpoint_seconds",
        "checkpoints",
        "commit_seconds",
        "drains",
        "events",
        "last_cause",
        "losses",
        "ring_changes",
        "step_seconds",
        "steps_committed",
        "steps_replayed",
    )

    def __init__(self, state: JobState) -> None:
        self.events: Counter[str] = Counter()
        self.ring_changes: Counter[str] = Counter()
        self.last_cause: Cause = "other"
        self.losses: Counter[str] = Counter()
        self.drains: Counter[str] = Counter()
        self.checkpoints: Counter[str] = Counter()
        self.steps_committed = 0
        self.steps_replayed = 0
        self.step_seconds = Histogram(STEP_SECONDS)
        self.commit_seconds = Histogram(STEP_SECONDS)
        self.checkpoint_seconds = Histogram(LONG_SECONDS)
        self.checkpoint_bytes = 0
        self._running = state.ring.stage is Stage.RUNNING
        self._fold = RingFold(trained=self._running)
        self._begun_until: int | None = None
        self._reported: dict[int, float] = {}
        self._last_commit: tuple[int, int, float] = (-1, -1, 0.0)
        self._checkpoint: tuple[str, float] = ("", 0.0)

    def reported(self, step: int, now: float) -> None:
        """Record that a worker reported a step; only the first report counts."""
        self._reported.setdefault(step, now)

    def committed(self, commit: Commit, now: float) -> None:
        """Record the commit of a step."""
        self.steps_committed += 1
        reported = self._reported.pop(commit.step, None)
        if reported is not None:
            self.commit_seconds.observe(max(0.0, now - reported))
        step, generation, at = self._last_commit
        if (step, generation) == (commit.step - 1, commit.generation):
            self.step_seconds.observe(max(0.0, now - at))
        self._last_commit = (commit.step, commit.generation, now)

    def noted(self, note: Note, state: JobState, now: float) -> None:
        """Record an event. state: the job's state after the decision."""
        self.events[note.kind] += 1
        self._fold.take(note.dated(now))
        match note.event:
            case history.WorkerLost():
                self.losses["death"] += 1
            case history.WorkerEvicted():
                self.losses["eviction"] += 1
            case history.WorkerDraining(by=by):
                self.drains["operator" if by == "agent" else by] += 1
            case history.RingAnnounced(planned=planned):
                self._ring_changed(planned, state)
            case history.RingFormed(resume_step=resume_step):
                self._ring_formed(resume_step)
            case history.CheckpointRequested(checkpoint=checkpoint):
                self._checkpoint = (checkpoint, now)
            case history.CheckpointFailed(again=again):
                self.checkpoints["repeated" if again else "failed"] += 1
            case history.CheckpointSaved() as saved:
                self.checkpoints["saved"] += 1
                self.checkpoint_bytes = saved.bytes
                name, since = self._checkpoint
                if name == saved.checkpoint:
                    self.checkpoint_seconds.observe(max(0.0, now - since))

    def _ring_changed(self, planned: bool, state: JobState) -> None:
        if self._fold.ring is not None:
            self.last_cause = self._fold.ring.cause
        if state.ring.members:  # nobody waits when a ring ends without a successor
            self.ring_changes[self.last_cause] += 1
        if self._running:
            # An unplanned change drops the step in progress, which has to be run again.
            steps = state.steps
            self._begun_until = steps.prepared + 1 if planned else steps.prepared + 2
            self._running = False
        self._reported.clear()

    def _ring_formed(self, resume_step: int) -> None:
        if self._begun_until is not None:
            self.steps_replayed += max(0, self._begun_until - resume_step)
        self._begun_until, self._running = None, True

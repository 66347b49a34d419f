"""What has happened in a job since this master serves it: counted from its decisions as they are made.

The state says where a job stands; counters say how often something came to pass. They begin at nought with
each master, as Prometheus expects of a counter. Pure: the events and notes of the decisions come in.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from elastane_master.decisions.effects import Commit, Note
from elastane_master.decisions.events import AnyEvent, LeavingReported
from elastane_master.decisions.state import JobState
from elastane_master.metrics.measures import LONG_SECONDS, STEP_SECONDS, Histogram

Cause = Literal["start", "join", "drain", "scale", "loss", "eviction", "other"]
CAUSES: Final[tuple[Cause, ...]] = ("start", "join", "drain", "scale", "loss", "eviction", "other")

#: Of what was noted since the last change of the ring, the first that is there caused the next one.
_PLANNED: Final[tuple[Cause, ...]] = ("drain", "scale", "join")
_UNPLANNED: Final[tuple[Cause, ...]] = ("eviction", "loss", "drain", "join")
MARKS: Final[dict[str, Cause]] = {
    "worker_joined": "join",
    "worker_released": "join",
    "worker_draining": "drain",
    "worker_left": "drain",
    "worker_lost": "loss",
    "worker_evicted": "eviction",
}

SIGNALLED = "SIGTERM"
"""The reason of a worker that leaves without an announcement of its node's end."""

BY_AGENT = "asked for by its agent"
"""How the reason begins where its agent sent the signal, and said why (`elastane.agent.policy`)."""


class JobTally:
    """Counters of one job. Used from one event loop.

    events: notes by kind. ring_changes: by cause; last_cause: of the newest, also where a ring ended.
    losses: deaths and evictions of workers. drains: by whose wish: "operator", "signal", "reclaim" (the
    node's end was announced). steps_replayed: begun steps that were done again. checkpoints: by outcome; one
    that a change of the ring ended is "repeated". step_seconds: from commit to commit within a ring;
    commit_seconds: from a step's first report until every member has applied it. checkpoint_seconds: from
    request to manifest; checkpoint_bytes: size of the last that was saved.
    """

    __slots__ = (
        "_begun_until",
        "_checkpoint",
        "_last_commit",
        "_marks",
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
        self._running = state.ring.stage == "running"
        self._marks: set[Cause] = set()
        self._begun_until: int | None = None
        self._reported: dict[int, float] = {}
        self._last_commit: tuple[int, int, float] = (-1, -1, 0.0)
        self._checkpoint: tuple[str, float] = ("", 0.0)

    def reported(self, step: int, now: float) -> None:
        """A worker reported a step; the first of them counts."""
        self._reported.setdefault(step, now)

    def committed(self, commit: Commit, now: float) -> None:
        """A step is part of the history."""
        self.steps_committed += 1
        reported = self._reported.pop(commit.step, None)
        if reported is not None:
            self.commit_seconds.observe(max(0.0, now - reported))
        step, generation, at = self._last_commit
        if (step, generation) == (commit.step - 1, commit.generation):
            self.step_seconds.observe(max(0.0, now - at))
        self._last_commit = (commit.step, commit.generation, now)

    def noted(self, note: Note, event: AnyEvent, state: JobState, now: float) -> None:
        """A decision was made; `state` is as it left it, `event` what it was made on."""
        kind = note.kind
        self.events[kind] += 1
        if (mark := MARKS.get(kind)) is not None:
            self._marks.add(mark)
        if kind == "worker_lost":
            self.losses["death"] += 1
        elif kind == "worker_evicted":
            self.losses["eviction"] += 1
        elif kind == "worker_draining":
            self._drained(event)
        elif kind == "ring_change":
            self._ring_changed(note, state)
        elif kind == "ring_formed":
            self._ring_formed(int(note.facts["resume_step"]))
        elif kind == "checkpoint_requested":
            self._checkpoint = (note.facts["checkpoint"], now)
        elif kind == "checkpoint_failed":
            self.checkpoints["repeated" if note.facts["again"] == "True" else "failed"] += 1
        elif kind == "checkpoint_saved":
            self.checkpoints["saved"] += 1
            self.checkpoint_bytes = int(note.facts["bytes"])
            name, since = self._checkpoint
            if name == note.facts["checkpoint"]:
                self.checkpoint_seconds.observe(max(0.0, now - since))

    def _drained(self, event: AnyEvent) -> None:
        if not isinstance(event, LeavingReported):
            self.drains["operator"] += 1
        elif event.reason == SIGNALLED or event.reason.startswith(BY_AGENT):
            self.drains["signal"] += 1
        else:
            self.drains["reclaim"] += 1

    def _ring_changed(self, note: Note, state: JobState) -> None:
        if "planned" not in note.facts:  # a Scale was taken: the ring changes at the next boundary
            self._marks.add("scale")
            return
        planned = note.facts["planned"] == "True"
        if not self._running and self._begun_until is None:
            self.last_cause = "start"
        else:
            order = _PLANNED if planned else _UNPLANNED
            self.last_cause = next((one for one in order if one in self._marks), "other")
        if state.ring.members:  # a ring that ends is no change that anybody waits for
            self.ring_changes[self.last_cause] += 1
        self._marks.clear()
        if self._running:
            # The step that is being done is dropped, unless this is decided at its end.
            steps = state.steps
            self._begun_until = steps.prepared + 1 if planned else steps.prepared + 2
            self._running = False
        self._reported.clear()

    def _ring_formed(self, resume_step: int) -> None:
        if self._begun_until is not None:
            self.steps_replayed += max(0, self._begun_until - resume_step)
        self._begun_until, self._running = None, True

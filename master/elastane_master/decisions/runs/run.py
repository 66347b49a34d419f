"""A run: its states and transitions, its current launch and its instances.

                +------------------------- Retry ------------------------------+
                v                                                              |
waiting_data -> queued -> launching -> running -> succeeded          failed, cancelled
                  ^          |            |  ^
                  +-- taken back, retry --+  |                 cancelled from any state that is not over
                             |  suspended <--+ instances lost
                             +-----^
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elastane_master.decisions.runs.allocation import RUN_DECISIONS_MAX, RunDecision
from elastane_master.decisions.runs.spec import Demand, RunSpec

RunState = Literal[
    "waiting_data", "queued", "launching", "running", "suspended", "succeeded", "failed", "cancelled"
]
RankState = Literal["pending", "prepared", "starting", "running", "exited", "lost"]
Verdict = Literal["succeeded", "failed", "cancelled", "retry", "requeued", "suspended"]

OVER: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled"})
"""Final states; all but Retry leave them alone."""
WAITING: frozenset[RunState] = frozenset({"queued", "suspended"})
"""States of a run that waits for slots."""
GONE: frozenset[RankState] = frozenset({"exited", "lost"})
"""States of an instance that has no process any more, as far as the master knows."""
RUN_ID_MAX = 2**31 - 1
HISTORY_MAX = 100

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    "waiting_data": frozenset({"queued", "failed", "cancelled"}),
    "queued": frozenset({"launching", "succeeded", "failed", "cancelled"}),
    "launching": frozenset({"running", "queued", "succeeded", "failed", "cancelled"}),
    "running": frozenset({"suspended", "queued", "succeeded", "failed", "cancelled"}),
    "suspended": frozenset({"launching", "succeeded", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset({"queued", "waiting_data"}),
    "cancelled": frozenset({"queued", "waiting_data"}),
}
"""Allowed transitions; `Run.enter` raises for every other one.

The job of an elastic run may end while the run waits or is launched anew.
"""


class IllegalTransitionError(Exception):
    """A decision attempted a transition that does not exist: a bug."""


class RankRecord(msgspec.Struct, omit_defaults=True):
    """One instance of the current or last launch. rank: its index.

    state: "starting" once Start was sent. runner_id: "" for an instance of an elastic run that is not placed
    yet. address, port: where it listens. deadline_at: time by which it must be prepared, or running.
    """

    rank: int
    state: RankState = "pending"
    runner_id: str = ""
    host: str = ""
    exit_code: int = 0
    last_line: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    address: str = ""
    port: int = 0
    deadline_at: float | None = None

    @property
    def placed(self) -> bool:
        """True while a runner has it, or has been asked to start it."""
        return bool(self.runner_id) and self.state not in GONE


class Ending(msgspec.Struct, frozen=True):
    """The next state of a run once its launch is gone, and why.

    by_exit: because of an instance's exit code; a runner that turns out to be lost meanwhile takes
    precedence.
    """

    verdict: Verdict
    reason: str
    by_exit: bool = False


class Launch(msgspec.Struct, omit_defaults=True):
    """One launch of an attempt's instances. Its fence names it.

    started_at: time at which enough instances were running. ending: set while it is being stopped. awaited:
    runners that have not confirmed yet, each with its deadline. runners: all that took part. quiet_since:
    since when an elastic run has no instance although its job is not over. drained: ranks stopped for the
    scheduling policy; they are not placed again before their runner has stopped them.
    """

    attempt: int
    fence: int
    begun_at: float
    started_at: float | None = None
    ending: Ending | None = None
    awaited: dict[str, float] = {}
    runners: list[str] = []
    quiet_since: float | None = None
    drained: list[int] = []


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """One change of state."""

    time_at: float
    state: RunState
    reason: str
    attempt: int


class ScaledTo(msgspec.Struct, frozen=True, array_like=True):
    """Target of a run's job that scales by itself. job: its name. on_demand: on-demand part of `workers`."""

    job: str
    workers: int
    on_demand: int = 0


class Run(msgspec.Struct, omit_defaults=True):
    """One run.

    demand: its spec with defaults. data_url: location of its data, once known. queued_at: time of submission
    or Retry, which defines its age in the queue. waiting_since: start of its wait for slots. attempt: number
    of the current or last; attempt_open: its next launch belongs to that attempt. failures: failed attempts
    since the last Retry. launch_failures: consecutive undone launches. next_attempt_at: earliest time of
    queueing. job, job_over: the elastic job of the attempt. slots_held: now; slot_seconds: until
    `charged_at`. decided: decisions of the scheduling policy, newest last. scaled: target of its job's
    autoscaling; None: it has none. trains_on: device type of the first running instance of the attempt, if it
    is elastic. tasks_over: its job has only tasks, and all are done.
    """

    run_id: int
    spec: RunSpec
    demand: Demand
    owner: str
    created_at: float
    priority: int
    state: RunState
    reason: str
    client_key: str = ""
    data_ready: bool = True
    data_url: str = ""
    queued_at: float = 0.0
    waiting_since: float = 0.0
    attempt: int = 0
    attempt_open: bool = False
    failures: int = 0
    launch_failures: int = 0
    next_attempt_at: float | None = None
    launch: Launch | None = None
    ranks: list[RankRecord] = []
    started_at: float | None = None
    ended_at: float | None = None
    history: list[Transition] = []
    job: str = ""
    job_over: bool = False
    cancelling: bool = False
    revision: int = 0
    slots_held: int = 0
    slot_seconds: float = 0.0
    charged_at: float = 0.0
    decided: list[RunDecision] = []
    scaled: ScaledTo | None = None
    trains_on: str = ""
    tasks_over: bool = False

    @property
    def servers(self) -> range:
        """Ranks that are parameter servers, the last ones; of an elastic run they need a place first."""
        instances = self.demand.instances
        return range(instances - self.spec.parameter_servers, instances)

    @property
    def in_order(self) -> list[int]:
        """Ranks of an elastic run in the order in which they get a place."""
        return [*self.servers, *range(self.servers.start)]

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def waits(self) -> bool:
        """True if it can be launched as soon as there are slots."""
        return self.state in WAITING and self.launch is None and self.next_attempt_at is None

    def enter(self, state: RunState, reason: str, now: float) -> None:
        """Change the state, or the reason for being in it. Raises IllegalTransitionError for any other."""
        if state == self.state:
            self.reason = reason
            return
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"run {self.run_id}: {self.state} -> {state} ({reason})")
        self.state, self.reason = state, reason
        self.note(now)

    def note_decision(self, decision: RunDecision) -> None:
        """Record a decision of the scheduling policy."""
        self.decided.append(decision)
        del self.decided[:-RUN_DECISIONS_MAX]

    def note(self, now: float) -> None:
        """Append the current state to the history."""
        self.history.append(Transition(now, self.state, self.reason, self.attempt))
        del self.history[:-HISTORY_MAX]

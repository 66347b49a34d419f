"""What the agent does about an exit, a change of the job, a signal, the passing of time: pure.

`SupervisorPolicy` takes what happened with the time it happened at, and answers with actions; the
agent carries them out. It knows no process, socket or clock, so every rule has a plain unit test.

    exit of a worker          follows
    0                         finished; once all are, the job's phase decides the agent's exit code
    80 (drained, sent away)   stays away if it was asked to, until the job is scaled up; else restarted
    any, once scaled in       stays away until the job is scaled up
    84 (started anew)         restarted; it counts for no budget, the master asked for it
    82 (refused)              everything stops: the same refusal would meet every restart
    83 (master unreachable)   everything stops
    1, as it cannot run       everything stops: a syntax error, or a module that is not installed. Where hosts
                              come and go, another one may have the module: as below
    1, or a signal            restarted within the budget
    any, its place is gone    away; another worker takes its part elsewhere, if there is room
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from elastane.agent.budget import RestartBudget
from elastane.agent.exit_codes import (
    CODE_FAILED,
    CODE_MAX_WAIT,
    CODE_OK,
    CODE_REFUSED,
    CODE_UNDECIDED,
    CODE_UNREACHABLE,
    EXIT_DRAINED,
    IN_WORDS,
)
from elastane.agent.process import ExitStatus
from elastane.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_START_ANEW

#: A script that raises this often in every worker, without a step of the job between, is broken. Once
#: a worker has joined the master counts too, ring by ring, and its verdict says more: it comes first.
RAISES_BEFORE_JOIN_MAX: Final = 2
RAISES_WITHOUT_STEP_MAX: Final = 3
#: How long after the last worker's exit the job's phase is waited for.
PHASE_WAIT_SECONDS: Final = 10.0
#: And if nothing was trained, as with job.tasks: no phase will come, but the view may be a little old.
UNTRAINED_WAIT_SECONDS: Final = 1.0
#: How long workers have to leave by themselves once the job is over.
OVER_GRACE_SECONDS: Final = 30.0

Phase = Literal[
    "unspecified",
    "waiting",
    "running",
    "suspended",
    "max_wait_exceeded",
    "succeeded",
    "failed",
    "cancelled",
    "damaged",
    "too_new",
]
_OVER: Final = frozenset({"suspended", "max_wait_exceeded", "succeeded", "failed", "cancelled"})


@dataclass(frozen=True)
class JobView:
    """What the policy needs to know of a job.

    steps: of all epochs; 0 while no worker has told. standby: ids of workers that attend without ESTs.
    undecided: it was the sentinel that suspended it.
    """

    phase: Phase
    reason: str = ""
    workers_max: int = 1
    step: int = 0
    steps: int = 0
    standby: frozenset[str] = frozenset()
    undecided: bool = False


# ------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Spawn:
    """Start this worker."""

    worker: str


@dataclass(frozen=True)
class Terminate:
    """Ask this worker to drain and leave (SIGTERM). reason: told to it, and so in the job's events; empty: as
    was announced."""

    worker: str
    reason: str = field(default="", compare=False)


@dataclass(frozen=True)
class Announce:
    """Tell the workers that their node goes in so many seconds; they are asked to leave next."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Kill:
    """SIGKILL this worker and all it started."""

    worker: str


@dataclass(frozen=True)
class Say:
    """Tell the user. kind: as in `Output.say`; event: for machines."""

    text: str
    kind: str = "info"
    event: str = "message"
    worker: str = ""


@dataclass(frozen=True)
class Finish:
    """The agent is done: exit with this code. No worker runs any more."""

    code: int


Action = Spawn | Announce | Terminate | Kill | Say | Finish


class SlotState(Enum):
    """Where a worker of this agent is in its life."""

    IDLE = "idle"  # not needed now: workers_max is lower
    RUNNING = "running"
    BACKOFF = "backoff"  # dead, started again when due
    PARKED = "parked"  # left on request, until the job is scaled up
    FINISHED = "finished"
    DEAD = "dead"  # will not be started again


@dataclass
class _Slot:
    worker: str
    state: SlotState = SlotState.IDLE
    due: float = 0.0
    restarts: list[float] = field(default_factory=list)
    raises: int = 0
    surplus: bool = False  # told to leave because the job was scaled in
    held: str = ""  # why it may not be started now
    leave_by: float | None = None  # told to leave because its place is gone; killed then

    @property
    def leaving(self) -> bool:
        return self.leave_by is not None


class SupervisorPolicy:
    """State of one agent. Times are seconds of any clock that only goes forward.

    workers: ids of the workers this agent may run, in order. grace_seconds: from the first signal to
    SIGKILL. dynamic: places for workers come and go (`places_changed`), there may be none for a while.
    """

    def __init__(
        self,
        workers: Sequence[str],
        budget: RestartBudget,
        *,
        grace_seconds: float = 30.0,
        dynamic: bool = False,
    ) -> None:
        assert workers or dynamic, "an agent has at least one worker"
        self._dynamic = dynamic
        self._said_no_place = False
        self._goes_at: float | None = None  # this node, by the soonest notice
        self._slots = {worker: _Slot(worker) for worker in workers}
        self._places = frozenset(workers)
        self._budget = budget
        self._grace_seconds = grace_seconds
        self._restarts: list[float] = []
        self._view = JobView("waiting", workers_max=len(workers))
        self._code: int | None = None  # set: everything stops, with this exit code
        self._kill_at: float | None = None
        self._phase_by: float | None = None
        self._all_finished_at: float | None = None
        self._signals = 0
        self._finished = False

    # ------------------------------------------------------------------ what can happen

    def start(self, now: float, view: JobView) -> list[Action]:
        """The job exists; start workers, unless it is over."""
        self._view = view
        if view.phase in _OVER:
            return [*self._over(now), *self._end(now)]
        return self._fill()

    def job_changed(self, now: float, view: JobView) -> list[Action]:
        """News of the job."""
        before, self._view = self._view, view
        if view.step > before.step:
            for slot in self._slots.values():
                slot.raises = 0
        if self._code is not None:
            return []
        if view.phase in _OVER:
            return [*self._over(now), *self._end(now)]
        actions: list[Action] = []
        if view.workers_max != before.workers_max:
            actions.append(Say(f"the job wants up to {view.workers_max} workers", event="scaled"))
        if view.workers_max > before.workers_max:
            for slot in self._slots.values():
                if slot.state is SlotState.PARKED:
                    slot.state = SlotState.IDLE
            actions.extend(self._fill())
        return [*actions, *self._dismiss()]

    def worker_exited(
        self, now: float, worker: str, status: ExitStatus, *, asked_to_leave: bool = False
    ) -> list[Action]:
        """A worker's process ended. asked_to_leave: an operator or the master sent it away."""
        slot = self._slots[worker]
        code = status.returncode
        actions: list[Action]
        if self._code is not None:
            slot.state = SlotState.DEAD
            how = "finished" if code == 0 else f"left ({status})"
            actions = [Say(f"{worker} {how}", event="worker_exited", worker=worker)]
        elif code == 0:
            slot.state, slot.leave_by = SlotState.FINISHED, None
            actions = [Say(f"{worker} finished", event="worker_finished", worker=worker)]
        elif slot.leaving:
            actions = [Say(f"{worker} left ({status})", event="worker_drained", worker=worker)]
            self._vacate(slot)
            actions += self._fill()
        elif slot.surplus or (code == EXIT_DRAINED and self._too_many() > 0):
            slot.state, slot.surplus = SlotState.IDLE, False
            text = f"{worker} left: the job wants {self._wanted()}"
            actions = [Say(text, event="worker_drained", worker=worker), *self._fill()]
        elif code == EXIT_START_ANEW:
            text = f"{worker} is started anew: history went back behind what it has trained"
            actions = [Say(text, event="worker_started_anew", worker=worker)]
            self._vacate(slot)
            actions += self._fill()
        elif code == EXIT_DRAINED and asked_to_leave:
            slot.state = SlotState.PARKED
            actions = [Say(f"{worker} was drained", event="worker_drained", worker=worker)]
        elif code == EXIT_REFUSED:
            slot.state = SlotState.DEAD
            text = f"{worker} was refused, and would be again: its last lines say why"
            stop = self._stop(now, CODE_REFUSED, f"{worker} was refused")
            actions = [Say(text, "error", "worker_refused", worker), *stop]
        elif code == EXIT_MASTER_UNREACHABLE:
            slot.state = SlotState.DEAD
            text = f"{worker} could not reach the master"
            stop = self._stop(now, CODE_UNREACHABLE, text)
            actions = [Say(text, "error", "master_unreachable", worker), *stop]
        elif status.repeats and not self._dynamic:
            slot.state = SlotState.DEAD
            text = f"{worker} cannot run, and could not the next time: {status.error}"
            actions = [Say(text, "error", "worker_died", worker), *self._stop(now, CODE_FAILED, text)]
        else:
            actions = self._died(now, slot, status)
        return [*actions, *self._end(now)]

    def places_changed(self, now: float, workers: Mapping[str, str]) -> list[Action]:
        """There is a place for these workers now, in order; for each why it may not be started yet, or "".

        Those that run elsewhere drain and leave, and are killed after the grace time: their place may be
        gone already.
        """
        actions: list[Action] = []
        slots = {worker: self._slots.get(worker) or _Slot(worker) for worker in workers}
        for worker, held in workers.items():
            slots[worker].held = held
        for worker, slot in self._slots.items():
            if worker in slots:
                continue
            if slot.state in (SlotState.RUNNING, SlotState.FINISHED):
                slots[worker] = slot  # until it has ended; what is finished still counts
                slot.held = "its place is gone"
            if slot.state is SlotState.RUNNING and not slot.leaving and self._code is None:
                slot.leave_by = now + self._grace_seconds
                text = f"{worker} drains and leaves: its host is no longer listed"
                gone = Terminate(worker, by_agent("its host is no longer listed"))
                actions += [Say(text, "warning", "host_gone", worker), gone]
        self._slots, self._places = slots, frozenset(workers)
        if self._code is None:
            actions += self._fill()
        return [*actions, *self._end(now)]

    def host_failed(
        self, now: float, worker: str, text: str, event: str, workers: Mapping[str, str]
    ) -> list[Action]:
        """A worker ended for the sake of its host: no restart is counted. workers: as in `places_changed`."""
        slot = self._slots[worker]
        if self._code is not None:
            slot.state = SlotState.DEAD
            return [Say(text, event=event, worker=worker), *self._end(now)]
        self._vacate(slot)
        return [Say(text, "warning", event, worker), *self.places_changed(now, workers)]

    def signalled(self, now: float, number: int) -> list[Action]:
        """SIGTERM or SIGINT came to the agent: the first drains, the second kills."""
        name = signal.Signals(number).name
        self._signals += 1
        if self._signals == 1:
            text = f"{name}: workers drain and leave; once more kills them"
            stop = self._stop(now, 128 + number, f"it got {name}")
            actions = [Say(text, "warning", "stopping"), *stop]
        else:
            text = f"{name} again: workers are killed"
            actions = [Say(text, "warning", "killing"), *self._kill(now)]
        if self._view.phase == "succeeded":
            self._code = CODE_OK
        return [*actions, *self._end(now)]

    def noticed(self, now: float, seconds: float, reason: str) -> list[Action]:
        """This node is to be taken away in so many seconds: workers drain, and have all that time for it."""
        text = f"this node goes in {seconds:.0f} s ({reason}): workers drain and leave"
        actions: list[Action] = [Announce(seconds, reason), Say(text, "warning", "spot_notice")]
        if self._code is None:
            actions += self._stop(now, 128 + signal.SIGTERM, "")
        # Of two notices the sooner counts, whichever came last.
        self._goes_at = min(now + seconds, self._goes_at or now + seconds)
        if self._kill_at is not None:
            self._kill_at = self._goes_at
        return [*actions, *self._end(now)]

    def fatal(self, now: float, code: int, text: str) -> list[Action]:
        """Something beside the workers failed for good (the master, the job's record)."""
        if self._code is not None:
            return self._end(now)
        return [Say(text, "error", "failed"), *self._stop(now, code, text), *self._end(now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed: start what is due, kill what overstays."""
        actions: list[Action] = []
        if self._kill_at is not None and now >= self._kill_at:
            left = [slot.worker for slot in self._in(SlotState.RUNNING)]
            if left:
                actions.append(Say(f"{', '.join(left)} did not leave in time", "warning", "killing"))
            actions.extend(self._kill(now))
        for slot in self._in(SlotState.RUNNING):
            if slot.leave_by is not None and now >= slot.leave_by:
                slot.leave_by = math.inf
                text = f"{slot.worker} did not leave in time"
                actions += [Say(text, "warning", "killing", slot.worker), Kill(slot.worker)]
        if self._code is None:
            for slot in self._in(SlotState.BACKOFF):
                if now >= slot.due:
                    slot.state = SlotState.IDLE
                    actions.extend(self._fill())
        return [*actions, *self._end(now)]

    def next_due(self) -> float | None:
        """When `tick` has something to do at the latest."""
        dues = [slot.due for slot in self._in(SlotState.BACKOFF)] if self._code is None else []
        dues += [time for time in (self._kill_at, self._phase_by) if time is not None]
        dues += [
            slot.leave_by for slot in self._in(SlotState.RUNNING) if slot.leave_by not in (None, math.inf)
        ]
        return min(dues, default=None)

    # ------------------------------------------------------------------ inside

    def _in(self, *states: SlotState) -> list[_Slot]:
        return [slot for slot in self._slots.values() if slot.state in states]

    def _too_many(self) -> int:
        """How many workers run here beyond what the job wants."""
        staying = [slot for slot in self._in(SlotState.RUNNING) if not (slot.surplus or slot.leaving)]
        return len(staying) - self._view.workers_max

    def _dismiss(self) -> list[Action]:
        """Ask those to leave that stand by because the job was scaled in."""
        actions: list[Action] = []
        for slot in reversed(self._in(SlotState.RUNNING)):
            if (
                self._too_many() > 0
                and slot.worker in self._view.standby
                and not (slot.surplus or slot.leaving)
            ):
                slot.surplus = True
                actions.append(Terminate(slot.worker, by_agent(f"the job wants {self._wanted()}")))
        return actions

    def _fill(self) -> list[Action]:
        """Start idle workers while the job wants more."""
        actions: list[Action] = []
        for slot in self._in(SlotState.IDLE):
            there = self._in(SlotState.RUNNING, SlotState.BACKOFF, SlotState.FINISHED)
            if sum(not other.leaving for other in there) >= self._view.workers_max:
                break
            if slot.held:
                continue
            slot.state, self._said_no_place = SlotState.RUNNING, False
            actions.append(Spawn(slot.worker))
        return actions

    def _vacate(self, slot: _Slot) -> None:
        """The worker of a slot is gone for no fault of its own: its place is free, if it still is one."""
        slot.state, slot.surplus, slot.leave_by = SlotState.IDLE, False, None
        if slot.worker not in self._places:
            del self._slots[slot.worker]

    def _died(self, now: float, slot: _Slot, status: ExitStatus) -> list[Action]:
        how = _cause(status)
        if status.returncode > 0 and status.returncode != EXIT_DRAINED:
            slot.raises += 1
            slot.state = SlotState.DEAD
            limit = RAISES_WITHOUT_STEP_MAX if self._view.steps else RAISES_BEFORE_JOIN_MAX
            if all(
                other.raises >= limit
                for other in self._slots.values()
                if other.state not in (SlotState.IDLE, SlotState.PARKED)
            ):
                text = f"{slot.worker} {how}: the script failed in every worker without a step between"
                return [Say(text, "error", "worker_died", slot.worker), *self._stop(now, CODE_FAILED, text)]
        decision = self._budget.decide(now, self._restarts, slot.restarts)
        if not decision.allowed:
            slot.state = SlotState.DEAD
            text = f"{slot.worker} {how}; {decision.reason}"
            return [Say(text, "error", "worker_died", slot.worker), *self._stop(now, CODE_FAILED, text)]
        slot.state = SlotState.BACKOFF
        slot.due = now + decision.delay_seconds
        slot.restarts.append(now)
        self._restarts.append(now)
        return [Say(f"{slot.worker} {how}; {decision.reason}", "warning", "worker_died", slot.worker)]

    def _over(self, now: float) -> list[Action]:
        """The job is over: workers leave by themselves, within a grace time."""
        view = self._view
        kind = {"succeeded": "success", "failed": "error", "max_wait_exceeded": "error"}
        codes = {"failed": CODE_FAILED, "max_wait_exceeded": CODE_MAX_WAIT}
        self._code = CODE_UNDECIDED if view.undecided else codes.get(view.phase, CODE_OK)
        self._kill_at = now + OVER_GRACE_SECONDS
        self._drop(SlotState.BACKOFF)
        text = f"job {view.phase.replace('_', ' ')}"
        if view.reason:
            text += f": {view.reason}"
        if view.phase == "max_wait_exceeded":
            text += "; `elastane resume` waits again"
        if view.undecided:
            text += "; `elastane resume` goes on, with other machines or another worker to decide"
        weight = "error" if view.undecided else kind.get(view.phase, "warning")
        return [Say(text, weight, f"job_{view.phase}")]

    def _wanted(self) -> str:
        """ "2 workers"."""
        most = self._view.workers_max
        return f"{most} worker" if most == 1 else f"{most} workers"

    def _stop(self, now: float, code: int, why: str) -> list[Action]:
        """Every worker is to drain and leave; the agent exits with `code` afterwards.

        why: told to the workers; empty: as was announced.
        """
        self._code = code
        self._kill_at = now + self._grace_seconds
        self._phase_by = None
        self._drop(SlotState.BACKOFF)
        # Whoever was told already takes a second signal for impatience.
        told = [slot for slot in self._in(SlotState.RUNNING) if slot.surplus or slot.leaving]
        reason = by_agent(why) if why else ""
        return [Terminate(slot.worker, reason) for slot in self._in(SlotState.RUNNING) if slot not in told]

    def _kill(self, now: float) -> list[Action]:
        self._kill_at = None
        return [Kill(slot.worker) for slot in self._in(SlotState.RUNNING)]

    def _drop(self, state: SlotState) -> None:
        for slot in self._in(state):
            slot.state = SlotState.DEAD

    def _end(self, now: float) -> list[Action]:
        """Finish, if no worker runs and none will."""
        if self._finished or self._in(SlotState.RUNNING, SlotState.BACKOFF):
            return []
        if self._code is not None:
            return self._finish(self._code)
        if not self._in(SlotState.FINISHED):
            if self._dynamic and (not self._slots or self._in(SlotState.IDLE)):
                return self._wait_for_place()
            return self._finish(
                CODE_OK, Say(f"all workers were drained; the job waits at step {self._view.step}", "warning")
            )
        if self._all_finished_at is None:
            self._all_finished_at = now
        wait = PHASE_WAIT_SECONDS if self._view.steps else UNTRAINED_WAIT_SECONDS
        self._phase_by = self._all_finished_at + wait
        if now < self._phase_by:
            return []
        return self._ended_early()

    def _wait_for_place(self) -> list[Action]:
        """Nothing runs, but a host may come, or be done with its rest."""
        if self._said_no_place:
            return []
        self._said_no_place = True
        why = sorted({slot.held for slot in self._in(SlotState.IDLE) if slot.held})
        text = f"no worker runs: {'; '.join(why) or 'no host has a slot'}; waiting for hosts"
        return [Say(text, "warning", "waiting_for_hosts")]

    def _ended_early(self) -> list[Action]:
        """All workers said they were finished, and the job is not over."""
        view = self._view
        if view.steps == 0:
            text = "the script ended without training: right with job.tasks, else is job.epochs missing?"
            return self._finish(CODE_OK, Say(text, "warning", "not_joined"))
        if view.step < view.steps:
            text = f"the script ended at step {view.step} of {view.steps}"
            return self._finish(CODE_FAILED, Say(text, "error", "ended_early"))
        return self._finish(CODE_OK, Say("this agent's workers are finished; the job goes on elsewhere"))

    def _finish(self, code: int, *says: Action) -> list[Action]:
        self._finished = True
        return [*says, Finish(code)]


def by_agent(why: str) -> str:
    """What a worker that its agent asks to leave tells the master: the master counts by how it begins."""
    return f"asked for by its agent: {why}"


def _cause(status: ExitStatus) -> str:
    """How a worker died, in words: a preemption is named, so that nobody looks for a bug."""
    if status.returncode == EXIT_DRAINED:
        return "left on a preemption notice"
    name = status.signal_name
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        return f"was preempted ({name})"
    if name == "SIGKILL":
        return "was killed by SIGKILL (out of memory, preemption, or by hand)"
    if name:
        return f"crashed with {name}"
    if status.returncode in IN_WORDS:
        return IN_WORDS[status.returncode]
    return f"failed with exit code {status.returncode}"

"""Decides what the agent does about worker exits, job updates, signals and timeouts: pure.

`SupervisorPolicy` takes events with their times and returns actions, which the agent carries out. It
uses no process, socket or clock, so every rule has a plain unit test.

    exit of a worker          reaction
    0                         finished; once all are, the job's phase decides the agent's exit code
    80, as a straggler        restarted at once; after an hour where its host had two of them in an hour
    80 (drained)              parked until the job is scaled up if it was asked to leave; else restarted
    any, once scaled in       idle until the job is scaled up
    84 (start anew)           restarted; not counted in the budget, because the master asked for it
    82 (refused)              everything stops: every restart would be refused too. If the others have ended
                              the job before this worker's process was gone, the agent still says 3, not 0
    83 (master unreachable)   everything stops
    1, script cannot run      everything stops: a syntax error, or a module that is not installed. With
                              dynamic hosts another host may have the module: treated as the next row
    1, or a signal            restarted within the budget
    any, its place is gone    not restarted; another worker takes over elsewhere, if there is room

A job that scales by itself has one target for the workers of all agents: an agent starts missing workers, and
releases its own surplus standbys. All agents choose in the same order, so that two agents do not both release
a worker if only one is surplus.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from elastane_agent.supervisor.actions import Action, Announce, Finish, Kill, Say, Spawn, Terminate
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.job_view import JobView
from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_START_ANEW
from elastane_common.exit_codes import (
    CODE_FAILED,
    CODE_MAX_WAIT,
    CODE_OK,
    CODE_REFUSED,
    CODE_UNDECIDED,
    CODE_UNREACHABLE,
    EXIT_DRAINED,
    IN_WORDS,
)
from elastane_common.processes.child import ExitStatus

#: A script that raises this often in every worker, without a step of the job in between, is broken. After
#: the first join the limit is higher, because the master counts failures too and its verdict, which says
#: more, should come first.
RAISES_BEFORE_JOIN_MAX: Final = 2
RAISES_WITHOUT_STEP_MAX: Final = 3
#: After the last worker's exit, wait this long for the job's final phase.
PHASE_WAIT_SECONDS: Final = 10.0
#: The same if nothing was trained, as with job.tasks: no final phase will come, but the view may be stale.
UNTRAINED_WAIT_SECONDS: Final = 1.0
#: Once the job is over, workers have this long to exit by themselves.
OVER_GRACE_SECONDS: Final = 30.0

OVER: Final = frozenset({"suspended", "max_wait_exceeded", "succeeded", "failed", "cancelled"})


class SlotState(Enum):
    """Life-cycle state of a worker of this agent."""

    IDLE = "idle"  # not running, may be started when the job wants more workers
    RUNNING = "running"
    BACKOFF = "backoff"  # dead, restarted when due
    PARKED = "parked"  # left on request; idle again once the job is scaled up
    FINISHED = "finished"
    DEAD = "dead"  # will not be started again


@dataclass
class _Slot:
    worker: str
    state: SlotState = SlotState.IDLE
    due: float = 0.0
    restarts: list[float] = field(default_factory=list)
    raises: int = 0
    surplus: bool = False  # asked to leave because the job was scaled in
    held: str = ""  # why it must not be started now; "": it may be
    leave_by: float | None = None  # asked to leave because its place is gone; killed at this time

    @property
    def leaving(self) -> bool:
        return self.leave_by is not None


class SupervisorPolicy:
    """Decision state of one agent. All times are seconds of one monotonic clock.

    workers: ids of the workers this agent may run, in order of preference; none: it has parameter servers
    alone, and waits for the end of the job. grace_seconds: from the first
    signal to SIGKILL. dynamic: places for workers come and go (`places_changed`); there may be none at times.
    on_demand: all workers are on demand; with dynamic places, those say it.
    """

    def __init__(
        self,
        workers: Sequence[str],
        budget: RestartBudget,
        *,
        grace_seconds: float = 30.0,
        dynamic: bool = False,
        on_demand: bool = False,
    ) -> None:
        self._dynamic = dynamic
        self._on_demand = frozenset(workers if on_demand else ())
        self._said_not_wanted = False
        self._said_no_place = ""  # the reason given
        self._goes_at: float | None = None  # when this node is taken away, by the earliest notice
        self._slots = {worker: _Slot(worker) for worker in workers}
        self._places = frozenset(workers)
        self._budget = budget
        self._grace_seconds = grace_seconds
        self._restarts: list[float] = []
        self._view = JobView("waiting", workers_max=len(workers))
        self._code: int | None = None  # once set, everything stops and the agent exits with it
        self._kill_at: float | None = None
        self._phase_by: float | None = None
        self._all_finished_at: float | None = None
        self._signals = 0
        self._finished = False

    # ------------------------------------------------------------------ what can happen

    def start(self, now: float, view: JobView) -> list[Action]:
        """Start workers, unless the job is over already."""
        self._view = view
        if view.phase in OVER:
            return [*self._over(now), *self._end(now)]
        return [*self._fill(), *self._unless_wanted(now)]

    def job_changed(self, now: float, view: JobView) -> list[Action]:
        """React to a job update: the job is over, was scaled, or has made a step."""
        before, self._view = self._view, view
        if view.step > before.step:
            for slot in self._slots.values():
                slot.raises = 0
        if self._code is not None:
            return []
        if view.phase in OVER:
            return [*self._over(now), *self._end(now)]
        actions: list[Action] = []
        if (view.wanted, view.on_demand_max) != (before.wanted, before.on_demand_max):
            actions.append(Say(f"the job wants up to {self._wanted()}", event="scaled"))
        # A moving target is not a user's request: workers drained by an operator stay away.
        if view.workers_max > before.workers_max:
            for slot in self._slots.values():
                if slot.state is SlotState.PARKED:
                    slot.state = SlotState.IDLE
        if view.wanted > before.wanted or view.target is not None:
            actions.extend(self._fill())
        return [*actions, *self._dismiss(), *self._unless_wanted(now)]

    def worker_exited(
        self,
        now: float,
        worker: str,
        status: ExitStatus,
        *,
        asked_to_leave: bool = False,
        barred_seconds: float | None = None,
    ) -> list[Action]:
        """React to the end of a worker's process, see the module's table.

        asked_to_leave: an operator drained it, so it is not restarted. barred_seconds: it was a straggler
        that another replaced, and its host gets no worker for so long.
        """
        slot = self._slots[worker]
        code = status.returncode
        actions: list[Action]
        if self._code == CODE_OK and self._view.phase == "succeeded" and code == EXIT_REFUSED:
            # The others were faster: what one worker has found out about the script holds for all of them.
            slot.state, self._code = SlotState.DEAD, CODE_REFUSED
            text = (
                f"{worker} was refused before the job had succeeded without it: its last lines of output say "
                "why, and the result may not be that of stock DDP"
            )
            actions = [Say(text, "error", "worker_refused", worker)]
        elif self._code is not None:
            slot.state = SlotState.DEAD
            how = "finished" if code == 0 else f"left ({status})"
            actions = [Say(f"{worker} {how}", event="worker_exited", worker=worker)]
        elif code == 0:
            slot.state, slot.leave_by = SlotState.FINISHED, None
            actions = [Say(f"{worker} finished", event="worker_finished", worker=worker)]
        # Workers that were asked to leave come before the codes: however such a worker ends, it is no
        # failure.
        elif slot.leaving:
            actions = [Say(f"{worker} left ({status})", event="worker_drained", worker=worker)]
            self._vacate(slot)
            actions += self._fill()
        elif code == EXIT_DRAINED and barred_seconds:
            slot.state, slot.due = SlotState.BACKOFF, now + barred_seconds
            minutes = f"{barred_seconds / 60:.0f} min"
            text = f"{worker} left: slow workers of this host were replaced, it gets none for {minutes}"
            actions = [Say(text, "warning", "host_barred", worker)]
        elif slot.surplus or (code == EXIT_DRAINED and self._too_many(slot) > 0):
            slot.state, slot.surplus = SlotState.IDLE, False
            text = f"{worker} left: the job wants {self._wanted()}"
            actions = [Say(text, event="worker_drained", worker=worker), *self._fill()]
        elif code == EXIT_DRAINED and barred_seconds is not None:
            text = f"{worker} left, since another replaced it: it was slow; it is restarted and stands by"
            actions = [Say(text, "warning", "straggler_replaced", worker)]
            self._vacate(slot)
            actions += self._fill()
        elif code == EXIT_START_ANEW:
            text = (
                f"{worker} is restarted: the job was rolled back to a step before the one that it has trained"
            )
            actions = [Say(text, event="worker_started_anew", worker=worker)]
            self._vacate(slot)
            actions += self._fill()
        elif code == EXIT_DRAINED and asked_to_leave:
            slot.state = SlotState.PARKED
            actions = [Say(f"{worker} was drained", event="worker_drained", worker=worker)]
        elif code == EXIT_REFUSED:
            slot.state = SlotState.DEAD
            text = f"{worker} was refused, and would be refused again: its last lines of output say why"
            stop = self._stop(now, CODE_REFUSED, f"{worker} was refused")
            actions = [Say(text, "error", "worker_refused", worker), *stop]
        elif code == EXIT_MASTER_UNREACHABLE:
            slot.state = SlotState.DEAD
            text = f"{worker} could not reach the master"
            stop = self._stop(now, CODE_UNREACHABLE, text)
            actions = [Say(text, "error", "master_unreachable", worker), *stop]
        elif status.repeats and not self._dynamic:
            slot.state = SlotState.DEAD
            text = f"{worker} cannot run, and a restart would not help: {status.error}"
            actions = [Say(text, "error", "worker_died", worker), *self._stop(now, CODE_FAILED, text)]
        else:
            actions = self._died(now, slot, status)
        return [*actions, *self._end(now)]

    def places_changed(
        self, now: float, workers: Mapping[str, str], on_demand: frozenset[str] | None = None
    ) -> list[Action]:
        """Adopt a new set of places (dynamic hosts).

        workers: ids with a place, in order, each with the reason why it must not be started yet, or "".
        on_demand: of these, those on demand; None: as before. Running workers without a place are asked to
        drain, and killed after the grace time because their host may be gone already.
        """
        actions: list[Action] = []
        if on_demand is not None:
            self._on_demand = on_demand | (self._on_demand - workers.keys())
        slots = {worker: self._slots.get(worker) or _Slot(worker) for worker in workers}
        for worker, held in workers.items():
            slots[worker].held = held
        for worker, slot in self._slots.items():
            if worker in slots:
                continue
            if slot.state in (SlotState.RUNNING, SlotState.FINISHED):
                slots[worker] = slot  # kept until it has ended; a finished worker still counts
                slot.held = "its place was removed"
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
        """React to a worker that ended because of its host, not of the script: no restart is counted.

        text and event: the message to print. workers: as in `places_changed`.
        """
        slot = self._slots[worker]
        if self._code is not None:
            slot.state = SlotState.DEAD
            return [Say(text, event=event, worker=worker), *self._end(now)]
        self._vacate(slot)
        return [Say(text, "warning", event, worker), *self.places_changed(now, workers)]

    def signalled(self, now: float, number: int) -> list[Action]:
        """React to a stop signal to the agent: the first drains all workers, the second kills them."""
        name = signal.Signals(number).name
        self._signals += 1
        if self._signals == 1:
            text = f"{name}: workers drain and leave; a second signal kills them"
            stop = self._stop(now, 128 + number, f"it got {name}")
            actions = [Say(text, "warning", "stopping"), *stop]
        else:
            text = f"{name} again: killing the workers"
            actions = [Say(text, "warning", "killing"), *self._kill(now)]
        if self._view.phase == "succeeded":
            self._code = CODE_OK
        return [*actions, *self._end(now)]

    def noticed(self, now: float, seconds: float, reason: str) -> list[Action]:
        """React to a spot notice: workers drain, and may use all `seconds` until the node is taken away."""
        text = f"this node will be taken away in {seconds:.0f} s ({reason}): workers drain and leave"
        actions: list[Action] = [Announce(seconds, reason), Say(text, "warning", "spot_notice")]
        if self._code is None:
            actions += self._stop(now, 128 + signal.SIGTERM, "")
        # Of two notices the earlier deadline counts, whichever arrived last.
        self._goes_at = min(now + seconds, self._goes_at or now + seconds)
        if self._kill_at is not None:
            self._kill_at = self._goes_at
        return [*actions, *self._end(now)]

    def fatal(self, now: float, code: int, text: str) -> list[Action]:
        """Stop everything because the master or the watch of the job has failed for good."""
        if self._code is not None:
            return self._end(now)
        return [Say(text, "error", "failed"), *self._stop(now, code, text), *self._end(now)]

    def tick(self, now: float) -> list[Action]:
        """Restart workers whose backoff is over; kill those that did not leave in time."""
        actions: list[Action] = []
        if self._kill_at is not None and now >= self._kill_at:
            left = [slot.worker for slot in self._in(SlotState.RUNNING)]
            if left:
                actions.append(Say(f"{', '.join(left)} did not leave in time", "warning", "killing"))
            actions.extend(self._kill(now))
        for slot in self._in(SlotState.RUNNING):
            if slot.leave_by is not None and now >= slot.leave_by:
                slot.leave_by = math.inf  # still leaving, but killed only once
                text = f"{slot.worker} did not leave in time"
                actions += [Say(text, "warning", "killing", slot.worker), Kill(slot.worker)]
        if self._code is None:
            for slot in self._in(SlotState.BACKOFF):
                if now >= slot.due:
                    slot.state = SlotState.IDLE
                    actions.extend(self._fill())
        return [*actions, *self._end(now)]

    def next_due(self) -> float | None:
        """Return the time at which `tick` must be called next; None: not before the next event."""
        dues = [slot.due for slot in self._in(SlotState.BACKOFF)] if self._code is None else []
        dues += [time for time in (self._kill_at, self._phase_by) if time is not None]
        dues += [
            slot.leave_by for slot in self._in(SlotState.RUNNING) if slot.leave_by not in (None, math.inf)
        ]
        return min(dues, default=None)

    # ------------------------------------------------------------------ inside

    def _in(self, *states: SlotState) -> list[_Slot]:
        return [slot for slot in self._slots.values() if slot.state in states]

    def _room(self, slot: _Slot) -> int:
        """Return how many workers of this kind the job needs from this agent, given those of other agents."""
        view = self._view
        if view.target is None:
            return view.workers_max
        wanted, attending = next(group for group in self._groups() if group[2] is self._is_on_demand(slot))[
            :2
        ]
        return max(wanted - len(attending - self._slots.keys()), 0)

    def _groups(self) -> list[tuple[int, frozenset[str], bool | None]]:
        """Return for each kind of worker the number wanted, the connected ids, and whether it is on demand.

        The last is None if capacity makes no difference.
        """
        view = self._view
        if view.on_demand_max is None:
            return [(view.wanted, view.attending, None)]
        on_demand = min(view.on_demand_max, view.wanted)
        spot = view.attending - view.on_demand
        return [(on_demand, view.on_demand, True), (view.wanted - on_demand, spot, False)]

    def _is_on_demand(self, slot: _Slot) -> bool | None:
        return None if self._view.on_demand_max is None else slot.worker in self._on_demand

    def _alike(self, slot: _Slot, *states: SlotState) -> list[_Slot]:
        """Return the slots of the same kind that are in one of these states and not leaving."""
        kind = self._is_on_demand(slot)
        return [each for each in self._in(*states) if self._is_on_demand(each) is kind and not each.leaving]

    def _too_many(self, slot: _Slot) -> int:
        """Count the surplus running workers of this kind, without those already leaving."""
        staying = [each for each in self._alike(slot, SlotState.RUNNING) if not each.surplus]
        return len(staying) - self._room(slot)

    def _dismiss(self) -> list[Action]:
        """Ask surplus standby workers to leave.

        Training workers are never asked: the master first replaces them and lets them stand by.
        """
        view, actions = self._view, list[Action]()
        for slot in reversed(self._in(SlotState.RUNNING)):
            if slot.surplus or slot.leaving or slot.worker not in view.standby:
                continue
            if self._too_many(slot) > 0 if view.target is None else slot.worker in self._releasable():
                slot.surplus = True
                actions.append(Terminate(slot.worker, by_agent(f"the job wants {self._wanted()}")))
        return actions

    def _releasable(self) -> frozenset[str]:
        """Return the surplus standby workers of all agents; every agent gets the same result."""
        found: set[str] = set()
        for wanted, attending, _ in self._groups():
            if (beyond := len(attending) - wanted) > 0:
                found |= set(sorted(self._view.standby & attending)[-beyond:])
        return frozenset(found)

    def _fill(self) -> list[Action]:
        """Start idle workers, up to the number needed from this agent."""
        actions: list[Action] = []
        for slot in self._in(SlotState.IDLE):
            # Finished workers count too: the script has come to its end, so nothing is left for a
            # replacement.
            there = self._alike(slot, SlotState.RUNNING, SlotState.BACKOFF, SlotState.FINISHED)
            if slot.held or len(there) >= self._room(slot):
                continue
            slot.state, self._said_no_place, self._said_not_wanted = SlotState.RUNNING, "", False
            actions.append(Spawn(slot.worker))
        return actions

    def _vacate(self, slot: _Slot) -> None:
        """Make a slot idle after an exit that is not the worker's fault; drop it if its place is gone."""
        slot.state, slot.surplus, slot.leave_by = SlotState.IDLE, False, None
        if slot.worker not in self._places:
            del self._slots[slot.worker]

    def _died(self, now: float, slot: _Slot, status: ExitStatus) -> list[Action]:
        how = _cause(status)
        # A positive code comes from the script itself; a signal is more often a preemption or lack of memory.
        # The script is only given up once every worker has failed: a single failure may be the machine's
        # fault.
        if status.returncode > 0 and status.returncode != EXIT_DRAINED:
            slot.raises += 1
            slot.state = SlotState.DEAD
            limit = RAISES_WITHOUT_STEP_MAX if self._view.steps else RAISES_BEFORE_JOIN_MAX
            if all(
                other.raises >= limit
                for other in self._slots.values()
                if other.state not in (SlotState.IDLE, SlotState.PARKED)
            ):
                text = f"{slot.worker} {how}: the script failed in every worker, without a step in between"
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
        """Set exit code and deadline at the end of the job; workers exit by themselves until then."""
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
            text += "; `elastane resume` makes it wait again"
        if view.undecided:
            text += "; `elastane resume` continues it, with other machines or another worker to decide"
        weight = "error" if view.undecided else kind.get(view.phase, "warning")
        return [Say(text, weight, f"job_{view.phase}")]

    def _wanted(self) -> str:
        """Return the wanted number in words, such as "2 workers"."""
        view = self._view
        text = f"{view.wanted} worker" if view.wanted == 1 else f"{view.wanted} workers"
        if view.on_demand_max is not None:
            text += f", {view.on_demand_max} of them on demand"
        return text

    def _stop(self, now: float, code: int, why: str) -> list[Action]:
        """Ask every worker to drain and leave; the agent exits with `code` afterwards.

        why: reason passed to the workers; empty: the announced one.
        """
        self._code = code
        self._kill_at = now + self._grace_seconds
        self._phase_by = None
        self._drop(SlotState.BACKOFF)
        # A worker takes a second SIGTERM as a request to stop at once, so send it only one.
        already_leaving = [slot for slot in self._in(SlotState.RUNNING) if slot.surplus or slot.leaving]
        reason = by_agent(why) if why else ""
        return [
            Terminate(slot.worker, reason)
            for slot in self._in(SlotState.RUNNING)
            if slot not in already_leaving
        ]

    def _kill(self, now: float) -> list[Action]:
        self._kill_at = None
        return [Kill(slot.worker) for slot in self._in(SlotState.RUNNING)]

    def _drop(self, state: SlotState) -> None:
        for slot in self._in(state):
            slot.state = SlotState.DEAD

    def _end(self, now: float) -> list[Action]:
        """Finish if no worker runs and none will be started.

        While all workers have finished but the job has not, wait a little for its final phase.
        """
        if self._finished or self._in(SlotState.RUNNING, SlotState.BACKOFF):
            return []
        if self._code is not None:
            return self._finish(self._code)
        if not self._slots and not self._dynamic:
            return []
        if not self._in(SlotState.FINISHED):
            idle = self._in(SlotState.IDLE)
            if self._view.target is not None and idle and not any(map(self._room, idle)):
                return self._wait_until_wanted()
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

    def _unless_wanted(self, now: float) -> list[Action]:
        """Report that no worker is wanted, if that is so; silent before a host is found."""
        return self._end(now) if self._view.target is not None and self._slots else []

    def _wait_until_wanted(self) -> list[Action]:
        """Report, once, that an autoscaled job wants no worker of this agent at the moment."""
        if self._said_not_wanted:
            return []
        self._said_not_wanted = True
        text = f"no worker is wanted here: the job wants {self._wanted()}; waiting until it wants more"
        return [Say(text, event="waiting_until_wanted")]

    def _wait_for_place(self) -> list[Action]:
        """Report once why no worker runs; a new host may be found, or an exclusion may end."""
        held = sorted({slot.held for slot in self._in(SlotState.IDLE) if slot.held})
        why = "; ".join(held) or "no host has a slot"
        if why == self._said_no_place:
            return []
        self._said_no_place = why
        text = f"no worker is running: {why}; waiting for hosts"
        return [Say(text, "warning", "waiting_for_hosts")]

    def _ended_early(self) -> list[Action]:
        """All workers have exited with 0 but the job is not over: find out why, and finish."""
        view = self._view
        if view.steps == 0 and view.datasets == 0:
            text = (
                "the script ended without having used the job: each process trained by itself, if at all. "
                "It needs elastane.init, job.prepare and job.epochs, or job.tasks, or a class of "
                "elastane.integrations; `elastane launch` runs scripts that start torch.distributed "
                "themselves"
            )
            return self._finish(CODE_FAILED, Say(text, "error", "not_joined"))
        if view.steps == 0:
            if view.datasets:
                return self._finish(CODE_OK)
            text = (
                "the script ended without training: expected with job.tasks; else job.epochs may be missing"
            )
            return self._finish(CODE_OK, Say(text, "warning", "not_joined"))
        if view.step < view.steps:
            text = f"the script ended at step {view.step} of {view.steps}"
            return self._finish(CODE_FAILED, Say(text, "error", "ended_early"))
        return self._finish(CODE_OK, Say("this agent's workers have finished; the job continues elsewhere"))

    def _finish(self, code: int, *says: Action) -> list[Action]:
        self._finished, self._code = True, code
        return [*says, Finish(code)]


def by_agent(why: str) -> str:
    """Return the reason that a worker gives the master when its agent asks it to leave.

    The master classifies departures by the beginning of this text.
    """
    return f"asked for by its agent: {why}"


def _cause(status: ExitStatus) -> str:
    """Describe how a worker died; names preemptions, so that nobody looks for a bug in the script."""
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

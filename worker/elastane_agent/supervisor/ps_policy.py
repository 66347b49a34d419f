"""Decides what the agent does about its parameter servers: pure.

    exit of a parameter server      reaction
    0 (the job is over)             it stays away
    80 (drained)                    it stays away: an operator asked for it, or its node is taken away
    82, 83 (refused, no master)     everything stops, as for a worker
    1, and it cannot be run         everything stops: a module is missing here
    any other, or a signal          restarted within the budget, under its name, without slots at first.
                                    Beyond the budget it stays away; once all do, everything stops
    any, its host is gone           restarted on another host; nothing is counted

They outlive the workers: after those of this agent have ended, and no other agent's worker needs them,
parameter servers are asked to leave. They save their slots then, so they get the full grace time.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from elastane_agent.supervisor.actions import Action, Announce, Fail, Finish, Kill, Say, Spawn, Terminate
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.policy import by_agent
from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED
from elastane_common.exit_codes import CODE_FAILED, CODE_OK, CODE_REFUSED, CODE_UNREACHABLE, EXIT_DRAINED
from elastane_common.processes.child import ExitStatus


class PsState(Enum):
    """Life-cycle state of a parameter server of this agent."""

    RUNNING = "running"
    BACKOFF = "backoff"  # dead, restarted when due
    AWAY = "away"  # not started yet, or not to be started again


@dataclass
class _Ps:
    name: str
    state: PsState = PsState.AWAY
    due: float = 0.0
    restarts: list[float] = field(default_factory=list)
    leave_by: float | None = None  # asked to leave because its host is gone; killed at this time


class PsPolicy:
    """Decision state of the parameter servers of one agent, which may have none.

    names: of the parameter servers. grace_seconds: from the request to leave to SIGKILL. dynamic: hosts come
    and go (`hosts_changed`); there may be none at times. All times are seconds of one monotonic clock. A
    `Finish` is the agent's end: nothing runs any more.
    """

    def __init__(
        self,
        names: Sequence[str],
        budget: RestartBudget,
        *,
        grace_seconds: float = 30.0,
        dynamic: bool = False,
    ) -> None:
        self._all = {name: _Ps(name) for name in names}
        self._budget = budget
        self._grace_seconds = grace_seconds
        self._dynamic = dynamic
        self._has_host = not dynamic
        self._restarts: list[float] = []
        self._code: int | None = None  # exit code after the workers' end; None: they run
        self._stopping = False
        self._kill_at: float | None = None
        self._goes_at: float | None = None  # when this node is taken away
        self._others: frozenset[str] = frozenset()
        self._said_others = False
        self._finished = False

    def start(self) -> list[Action]:
        """Start all; where hosts come and go, once one is found. Without it, there are none."""
        for one in self._all.values():
            one.state = PsState.BACKOFF if self._dynamic else PsState.RUNNING
        return [Spawn(one.name) for one in self._in(PsState.RUNNING)]

    def hosts_changed(self, now: float, has_host: bool, gone: Collection[str] = ()) -> list[Action]:
        """React to other hosts than before. has_host: something may be started on one now. gone: parameter
        servers that run where no host is listed any more; they are asked to leave, and start elsewhere."""
        self._has_host = has_host
        actions: list[Action] = []
        for one in self._in(PsState.RUNNING):
            if one.name in gone and one.leave_by is None and not self._stopping:
                one.leave_by = now + self._grace_seconds
                why = "its host is no longer listed"
                actions.append(Say(f"{one.name} moves: {why}", "warning", "host_gone", one.name))
                actions.append(Terminate(one.name, by_agent(why)))
        return [*actions, *self.tick(now)]

    def host_failed(self, now: float, name: str, text: str, event: str) -> list[Action]:
        """React to an exit that is the fault of its host: it starts elsewhere, and no restart is counted."""
        if self._stopping:
            self._all[name].state = PsState.AWAY
            return [Say(text, event=event, worker=name), *self._end()]
        self._all[name].state, self._all[name].due = PsState.BACKOFF, now
        self._all[name].leave_by = None
        return [Say(text, "warning", event, name)]

    def exited(self, now: float, name: str, status: ExitStatus) -> list[Action]:
        """React to the end of a parameter server's process, see the module's table."""
        one, code = self._all[name], status.returncode
        if one.leave_by is not None and code and not self._stopping:
            return self.host_failed(now, name, f"{name} left ({status})", "ps_left")
        if self._stopping or code in (0, EXIT_DRAINED):
            one.state = PsState.AWAY
            how = "left" if code in (0, EXIT_DRAINED) else f"left ({status})"
            actions: list[Action] = [Say(f"{name} {how}", event="ps_left", worker=name)]
        elif code in (EXIT_REFUSED, EXIT_MASTER_UNREACHABLE):
            one.state = PsState.AWAY
            refused = code == EXIT_REFUSED
            why = "was refused: its last lines of output say why" if refused else "could not reach the master"
            actions = [Fail(CODE_REFUSED if refused else CODE_UNREACHABLE, f"{name} {why}")]
        elif status.repeats and not self._dynamic:  # another host may have the module
            one.state = PsState.AWAY
            text = f"{name} cannot run, and a restart would not help: {status.error}"
            actions = [Fail(CODE_FAILED, text)]
        else:
            actions = self._died(now, one, status)
        return [*actions, *self._end()]

    def workers_over(self, now: float, code: int, others: Collection[str]) -> list[Action]:
        """Handle the end of the agent's workers; it exits with `code`. others: workers of other agents."""
        self._code, self._others = code, frozenset(others)
        return [*self._leave_unless_needed(now), *self._end()]

    def attending(self, now: float, others: Collection[str]) -> list[Action]:
        """Handle a change of the connected workers of other agents."""
        self._others = frozenset(others)
        return [*self._leave_unless_needed(now), *self._end()]

    def signalled(self, now: float, number: int) -> list[Action]:
        """React to a stop signal after the workers' end: the first asks all to leave, the next kills them."""
        assert self._code is not None, "the workers come first"
        name = signal.Signals(number).name
        if self._stopping:
            return [Say(f"{name}: killing the parameter servers", "warning", "killing"), *self.kill()]
        if self._code == CODE_OK and self._others:
            self._code = 128 + number
        text = f"{name}: parameter servers save their slots and leave; a second signal kills them"
        return [Say(text, "warning", "stopping"), *self._leave(now, f"its agent got {name}"), *self._end()]

    def noticed(self, now: float, seconds: float, reason: str) -> list[Action]:
        """React to a spot notice: all leave at once, beside the workers, and may use all `seconds`."""
        self._goes_at = min(now + seconds, self._goes_at or now + seconds)
        if self._stopping:
            self._kill_at = min(self._goes_at, self._kill_at or self._goes_at)
            return []
        return [Announce(seconds, reason), *self._leave(now, ""), *self._end()]

    def kill(self) -> list[Action]:
        """Kill all that run, as after a second signal."""
        self._stopping, self._kill_at = True, None
        for one in self._in(PsState.BACKOFF):
            one.state = PsState.AWAY
        return [*(Kill(one.name) for one in self._in(PsState.RUNNING)), *self._end()]

    def tick(self, now: float) -> list[Action]:
        """Restart those whose backoff is over; kill those that did not leave in time."""
        if self._kill_at is not None and now >= self._kill_at:
            left = ", ".join(one.name for one in self._in(PsState.RUNNING))
            text = f"{left} did not leave in time: what was not saved is done again when the job goes on"
            return [Say(text, "warning", "killing"), *self.kill()] if left else self.kill()
        actions: list[Action] = []
        for one in self._in(PsState.RUNNING):
            if one.leave_by is not None and now >= one.leave_by:
                one.leave_by = math.inf  # still leaving, but killed only once
                text = f"{one.name} did not leave in time"
                actions += [Say(text, "warning", "killing", one.name), Kill(one.name)]
        for one in self._in(PsState.BACKOFF):
            if now >= one.due and self._has_host:
                one.state = PsState.RUNNING
                actions.append(Spawn(one.name))
        return actions

    def next_due(self) -> float | None:
        """Return the time at which `tick` must be called next; None: not before the next event."""
        dues = [one.due for one in self._in(PsState.BACKOFF)] if self._has_host else []
        dues += [one.leave_by for one in self._in(PsState.RUNNING) if one.leave_by not in (None, math.inf)]
        return min([*dues, *([] if self._kill_at is None else [self._kill_at])], default=None)

    # ------------------------------------------------------------------ inside

    def _in(self, *states: PsState) -> list[_Ps]:
        return [one for one in self._all.values() if one.state in states]

    def _died(self, now: float, one: _Ps, status: ExitStatus) -> list[Action]:
        decision = self._budget.decide(now, self._restarts, one.restarts)
        text = f"{one.name}: {status}; {decision.reason}"
        if not decision.allowed:
            one.state = PsState.AWAY
            if self._in(PsState.RUNNING, PsState.BACKOFF):
                return [Say(text, "error", "ps_died", one.name)]
            return [Fail(CODE_FAILED, text)]
        one.state, one.due = PsState.BACKOFF, now + decision.delay_seconds
        one.restarts.append(now)
        self._restarts.append(now)
        return [Say(text, "warning", "ps_died", one.name)]

    def _leave_unless_needed(self, now: float) -> list[Action]:
        if self._code is None or self._stopping:
            return []
        # An agent that stops for another reason leaves regardless of others: its slots move or are restored.
        if self._code != CODE_OK or not self._others or not self._in(PsState.RUNNING, PsState.BACKOFF):
            return self._leave(now, "the workers of its agent have ended")
        if self._said_others:
            return []
        self._said_others = True
        text = f"parameter servers stay for workers of other agents: {', '.join(sorted(self._others))}"
        return [Say(text, event="ps_stay")]

    def _leave(self, now: float, why: str) -> list[Action]:
        self._stopping = True
        self._kill_at = self._goes_at or now + self._grace_seconds
        for one in self._in(PsState.BACKOFF):
            one.state = PsState.AWAY
        # A second SIGTERM would end it at once, so those that leave already get none.
        staying = [one for one in self._in(PsState.RUNNING) if one.leave_by is None]
        return [Terminate(one.name, by_agent(why) if why else "") for one in staying]

    def _end(self) -> list[Action]:
        if self._in(PsState.RUNNING, PsState.BACKOFF):
            return []
        self._kill_at = None
        if self._finished or self._code is None:
            return []
        self._finished = True
        return [Finish(self._code)]

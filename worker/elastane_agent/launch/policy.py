"""Decides when the processes of a black-box script are started, stopped, and restarted: pure.

    waiting --enough slots--> running --all exit 0--> finished
       ^                        |  a process fails; the hosts change
       +------ stopping <-------+  (every process gets SIGTERM, and SIGKILL after a grace time)

A round is one run of all processes together: after any change all of them end and the next round begins.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from elastane_agent.hosts.exclusions import CALM_SECONDS, HostExclusions
from elastane_agent.hosts.slots import Slot
from elastane_agent.launch.plan import choose
from elastane_agent.supervisor.actions import Finish, Kill, Say, Terminate
from elastane_agent.supervisor.budget import RestartBudget
from elastane_common.exit_codes import CODE_FAILED, CODE_MAX_WAIT, CODE_OK
from elastane_common.processes.child import ExitStatus

Phase = Literal["waiting", "running", "stopping", "ending", "over"]


@dataclass(frozen=True)
class StartRound:
    """Start every process of this round. number: from 0, equal to the number of restarts."""

    number: int
    slots: tuple[Slot, ...]


Action = StartRound | Terminate | Kill | Say | Finish


class LaunchPolicy:
    """State of one launch. Times are seconds of any monotonic clock.

    workers_min, workers_max: processes of a round. settle_seconds: delay before a running round is stopped
    for new hosts, to gather more of them. wait_max_seconds: time limit of waiting for enough hosts; 0: none.
    A process is named by its rank.
    """

    def __init__(
        self,
        *,
        workers_min: int,
        workers_max: int,
        budget: RestartBudget,
        grace_seconds: float = 30.0,
        settle_seconds: float = 5.0,
        wait_max_seconds: float = 0.0,
    ) -> None:
        self._workers_min = workers_min
        self._workers_max = workers_max
        self._budget = budget
        self._grace_seconds = grace_seconds
        self._settle_seconds = settle_seconds
        self._wait_max_seconds = wait_max_seconds
        self.phase: Phase = "waiting"
        self.round = -1
        self.slots: tuple[Slot, ...] = ()
        self._hosts: dict[str, int] = {}
        self._live: set[int] = set()
        self._restarts: list[float] = []
        self._exclusions = HostExclusions()
        self._started_at = 0.0
        self._waiting_since: float | None = None
        self._start_at = 0.0
        self._grow_at: float | None = None
        self._kill_at: float | None = None
        self._code = CODE_OK
        self._signals = 0

    # ------------------------------------------------------------------ events

    def hosts_changed(self, now: float, hosts: Mapping[str, int]) -> list[Action]:
        """Take the discovered hosts and slots.

        Unchanged ones matter too, because a host may have become usable again.
        """
        self._hosts = dict(hosts)
        actions: list[Action] = []
        if self.phase == "running":
            usable = self._usable(now)
            gone = [slot for slot in self.slots if slot.index >= usable.get(slot.host, 0)]
            if gone:
                lost = ", ".join(dict.fromkeys(slot.host for slot in gone))
                actions = self._stop(now, "stopping", f"{lost} went away: restarting all processes")
            elif len(self._next(now)) > len(self.slots):
                self._grow_at = self._grow_at or now + self._settle_seconds
            else:
                self._grow_at = None
        return [*actions, *self.tick(now)]

    def exited(self, now: float, rank: int, status: ExitStatus) -> list[Action]:
        """Handle the exit of a process of the round."""
        self._live.discard(rank)
        actions: list[Action] = []
        if self.phase == "running" and status.returncode != 0:
            actions = self._failed(now, rank, status)
        elif self.phase == "running" and not self._live:
            return self._finish(CODE_OK, Say("all processes have finished", "success", "finished"))
        if not self._live and self.phase == "stopping":
            self.phase, self._kill_at, self._waiting_since = "waiting", None, now
        elif not self._live and self.phase == "ending":
            actions += self._finish(self._code)
        return [*actions, *self.tick(now)]

    def signalled(self, now: float, number: int) -> list[Action]:
        """Handle SIGTERM or SIGINT: the first one ends all processes, the second kills them."""
        self._signals += 1
        self._code = 128 + number
        name = signal.Signals(number).name
        if self._signals > 1:
            return [Say(f"{name} again: killing the processes", "warning", "killing"), *self._kill()]
        return self._stop(now, "ending", f"{name}: asking the processes to end; a second signal kills them")

    def tick(self, now: float) -> list[Action]:
        """Act on due times; called after every event too."""
        actions: list[Action] = []
        if self._kill_at is not None and now >= self._kill_at:
            left = ", ".join(str(rank) for rank in sorted(self._live))
            actions += [Say(f"rank {left} did not exit in time", "warning", "killing"), *self._kill()]
        if self.phase == "running" and self._grow_at is not None and now >= self._grow_at:
            count = len(self._next(now))
            if count > len(self.slots):
                actions += self._stop(
                    now, "stopping", f"there is room for {count} processes: restarting all of them"
                )
            self._grow_at = None
        if self.phase == "waiting":
            actions += self._start_if_possible(now)
        return actions

    def next_due(self) -> float | None:
        """Return the time at which `tick` must be called at the latest, or None."""
        dues = [self._kill_at, self._grow_at]
        if self.phase == "waiting":
            if self._waiting_since is not None and self._wait_max_seconds:
                dues.append(self._waiting_since + self._wait_max_seconds)
            dues += [self._start_at if self._start_at else None, self._exclusions.next_due()]
        return min((due for due in dues if due is not None), default=None)

    # ------------------------------------------------------------------ internals

    def _usable(self, now: float) -> dict[str, int]:
        """Return the hosts that are not excluded after failures."""
        excluded = self._exclusions.excluded(now)
        return {host: count for host, count in self._hosts.items() if host not in excluded}

    def _next(self, now: float) -> tuple[Slot, ...]:
        return choose(self._usable(now), self.slots, self._workers_max)

    def _start_if_possible(self, now: float) -> list[Action]:
        if now < self._start_at:
            return []
        slots = self._next(now)
        if len(slots) >= self._workers_min:
            self.round += 1
            self.phase, self.slots, self._live = "running", slots, set(range(len(slots)))
            self._started_at, self._waiting_since, self._start_at = now, None, 0.0
            hosts = len({slot.host for slot in slots})
            text = f"round {self.round}: {len(slots)} processes on {hosts} host{'s' * (hosts > 1)}"
            return [Say(text, event="round_started"), StartRound(self.round, slots)]
        if self._waiting_since is None:
            self._waiting_since = now
        if self._wait_max_seconds and now >= self._waiting_since + self._wait_max_seconds:
            text = (
                f"only {len(slots)} of {self._workers_min} slots were available within "
                f"{self._wait_max_seconds:g} s"
            )
            return self._finish(CODE_MAX_WAIT, Say(text, "error", "max_wait_exceeded"))
        return []

    def _failed(self, now: float, rank: int, status: ExitStatus) -> list[Action]:
        host = self.slots[rank].host
        hosts = {slot.host for slot in self.slots}
        if now - self._started_at >= CALM_SECONDS:
            self._exclusions.clear(hosts)
        actions: list[Action] = []
        if seconds := self._exclusions.failed(now, host, alone=len(hosts) == 1):
            text = f"{host} failed repeatedly and is not used for {seconds:g} s"
            actions.append(Say(text, "warning", "host_rests"))
        decision = self._budget.decide(now, self._restarts, self._restarts)
        what = f"rank {rank} on {host} {status}"
        if not decision.allowed:
            self._code = CODE_FAILED
            return [*actions, *self._stop(now, "ending", f"{what}; {decision.reason}", "error")]
        self._restarts.append(now)
        self._start_at = now + decision.delay_seconds
        return [*actions, *self._stop(now, "stopping", f"{what}; {decision.reason}")]

    def _stop(self, now: float, phase: Phase, text: str, kind: str = "warning") -> list[Action]:
        if self.phase == "over":
            return []
        said: list[Action] = [Say(text, kind, "stopping")]
        self._grow_at = None
        if not self._live:
            return [*said, *self._finish(self._code)] if phase == "ending" else said
        message = (
            []
            if self.phase in ("stopping", "ending")
            else [Terminate(str(rank)) for rank in sorted(self._live)]
        )
        self.phase, self._kill_at = phase, self._kill_at or now + self._grace_seconds
        return [*said, *message]

    def _kill(self) -> list[Action]:
        self._kill_at = None
        return [Kill(str(rank)) for rank in sorted(self._live)]

    def _finish(self, code: int, *says: Say) -> list[Action]:
        self.phase, self._kill_at, self._grow_at = "over", None, None
        return [*says, Finish(code)]

"""Processes of an agent's parameter servers, on its machine or its hosts; `PsPolicy` decides about them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from elastane_agent.supervisor import actions as act
from elastane_agent.supervisor.actions import Action
from elastane_agent.supervisor.draining import drain_elsewhere
from elastane_agent.supervisor.notices.node import NodeNotices
from elastane_agent.supervisor.output_reporting import WorkerOutput
from elastane_agent.supervisor.placement import Placement
from elastane_agent.supervisor.ps_policy import PsPolicy
from elastane_agent.supervisor.settings import AgentSettings
from elastane_agent.supervisor.worker_command import Start, local_environment, remote_start
from elastane_common.exit_codes import EXIT_DRAINED
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Output

COMMAND: Final = (sys.executable, "-u", "-P", "-m", "elastane_ps")


class PsChildren:
    """Used by the agent's main thread.

    lines: takes their output. on_exit: called from another thread with the name of an ended
    parameter server, and how it ended. notices: of the node, whose files tell them the reason and deadline
    for leaving. placement: spreads them over hosts; None: all are on this machine.
    """

    def __init__(
        self,
        settings: AgentSettings,
        output: Output,
        lines: WorkerOutput,
        notices: NodeNotices,
        on_exit: Callable[[str, ExitStatus], None],
        placement: Placement | None = None,
    ) -> None:
        self._settings, self._output, self._notices, self._on_exit = settings, output, notices, on_exit
        self._lines = lines
        self._placement = placement
        names = [f"{settings.ps_prefix}{number}" for number in range(settings.ps)]
        self.policy = PsPolicy(
            names, settings.budget, grace_seconds=settings.grace_seconds, dynamic=placement is not None
        )
        self._children: dict[str, ChildProcess] = {}
        self._master = ""

    def start(self, master: str) -> list[Action]:
        """Start all; master: its address."""
        self._master = master
        return self.perform(self.policy.start())

    def perform(self, actions: Iterable[Action]) -> list[Action]:
        """Carry out the policy's actions; return those for the agent, `Fail` and `Finish`."""
        rest: list[Action] = []
        for action in actions:
            match action:
                case act.Spawn(name):
                    self._spawn(name)
                case act.Announce(seconds, reason):
                    self._notices.announce(seconds, reason)
                case act.Terminate(name, reason):
                    self._terminate(name, reason)
                case act.Kill(name):
                    self._children[name].kill_group()
                case act.Say(text, kind, event, name):
                    self._output.say(text, kind, event, **({"ps": name} if name else {}))
                case _:
                    rest.append(action)
        return rest

    def tick(self) -> list[Action]:
        """Handle everything that is due, with the present hosts."""
        now, placement = time.monotonic(), self._placement
        if placement is None:
            return self.perform(self.policy.tick(now))
        gone = [name for name in self._running() if not placement.is_listed(name)]
        return self.perform(self.policy.hosts_changed(now, bool(placement.usable(now)), gone))

    def close(self) -> None:
        """Kill those that run, and wait for them."""
        for child in self._children.values():
            child.kill_group()
        for child in self._children.values():
            child.wait()

    def _running(self) -> list[str]:
        return [name for name, child in self._children.items() if child.status is None]

    def _is_remote(self, name: str) -> bool:
        return self._placement is not None and self._placement.is_remote(name)

    def _terminate(self, name: str, reason: str) -> None:
        child = self._children[name]
        if self._is_remote(name):
            job = self._settings.job
            drain_elsewhere(child, self._master, lambda client: client.drain_ps(job, name, reason=reason))
            return
        if reason:
            with contextlib.suppress(OSError):  # a full disk: it leaves without a reason
                self._notices.announce_to(name, self._settings.grace_seconds, reason)
        child.signal(signal.SIGTERM)

    def _spawn(self, name: str) -> None:
        where = ""
        if self._placement is not None:
            now = time.monotonic()
            found = self._placement.spread(now, name, self._running())
            assert found, "the policy was told that there is a host"
            self._placement.started(now, name)
            where = f" on {self._placement.slot(name).host}"
        command, environment = self._start_of(name)
        child = ChildProcess(
            name,
            command,
            environment=environment,
            on_line=self._lines.line,
            on_bytes=self._lines.read,
            on_exit=lambda _, status: self._on_exit(name, status),
        )
        child.start()
        self._children[name] = child
        text = f"{name} started{where}, pid {child.pid}"
        self._output.say(text, event="ps_started", ps=name, pid=child.pid)

    def _start_of(self, name: str) -> Start:
        """Return command and environment of its local process, which may be a remote shell."""
        own = ps_variables(self._settings, self._master, name)
        if self._placement is not None and self._placement.is_remote(name):
            capacity = self._placement.capacity(name) or self._settings.capacity
            return remote_start(self._settings, self._placement.slot(name).host, own, capacity, COMMAND)
        return list(COMMAND), local_environment(own) | self._notices.environment()


def ps_variables(agent: AgentSettings, master: str, name: str) -> Mapping[str, str]:
    """Return the variables of a parameter server, in addition to the agent's environment."""
    return {
        "PYTHONUNBUFFERED": "1",
        "ELASTANE_MASTER": master,
        "ELASTANE_JOB": agent.job,
        "ELASTANE_PS_ID": name,
        # Its name in the notice file.
        "ELASTANE_WORKER_ID": name,
        "ELASTANE_MASTER_TIMEOUT_SECONDS": str(agent.master_timeout_seconds),
        "ELASTANE_NOTICE_SECONDS": str(agent.grace_seconds),
        "ELASTANE_DRAIN_EXIT_CODE": str(EXIT_DRAINED),
        # Elementwise work, one push at a time: BLAS threads would only take cores from workers.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }

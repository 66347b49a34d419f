"""The parameter servers of an agent: processes on its own machine, as `PsPolicy` decides."""

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
from elastane_agent.supervisor.notices.node import NodeNotices
from elastane_agent.supervisor.ps_policy import PsPolicy
from elastane_agent.supervisor.settings import AgentSettings
from elastane_agent.supervisor.worker_command import local_environment
from elastane_common.exit_codes import EXIT_DRAINED
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Output

COMMAND: Final = (sys.executable, "-u", "-P", "-m", "elastane_ps")


class PsChildren:
    """Used by the agent's main thread.

    on_exit: called from another thread with the name of a parameter server that has ended, and how. notices:
    of the node, by whose files they learn why and by when they leave.
    """

    def __init__(
        self,
        settings: AgentSettings,
        output: Output,
        notices: NodeNotices,
        on_exit: Callable[[str, ExitStatus], None],
    ) -> None:
        self._settings, self._output, self._notices, self._on_exit = settings, output, notices, on_exit
        names = [f"{settings.ps_prefix}{number}" for number in range(settings.ps)]
        self.policy = PsPolicy(names, settings.budget, grace_seconds=settings.grace_seconds)
        self._children: dict[str, ChildProcess] = {}
        self._master = ""

    def start(self, master: str) -> list[Action]:
        """Start all; master: its address."""
        self._master = master
        return self.perform(self.policy.start())

    def perform(self, actions: Iterable[Action]) -> list[Action]:
        """Carry out what the policy decided; return what concerns the agent, `Fail` and `Finish`."""
        rest: list[Action] = []
        for action in actions:
            match action:
                case act.Spawn(name):
                    self._spawn(name)
                case act.Announce(seconds, reason):
                    self._notices.announce(seconds, reason)
                case act.Terminate(name, reason):
                    if reason:
                        with contextlib.suppress(OSError):  # a full disk: it leaves without a reason
                            self._notices.announce_to(name, self._settings.grace_seconds, reason)
                    self._children[name].signal(signal.SIGTERM)
                case act.Kill(name):
                    self._children[name].kill_group()
                case act.Say(text, kind, event, name):
                    self._output.say(text, kind, event, **({"ps": name} if name else {}))
                case _:
                    rest.append(action)
        return rest

    def tick(self) -> list[Action]:
        """Do what is due."""
        return self.perform(self.policy.tick(time.monotonic()))

    def close(self) -> None:
        """Kill those that run, and wait for them."""
        for child in self._children.values():
            child.kill_group()
        for child in self._children.values():
            child.wait()

    def _spawn(self, name: str) -> None:
        child = ChildProcess(
            name,
            COMMAND,
            environment=self._environment(name),
            on_line=self._output.line,
            on_exit=lambda _, status: self._on_exit(name, status),
        )
        child.start()
        self._children[name] = child
        self._output.say(f"{name} started, pid {child.pid}", event="ps_started", ps=name, pid=child.pid)

    def _environment(self, name: str) -> dict[str, str]:
        own = ps_variables(self._settings, self._master, name)
        return local_environment(own) | self._notices.environment()


def ps_variables(agent: AgentSettings, master: str, name: str) -> Mapping[str, str]:
    """Return the variables of a parameter server; it has the rest of the agent's environment."""
    return {
        "PYTHONUNBUFFERED": "1",
        "ELASTANE_MASTER": master,
        "ELASTANE_JOB": agent.job,
        "ELASTANE_PS_ID": name,
        # By which the notice file names it.
        "ELASTANE_WORKER_ID": name,
        "ELASTANE_MASTER_TIMEOUT_SECONDS": str(agent.master_timeout_seconds),
        "ELASTANE_NOTICE_SECONDS": str(agent.grace_seconds),
        "ELASTANE_DRAIN_EXIT_CODE": str(EXIT_DRAINED),
        # Elementwise work, one push at a time: threads of BLAS would only take cores from workers.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }

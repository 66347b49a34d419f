"""Decides what a remote worker's own agent does about signals, spot notices and the worker's exit: pure."""

from __future__ import annotations

from typing import Final

from elastane_agent.supervisor.actions import Announce, Finish, Kill, Say, Terminate
from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_SCRIPT_RAISED, EXIT_START_ANEW
from elastane_common.exit_codes import EXIT_DRAINED, EXIT_RECLAIMED
from elastane_common.processes.child import ExitStatus

Action = Announce | Terminate | Kill | Say | Finish

_TOLD_ON: Final = frozenset({0, EXIT_DRAINED, EXIT_REFUSED, EXIT_MASTER_UNREACHABLE, EXIT_START_ANEW})


class NodePolicy:
    """Decision state of one remote agent.

    worker: its worker's id. grace_seconds: from the first signal to SIGKILL.
    The agent's exit code passes through the remote shell, whose own codes (126, 127, 255) must stay
    unambiguous. So the codes that the supervisor needs are passed on, and every other code of the script
    becomes 1.
    """

    def __init__(self, worker: str, grace_seconds: float) -> None:
        self._worker = worker
        self._grace_seconds = grace_seconds
        self._kill_at: float | None = None
        self._draining = False
        self._reclaimed = False

    def signalled(self, now: float, name: str) -> list[Action]:
        """React to a signal: the first drains the worker, the next kills it.

        SIGHUP counts too: it means that the connection to the supervisor is gone. Under nohup, which is meant
        to outlive that, the process ignores it.
        """
        if self._draining:
            return self._kill()
        self._kill_at = now + self._grace_seconds
        return [Say(f"{name}: the worker drains and leaves", "warning", "stopping"), *self._tell()]

    def noticed(self, now: float, seconds: float, reason: str) -> list[Action]:
        """React to a spot notice: drain the worker, and kill it when the node is taken away."""
        self._reclaimed = True
        self._kill_at = now + seconds
        text = f"this node will be taken away in {seconds:.0f} s ({reason}): the worker drains and leaves"
        return [Announce(seconds, reason), Say(text, "warning", "spot_notice"), *self._tell()]

    def exited(self, status: ExitStatus) -> list[Action]:
        """Return the exit code that reports the worker's end to the supervisor."""
        code = status.returncode
        if self._reclaimed and code not in (0, EXIT_REFUSED, EXIT_MASTER_UNREACHABLE):
            return [Finish(EXIT_RECLAIMED)]
        if code < 0:
            return [Finish(128 - code)]
        return [Finish(code if code in _TOLD_ON else EXIT_SCRIPT_RAISED)]

    def tick(self, now: float) -> list[Action]:
        """Kill a worker that did not leave in time."""
        return self._kill() if self._kill_at is not None and now >= self._kill_at else []

    def next_due(self) -> float | None:
        """Return the time at which `tick` must be called; None: no deadline."""
        return self._kill_at

    def _tell(self) -> list[Action]:
        already_draining, self._draining = self._draining, True
        return [] if already_draining else [Terminate(self._worker)]

    def _kill(self) -> list[Action]:
        self._kill_at = None
        return [Say("the worker did not leave in time", "warning", "killing"), Kill(self._worker)]

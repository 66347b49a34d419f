"""Reports to the agent's user, once, that no master answers, and counts down the remaining time."""

from __future__ import annotations

import time
from typing import Final

from elastane_common.processes.output import Output

#: A shorter outage is not reported: the master is being restarted, or another one takes over.
_MOMENT_SECONDS: Final = 2.0


class MasterAbsence:
    """Absence of the master. timeout_seconds: how long agent and workers wait for one (--master-timeout)."""

    def __init__(self, output: Output, timeout_seconds: float) -> None:
        self._output = output
        self._timeout_seconds = timeout_seconds
        self._gives_up_at: float | None = None
        self._away_since: float | None = None
        self._said_away = False

    def at_start(self, address: str, error: str) -> None:
        """Report that no master answers while the agent starts; on a terminal also count down."""
        now, most = time.monotonic(), self._timeout_seconds
        if self._gives_up_at is None:
            self._gives_up_at = now + most
            self._output.say(
                f"no master answers at {address} ({error}); trying for {most:g} s (--master-timeout)",
                "warning",
                event="master_awaited",
            )
        self._output.passing(f"no master yet; {max(self._gives_up_at - now, 0.0):.0f} s left")

    def over_at_start(self) -> None:
        """Note that a master has answered while the agent starts."""
        self._output.passing("")
        self._gives_up_at = None

    def while_running(self, now: float, address: str, error: str) -> None:
        """Report, after `_MOMENT_SECONDS`, that the master is away while workers run.

        On a terminal also count down how long the workers still wait for it.
        """
        if self._away_since is None:
            self._away_since = now
        away, most = now - self._away_since, self._timeout_seconds
        if away < _MOMENT_SECONDS:
            return
        if not self._said_away:
            self._said_away = True
            self._output.say(
                f"the master at {address} does not answer ({error}); workers wait up to {most:g} s "
                "(--master-timeout)",
                "warning",
                event="master_away",
            )
        self._output.passing(f"no master; {max(most - away, 0.0):.0f} s left")

    def over(self) -> None:
        """The master answers; report it if its absence was reported."""
        if self._said_away:
            self._output.say("the master answers again", event="master_answers")
        self._away_since, self._said_away = None, False

"""The relay of an agent (`elastane_agent.relay`): start, and restarts after it has died.

Workers get the relay's address before those of the masters: while it is away they connect directly.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.port_file import wait_for_address
from elastane_common.credentials import master_has_tls
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Output

_BUDGET: Final = RestartBudget(restarts_max=20, delay_min_seconds=0.05)
_START_SECONDS: Final = 20.0


class RelayKeeper:
    """Keeps a relay running on this machine. Used by the agent's main thread.

    on_exit: called from another thread when the relay has ended by itself. restart_due: when to restart it,
    monotonic seconds; None: it runs, or is not wanted any more.
    """

    def __init__(self, output: Output, on_exit: Callable[[ExitStatus], None]) -> None:
        self._output = output
        self._on_exit = on_exit
        self._folder = Path(tempfile.mkdtemp(prefix="elastane-relay-"))
        self._process: ChildProcess | None = None
        self._masters = ""
        self._address = "127.0.0.1:0"
        self._deaths: list[float] = []
        self._stopping = False
        self.restart_due: float | None = None

    def start(self, masters: str) -> str:
        """Start the relay and return the addresses for workers: its own, then the masters'.

        Returns the masters' alone, and says why, where workers are to connect directly.
        """
        if master_has_tls():
            # Only the worker itself can check the master's certificate and show its own.
            self._say("no relay: the connections to the master use TLS, so workers connect directly", "info")
            return masters
        self._masters = masters
        process = self._start()
        if address := wait_for_address(process, self._folder / "port", _START_SECONDS):
            self._address = address
            self._output.say(f"relay at {address}", event="relay_started", address=address)
            return f"{address},{masters}"
        self.stop()
        how = process.status or f"not ready within {_START_SECONDS:g} s"
        self._say(f"the relay did not start ({how}): workers connect directly", "warning")
        return masters

    def died(self, now: float, status: ExitStatus) -> None:
        """Decide whether the relay, which has just ended, is restarted."""
        if self._stopping:
            return
        decision = _BUDGET.decide(now, self._deaths, self._deaths)
        self._deaths.append(now)
        if decision.allowed:
            self.restart_due = now + decision.delay_seconds
        how_long = "until then" if decision.allowed else "from now on"
        text = f"the relay {status}; {decision.reason}: {how_long} workers connect directly"
        self._output.say(text, "warning", event="relay_died")

    def restart(self) -> None:
        """Start the relay again, at the same address."""
        self.restart_due = None
        self._start()

    def stop(self) -> None:
        """Stop the relay, once its workers have ended. Idempotent."""
        self._stopping, self.restart_due = True, None
        if self._process is not None:
            self._process.stop(1.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> ChildProcess:
        self._process = process = ChildProcess(
            "relay",
            [
                *(sys.executable, "-P", "-m", "elastane_agent.relay", "--master", self._masters),
                *("--listen", self._address, "--port-file", str(self._folder / "port")),
            ],
            environment=dict(os.environ),
            on_line=lambda name, stream, text: self._say(f"relay: {text}", "warning"),
            on_exit=lambda _, status: self._on_exit(status),
            death_signal=signal.SIGTERM,
        )
        process.start()
        return process

    def _say(self, text: str, level: str) -> None:
        self._output.say(text, level, event="relay")

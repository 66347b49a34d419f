"""The agent of one worker on another host, started there by the template of `elastane run --hosts`.

    python -m elastane_agent.supervisor.node --grace 30 -- COMMAND [ARGUMENT...]

It reads the spot notices of its node, forwards signals as SIGTERM so that the worker drains, and exits
with a code that tells the agent at the other end of the remote shell what happened. It does not import torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from elastane_agent.supervisor import actions as act
from elastane_agent.supervisor.gpus import gpu_variables_of_slot
from elastane_agent.supervisor.node_policy import Action, NodePolicy
from elastane_agent.supervisor.notices.detect import AUTO
from elastane_agent.supervisor.notices.node import NodeNotices
from elastane_agent.supervisor.notices.notice import Notice
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Stream
from elastane_common.processes.signal_handlers import STOP_SIGNALS, signal_handlers


@dataclass(frozen=True)
class _Signalled:
    number: int


_Event = ExitStatus | Notice | _Signalled


class Node:
    """Supervisor of one remote worker. Call `run` once, from the main thread."""

    def __init__(self, command: Sequence[str], *, grace_seconds: float, notices: NodeNotices) -> None:
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._notices = notices
        self._code: int | None = None
        worker = os.environ.get("ELASTANE_WORKER_ID", "worker")
        self._policy = NodePolicy(worker, grace_seconds)
        self._child = ChildProcess(
            worker,
            command,
            environment={**os.environ, **notices.environment(), **gpu_variables_of_slot(os.environ)},
            on_line=_write,
            on_exit=lambda _, status: self._events.put(status),
        )

    def run(self) -> int:
        """Supervise the worker until it has ended; return the exit code."""
        with signal_handlers(STOP_SIGNALS, self._signalled, keep_ignored=True):
            try:
                self._child.start()
                self._notices.start(self._events.put, lambda text: _say(text))
                while self._code is None:
                    self._run_once()
            finally:
                self._notices.stop()
                self._child.kill_group()
                self._child.wait()
        return self._code

    def _signalled(self, number: int, _: object) -> None:
        self._events.put(_Signalled(number))

    def _run_once(self) -> None:
        due = self._policy.next_due()
        event: _Event | None = None
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        now = time.monotonic()
        match event:
            case ExitStatus():
                if event.out_of_memory:
                    _say(f"the worker was killed, out of memory: {event.out_of_memory}")
                self._perform(self._policy.exited(event))
            case Notice(kind="rebalance"):
                _say(f"{event.source}: {event.reason}; this node may be taken away soon")
            case Notice():
                reason = f"spot notice of {event.source}: {event.reason}"
                self._perform(self._policy.noticed(now, event.seconds_left(time.time()), reason))
            case _Signalled(number):
                self._perform(self._policy.signalled(now, signal.Signals(number).name))
        self._perform(self._policy.tick(time.monotonic()))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case act.Announce(seconds, reason):
                    self._notices.announce(seconds, reason)
                case act.Terminate():
                    self._child.signal(signal.SIGTERM)
                case act.Kill():
                    self._child.kill_group()
                case act.Say(text):
                    _say(text)
                case act.Finish(code):
                    self._code = code


def _say(text: str) -> None:
    _write("", "stderr", f"elastane: {text}")


_writing = threading.Lock()


def _write(_: str, stream: Stream, text: str) -> None:
    """Write one line; drop it if the connection is gone, so that the worker can still drain."""
    with _writing, contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point on the other host; the command line is made by `worker_command.remote_start`."""
    parser = argparse.ArgumentParser(prog="python -m elastane_agent.supervisor.node", description=__doc__)
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to drain after a signal")
    parser.add_argument("--spot", default=AUTO, help="where spot notices are read, as of elastane run")
    parser.add_argument("--spot-url", default="", help="of the metadata service")
    parser.add_argument("--spot-poll", type=float, default=0.0, help="seconds between polls; 0: recommended")
    parser.add_argument("--capacity", default=AUTO, help="spot, on-demand or auto")
    # Given by agents of earlier releases, to which the worker's figures were sent as lines of output.
    parser.add_argument("--figures", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+", help="the worker")
    given = parser.parse_args(arguments)
    notices = NodeNotices(given.spot, given.spot_url, given.spot_poll, given.capacity)
    return Node(given.command, grace_seconds=given.grace, notices=notices).run()


if __name__ == "__main__":
    sys.exit(main())

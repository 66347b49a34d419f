"""Has a process on another host drain and leave, by the master."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Final

from elastane_common.client import MasterClient
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess

#: Timeout of the agent's own short requests to the master.
ASK_SECONDS: Final = 2.0


def drain_elsewhere(child: ChildProcess, master: str, ask: Callable[[MasterClient], object]) -> None:
    """Ask the master, in a thread, to drain what `child`, a remote shell, has started.

    A signal would end the remote shell, and the last lines and the exit code would be lost. It is what is
    left where the master does not answer: the agent at the other end then gets SIGHUP, and drains.
    """

    def drain() -> None:
        try:
            with MasterClient(master, timeout_seconds=ASK_SECONDS) as client:
                ask(client)
        except ElastaneError:
            child.signal(signal.SIGTERM)

    threading.Thread(target=drain, name=f"drain {child.pid}", daemon=True).start()

"""The thread that carries out one generation's communication, and is left behind if it hangs.

All hosts must start their collectives in the same order, or they wait for one another for ever; one
thread with one queue gives that order. Torch's operations release the interpreter lock, so the
thread's additions and the backward of the script's thread run side by side.

Whoever needs the results waits in `finish`, which returns soon after the ring has ended although the
thread may not: gloo frees every wait of an aborted group except that for a message of which a part has
been sent or received (docs/decisions/0003). Such a thread ends when gloo's own timeout does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

from elastane.collective.transport import RingTransport

#: How long after the end of its ring a thread is waited for: it may be adding up what has come.
GRACE_SECONDS: Final = 0.05

Result = TypeVar("Result")


class RingThread:
    """Runs tasks one after the other; after a failure it passes the rest over until `finish`.

    transport: the ring the tasks communicate over.
    """

    def __init__(self, name: str, transport: RingTransport) -> None:
        self._transport = transport
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outstanding = 0
        self._error: BaseException | None = None
        self._ring_ended = False
        self._changed = threading.Condition()
        #: The thread hangs in its ring: what its tasks work on must not be used by anybody else again.
        self.left = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        transport.on_end(self._end)

    @property
    def busy(self) -> bool:
        """Whether a task is not done yet."""
        return self._outstanding > 0 and not self.left

    def submit(self, task: Callable[[], None]) -> None:
        """Append a task."""
        with self._changed:
            self._outstanding += 1
        self._tasks.put(task)

    def run(self, task: Callable[[], None]) -> None:
        """Do a task in the calling thread, like one that was submitted: where it waits for nobody else."""
        assert not self.busy
        if self._error is None:
            try:
                task()
            except Exception as raised:  # noqa: BLE001 (it belongs to whoever calls finish)
                self._error = raised

    def finish(self) -> None:
        """Wait until every task is done or passed over, or the thread is `left`.

        Raises what the first failed task raised; RingAborted or RingBroken if the thread is left.
        """
        self._settle()
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error
        if self.left:
            self._transport.check()

    def close(self) -> None:
        """End the thread after the tasks it has, unless it is left. Idempotent."""
        self._settle()
        self._tasks.put(None)
        if not self.left:
            self._thread.join()

    def _settle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding == 0 or self._ring_ended)
            if not self.left:
                self.left = not self._changed.wait_for(lambda: self._outstanding == 0, GRACE_SECONDS)

    def _end(self) -> None:
        with self._changed:
            self._ring_ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            error = None
            if self._error is None:
                try:
                    task()
                except BaseException as raised:  # noqa: BLE001 (it belongs to whoever calls finish)
                    error = raised
            del task
            with self._changed:
                self._error = self._error or error
                self._outstanding -= 1
                if self._outstanding == 0:
                    self._changed.notify_all()
            del error


def finish_in_thread(name: str, transport: RingTransport, task: Callable[[], Result]) -> Result:
    """What `task` returns or raises; RingAborted or RingBroken when the ring ends and it does not.

    It runs in a thread of its own, and may go on after that: it must touch nothing that others use.
    """
    results: list[Result] = []
    thread = RingThread(name, transport)
    thread.submit(lambda: results.append(task()))
    try:
        thread.finish()
    finally:
        thread.close()
    return results[0]

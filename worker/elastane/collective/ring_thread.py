"""Thread that runs one generation's communication, and is abandoned if it hangs.

All hosts must start their collectives in the same order, or they wait for one another for ever; one thread
with one queue guarantees that order. Torch's operations release the GIL, so the thread's additions and the
backward of the script's thread run in parallel.

Callers wait for the results in `finish`, which returns soon after the ring has ended although the thread may
not: a gloo group ends every wait when it is aborted except the wait for a message that is partly sent or
received (docs/decisions/0003). Such a thread ends at gloo's own timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

from elastane.collective.transport import RingTransport

#: Grace period for the thread after the end of its ring: it may be adding up received data.
GRACE_SECONDS: Final = 0.05

Result = TypeVar("Result")


class RingThread:
    """Runs tasks one after the other; after a failure it skips the rest until `finish`.

    transport: the ring the tasks communicate over.
    """

    def __init__(self, name: str, transport: RingTransport) -> None:
        self._transport = transport
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outstanding = 0
        self._error: BaseException | None = None
        self._ring_ended = False
        self._changed = threading.Condition()
        #: The thread hangs in its ring; the memory of its tasks must never be used again.
        self.left = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        transport.on_end(self._end)

    @property
    def busy(self) -> bool:
        """True while a task is not finished."""
        return self._outstanding > 0 and not self.left

    def submit(self, task: Callable[[], None]) -> None:
        """Append a task."""
        with self._changed:
            self._outstanding += 1
        self._tasks.put(task)

    def run(self, task: Callable[[], None]) -> None:
        """Run a task in the calling thread, with the errors of a submitted one.

        The task must not wait for any other member.
        """
        assert not self.busy
        if self._error is None:
            try:
                task()
            except Exception as raised:  # noqa: BLE001 (it belongs to whoever calls finish)
                self._error = raised

    def finish(self) -> None:
        """Wait until every task is finished or skipped, or the thread is abandoned (`left`).

        Raises the error of the first failed task; RingAborted or RingBroken if the thread is abandoned.
        """
        with self._changed:
            self._settle()
            error, self._error = self._error, None
        if error is not None:
            raise error
        if self.left:
            self._transport.check()

    def close(self) -> None:
        """End the thread after its queued tasks, unless it is abandoned. Idempotent."""
        with self._changed:
            self._settle()
        self._tasks.put(None)
        if not self.left:
            self._thread.join()

    def _settle(self) -> None:
        """Wait for the tasks, or leave a thread that does not end with its ring; the caller has the lock."""
        while self._outstanding and not self._ring_ended:
            self._changed.wait()
        if self._outstanding and not self.left:
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
            # The task refers to tensors and messages, which the thread must not keep alive while it waits.
            del task
            with self._changed:
                self._error = self._error or error
                self._outstanding -= 1
                if self._outstanding == 0:
                    self._changed.notify_all()
            del error


def finish_in_thread(
    name: str,
    transport: RingTransport,
    task: Callable[[], Result],
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Run `task` in a thread and return its result; RingAborted or RingBroken if the ring ends before it
    does.

    An abandoned task may continue afterwards: it must not touch anything that others use. meanwhile: work for
    the calling thread, which otherwise only waits.
    """
    results: list[Result] = []
    thread = RingThread(name, transport)
    thread.submit(lambda: results.append(task()))
    try:
        meanwhile()
        thread.finish()
    finally:
        thread.close()
    return results[0]

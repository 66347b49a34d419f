"""One thread that carries out a step's communication, in order, while backward goes on.

All hosts must start their collectives in the same order, or they wait for one another for ever; one
thread with one queue gives that order. Torch's operations release the interpreter lock, so the
thread's additions and the backward of the script's thread run side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class BackgroundThread:
    """Runs tasks one after the other; after a failure it passes the rest over until `finish`."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outstanding = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a task is not done yet."""
        return self._outstanding > 0

    def submit(self, task: Callable[[], None]) -> None:
        """Append a task."""
        with self._changed:
            self._outstanding += 1
        self._tasks.put(task)

    def finish(self) -> None:
        """Wait until every task is done or passed over; raises what the first failed one raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding == 0)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread after the tasks it has. Idempotent."""
        self._tasks.put(None)
        self._thread.join()

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

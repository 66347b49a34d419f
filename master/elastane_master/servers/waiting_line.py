"""Requests of one stream that wait for tasks, in order.

Answers go out in order, so an answer that is known would wait for the tasks of those before it while its own
tasks' leases run. Whoever is answered therefore hurries those before it: they are answered empty.
"""

from __future__ import annotations

import asyncio

from elastane_master.task_waiters import TaskWaiters


class Place:
    """One request that waits. Used from one event loop.

    hurried: answer now, tasks or not. followed: the stream's next request has been begun.
    """

    def __init__(self) -> None:
        self.hurried = False
        self.followed = False
        self._asleep: asyncio.Future[None] | None = None

    async def sleep(self, waiters: TaskWaiters, dataset: str, timeout_seconds: float) -> None:
        """Returns when there may be tasks, when it is hurried, or after the timeout."""
        if not self.hurried:
            self._asleep = asyncio.get_running_loop().create_future()
            await waiters.wait(dataset, timeout_seconds, self._asleep)
        if self.hurried:
            waiters.check()  # it may have been woken for a task that it will not ask for

    def hurry(self) -> None:
        """Somebody behind it has an answer."""
        self.hurried = True
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)


class WaitingLine:
    """Those of one stream that wait, oldest first."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def begun(self) -> None:
        """A request came."""
        if self._places:
            self._places[-1].followed = True

    def enter(self) -> Place:
        """The request that came last has to wait."""
        self._places.append(Place())
        return self._places[-1]

    def answered(self, place: Place | None = None) -> None:
        """The one at `place` has its answer, or the one that came last: those before it are hurried."""
        if place is not None and place not in self._places:
            return
        while self._places and (first := self._places.pop(0)) is not place:
            first.hurry()

"""Requests of one stream that wait for tasks, in order.

Answers are sent in order, so a known answer would wait for the tasks of earlier requests while its own leases
run. Therefore every answered request hurries the earlier ones, which are answered without tasks.
"""

from __future__ import annotations

import asyncio

from elastane_master.jobs.task_waiters import TaskWaiters


class Place:
    """One waiting request. Used from one event loop.

    hurried: answer now, with or without tasks. followed: the stream's next request has begun.
    """

    def __init__(self) -> None:
        self.hurried = False
        self.followed = False
        self._asleep: asyncio.Future[None] | None = None

    async def sleep(self, waiters: TaskWaiters, dataset: str, timeout_seconds: float) -> None:
        """Return when there may be tasks, when hurried, or after the timeout."""
        if not self.hurried:
            self._asleep = asyncio.get_running_loop().create_future()
            await waiters.wait(dataset, timeout_seconds, self._asleep)
        if self.hurried:
            waiters.check()  # it may have been woken for a task that it will not ask for

    def hurry(self) -> None:
        """Hurry this request: a later one has its answer."""
        self.hurried = True
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)


class WaitingLine:
    """Waiting requests of one stream, oldest first."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def begun(self) -> None:
        """Record that a request arrived."""
        if self._places:
            self._places[-1].followed = True

    def enter(self) -> Place:
        """Add the most recent request as waiting."""
        self._places.append(Place())
        return self._places[-1]

    def answered(self, place: Place | None = None) -> None:
        """Record the answer to `place` (None: to the most recent request), and hurry all earlier ones."""
        if place is not None and place not in self._places:
            return
        while self._places and (first := self._places.pop(0)) is not place:
            first.hurry()

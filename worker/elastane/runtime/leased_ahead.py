"""Tasks a worker holds before it does them: what to ask for, and when. Pure.

ask --> on the way --> held --> in the script's hands --> finished --> reported with the next ask
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from elastane_proto.v1 import shard_pb2


@dataclass(frozen=True)
class HeldTask:
    """One task. until: when its lease is surely still held, on the caller's clock."""

    epoch: int
    index: int
    indices: range
    attempt: int
    until: float


class LeasedAhead:
    """The tasks of one worker and dataset, at most `prefetch` beside the one in the script's hands.

    prefetch: at least 1. Fewer are held while tasks take long: each must be begun in the first half of its
    lease, or it times out unbegun, which counts as an attempt. Finished tasks are told together where many
    are held, a quarter of them at most. `take` first, then `ask`, then wait for an answer if there was
    nothing to take.
    """

    def __init__(self, prefetch: int, task_size: int, lease_seconds: float) -> None:
        self._prefetch = prefetch
        self._task_size = task_size
        self._lease_seconds = lease_seconds
        self._held: deque[HeldTask] = deque()
        self._asked: deque[tuple[int, float]] = deque()  # tasks asked for, and when, by request
        self._finished: list[shard_pb2.TaskReport] = []
        self._begun_at = 0.0
        #: The longest that a task of this worker took, in seconds.
        self._longest_seconds: float | None = None

    @property
    def ahead(self) -> int:
        """How many to hold beside the one in hand; none until it is known how long a task takes."""
        if self._longest_seconds is None:
            return 0
        if self._longest_seconds * self._prefetch * 2 <= self._lease_seconds:
            return self._prefetch
        return int(self._lease_seconds / 2 / self._longest_seconds)

    @property
    def on_the_way(self) -> int:
        """Tasks that were asked for and neither came nor were refused."""
        return sum(count for count, _ in self._asked)

    def finish(self, task: HeldTask, now: float) -> None:
        """The script has done the one that was taken last."""
        self._longest_seconds = max(self._longest_seconds or 0.0, now - self._begun_at)
        last = self._finished[-1] if self._finished else None
        follows = last is not None and (last.epoch, last.attempt) == (task.epoch, task.attempt)
        if last is not None and follows and last.index + last.count == task.index:
            last.count += 1
        else:
            self._finished.append(
                shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt, count=1)
            )

    def ask(self, now: float, in_hand: bool) -> tuple[int, list[shard_pb2.TaskReport]] | None:
        """What to send now: how many tasks to ask for, and what is done; None: nothing yet.

        in_hand: whether the script gets a task now.
        """
        ahead = self.ahead
        room = ahead + (not in_hand) - len(self._held) - self.on_the_way
        idle = not in_hand and not self._held and (self._finished or not self._asked)
        if room < max(1, ahead // 4) and not idle:
            return None
        self._asked.append((room, now))
        return room, self.take_finished()

    def take_finished(self) -> list[shard_pb2.TaskReport]:
        """What is done and was not told yet; it counts as told from here on."""
        finished, self._finished = self._finished, []
        return finished

    def answered(self, tasks: list[shard_pb2.Task]) -> None:
        """The answer to the oldest request."""
        _, asked_at = self._asked.popleft()
        for task in tasks:
            for number in range(task.count or 1):
                start = task.range.start + number * self._task_size
                indices = range(start, min(start + self._task_size, task.range.end))
                until = asked_at + self._lease_seconds
                self._held.append(HeldTask(task.epoch, task.index + number, indices, task.attempt, until))

    def take(self, now: float) -> HeldTask | None:
        """The next task to do; one that waited here for longer than its lease is another worker's now."""
        while self._held:
            task = self._held.popleft()
            if now < task.until:
                self._begun_at = now
                return task
        return None

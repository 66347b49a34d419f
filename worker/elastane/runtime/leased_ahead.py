"""Prefetch of leased tasks: how many to request, and when. Pure.

request --> pending --> held --> in the script's hands --> finished --> reported with the next request
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from elastane_proto.v1 import shard_pb2


@dataclass(frozen=True)
class HeldTask:
    """A leased task. until: time on the caller's clock up to which the lease is certainly still held.

    lease, generation: number of the lease and generation of the slot map, of a task that pushes.
    """

    epoch: int
    index: int
    indices: range
    attempt: int
    until: float
    lease: int = 0
    generation: int = 0


class LeasedAhead:
    """Tasks leased by one worker for one dataset: at most `prefetch`, plus the one the script is working on.

    prefetch: at least 1. Fewer are held while tasks take long: each must begin in the first half of its
    lease, or it times out before it has begun, which counts as an attempt. Finished tasks are reported in
    batches, of at most a quarter of the tasks held. Call `take` first, then `ask`, then wait for an answer if
    `take` returned None.
    """

    def __init__(self, prefetch: int, task_size: int, lease_seconds: float) -> None:
        self._prefetch = prefetch
        self._task_size = task_size
        self._lease_seconds = lease_seconds
        self._held: deque[HeldTask] = deque()
        self._asked: deque[tuple[int, float]] = deque()  # number of tasks requested and time, by request
        self._finished: list[shard_pb2.TaskReport] = []
        self._begun_at = 0.0
        #: The longest duration of a task of this worker, in seconds.
        self._longest_seconds: float | None = None

    @property
    def ahead(self) -> int:
        """Number of tasks to hold besides the current one; 0 until the duration of a task is known."""
        if self._longest_seconds is None:
            return 0
        if self._longest_seconds * self._prefetch * 2 <= self._lease_seconds:
            return self._prefetch
        return int(self._lease_seconds / 2 / self._longest_seconds)

    @property
    def on_the_way(self) -> int:
        """Tasks requested and not yet answered."""
        return sum(count for count, _ in self._asked)

    def finish(self, task: HeldTask, now: float) -> None:
        """Note that the script has finished the task taken last, and that it is done."""
        self.ended(now)
        last = self._finished[-1] if self._finished else None
        follows = last is not None and (last.epoch, last.attempt) == (task.epoch, task.attempt)
        if last is not None and follows and last.index + last.count == task.index:
            last.count += 1
        else:
            self._finished.append(
                shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt, count=1)
            )

    def ended(self, now: float) -> None:
        """Note that the script has finished the task taken last; it is reported by `add` once it is done."""
        self._longest_seconds = max(self._longest_seconds or 0.0, now - self._begun_at)

    def add(self, report: shard_pb2.TaskReport) -> None:
        """Send a report with the next request."""
        self._finished.append(report)

    @property
    def next(self) -> HeldTask | None:
        """The task that `take` will return, unless its lease runs out before."""
        return self._held[0] if self._held else None

    def ask(self, now: float, in_hand: bool) -> tuple[int, list[shard_pb2.TaskReport]] | None:
        """Return the number of tasks to request now and the reports to send, or None to wait.

        in_hand: the script has a task to work on.
        """
        ahead = self.ahead
        room = ahead + (not in_hand) - len(self._held) - self.on_the_way
        idle = not in_hand and not self._held and (self._finished or not self._asked)
        if room < max(1, ahead // 4) and not idle:
            return None
        self._asked.append((room, now))
        return room, self.take_finished()

    def take_finished(self) -> list[shard_pb2.TaskReport]:
        """Return the reports not sent yet; the caller must send them."""
        finished, self._finished = self._finished, []
        return finished

    def answered(self, tasks: list[shard_pb2.Task]) -> None:
        """Add the tasks of the answer to the oldest request."""
        _, asked_at = self._asked.popleft()
        for task in tasks:
            for number in range(task.count or 1):
                start = task.range.start + number * self._task_size
                indices = range(start, min(start + self._task_size, task.range.end))
                # From the request, not the answer: the master's lease begins later than that.
                until = asked_at + self._lease_seconds
                self._held.append(
                    HeldTask(
                        task.epoch,
                        task.index + number,
                        indices,
                        task.attempt,
                        until,
                        task.lease,
                        task.map_generation,
                    )
                )

    def take(self, now: float) -> HeldTask | None:
        """Return the next task, or None; tasks whose lease has run out meanwhile are dropped."""
        while self._held:
            task = self._held.popleft()
            if now < task.until:
                self._begun_at = now
                return task
        return None

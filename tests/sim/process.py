"""A process in virtual time: an asyncio event loop that uses the world's heap of events.

The master's code runs in it unmodified: its tasks, futures, timers and timeouts are asyncio's, only
time and order of events come from the world. Killing a process drops all its pending work, `finally` blocks
included, as SIGKILL does; freezing it delays everything until it continues.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from sim.world import SimulationError, World

_CONTEXT = contextvars.Context()
TASKS_KEPT = 200


class Process(asyncio.AbstractEventLoop):
    """One process. wall_offset_seconds: error of its wall clock."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen_until = 0.0
        self.wall_offset_seconds = 0.0
        self._backlog: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []

    # ------------------------------------------------------------------ life

    @property
    def frozen(self) -> bool:
        return self.world.now < self.frozen_until

    def kill(self) -> None:
        """SIGKILL: drop all pending work."""
        self.alive = False
        self._backlog.clear()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        if self.alive and not self.frozen:
            self.world.log(f"{self.name} is frozen for {seconds:.2f} s")
            self.frozen_until = self.world.now + seconds
            self.world.after(seconds, self._thaw)

    def wake(self) -> None:
        """SIGCONT before the time is over."""
        self.frozen_until = self.world.now
        self._thaw()

    def _thaw(self) -> None:
        backlog, self._backlog = self._backlog, []
        for handle in backlog:
            self._run(handle)

    def bury(self) -> None:
        """Close all tasks, so that none of their code runs when they are garbage-collected."""
        self.alive = False
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    try:
                        task.get_coro().close()
                    except (RuntimeError, ValueError):
                        continue  # it awaits again in its `finally`, or runs inside another task
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()

    # ------------------------------------------------------------------ what asyncio asks of a loop

    def time(self) -> float:
        """Return the virtual monotonic time, in seconds."""
        return self.world.now

    def wall(self) -> float:
        """Return the time of day by this process's clock, in seconds."""
        return self.world.now + self.wall_offset_seconds

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context or _CONTEXT)
        self.world.at(self.world.now, lambda: self._run(handle))
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context or _CONTEXT)
        self.world.at(when, lambda: self._run(handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context or contextvars.Context())
        if len(self._tasks) > TASKS_KEPT:
            self._tasks = [known for known in self._tasks if not known.done()]
        self._tasks.append(task)
        return task

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the simulation itself: an unhandled error fails the run."""
        task = self.create_task(coro)
        task.add_done_callback(self._spawned_ended)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.alive and error is not None:
            self._broke(error)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # the cancelled entry stays in the heap and has no effect

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        checker = error.checker if isinstance(error, SimulationError) else "no crash"
        self.world.fail(checker, f"{self.name}: {type(error).__name__}: {error}")

    def _run(self, handle: asyncio.Handle) -> None:
        if not self.alive or handle.cancelled():
            return
        if self.world.now < self.frozen_until:
            self._backlog.append(handle)
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

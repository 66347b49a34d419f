"""Keeper of the leader lease: acquires and renews it, and makes its owner follow the decided role.

Two tasks, so that a long takeover of many jobs does not delay the renewal of the lease: one asks the store
and decides (`decisions.succession`), the other carries out one change after the other.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from typing import Any

import structlog

from elastane_common.cancellation import cancel
from elastane_master.decisions.succession import (
    Fenced,
    Held,
    Leader,
    LeaseEvent,
    NoAnswer,
    Succession,
    Taken,
    action,
    decide,
)
from elastane_master.signals import Signal
from elastane_master.store.leader_lease import LeaderLease, LeaseUnanswered

logger = structlog.get_logger(__name__)

EXPIRED_SECONDS = 0.01
"""Margin after the lease's expiry by which the store has certainly dropped it."""


class Follower:
    """Callbacks from a keeper to its owner. `lead` may raise: then the master cannot serve."""

    async def lead(self) -> bool:
        """Take the jobs over and serve them. False: it was interrupted and serves none."""
        return True

    async def pause(self, reason: str) -> None:
        """End all streams, but keep the jobs in memory."""

    async def resume(self) -> None:
        """Serve again what was paused."""

    async def give_way(self, reason: str) -> None:
        """Another master leads: stop serving, write nothing."""


class SuccessionKeeper:
    """One master's candidacy for leadership. Used from one event loop. state: last decided state."""

    def __init__(self, lease: LeaderLease, follower: Follower) -> None:
        self.state = Succession(lease.lease_seconds)
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._served = self.state
        self._reason = ""
        self._left_seconds = math.inf
        self._lease = lease
        self._follower = follower
        self._news = Signal()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Ask once; if the lease was free, this master already leads on return. Raises as `Follower.lead`."""
        await self._ask()
        asking = self._begin(self._keep_asking(), "leader lease")
        try:
            await self._follow()
        except BaseException:
            asking.cancel()
            raise
        self._begin(self._keep_following(), "succession")

    def fenced(self, error: str) -> None:
        """Report that another master took a job over."""
        self._decide(Fenced(error))

    async def stop(self) -> None:
        """Stop changing roles; the lease is still held until `release`."""
        await cancel(*self._tasks[1:])

    async def release(self) -> None:
        """Release the lease, so that a waiting master takes over."""
        await cancel(*self._tasks)
        await self._lease.release()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task without end: if it fails, this master can neither lead nor stand by."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
            self.failure.set_exception(error)

    # ---------------------------------------------------------------- asking

    async def _keep_asking(self) -> None:
        while True:
            # A lease that is not renewed is requested as soon as it expires.
            seconds = min(self.state.acquire_seconds(time.monotonic()), self._left_seconds + EXPIRED_SECONDS)
            if self.state.role == "standby" and self.state.leader is not None:
                await self._lease.released(seconds)
            else:
                await asyncio.sleep(seconds)  # a lease is renewed by the clock
            await self._ask()

    async def _ask(self) -> None:
        now = time.monotonic()
        if now < self.state.not_before:
            return
        self._left_seconds = math.inf
        try:
            reply = await self._lease.acquire()
        except LeaseUnanswered as error:
            self._decide(NoAnswer(str(error)))
        else:
            if reply.token:
                self._decide(Held(reply.token, now))
            else:
                self._left_seconds = reply.left_seconds
                self._decide(Taken(Leader(reply.address, reply.master)))

    def _decide(self, event: LeaseEvent) -> None:
        before = self.state
        self.state, reason = decide(before, time.monotonic(), event)
        if reason:
            self._reason = reason
        if self.state.role != before.role:
            logger.info("succession", role=self.state.role, was=before.role, reason=reason)
        if (self.state.role, self.state.token) != (before.role, before.token):
            self._news.announce()
        if self.state.leader != before.leader and self.state.leader is not None:
            leader = self.state.leader
            logger.info("stands by", leader=leader.address, master=leader.master)

    # ---------------------------------------------------------------- following

    async def _keep_following(self) -> None:
        seen = self._news.count
        while True:
            await self._follow()
            seen = await self._news.beyond(seen)

    async def _follow(self) -> None:
        """Carry out changes until the master's service matches the decided state."""
        while (step := action(self._served, self.state)) != "stay":
            wanted = self.state
            if step == "lead" and not await self._follower.lead():
                if self.state.role != "standby":
                    continue  # nothing is served: after regaining the lease, everything is taken over again
                step = "yield"
            if step == "pause":
                await self._follower.pause(self._reason)
            elif step == "resume":
                await self._follower.resume()
            elif step == "yield":
                await self._follower.give_way(self._reason)
                if self._reason and self.state.not_before > time.monotonic():
                    await self._lease.release()
                wanted = Succession(self.state.lease_seconds)
            self._served = wanted

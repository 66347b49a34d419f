"""Has a scheduling policy decide who gets which slots, whenever something has changed.

The policy sees runs, runners and what jobs have measured, and takes its time beside the event loop; what it
decides is an event of the runs like any other. So a master that is killed meanwhile has lost nothing, and its
successor finds the decisions that were stored.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Mapping

import msgspec
import structlog
from redis.exceptions import RedisError

from elastane_common.bounded_thread import BoundedThread, StillBusy
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.events import AllocationDecided
from elastane_master.decisions.runs.fairness import FairnessBook
from elastane_master.decisions.runs.pool_view import PoolView, Progress, pool_view
from elastane_master.decisions.runs.state import RunsState
from elastane_master.errors import MachineBroken
from elastane_master.runs.run_server import RunServer
from elastane_master.store.errors import StoreError
from elastane_scheduler.costs import Costs
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.policies.prioritized import PrioritizedPolicy
from elastane_scheduler.policies.queued import ByQueuePolicy
from elastane_scheduler.view import Decision, Policy, View

logger = structlog.get_logger(__name__)

INTERVAL_SECONDS = 1.0
"""Minimum interval between decisions, however often offers change."""

REFRESH_SECONDS = 30.0
"""Without any change, what jobs have measured is looked at again after this time."""

DECIDE_SECONDS_MAX = 10.0
"""A policy that takes longer has failed: runs are ordered by fair share until it decides."""

_FAILURES = (Rejection, StoreError, RedisError, MachineBroken)


class PolicyThread:
    """A scheduling policy at work: one decision at a time, in a thread of its own, and not for ever.

    make: a new policy; what an earlier one remembers is given up with it when it fails.

    seconds_max: for one decision. Used from one event loop.
    """

    def __init__(self, make: Callable[[], Policy], seconds_max: float) -> None:
        self._make = make
        self._policy = make()
        self._thread: BoundedThread[Decision] = BoundedThread("scheduling policy", seconds_max)

    async def decide(self, view: View) -> Decision:
        """Return the policy's decision. Raises TooSlow, StillBusy, and whatever the policy raises."""
        policy = self._policy
        try:
            return await self._thread.run(lambda: policy.decide(view))
        except StillBusy:
            raise
        except Exception:
            self._policy = self._make()
            raise


class RunScheduler:
    """The policy of one service. Used from one event loop.

    progress: what jobs of runs say, by run, and runners that are not what they say, as `run_progress`.
    """

    def __init__(
        self,
        server: RunServer,
        policy: str,
        progress: Callable[[RunsState], tuple[Mapping[int, Progress], Mapping[str, str]]],
        *,
        make: Callable[[], Policy] | None = None,
        seconds_max: float = DECIDE_SECONDS_MAX,
    ) -> None:
        self._server = server
        self._name = policy
        self._progress = progress
        make = make or (lambda: make_policy(policy))
        self._policy = PolicyThread(lambda: ByQueuePolicy(lambda: PrioritizedPolicy(make)), seconds_max)
        self._fairness = FairnessBook()
        self._shown: PoolView | None = None
        self._comparing: BoundedThread[list[float]] = BoundedThread("fairness of the policy", seconds_max)
        self._seen: Hashable = None
        self._due = 0.0
        self._failure = ""

    async def run(self) -> None:
        """Decide until cancelled."""
        while True:
            seen = self._server.changed.count
            try:
                await self.look()
            except _FAILURES as error:
                logger.info("a decision of the scheduling policy could not be recorded", error=str(error))
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                async with asyncio.timeout(max(0.0, self._due - time.monotonic())):
                    await self._server.changed.beyond(seen)
            except TimeoutError:
                self._seen = None

    async def look(self) -> None:
        """Decide if something has changed that matters, or it is time. Raises as `RunServer.submit`."""
        self._server.require_serving()
        state = self._server.machine.state
        now, seen = self._server.clock(), _seen(self._server)
        if seen == self._seen and time.monotonic() < self._due:
            return
        self._seen, self._due = seen, time.monotonic() + REFRESH_SECONDS
        await self._decide(state, now)
        await self._compare(state)

    async def _decide(self, state: RunsState, now: float) -> None:
        revision = state.revision
        try:
            progress, unlike = self._progress(state)
            view = pool_view(state, self._server.machine.index, progress, now, Costs())
            if view is None:
                return
            self._shown = view
            decided = msgspec.structs.replace(await self._decided(view, now), unlike=dict(unlike))
        except Exception as error:  # noqa: BLE001 - no run may wait for a bug in a policy
            decided = self._failed(revision, error)
        await self._server.submit(decided)

    async def _compare(self, state: RunsState) -> None:
        """Note what is known of runs, and count rho of those that have ended since the last look."""
        shown, self._shown = self._shown, None
        try:
            comparison = self._fairness.ended(state.runs)
            if shown is not None:
                self._fairness.observe(shown)
            if comparison is None:
                return
            for rho in await self._comparing.run(comparison.rhos):
                self._server.counters.rho.observe(rho)
        except Exception as error:  # noqa: BLE001 - a figure is missing, and no run waits for it
            logger.warning(
                "runs were not compared with a fair share", error=f"{type(error).__name__}: {error}"
            )

    async def _decided(self, view: PoolView, now: float) -> AllocationDecided:
        """Return what the policy has decided; the next time to look is set. Raises what the policy raises."""
        counters = self._server.counters
        begun = time.monotonic()
        decision = await self._policy.decide(view.view)
        targets, self._failure = view.targets(decision), ""
        counters.scheduling["decided"] += 1
        counters.scheduling_seconds = time.monotonic() - begun
        settings = self._server.machine.state.settings
        wake = min(decision.wake_seconds - now, settings.reshape_seconds + INTERVAL_SECONDS)
        if wake < math.inf:
            self._due = min(self._due, time.monotonic() + max(INTERVAL_SECONDS, wake))
        return AllocationDecided(self._name, view.revision, targets, decision.choice, decision.rejected)

    def _failed(self, revision: int, error: Exception) -> AllocationDecided:
        """Return that the policy failed to decide; it is called again after the interval."""
        failure = f"{type(error).__name__}: {error}"
        if failure != self._failure:  # it is asked again each second
            logger.error("the scheduling policy has not decided", policy=self._name, exc_info=error)
        self._failure = failure
        self._server.counters.scheduling["failed"] += 1
        self._seen, self._due = None, time.monotonic() + INTERVAL_SECONDS
        return AllocationDecided(self._name, revision, failure=failure)


def _seen(server: RunServer) -> Hashable:
    """Return what a decision depends on, but for what jobs measure."""
    machine = server.machine
    state = machine.state
    active = []
    for run_id in sorted(machine.index.active):
        run = state.runs[run_id]
        launch = run.launch
        ending = launch is not None and launch.ending is not None
        placed = sum(1 for record in run.ranks if record.placed)
        active.append((run_id, placed, launch is not None and launch.started_at is not None, ending))
    runners = tuple(
        (name, runner.slots, runner.computes_on, runner.lost, runner.leaving)
        for name, runner in sorted(state.runners.items())
    )
    waiting = machine.index.waiting
    return (tuple(run_id for _, run_id in waiting.by_wait), tuple(active), runners, _priorities(server))


def _priorities(server: RunServer) -> Hashable:
    by_priority = server.machine.index.waiting.by_priority
    return tuple(
        (priority, sum(map(len, owners.values()))) for priority, owners in sorted(by_priority.items())
    )

"""A master whose scheduler is wrong about everything: how fast workers are, how long runs take, what there
is.

What workers measure is falsified as it arrives, so ranges are spread by it, too, and the master's log holds
what its decisions were made from. The policy asks another real policy each time, about a pool that is not
there, gives out more than there is, or fails. LIES names a file: each kind of lie adds a line to it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from elastane_master.decisions import events
from elastane_master.servers import ring_service
from elastane_scheduler.jobs import JobState
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies import catalogue
from elastane_scheduler.pool import Counts
from elastane_scheduler.view import Decision, View

POLICY = "foresight"
ASKED = ("maxmin", "srtf", "las", "elastic-srtf", "fixed-goodput", "packing")
_RNG = random.Random(18)
_WRONG = "wrong lengths and speeds"
_LIES = itertools.cycle((_WRONG, "failed", _WRONG, "nothing", _WRONG, "too much"))
"""These two are for all policies: one that has failed is made anew, and must not begin again."""


class LyingPolicy:
    """Wants something else each second, or sticks to nonsense until workers have started by it."""

    name = POLICY

    def __init__(self) -> None:
        self._sticks: tuple[float, str, list[Counts]] | None = None

    def decide(self, view: View) -> Decision:
        """Return a decision that has little to do with the view, or raise."""
        now = view.now
        if self._sticks is not None and now < self._sticks[0] and len(self._sticks[2]) == len(view.jobs):
            return Decision(self._sticks[2], now + 1, self._sticks[1])
        _told(lie := next(_LIES))
        if lie == "failed":
            raise ArithmeticError("a policy that fails")
        if lie == "too much":
            return Decision([tuple(10**6 for _ in view.offered)] * len(view.jobs), now + 1, "all for all")
        if lie == "nothing":
            return Decision([(0,) * len(view.offered)] * len(view.jobs), now + 1, "nothing for anybody")
        name = _RNG.choice(ASKED)
        jobs = [_falsified(state) for state in view.jobs]
        decision = catalogue.make_policy(name).decide(replace(view, jobs=jobs))
        choice = f"this time by {name}"
        self._sticks = (now + _RNG.choice((0, 5, 20)), choice, decision.allocation)
        return replace(decision, wake_seconds=now + 1, choice=choice)


def _falsified(state: JobState) -> JobState:
    false = state.believed(state.remaining * 10 ** _RNG.uniform(-3, 3))
    shape = state.shape
    false.shape = Shape(
        shape.ests,
        tuple(seconds * 10 ** _RNG.uniform(-2, 2) for seconds in shape.est_seconds),
        shape.limits,
        shape.mixes,
        shape.workers_min,
        shape.exchange_seconds,
        workers_max=shape.workers_max,
        kinds=shape.kinds,
    )
    return false


def _lies_of_workers(read: Callable[..., events.AnyEvent]) -> Callable[..., events.AnyEvent]:
    """Falsify what a worker says of the time that an EST takes."""

    def attend_event(*arguments: Any) -> events.AnyEvent:
        event = read(*arguments)
        if not isinstance(event, events.AppliedReported) or not event.est_seconds:
            return event
        _told("wrong c")
        return msgspec.structs.replace(
            event,
            est_seconds=event.est_seconds * 10 ** _RNG.uniform(-2, 2),
            est_steps=max(event.est_steps, 100),
            ring_step_seconds=event.ring_step_seconds * 10 ** _RNG.uniform(-2, 2),
        )

    return attend_event


def _told(lie: str) -> None:
    with Path(os.environ["LIES"]).open("a") as file:
        file.write(f"{lie}\n")


def install() -> None:
    """Replace the policy, and what the master reads of workers. Called before the master begins."""
    catalogue._STATEFUL[POLICY] = LyingPolicy
    ring_service.attend_event = _lies_of_workers(ring_service.attend_event)  # type: ignore[assignment]

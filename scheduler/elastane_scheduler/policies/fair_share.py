"""A virtual fair share: when would each job end if devices were shared evenly and changes cost nothing? Pure.

The same jobs are run a second time, by max-min and without costs, kept alongside and predicted anew at each
arrival. On one kind of devices no job ends later in the order of these ends than it would under sharing
itself.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elastane_scheduler.costs import Costs
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import JobState
from elastane_scheduler.playing import play
from elastane_scheduler.policies.giving import uncontended
from elastane_scheduler.policies.rungs import maxmin
from elastane_scheduler.view import View

_FREE = Costs(0.0, 0.0, 0.0)
_SAME_TIME = 1e-9
#: More virtual jobs than these are not played: their ends are those of an even share from now on.
PLAYED_MAX = 64


class FairShare:
    """The virtual run of one pool. `end` gives a job's virtual end after `update`."""

    def __init__(self) -> None:
        self._running: dict[str, JobState] = {}
        self._ends: dict[str, float] = {}

    def end(self, state: JobState, now: float) -> float:
        """Return when the job ends in the virtual run, in seconds.

        Of a job that has not said its steps more are believed to be left the longer it runs.
        """
        end = self._ends[state.job.name]
        if state.job.known:
            return end
        return max(end, now + state.remaining_at(now) * state.shape.levels[0][0])

    def update(self, view: View) -> None:
        """Let the virtual run come to `view.now`, with the jobs that have come since."""
        ends = self._ends
        new = [state for state in view.jobs if state.job.name not in ends]
        if not new:
            return
        self._advance(view)
        for state in new:
            virtual = state.believed(state.remaining)
            none = (0,) * len(view.offered)
            virtual.devices, virtual.stages, virtual.segments = none, (), ()
            virtual.at_seconds, virtual.remaining = view.now, state.remaining_at(view.now)
            virtual.finish_seconds = math.inf
            self._running[state.name] = virtual
        self._share(view, view.now)
        self._predict(view)
        self._forget(view)

    def _advance(self, view: View) -> None:
        while self._running:
            now = min(state.finish_seconds for state in self._running.values())
            if now > view.now:
                return
            ended = [n for n, state in self._running.items() if state.finish_seconds <= now + _SAME_TIME]
            for name in ended:
                del self._running[name]
            self._share(view, now)

    def _virtual(self, view: View, now: float) -> View:
        return replace(view, now=now, jobs=list(self._running.values()), costs=_FREE)

    def _share(self, view: View, now: float) -> None:
        virtual = self._virtual(view, now)
        for state, devices in zip(virtual.jobs, maxmin(virtual), strict=True):
            if devices != state.devices:
                change(state, devices, now, _FREE)

    def _predict(self, view: View) -> None:
        virtual = self._virtual(view, view.now)
        shared = [state.devices for state in virtual.jobs]
        if len(shared) > PLAYED_MAX or uncontended(virtual) is not None:
            ends = [state.finish_seconds for state in virtual.jobs]
        else:
            _, ends = play(virtual, shared, maxmin)
        for state, end in zip(virtual.jobs, ends, strict=True):
            self._ends[state.name] = end

    def _forget(self, view: View) -> None:
        """Drop ends of jobs that are over in both runs."""
        present = {state.name for state in view.jobs} | self._running.keys()
        if len(self._ends) > 2 * len(present) + PLAYED_MAX:
            self._ends = {name: end for name, end in self._ends.items() if name in present}

"""A scheduling policy whose decisions are nonsense. Whatever it wants may cost time, and nothing else."""

from __future__ import annotations

import random

import msgspec

from elastane_master.decisions.runs import events
from elastane_master.decisions.runs.allocation import Target
from elastane_master.decisions.runs.state import RunsState

POLICY = "foresight"
TYPES = ("cpu", "gpu")
NAMES = (*TYPES, "tpu", "")
COUNTS = (-(2**40), -3, -1, 0, 0, 1, 1, 2, 2, 3, 4, 6, 10**9)


class LyingPolicy:
    """Decides at random; keeps what it has decided, to say it again when the state is another."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._said: list[events.AllocationDecided] = []

    def decide(self, state: RunsState) -> events.AllocationDecided:
        """Return a decision that has little to do with the state."""
        rng = self._rng
        luck = rng.random()
        if luck < 0.1 and self._said:
            return rng.choice(self._said)  # about a state long past
        if luck < 0.15:
            return events.AllocationDecided(POLICY, state.revision, failure=rng.choice(("slow", "broken")))
        event = events.AllocationDecided(
            POLICY, state.revision, self._targets(state), "a throw of dice", ("another throw: +1 s",)
        )
        if rng.random() < 0.2:
            names = [*state.runners, "nobody"]
            event = msgspec.structs.replace(event, unlike={rng.choice(names): rng.choice(NAMES)})
        self._said.append(event)
        if luck < 0.2:
            return msgspec.structs.replace(event, revision=rng.choice((-1, 0, state.revision + 5)))
        if luck < 0.25:
            return msgspec.structs.replace(event, policy="srtf")
        return event

    def _targets(self, state: RunsState) -> tuple[Target, ...]:
        rng = self._rng
        run_ids = [*state.runs, 0, -1, 10**6]
        rng.shuffle(run_ids)
        if rng.random() < 0.3:  # a few are all that there is
            run_ids = run_ids[:2]
        if rng.random() < 0.2:
            run_ids += run_ids
        return tuple(
            Target(run_id, {name: rng.choice(COUNTS) for name in rng.sample(NAMES, rng.randint(0, 3))})
            for run_id in run_ids
        )

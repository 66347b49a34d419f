"""Jobs of the simulation that scale by themselves: they do change, and go back from what is slow."""

from __future__ import annotations

import pytest

from elastane_master.decisions.effects import Note
from elastane_master.decisions.machine import JobMachine
from elastane_proto.history.events import ScaleRolledBack
from sim import policies, scaling, unlike
from sim.simulation import simulate

SEEDS = [
    seed
    for seed in range(300)
    if scaling.draw(seed, fixed=policies.draw(seed).fixed) and seed % 20 in unlike.SEEDS_OF_20
]


def test_targets_change_and_slow_rungs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled_back: list[ScaleRolledBack] = []
    handle = JobMachine.handle

    def noted(machine, event, now):  # type: ignore[no-untyped-def]
        decision = handle(machine, event, now)
        events = [one.event for one in decision.effects if isinstance(one, Note)]
        rolled_back.extend(one for one in events if isinstance(one, ScaleRolledBack))
        return decision

    monkeypatch.setattr(JobMachine, "handle", noted)
    changes = sum(simulate(seed).injected.get(scaling.TARGETS, 0) for seed in SEEDS)
    assert changes >= len(SEEDS) // 2
    assert rolled_back and all(event.barred_seconds >= 1.0 for event in rolled_back)

"""A worker becomes half as fast: fewer ESTs for it, then another in its place, and the bits of stock DDP.

The same run as in `benchmarks/stragglers.py`, which has the figures that a quiet machine reaches.
"""

from __future__ import annotations

from pathlib import Path

from stragglers import SLOW, STANDBY, WORKERS, run

from elastane_proto.history import events as history
from slow import slow


@slow
def test_a_slow_leader_gets_fewer_ests_and_then_another_has_its_place(tmp_path: Path) -> None:
    found = run(tmp_path, est_seconds=0.08, steps=20, ests=8, epochs=6)
    assert found.differences == ()
    # Half as many ESTs as in the benchmark, which holds rates and stalls to figures on a quiet machine.
    assert sum(found.shares) == 8 and min(found.shares) == 1 and max(found.shares) <= 3
    # What a step waits for, whatever the machine does besides: of two ESTs each, the straggler's count twice.
    assert found.waits == (4, 3, 2)
    assert min(found.sizes) == WORKERS
    reweighted = [event for event in found.told if isinstance(event, history.StragglerReweighted)]
    assert {event.worker for event in reweighted} <= {SLOW}
    (replaced,) = [event for event in found.told if isinstance(event, history.StragglerReplaced)]
    assert (replaced.worker, replaced.newcomer, replaced.cause) == (SLOW, STANDBY, "compute")
    assert replaced.rate_after > replaced.rate_before > 0

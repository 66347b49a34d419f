"""What the recovery benchmark makes of the steps it saw."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import recovery
from harness import Row, Series


def cluster(steps: dict[int, list[float]], step_seconds: float = 0.5) -> Any:
    marks = SimpleNamespace(steps=lambda pid: steps[pid])
    return cast(Any, SimpleNamespace(marks=marks, step_seconds=step_seconds))


def test_the_stall_is_the_longest_gap_after_the_event_less_a_step() -> None:
    trains = cluster({1: [9.0, 9.5, 12.5, 13.0], 2: [9.1, 12.6, 13.1]})
    assert recovery.stall_of(trains, [1, 2], began=10.0) == pytest.approx(2.0)


def test_workers_started_again_have_waited_since_the_event() -> None:
    again = cluster({3: [40.0, 40.5], 4: [40.1, 40.6]})
    assert recovery.stall_of(again, [3, 4], began=10.0) == pytest.approx(29.5)


def test_nobody_who_trains_on_is_a_stall_without_end() -> None:
    assert recovery.stall_of(cluster({1: [9.0]}), [1], began=10.0) == math.inf


def test_a_peer_stands_beside_ours_and_never_beside_itself() -> None:
    figures = {
        recovery.KILLED: {
            "elastane": [0.1], "elastane 1 s": [0.2],
            "torchft": [5.0], "torchft 1 s": [1.0], "torchrun": [30.0],
        }
    }  # fmt: skip
    found = {
        row.peer_name: (row.ours.values, row.peer.values)
        for row in recovery.rows("small", figures)
        if row.peer
    }
    assert found == {"torchft": ([0.1], [5.0]), "torchft 1 s": ([0.2], [1.0]), "torchrun": ([0.1], [30.0])}


def test_a_peer_that_needed_nothing_has_no_ratio_and_is_not_beaten() -> None:
    peer = Series([0.0], "s")
    row = Row("stall", Series([0.2], "s"), peer, "peer", target=1.0)
    assert row.ratio is None
    assert row.met is False
    assert Row("stall", Series([0.0], "s"), peer, "peer", target=1.0).met

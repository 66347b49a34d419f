"""What the loss of a worker cost, from the commits around it."""

from __future__ import annotations

from elastane_master.jobs.commit_gaps import CommitGaps, Cost
from elastane_proto.history.incidents import Incident


def lost(sequence: int, generation: int | None) -> Incident:
    return Incident("lost", 0.0, sequence, "", ["w0"], generation)


def commits(*told: tuple[float, int]) -> CommitGaps:
    gaps = CommitGaps()
    for committed, generation in told:
        gaps.take(committed, generation)
    return gaps


def test_a_loss_costs_the_time_between_two_commits_less_a_usual_step() -> None:
    gaps = commits((0.0, 1), (0.25, 1), (0.5, 1), (1.5, 2), (1.75, 2), (2.0, 3))
    costs = gaps.costs([lost(7, 1), lost(9, None), lost(10, 2), lost(11, 3)])
    assert costs == {7: Cost(0.75), 10: Cost(0.0)}, (
        "a standby costs nothing; nothing is committed after the last"
    )


def test_a_clock_that_was_put_back_and_a_quick_change_cost_nothing() -> None:
    gaps = commits((0.0, 1), (5.0, 1), (4.0, 1), (3.0, 1), (4.0, 2), (1.0, 3))
    assert gaps.costs([lost(1, 1), lost(2, 2)]) == {1: Cost(1.0), 2: Cost(0.0)}, "steps of 5, 0 and 0 seconds"
    assert commits((0.0, 1), (5.0, 1), (6.0, 2)).costs([lost(1, 1)]) == {1: Cost(0.0)}


def test_rings_that_committed_nothing_share_the_cost() -> None:
    gaps = commits((0.0, 1), (1.0, 1), (6.0, 4))
    assert gaps.costs([lost(5, 1), lost(6, 2), lost(7, 3)]) == {
        5: Cost(4.0),
        6: Cost(4.0, shared=True),
        7: Cost(4.0, shared=True),
    }


def test_the_first_ring_has_no_step_before_it() -> None:
    assert commits((5.0, 2), (6.0, 2)).costs([lost(3, 1)]) == {}
    assert commits((5.0, 1), (9.0, 2)).costs([lost(3, 1)]) == {3: Cost(4.0)}
    assert CommitGaps().costs([lost(3, 1)]) == {}


def test_the_usual_step_is_that_of_the_time_before_and_memory_is_bounded() -> None:
    told = [(step * 1.0, 1) for step in range(1000)]
    told += [(999 + step * 0.25, 1) for step in range(1, 301)]  # the newest 255 count, and not most of all
    gaps = commits(*told, (told[-1][0] + 2.25, 2))
    assert gaps.costs([lost(1, 1)]) == {1: Cost(2.0)}
    for generation in range(3, 5000):
        gaps.take(2000.0 + generation, generation)
    assert len(gaps.gaps) == 2000 and gaps.costs([lost(1, 1)]) == {}

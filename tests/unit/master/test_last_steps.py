"""Which step of a pipeline is shown: the newest that all its workers have told of."""

from __future__ import annotations

from elastane_master.jobs.last_steps import STEPS_KEPT, LastSteps

SPANS = (0.0, 0.1, 0.2, 0.4)


def test_the_newest_step_that_all_have_told_is_shown() -> None:
    last = LastSteps(10)
    last.tell("a", 1, 64, 5.0, SPANS)
    assert last.newest(("a", "b"), 1) == {}
    last.tell("b", 1, 64, 5.1, SPANS)
    last.tell("a", 1, 128, 9.0, SPANS)
    found = last.newest(("a", "b"), 1)
    assert {worker: (one.step, one.began) for worker, one in found.items()} == {
        "a": (64, 5.0),
        "b": (64, 5.1),
    }
    assert found["a"].blocks == ((0.0, 0.1), (0.2, 0.4))
    last.tell("b", 1, 128, 9.0, SPANS)
    assert last.newest(("a", "b"), 1)["a"].step == 128
    assert last.newest(("a", "b"), 2) == {}, "another ring has another plan"
    assert last.newest((), 1) == {}


def test_steps_and_workers_are_bounded() -> None:
    last = LastSteps(2)
    for step in range(3 * STEPS_KEPT):
        for _ in range(2):  # each heartbeat tells it again
            last.tell("a", 1, step, 0.0, SPANS)
    last.tell("b", 1, STEPS_KEPT, 0.0, SPANS)
    assert last.newest(("a", "b"), 1) == {}, "only the newest are kept"
    last.tell("c", 1, 0, 0.0, SPANS)
    assert last.newest(("a",), 1) == {}, "who has told longest ago is forgotten"

"""Curves of logged values: each committed step once, replays replace, memory is bounded."""

from __future__ import annotations

import math
import random

from elastane_master.decisions.effects import Commit, TaskCommit
from elastane_master.decisions.events import StepTask
from elastane_master.jobs.curves import NAMES_MAX, POINTS_MAX, Curves, step_values
from elastane_master.jobs.records import LoggedStep, LoggedTask, StoredCommit, decode_logged, encode


def logged(step: int, generation: int = 1, **values: float) -> LoggedStep:
    return LoggedStep(step, 0, generation, (("w", LoggedTask(0, step, step + 1, values)),))


def curves_of(history: list[LoggedStep]) -> Curves:
    """As the master reads them: from the first commit again whenever it is asked to."""
    curves = Curves()
    position = 0
    while position < len(history):
        if curves.add(history[position]):
            position += 1
        else:
            curves, position = Curves(curves.rewinds), 0
    return curves


def standing(history: list[LoggedStep]) -> dict[int, float]:
    """What an audit would say: of the commits of a step the last one counts, and none before a rewind."""
    values: dict[int, float] = {}
    for one in history:
        values = {step: value for step, value in values.items() if step < one.step}
        values[one.step] = one.tasks[0][1].metrics["loss"]
    return values


def test_a_steps_value_is_the_mean_over_the_ests_that_logged_it() -> None:
    tasks = (
        ("w0", LoggedTask(0, 0, 2, {"loss": 1.0, "only": 7.0})),
        ("w0", LoggedTask(1, 2, 4, {"loss": 2.0})),
        ("w1", LoggedTask(2, 4, 6, {"loss": 6.0})),
    )
    assert step_values(LoggedStep(0, 0, 1, tasks)) == {"loss": 3.0, "only": 7.0}


def test_a_commit_is_read_without_its_samples() -> None:
    task = StepTask(0, 0, 2, samples=(5, 6), metrics={"loss": 0.5})
    now, step = decode_logged(encode(StoredCommit(12.5, Commit(3, 1, 2, (("w", task),)))))
    assert now == 12.5 and step == LoggedStep(3, 1, 2, (("w", LoggedTask(0, 0, 2, {"loss": 0.5})),))
    assert decode_logged(encode(StoredCommit(1.0, TaskCommit("d", 0, 0, 0, 1, "w", 1)))) == (1.0, None)


def test_a_long_curve_keeps_few_points_that_stand_for_all_steps() -> None:
    steps = 5 * POINTS_MAX + 3
    curves = curves_of([logged(step, loss=float(step)) for step in range(steps)])
    points = curves.points("loss")
    assert POINTS_MAX / 2 < len(points) <= POINTS_MAX
    assert sum(point.count for point in points) == steps == curves.step
    assert sum(point.total for point in points) == sum(range(steps))
    for point in points:
        assert point.mean == (point.low + point.high) / 2 and point.last == point.high == point.end - 1
    few = curves.points("loss", 10)
    assert len(few) <= 10 and sum(point.count for point in few) == steps
    assert curves.points("loss") == points  # what was joined for one question is not for the next


def test_a_replayed_step_replaces_the_first_run_of_it() -> None:
    history = [logged(step, 1, loss=1.0) for step in range(10)]
    history += [logged(step, 2, loss=2.0) for step in range(6, 12)]
    points = curves_of(history).points("loss")
    assert [(point.start, point.mean) for point in points] == [
        (step, 1.0 if step < 6 else 2.0) for step in range(12)
    ]


def test_a_name_that_only_superseded_steps_logged_is_gone() -> None:
    curves = curves_of([logged(0, 1, a=1.0), logged(1, 1, b=1.0), logged(1, 2, a=2.0)])
    assert set(curves.series) == {"a"} and curves.step == 2


def test_any_history_with_rewinds_counts_as_the_audit_does() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        history: list[LoggedStep] = []
        step = 0
        for generation in range(1, 8):
            for _ in range(rng.randrange(1, 900)):
                history.append(logged(step, generation, loss=rng.random()))
                step += 1
            step = rng.randrange(0, step + 1)
        curves, values = curves_of(history), standing(history)
        points = curves.points("loss")
        assert sum(point.count for point in points) == len(values) == curves.step
        for point in points:
            covered = [values[one] for one in range(point.start, point.end)]
            assert point.count == len(covered) and point.last == covered[-1]
            assert (point.low, point.high) == (min(covered), max(covered))
            assert math.isclose(point.mean, sum(covered) / len(covered), rel_tol=1e-12)


def test_commits_that_a_store_got_twice_do_not_make_it_read_for_ever() -> None:
    steps = 2 * POINTS_MAX + 1  # buckets of four steps
    history = [logged(step, 1, loss=1.0) for step in range(steps)]
    history += history[-5:]  # from the middle of a bucket on, in the generation they had
    curves = curves_of(history)
    assert curves.step == steps and curves.stride == 4
    assert sum(point.count for point in curves.points("loss")) >= steps - curves.stride


def test_a_value_that_is_no_number_shows_and_hides_no_other() -> None:
    values = [math.nan, 1.0, math.inf, 2.0]
    curves = Curves()
    curves.stride = 4
    for step, value in enumerate(values):
        curves.add(logged(step, loss=value))
    (point,) = curves.points("loss")
    assert math.isnan(point.mean) and (point.low, point.high, point.last) == (1.0, math.inf, 2.0)


def test_names_beyond_the_limit_are_counted_and_left_out() -> None:
    curves = curves_of([logged(0, **{f"v{number}": 1.0 for number in range(NAMES_MAX + 3)})])
    assert len(curves.series) == NAMES_MAX and curves.left_out == 3

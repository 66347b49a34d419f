"""Churn plans can be carried out, whatever they are asked for; held against a model of the ring."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane_cli.rehearse.watcher import Watcher
from elastane_cli.verify.plan import HAND_OVER, STEP_POINTS, ChurnPlan, PlanError, make_plan, parse_paths
from elastane_cli.verify.run import run_verify
from elastane_common.errors import ElastaneError


def replayed(plan: ChurnPlan) -> list[int]:
    """The numbers of workers as the plan goes on, checking every moment."""
    alive, used, doomed_newcomers = list(plan.start), set(plan.start), set()
    sizes = [len(alive)]
    # An act at a gate comes before a death of a later step; a death in the hand-over follows its act.
    moments = [(act.step, 0, act) for act in plan.acts] + [(death.step, 1, death) for death in plan.deaths]
    for step, _, moment in sorted(moments, key=lambda item: item[:2]):
        assert 0 <= step <= plan.steps - 1
        if moment in plan.deaths:
            assert moment.worker in alive, f"{moment.worker} is not there to die"
            alive.remove(moment.worker)
            if moment.point == HAND_OVER:
                doomed_newcomers.add(moment.worker)
        elif moment.verb == "add":
            assert moment.step <= plan.steps - 2, "a newcomer has a step to do"
            for name in moment.workers:
                assert name not in used, "names are not used twice"
                used.add(name)
                alive.append(name)
        else:
            for name in moment.workers:
                assert name in alive
                alive.remove(name)
        assert alive, "nobody is left"
        sizes.append(len(alive))
    return sizes


@given(
    seed=st.integers(0, 10_000),
    ests=st.integers(2, 8),
    steps=st.integers(3, 40),
    kills=st.integers(0, 4),
)
# A draw of which no path fits, though there is one that does.
@example(seed=378, ests=8, steps=11, kills=4)
@settings(max_examples=400, deadline=None)
def test_random_plans_can_be_carried_out(seed: int, ests: int, steps: int, kills: int) -> None:
    try:
        plan = make_plan(str(seed), ests=ests, steps=steps, kills=kills)
    except PlanError as error:
        assert "do not fit" in str(error)
        least = kills + 1 if kills > 1 else 1
        assert least > (steps - 2 if steps > 5 else steps - 1)
        return
    sizes = replayed(plan)
    assert len(plan.deaths) == kills == len(plan.doomed)
    assert len(set(sizes)) > 1, "the number of workers changes at least once"
    gates = [act.step for act in plan.acts] + [plan.steps + 1]
    for act, following in zip(plan.acts, gates[1:], strict=True):
        assert act.verb == "add" or following - act.step >= 2, "who leaves passes one more boundary"
    for death in plan.deaths:
        if death.point != HAND_OVER:
            assert death.step + 1 not in gates, "nobody may stand at a gate when the ring is formed anew"
    assert len(plan.path) >= 2 and all(a != b for a, b in itertools.pairwise(plan.path))
    assert sizes[-1] == plan.path[-1]
    assert max(plan.path) <= ests
    steps_used = [act.step for act in plan.acts]
    assert len(set(steps_used)) == len(steps_used), "one act to a gate"
    own_steps = {death.step for death in plan.deaths if death.point != HAND_OVER}
    assert not own_steps & set(steps_used)
    assert {death.point for death in plan.deaths} <= {*STEP_POINTS, HAND_OVER}


@given(
    path=st.lists(st.integers(1, 5), min_size=1, max_size=6), kills=st.integers(0, 4), seed=st.integers(0, 99)
)
@settings(max_examples=200, deadline=None)
def test_given_paths_are_kept(path: list[int], kills: int, seed: int) -> None:
    plan = make_plan(str(seed), ests=5, steps=60, kills=kills, path=path)
    sizes = replayed(plan)
    assert len(plan.start) == path[0]
    assert sizes[-1] == path[-1]
    remaining = iter(sizes)
    wanted = [number for number, _ in itertools.groupby(path)]
    assert all(any(size == number for size in remaining) for number in wanted), (path, sizes)


def test_equal_arguments_give_equal_plans_and_other_seeds_others() -> None:
    plans = {make_plan(str(seed), ests=4, steps=40, kills=2) for seed in range(20)}
    assert len(plans) > 15
    assert make_plan("7", ests=4, steps=40, kills=2) == make_plan("7", ests=4, steps=40, kills=2)


def test_changes_keep_apart_where_there_is_room() -> None:
    for seed in range(50):
        plan = make_plan(str(seed), ests=4, steps=40, kills=2)
        moments = sorted(
            [act.step for act in plan.acts] + [d.step for d in plan.deaths if d.point != HAND_OVER]
        )
        assert all(b - a >= 2 for a, b in itertools.pairwise(moments))


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(PlanError, match=r"changes do not fit into 4 steps .*fewer kills"):
        make_plan("1", ests=4, steps=4, kills=9)
    with pytest.raises(PlanError, match="2 or more"):
        make_plan("1", ests=1, steps=40)
    with pytest.raises(PlanError, match="0 or more"):
        make_plan("1", ests=2, steps=40, kills=-1)


def test_the_plan_in_words_is_in_order() -> None:
    plan = make_plan("3", ests=4, steps=40, kills=2, path=(4, 1, 3, 2))
    lines = plan.lines()
    assert lines[0] == "start: w0, w1, w2, w3"
    steps = [int(line.split()[1].rstrip(":")) for line in lines[1:]]
    assert steps == sorted(steps)
    for death in plan.deaths:
        assert plan.kill_of(death.worker) == f"{death.point}:{death.step}"
        assert any(f"kill -9 {death.worker}" in line for line in lines)
    assert plan.kill_of("nobody") == ""


def test_paths_are_read() -> None:
    assert parse_paths("4,1,3,2", 4) == [(4, 1, 3, 2)]
    assert parse_paths("1,4; 2,2,3", 4) == [(1, 4), (2, 3)]
    for text, said in [
        ("4,x", "is not a path"),
        ("5,1", "5 workers"),
        ("0,1", "0 workers"),
        ("  ", "no path was"),
    ]:
        with pytest.raises(PlanError, match=said):
            parse_paths(text, 4)


def test_a_pipeline_and_a_command_of_ones_own_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """A script that may train either way is asked when it has run."""
    script = tmp_path / "train.py"
    started: list[Any] = []
    for source, refused in (
        ("import elastane\njob = elastane.init()\npipe = job.prepare_pipeline(units)", True),
        ("import elastane\njob = elastane.init()\nmodel = job.prepare(net)", False),
        ("job.prepare(net) if plain else job.prepare_pipeline(units)", False),
    ):
        script.write_text(source)
        words = "a pipeline cannot be compared with a command of your own" if refused else "stopped here"
        with pytest.raises(ElastaneError, match=words):
            run_verify(
                tmp_path / f"work{len(started)}", [str(script)], ests=2, original=["false"],
                watcher=_Stops(started),
            )  # fmt: skip
    assert len(started) == 2


class _Stops(Watcher):
    def __init__(self, started: list[Any]) -> None:
        super().__init__()
        self._started = started

    def stage(self, text: str, steps: int | None = None) -> None:
        self._started.append(text)
        raise ElastaneError("stopped here")

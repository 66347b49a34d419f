"""A sample of `make pipeline-parity`, and what its cases cover."""

from __future__ import annotations

from collections import Counter

import pytest

from elastane_planner.plan import Plan, Stage
from parity.pipeline_controls import CONTROLS, NOTHING_BROKEN, Control
from parity.pipeline_matrix import ORDERS, Case, cases, run
from parity.pipeline_models import MODELS
from parity.pipeline_runs import LocalJob, Trace, stock
from slow import further, slow_except

#: Every so many cases of a model are run.
QUICK_EVERY, SLOW_EVERY = 50, 11


@pytest.fixture(scope="module")
def stocks() -> dict[str, Trace]:
    """What stock DDP of four processes leaves, by model."""
    return stock(list(MODELS))


def _compare(stocks: dict[str, Trace], chosen: list[Case]) -> None:
    for case in chosen:
        assert run(case).differences(stocks[case.model]) == [], case


@pytest.mark.parametrize("model", slow_except(MODELS, "mlp", "cnn", "gpt"))
def test_cut_anyhow_the_model_has_the_bits_of_stock_ddp(stocks: dict[str, Trace], model: str) -> None:
    _compare(stocks, list(cases(model))[3::QUICK_EVERY])


@further  # the first cuts: the test above; all of them: `make pipeline-parity`
@pytest.mark.parametrize("model", MODELS)
def test_cut_in_more_ways_too(stocks: dict[str, Trace], model: str) -> None:
    _compare(stocks, list(cases(model))[::SLOW_EVERY])


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: f"{control.title} ({control.model})")
def test_with_a_rule_broken_the_bits_differ(stocks: dict[str, Trace], control: Control) -> None:
    found = control.differing(stocks[control.model], every=2)
    assert any(found)


@pytest.mark.parametrize("control", NOTHING_BROKEN, ids=lambda control: f"{control.model}, {control.memory}")
def test_with_none_broken_they_do_not(stocks: dict[str, Trace], control: Control) -> None:
    assert not any(control.differing(stocks[control.model], every=2))


@pytest.mark.parametrize("model", ["cnn", "mixed", "widened"])
def test_plans_may_change_between_steps_and_steps_be_given_up(stocks: dict[str, Trace], model: str) -> None:
    units = len(MODELS[model].units())
    plans = (
        (Plan((Stage(0, 2, (0,)), Stage(2, units, (1, 2))), ((1,), ())), 3),
        (Plan((Stage(0, units, (1,)),)), 2),
        (Plan((Stage(0, 1, (3,), "checkpoint"), Stage(1, 3, (0, 2)), Stage(3, units, (1,), "swap"))), 4),
    )
    job = LocalJob(MODELS[model], seed=5)
    for plan, members in plans:
        job.set_plan(plan, members)
        job.train_step(applied=False)
        job.train_step()
    job.close()
    assert job.trace.differences(stocks[model]) == []


@pytest.mark.parametrize("model", slow_except(["cnn", "mixed"], "cnn"))
@pytest.mark.parametrize("victims", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_a_worker_may_die_in_any_block_of_a_step(
    stocks: dict[str, Trace], model: str, victims: tuple[int, ...]
) -> None:
    """In each forward, backward and sum: the others give the step up, and a new worker has the dead one's
    units from those who hold them."""
    units = len(MODELS[model].units())
    stages = (Stage(0, 2, (0,)), Stage(2, 3, (1,), "checkpoint"), Stage(3, units, (2,)))
    job = LocalJob(MODELS[model], seed=7)
    job.set_plan(Plan(stages, ((1,), (3,), (1, 3))), 4)
    job.train_step()
    deaths = 0
    while job.die(dict.fromkeys(victims, deaths)):
        deaths += 1
    job.run(MODELS[model].steps - 1)
    job.close()
    assert deaths >= 4 * MODELS[model].waves
    assert job.trace.differences(stocks[model]) == []


def test_the_matrix_has_all_cuts_memories_replicas_and_orders() -> None:
    known = [case for model in MODELS for case in cases(model)]
    assert {case.order for case in known} == set(ORDERS)
    assert {stage.memory for case in known for stage in case.plan.stages} == {"plain", "checkpoint", "swap"}
    assert any(case.members > len(case.plan.devices) for case in known)
    assert any(any(case.plan.shadows) for case in known)
    replicas = {tuple(stage.replicas for stage in case.plan.stages) for case in known}
    assert len(replicas) == 4 + 6 + 4 + 1
    stages = Counter(len(case.plan.stages) for case in known if case.model == "cnn")
    # Cuts x numbers of replicas x memories x orders.
    assert stages == {1: 1 * 4 * 6, 2: 6 * 6 * 6, 3: 15 * 4 * 6, 4: 20 * 1 * 6}
    assert len({str(case) for case in known}) == len(known)

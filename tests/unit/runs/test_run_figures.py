"""Figures of the training service: what a scrape tells of runs, slots, runners and failed launches."""

from __future__ import annotations

import pytest
from runs_driver import RunsDriver

from elastane_common.observe.metric import Metric
from elastane_master.decisions.runs import effects, events
from elastane_master.metrics import catalogue
from elastane_master.metrics.counters import RunCounters
from elastane_master.metrics.figures import RUN_STATES, RUNNER_STATES, Samples, add_runs


def scraped(driver: RunsDriver, counters: RunCounters | None = None) -> Samples:
    samples = Samples()
    add_runs(samples, driver.machine, counters or RunCounters(), driver.now)
    return samples


def by_label(samples: Samples, metric: Metric) -> dict[str, object]:
    return {labels[0]: value for labels, value in samples.by_metric[metric] if value}


def value(samples: Samples, metric: Metric) -> object:
    ((_, figure),) = samples.by_metric[metric]
    return figure


def test_runs_slots_and_the_age_of_the_queue() -> None:
    driver = RunsDriver()
    empty = scraped(driver)
    assert [labels[0] for labels, _ in empty.by_metric[catalogue.RUNS]] == sorted(RUN_STATES)
    assert value(empty, catalogue.RUN_QUEUE_AGE) == 0
    driver.join("r", 4)
    driver.submit(instances=3)
    driver.start_all()
    oldest = driver.submit(instances=100)
    since = driver.run(oldest).waiting_since
    driver.submit(instances=2)
    driver.tick(after=50.0)
    samples = scraped(driver)
    assert by_label(samples, catalogue.RUNS) == {"running": 1, "queued": 2}
    assert value(samples, catalogue.RUN_QUEUE_AGE) == driver.now - since >= 50.0
    assert (value(samples, catalogue.RUN_SLOTS), value(samples, catalogue.RUN_SLOTS_USED)) == (4, 3)
    driver.finish(1)
    assert by_label(scraped(driver), catalogue.RUNS)["succeeded"] == 1


def test_runners_are_in_one_state_each() -> None:
    driver = RunsDriver()
    for name in ("a", "leaves", "silent", "gone"):
        driver.join(name, 2)
    driver.do(events.RunnerLeft("leaves", driver.sessions["leaves"], "node drained"))
    driver.lose("gone")
    driver.lose_stream("silent")
    samples = scraped(driver)
    assert {labels[0] for labels, _ in samples.by_metric[catalogue.RUNNERS]} == set(RUNNER_STATES)
    assert by_label(samples, catalogue.RUNNERS) == {"attending": 1, "paused": 1, "silent": 1, "lost": 1}
    assert value(samples, catalogue.RUN_SLOTS) == 4


@pytest.mark.parametrize("permanent", [False, True])
def test_a_failed_launch_is_counted_once_for_its_runner(permanent: bool) -> None:
    driver = RunsDriver()
    driver.join("r", 4)
    driver.submit()
    (prepare,) = driver.take(effects.Prepare)
    driver.do(events.LaunchFailed("r", driver.sessions["r"], prepare.attempt, "no disk", permanent))
    counted = [one for one in driver.effects if isinstance(one, effects.LaunchFailureCounted)]
    assert [one.runner_id for one in counted] == ["r"]


def test_counters_are_told_with_all_final_states() -> None:
    counters = RunCounters()
    counters.launches_failed = 3
    counters.ended["failed"] += 2
    samples = scraped(RunsDriver(), counters)
    assert value(samples, catalogue.LAUNCHES_FAILED) == 3
    assert dict(samples.by_metric[catalogue.RUNS_ENDED]) == {
        ("cancelled",): 0,
        ("failed",): 2,
        ("succeeded",): 0,
    }

"""Forecasts for whoever looks: computed once a second, with the ends that the jobs of runs tell."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from runs_driver import RunsDriver, spec

from elastane_master.decisions.runs import views
from elastane_master.decisions.runs.events import RunSubmitted
from elastane_master.runs import forecasts as kept
from elastane_master.runs.forecasts import FORECAST_SECONDS, LOOP_FRACTION, Forecasts


class Counted:
    """Jobs of which one has ten seconds left; counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        monkeypatch.setattr(kept, "seconds_left", lambda state: state)

    def served(self, name: str) -> Any:
        self.asked += 1
        return SimpleNamespace(machine=SimpleNamespace(state=10.0)) if name == "run-1-1" else None


class Watch:
    """The event loop's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(kept.asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: self.now))


def server_of(driver: RunsDriver) -> Any:
    return SimpleNamespace(machine=driver.machine, clock=lambda: driver.now)


def test_it_is_computed_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, watch = Counted(monkeypatch), Watch(monkeypatch)
    driver = RunsDriver()
    driver.join("a", 2)
    elastic = driver.submit(framework="elastane", instances=2)
    driver.start_all()
    found, server = Forecasts(jobs), server_of(driver)  # type: ignore[arg-type]
    assert found.of(server, elastic) is None and jobs.asked == 0, "nothing waits"
    waits = driver.submit()
    forecast = found.of(server, waits)
    assert forecast is not None and forecast.earliest_at == driver.now + 10.0
    view = views.run_view(driver.machine, waits, driver.now, forecast=forecast)
    assert view is not None and view.earliest_start_at == driver.now + 10.0
    assert view.reason == f"needs 1 slots, 0 free, waits for run {elastic}; 1st of 1"
    assert [one.run_id for one in view.holders] == [elastic]
    for _ in range(1000):
        assert found.of(server, waits) is forecast
    assert jobs.asked == 1
    watch.now += FORECAST_SECONDS
    assert found.of(server, waits) == forecast and jobs.asked == 2


def test_a_long_queue_is_forecast_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Counted(monkeypatch)
    Watch(monkeypatch)
    driver = RunsDriver()
    driver.join("a", 1)
    driver.submit(framework="elastane", instances=1)
    driver.start_all()
    machine = driver.machine
    for number in range(10_000):  # the checks of the driver would take minutes
        machine.handle(RunSubmitted(spec(), f"owner-{number % 20}"), driver.now)
    server = server_of(driver)
    took = []
    for _ in range(5):
        before = time.process_time()
        assert Forecasts(jobs).of(server, 2) is not None  # type: ignore[arg-type]
        took.append(time.process_time() - before)
    assert min(took) < 0.1


def test_one_that_takes_long_is_shown_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, watch = Counted(monkeypatch), Watch(monkeypatch)
    driver = RunsDriver()
    driver.join("a", 1)
    driver.submit(framework="elastane", instances=1)
    waits, found, server = driver.submit(), Forecasts(jobs), server_of(driver)  # type: ignore[arg-type]

    def slow(*_: Any) -> dict[int, Any]:
        watch.now += 2.0
        jobs.asked += 1
        return {}

    monkeypatch.setattr(kept, "forecasts", slow)
    found.of(server, waits)
    asked, begun = jobs.asked, watch.now
    while jobs.asked == asked:
        watch.now += 1.0
        found.of(server, waits)
    assert watch.now - begun > 2.0 / LOOP_FRACTION - 3.0

"""A script without a master: progress on stderr, and its values to its trackers, each step once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch.utils.data import DataLoader, TensorDataset

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.stock import PlainJob
from elastane_common.errors import StepError


class Recorded:
    """In the place of the trackers' processes."""

    made: list[Recorded]

    def __init__(self, specs: Any, **facts: Any) -> None:
        self.specs, self.facts, self.calls = specs, facts, []  # type: ignore[var-annotated]
        Recorded.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


def train(job: PlainJob, **options: Any) -> None:
    net = torch.nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)
    model, optimizer, batches = job.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    for _ in job.epochs(2, **options):
        for number, (x,) in enumerate(batches):
            job.log(loss=float(number))
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    Recorded.made = []
    monkeypatch.setattr("elastane.runtime.stock.TrackerProcesses", Recorded)


def test_values_go_to_the_trackers_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    job = PlainJob(WorkerEnvironment(mode="plain", job="mine"), 1)
    job.log_to("tensorboard:x")
    train(job)
    (trackers,) = Recorded.made
    assert trackers.facts["job"] == "mine" and str(trackers.specs[0]) == "tensorboard:x"
    written = [given[1] for given in trackers.calls if given[0] == "write"]
    assert [(step["step"], step["values"]) for step in written] == [(n, {"loss": n % 3}) for n in range(6)]
    assert [given for given in trackers.calls if given[0] != "write"] == [
        ("lead", True),
        ("finish", 6),
        ("close",),
    ]
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("epoch 2/2: 3 steps in ") and "loss 2" in lines[-1]


def test_a_run_that_only_shows_something_writes_to_no_tracker() -> None:
    job = PlainJob(WorkerEnvironment(mode="plain", log_to=""), 1)
    job.log_to("tensorboard:x")
    train(job)
    assert Recorded.made == []


def test_a_tracker_that_comes_too_late_is_not_lost_silently() -> None:
    job = PlainJob(WorkerEnvironment(mode="plain"), 1)
    train(job)
    with pytest.raises(StepError, match=r"log_to was called after job\.epochs"):
        job.log_to("tensorboard:x")


@pytest.mark.parametrize(
    ("variable", "option", "said"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_who_decides_whether_progress_is_told(
    variable: bool | None, option: bool, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    train(PlainJob(WorkerEnvironment(mode="plain", progress=variable), 1), progress=option)
    assert ("epoch 2/2" in capsys.readouterr().err) == said
    assert Recorded.made == []


@pytest.mark.parametrize("where", ["before", "after backward", "after the step"])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_who_logs_too_late_for_a_ring_is_told_once(where: str, accumulation_steps: int) -> None:
    job = PlainJob(WorkerEnvironment(mode="plain", job="mine", progress=False), 1)
    net = torch.nn.Linear(1, 1)
    data = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    model, optimizer, batches = job.prepare(
        net, torch.optim.SGD(net.parameters(), 0.1), data, accumulation_steps=accumulation_steps
    )
    with capture_logs() as said:
        for _ in job.epochs(2):
            for (x,) in batches:
                optimizer.zero_grad(set_to_none=False)
                loss = model(x).sum()
                if where == "before":
                    job.log(loss=loss)
                loss.backward()
                if where == "after backward":
                    job.log(loss=loss)
                optimizer.step()
                if where == "after the step":
                    job.log(loss=loss)
    found = [one["event"] for one in said if "ELA302" in one["event"]]
    assert len(found) == (where != "before")
    assert all("job.log(loss) came after loss.backward()" in text for text in found)


@pytest.mark.parametrize("late", [False, True])
def test_who_logs_too_late_in_a_pipeline_is_told_once(late: bool) -> None:
    job = PlainJob(WorkerEnvironment(mode="plain", job="mine", progress=False), 1)
    data = DataLoader(TensorDataset(torch.ones(6, 1), torch.ones(6, 1)), batch_size=2)
    pipe, optimizer, batches = job.prepare_pipeline(
        [torch.nn.Linear(1, 1)], lambda ps: torch.optim.SGD(ps, 0.1), data, loss_fn=torch.nn.MSELoss()
    )
    with capture_logs() as said:
        for _ in job.epochs(2):
            for batch in batches:
                loss = pipe(batch)
                if not late:
                    job.log(loss=loss)
                optimizer.step()
                if late:
                    job.log(loss=loss)
    found = [one["event"] for one in said if "ELA302" in one["event"]]
    assert len(found) == late
    assert all("job.log(loss) came after optimizer.step()" in text for text in found)

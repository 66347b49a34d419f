"""`elastane plan`: the numbers of workers that pay, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_proto.v1 import common_pb2, job_pb2, ring_pb2
from unit.cli.fake_master import FakeMaster, serving
from unit.cli.fake_training import FakeTraining, serving_training


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    """A job of four ESTs on two of at most four workers, which need 0.5 s for an EST."""
    fake = FakeMaster()
    with serving(fake) as address:
        fake.address = address
        for worker in ("w0", "w1"):
            fake.figures[worker] = ring_pb2.WorkerFigures(
                generation=3,
                ests=2,
                device_type="NVIDIA H100 80GB HBM3",
                ring_workers=2,
                est_seconds=0.5,
                est_seconds_spread=0.02,
                est_steps=31,
                ring_step_seconds=1.25,
                ring_steps=20,
            )
        yield fake


def plan(master: FakeMaster, *options: str) -> Result:
    return CliRunner().invoke(build_app(), ["plan", *options], env={"ELASTANE_MASTER": master.address})


def test_each_number_of_workers_that_pays_has_a_line(master: FakeMaster) -> None:
    job = master.jobs["train"]
    job.cost.currency = "EUR"
    job.cost.on_demand_price_micros = 3_600_000
    for worker in job.workers:
        worker.capacity = common_pb2.CAPACITY_TYPE_ON_DEMAND
    found = plan(master, "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["measured"]
    # 18 of 30 steps are left; 0.25 s of a step are no EST's.
    assert [(rung["workers"], rung["step_seconds"], rung["now"]) for rung in document["rungs"]] == [
        (1, 2.25, False),
        (2, 1.25, True),
        (4, 0.75, False),
    ]
    assert [rung["finish_seconds"] for rung in document["rungs"]] == [40.5, 22.5, 13.5]
    assert document["rungs"][1]["cost"] == pytest.approx(2 * 22.5 * 0.001)
    text = plan(master).stdout
    assert "NVIDIA H100 80GB HBM3: 500.0 ms" in text
    assert "with 2 more: 1.67 x the steps per second, fewer than 2 none" in text
    assert "0.05 EUR" in text
    now = next(line for line in text.splitlines() if line.endswith("now"))
    assert now.split()[:3] == ["2", "≤", "2"]


def test_the_scripts_code_after_backward_is_a_part_of_each_turn(master: FakeMaster) -> None:
    for figures in master.figures.values():
        figures.est_seconds, figures.after_est_seconds = 0.2, 0.3
    document = json.loads(plan(master, "--json").stdout)
    assert document["devices"][0]["after_est_seconds"] == 0.3
    assert [rung["step_seconds"] for rung in document["rungs"]] == [2.25, 1.25, 0.75]
    text = plan(master).stdout
    assert "200.0 ms for a logical worker's part of a step" in text
    assert "300.0 ms of the script's code after it" in text
    for figures in master.figures.values():
        figures.after_est_seconds = 0.0001
    assert "script's code" not in plan(master).stdout


def test_workers_that_make_no_step_shorter_are_named(master: FakeMaster) -> None:
    for figures in master.figures.values():
        figures.ring_workers = 3
    assert "with 1 more: 1.67 x the steps per second; 2 would be as fast as 3" in plan(master).stdout


def test_the_jobs_limits_hold_unless_all_is_asked_for(master: FakeMaster) -> None:
    master.jobs["train"].settings.workers_max = 2
    limited = json.loads(plan(master, "--json").stdout)
    assert [rung["workers"] for rung in limited["rungs"]] == [1, 2]
    assert "no larger number of workers is faster within the job's limits" in plan(master).stdout
    everything = json.loads(plan(master, "--json", "--all").stdout)
    assert [rung["workers"] for rung in everything["rungs"]] == [1, 2, 4]


def test_a_long_list_shows_the_neighbours_of_now(master: FakeMaster) -> None:
    master.jobs["train"].settings.ests = 1024
    master.jobs["train"].settings.workers_max = 0
    for figures in master.figures.values():
        figures.ests = figures.ring_workers = 32
    text = plan(master).stdout
    assert sum(line.count("≤") for line in text.splitlines()) == 16
    assert any(line.endswith("now") for line in text.splitlines())
    assert "more with --all" in text


def test_before_anything_was_measured_it_says_so(master: FakeMaster) -> None:
    for figures in master.figures.values():
        figures.Clear()
    found = plan(master)
    assert found.exit_code == 0
    assert "not measured yet" in found.stdout
    document = json.loads(plan(master, "--json").stdout)
    assert not document["measured"]
    assert document["rungs"] == []


def test_a_worker_cannot_write_into_the_terminal(master: FakeMaster) -> None:
    for figures in master.figures.values():
        figures.device_type = "\x1b[31mred [bold]"
    text = plan(master).stdout
    assert "\x1b" not in text
    assert "[bold]" in text


def test_an_unknown_job_exits_with_3(master: FakeMaster) -> None:
    assert plan(master, "nope").exit_code == 3


FAST, SLOW, GPU = "AMD EPYC 9654", "AMD EPYC 7742", "NVIDIA H100"


@pytest.fixture
def service() -> Iterator[FakeTraining]:
    """The job on two workers of FAST, another job that knows both processors, and runners of three types."""
    fake = FakeTraining()
    with serving_training(fake) as address:
        fake.master.address = address
        known = {"generation": 3, "ests": 2, "est_steps": 31, "ring_workers": 2, "ring_steps": 20}
        for worker in ("w0", "w1"):
            fake.master.figures[worker] = ring_pb2.WorkerFigures(
                device_type=FAST, est_seconds=0.5, ring_step_seconds=1.25, **known
            )
        other = job_pb2.Job(name="other")
        for worker, device_type, seconds in (("o0", FAST, 0.1), ("o1", SLOW, 0.2)):
            other.workers.add(worker_id=worker)
            fake.master.figures[worker] = ring_pb2.WorkerFigures(
                device_type=device_type, est_seconds=seconds, **known
            )
        fake.master.jobs["other"] = other
        fake.master.jobs["train"].settings.determinism = job_pb2.DETERMINISM_LEVEL_D1
        fake.master.jobs["train"].settings.ests = 6
        for number, (device_type, slots) in enumerate(((FAST, 2), (SLOW, 2), (GPU, 8), ("aarch64 CPU", 1))):
            fake.service.runners.add(
                runner_id=f"r{number}", device_type=device_type, slots=slots, attends=True
            )
        fake.service.runners.add(runner_id="gone", device_type="VAX", slots=4)
        yield fake


def test_a_job_at_d1_is_told_what_d2_would_gain_or_cost(service: FakeTraining) -> None:
    text = " ".join(plan(service.master, "train").stdout.split())
    assert f"D1 keeps it on {FAST}; with other devices of the service, at D2:" in text
    # Three ESTs on each worker take 1.5 s; two there and one on each slow one take 1 s. 0.25 s are all else.
    assert f"2 x {SLOW}: 1.25 s for a step, 1.40 x the steps per second, if D2 cost nothing" in text
    assert "less than 1.50 x as long" in text
    assert f"8 x {GPU}: a GPU and a processor do not give equal bits" in text
    assert "1 x aarch64 CPU: not measured" in text and "VAX" not in text
    document = json.loads(plan(service.master, "train", "--json").stdout)
    assert {one["device_type"]: one["cost_max"] for one in document["at_d2"]} == {
        SLOW: pytest.approx(1.5), GPU: None, "aarch64 CPU": None,
    }  # fmt: skip


def test_only_a_job_that_is_bound_is_told_and_only_where_there_are_other_devices(
    service: FakeTraining, master: FakeMaster
) -> None:
    service.master.jobs["train"].settings.determinism = job_pb2.DETERMINISM_LEVEL_D2
    assert "D1 keeps" not in plan(service.master, "train").stdout
    service.master.jobs["train"].settings.determinism = job_pb2.DETERMINISM_LEVEL_D1
    del service.service.runners[1:]
    assert "D1 keeps" not in plan(service.master, "train").stdout
    master.jobs["train"].settings.determinism = job_pb2.DETERMINISM_LEVEL_D1
    found = plan(master)  # a master without the training service
    assert found.exit_code == 0 and "D1 keeps" not in found.stdout

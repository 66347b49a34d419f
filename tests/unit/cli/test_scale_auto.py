"""`elastane scale --auto`: what is sent, what is said, and what `elastane plan` shows of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_proto.v1 import job_pb2
from unit.cli.fake_master import FakeMaster, serving


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    """A master that would scale to 16 workers, and then keep them."""
    fake = FakeMaster()
    first = job_pb2.ScalingDecision(
        workers_target=16, action="scale", reason="a second number", seconds_before=2
    )
    first.predicted_finish.FromSeconds(1_764_189_200)
    last = job_pb2.ScalingDecision(
        workers_target=16, action="keep", reason="the best", predicted_cost_micros=5 * 10**6
    )
    fake.decisions = [first, last]
    with serving(fake) as address:
        fake.address = address
        fake.jobs["train"].cost.currency = "USD"
        yield fake


def invoke(master: FakeMaster, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments], env={"ELASTANE_MASTER": master.address})


def test_a_dry_run_prints_the_decisions_and_changes_nothing(master: FakeMaster) -> None:
    found = invoke(master, "scale", "train", "--auto", "efficiency", "--dry-run")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines() == [
        "would ask for 16 workers (scale): a second number; ends 2025-11-26T20:33:20Z",
        "then 16 workers (keep): the best; costs 5.00 USD in all",
    ]
    assert [request.dry_run for request in master.requests] == [True]
    assert not master.jobs["train"].settings.scaling


def test_a_dry_run_with_limits_asks_first_without_any(master: FakeMaster) -> None:
    """A master that knows no dry run would set the limits; a request without any it refuses."""
    found = invoke(master, "scale", "train", "2:8", "--auto", "efficiency", "--dry-run")
    assert found.exit_code == 0, found.output
    sent = [(request.dry_run, request.workers_min, request.workers_max) for request in master.requests]
    assert sent == [(True, 0, 0), (True, 2, 8)]


def test_a_dry_run_as_json(master: FakeMaster) -> None:
    found = invoke(master, "scale", "train", "--auto", "efficiency", "--dry-run", "--json")
    told = json.loads(found.stdout)
    assert [one["workers_target"] for one in told["decisions"]] == [16, 16]


def test_a_mode_is_sent_in_its_stored_form_and_what_follows_is_said_at_once(master: FakeMaster) -> None:
    found = invoke(
        master, "scale", "--auto", "deadline=+2h", "--over-budget", "suspend", "--on-demand-workers", "3"
    )
    assert found.exit_code == 0, found.output
    sent = master.requests[-1]
    assert sent.scaling.startswith("deadline=") and float(sent.scaling[9:]) == pytest.approx(
        time.time() + 7200, abs=60
    )
    assert (sent.workers_min, sent.workers_max, sent.on_demand_workers) == (0, 0, 3)
    assert sent.over_budget == job_pb2.OVER_BUDGET_SUSPEND and not sent.dry_run
    assert "scales by itself" in found.stdout and "asks for 16 workers" in found.stdout


def test_how_a_deadline_uses_spot_is_sent_where_it_is_given(master: FakeMaster) -> None:
    auto = ("scale", "--auto", "deadline=+2h")
    assert invoke(master, *auto, "--spot-policy", "uniform", "--cold-start", "0.5").exit_code == 0
    sent = master.requests[-1]
    assert sent.spot_policy == job_pb2.SPOT_POLICY_UNIFORM and sent.cold_start.ToMilliseconds() == 500
    assert invoke(master, *auto).exit_code == 0
    sent = master.requests[-1]
    assert sent.spot_policy == job_pb2.SPOT_POLICY_UNSPECIFIED and not sent.HasField("cold_start")


def test_limits_and_mode_together(master: FakeMaster) -> None:
    assert invoke(master, "scale", "train", "2:8", "--auto", "budget=25").exit_code == 0
    sent = master.requests[-1]
    assert (sent.name, sent.workers_min, sent.workers_max, sent.scaling) == ("train", 2, 8, "budget=25")
    assert invoke(master, "scale", "6", "--auto", "off").exit_code == 0
    sent = master.requests[-1]
    assert (sent.workers_min, sent.workers_max, sent.scaling) == (0, 6, "off")


def test_the_master_sees_the_currency_of_a_budget(master: FakeMaster) -> None:
    assert invoke(master, "scale", "--auto", "budget=25 EUR").exit_code == 0
    assert master.requests[-1].scaling == "budget=25 EUR"


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale", "--auto", "efficiency=0"],
        ["scale", "--auto", "budget=nan"],
        ["scale", "--auto", "deadline=noon"],
        ["scale", "a", "b", "--auto", "efficiency"],
        ["scale", "train", "--auto", "efficiency", "--over-budget", "burn"],
        ["scale", "--auto", "deadline=+2h", "--spot-policy", "narrow"],
        ["scale", "--auto", "deadline=+2h", "--cold-start", "-1"],
        ["scale", "--auto", "deadline=+2h", "--cold-start", "nan"],
        ["scale", "--auto", "deadline=+2h", "--on-demand-workers", "99999999"],
        ["scale", "2:3", "--over-budget", "suspend"],
        ["scale", "2:3", "--on-demand-workers", "0"],
        ["scale", "2:3", "--spot-policy", "wide"],
        ["scale", "2:3", "--cold-start", "60"],
        ["scale", "2:3", "--dry-run"],
        ["scale"],
        ["run", "--ests", "4", "--auto", "faster", "x.py"],
    ],
    ids=" ".join,
)
def test_bad_usage(master: FakeMaster, arguments: list[str]) -> None:
    assert invoke(master, *arguments).exit_code == 2
    assert master.requests == []


def test_plan_shows_what_is_asked_for_and_why(master: FakeMaster) -> None:
    job = master.jobs["train"]
    job.scaling.mode, job.scaling.workers_target, job.scaling.reason = (
        "deadline=1764189200",
        4,
        "the cheapest end in time",
    )
    job.scaling.predicted_finish.FromSeconds(1_764_189_000)
    found = invoke(master, "plan")
    assert "scales by itself (deadline=2025-11-26T20:33:20Z): asks for 4 workers: the cheapest" in " ".join(
        found.stdout.split()
    )
    told = json.loads(invoke(master, "plan", "--json").stdout)
    assert told["scaling"]["workers_target"] == 4

"""`elastane run`: its options as variables, and a job that is joined."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elastane_agent.supervisor import agent
from elastane_agent.supervisor.first_checks import try_checkpoint_url
from elastane_agent.supervisor.price_feed import PriceFeedSettings
from elastane_agent.supervisor.price_table import PriceTable
from elastane_agent.supervisor.settings import AgentSettings
from elastane_cli.commands.catalogue import load
from elastane_cli.commands.main import build_app
from elastane_cli.commands.run_options import variable
from elastane_proto.v1 import job_pb2
from unit.cli.fake_master import FakeMaster, running_job, serving

WITHOUT_VARIABLE = {"-m", "--json", "--pass", "--help"}


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    with serving(fake) as address:
        fake.address = address
        yield fake


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[AgentSettings]:
    """What agents were asked for; none runs."""
    seen: list[AgentSettings] = []

    class Recorder:
        def __init__(self, settings: AgentSettings, output: Any) -> None:
            seen.append(settings)

        def run(self) -> int:
            return 4

    monkeypatch.setattr(agent, "Agent", Recorder)
    return seen


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(build_app(), ["run", *arguments, __file__], env=environment)


def test_every_option_has_a_variable_of_its_own() -> None:
    found = {}
    for parameter in load("run").params:
        if parameter.param_type_name == "option" and parameter.opts[0] not in WITHOUT_VARIABLE:
            name = parameter.opts[0]
            assert parameter.envvar == variable(name) and parameter.envvar is not None, name
            assert parameter.envvar not in found, (name, found[parameter.envvar])
            found[parameter.envvar] = name
    assert found["ELASTANE_ESTS"] == "--ests" and found["ELASTANE_CHECKPOINT_STEPS"] == "--checkpoint-steps"


def test_a_container_needs_no_arguments(asked: list[AgentSettings]) -> None:
    given = {
        "ELASTANE_ESTS": "4", "ELASTANE_WORKERS": "1:2", "ELASTANE_JOB": "digits", "ELASTANE_SEED": "7",
        "ELASTANE_CHECKPOINT": "s3://b/c", "ELASTANE_CHECKPOINT_STEPS": "50", "ELASTANE_MASTER": "m:50051",
        "ELASTANE_TORCH_THREADS": "2", "ELASTANE_EXIT_CODES": "pod", "ELASTANE_LEASE": "",
        "ELASTANE_GRACE": "12",
    }  # fmt: skip
    assert run(**given).exit_code == 204
    (settings,) = asked
    assert (settings.job, settings.master, settings.grace_seconds) == ("digits", "m:50051", 12.0)
    job = settings.settings
    assert job is not None and (job.ests, job.workers_min, job.workers_max, job.seed) == (4, 1, 2, 7)
    assert (job.checkpoint_url, job.checkpoint_interval_steps, job.torch_threads) == ("s3://b/c", 50, 2)
    assert job.lease_min.ToSeconds() == 30, "an empty variable counts as none"


def test_arguments_go_over_variables(asked: list[AgentSettings]) -> None:
    assert (
        run("--ests", "2", "--exit-codes", "shell", ELASTANE_ESTS="4", ELASTANE_EXIT_CODES="pod").exit_code
        == 4
    )
    assert asked[0].settings is not None and asked[0].settings.ests == 2


def test_without_ests_the_job_of_that_name_is_joined(asked: list[AgentSettings]) -> None:
    result = run(ELASTANE_MASTER="m:1", ELASTANE_JOB="j", ELASTANE_SEED="3")
    assert result.exit_code == 4
    assert asked[0].settings is None and asked[0].local_workers == 1
    assert "the master's settings apply; ignored: ELASTANE_SEED" in result.stderr


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize("ests", [["--ests", "3"], ["--ests=3"]])
def test_an_option_after_the_script_is_said_to_be_an_argument_of_it(command: str, ests: list[str]) -> None:
    result = CliRunner().invoke(build_app(), [command, __file__, *ests], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert (
        f"--ests after the script is an argument of the script: write it before {__file__}" in result.stderr
    )


def test_an_agent_may_have_parameter_servers_alone(asked: list[AgentSettings]) -> None:
    assert run("--master", "m:1", "--job", "j", "--local-workers", "0", "--ps", "2").exit_code == 4
    assert (asked[0].local_workers, asked[0].ps) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--job", "j"], "--ests"),
        (["--master", "m:1"], "--ests"),
        (["--master", "m:1", "--job", "j", "--workers", "1:2"], "--workers"),
        (["--master", "m:1", "--job", "j", "--lease", "9"], "--lease"),
        (["--master", "m:1", "--job", "j", "--local-workers", "0"], "--local-workers"),
    ],
)
def test_joining_says_what_it_lacks_or_would_not_heed(
    asked: list[AgentSettings], arguments: list[str], names: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and f"Invalid value for {names}" in result.output
    assert asked == []


@pytest.mark.parametrize(
    ("options", "named", "why"),
    [
        (("--ests", "4", "--workers", "4:1"), "--workers", "at most MAX"),
        (("--ests", "4", "--workers", "8:9"), "--workers", "at most 4"),
        (("--ests", "4", "--workers", "many"), "--workers", "not MIN:MAX"),
        (("--ests", "two"), "'--ests'", "integer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_numbers_that_cannot_be_name_their_option(
    asked: list[AgentSettings], options: tuple[str, ...], named: str, why: str
) -> None:
    result = run(*options)
    assert result.exit_code == 2 and asked == []
    assert f"Invalid value for {named}" in result.output and why in " ".join(result.output.split())


def test_a_checkpoint_folder_that_cannot_be_written_is_found_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = run("--ests", "2", "--checkpoint", f"{file}/saved")
    assert result.exit_code == 3
    assert (
        f"no checkpoint could be written to {file}/saved" in result.stderr and "master" not in result.stderr
    )
    fine = tmp_path / "saved"
    try_checkpoint_url(str(fine))
    assert list(fine.iterdir()) == []


def test_a_master_that_does_not_answer_is_spoken_of_once() -> None:
    result = run("--ests", "2", "--master", "127.0.0.1:1", "--master-timeout", "1.5")
    assert result.exit_code == 4
    waits = [line for line in result.stderr.splitlines() if "no master answers" in line]
    assert waits == [
        "[elastane] no master answers at 127.0.0.1:1 (Connection refused); trying for 1.5 s "
        "(--master-timeout)"
    ]
    assert "within 1.5 s: Connection refused" in result.stderr


def test_a_job_that_never_comes_is_told_from_one_that_is_refused(master: FakeMaster) -> None:
    options = ("--master", master.address, "--job", "absent", "--job-timeout", "0.1")
    result = run(*options)
    assert result.exit_code == 6
    assert "no job 'absent' within 0.1 s" in result.stderr and "--ests" in result.stderr
    assert "; this master has: train" in result.stderr
    assert run(*options, ELASTANE_EXIT_CODES="pod").exit_code == 206


def test_a_job_that_is_created_late_is_joined(master: FakeMaster, tmp_path: Path) -> None:
    pipe, script = tmp_path / "pipe", tmp_path / "script.py"
    os.mkfifo(pipe)
    script.write_text(
        "import os, pathlib\n"
        "print(os.environ['ELASTANE_ESTS'], os.environ['ELASTANE_SEED'])\n"
        f"pathlib.Path({str(pipe)!r}).write_text('trained')\n"
    )
    late = running_job("late")
    late.settings.seed = 11

    def succeed() -> None:
        assert pipe.read_text() == "trained"
        master.change("late", phase=job_pb2.JOB_PHASE_SUCCEEDED)

    master.fail_next = [lambda context: None, lambda context: master.jobs.update(late=late)]
    thread = threading.Thread(target=succeed)
    thread.start()
    result = CliRunner().invoke(
        build_app(), ["run", "--master", master.address, "--job", "late", "--spot", "none", str(script)]
    )
    thread.join()
    assert result.exit_code == 0, result.output
    assert "4 11" in result.stdout and "waiting for job late" in result.stderr
    assert not any(isinstance(request, job_pb2.JobServiceCreateRequest) for request in master.requests)


@pytest.mark.parametrize("option", ["--max-wait", "--lease", "--heartbeat-timeout"])
def test_a_time_limit_without_end_is_bad_usage(option: str, asked: list[AgentSettings]) -> None:
    result = run("--ests", "2", option, "inf")
    assert result.exit_code == 2 and f"Invalid value for '{option}'" in result.output
    assert not asked


def test_on_demand_workers_that_nobody_can_start_are_refused_in_words(asked: list[AgentSettings]) -> None:
    auto = ("--ests", "2", "--auto", "deadline=+2h", "--on-demand-workers", "1")
    result = run(*auto)
    assert result.exit_code == 2 and "nothing here can start" in result.output
    assert not asked
    for possible in (("--master", "127.0.0.1:1"), ("--listen", "127.0.0.1"), ("--capacity", "on-demand")):
        assert run(*auto, *possible).exit_code == 4  # the fake has no master
    assert len(asked) == 3 and asked[0].settings is not None and asked[0].settings.on_demand_workers == 1


def test_a_budget_without_prices_is_warned_of(asked: list[AgentSettings]) -> None:
    words = "the budget limits nothing"
    for more, is_said in (((), True), (("--on-demand-price", "0.5"), False)):
        assert (words in run("--ests", "2", "--auto", "budget=5", *more).output) == is_said
    assert words not in run("--ests", "2", "--auto", "efficiency").output


def test_prices_from_a_file_or_a_url(asked: list[AgentSettings], tmp_path: Path) -> None:
    table, prices = tmp_path / "table.csv", tmp_path / "prices.json"
    table.write_text("at,spot\n0,0.31\n")
    prices.write_text('[{"capacity": "spot", "zone": "a", "micros_per_hour": 310000}]')
    assert run("--ests", "2", "--price-table", str(table)).exit_code == 4  # the fake has no master
    assert run("--ests", "2", "--prices", str(table)).exit_code == 4  # the fake has no master
    url = "http://127.0.0.1:9/prices"
    for location in (str(prices), url):
        options = ("--prices", location, "--prices-zone", "a", "--prices-interval", "5")
        assert run("--ests", "2", *options).exit_code == 4  # the fake has no master
    first, second, third, fourth = (settings.prices for settings in asked)
    assert isinstance(first, PriceTable) and second == first
    assert third == PriceFeedSettings(str(prices), "a", 5.0)
    assert fourth == PriceFeedSettings(url, "a", 5.0)
    for location in ("file:///etc/passwd", "ftp://host/prices"):
        result = run("--ests", "2", "--prices", location)
        assert result.exit_code == 2 and "neither a file nor" in result.output
    assert run("--ests", "2", "--prices", url, "--price-table", str(table)).exit_code == 2
    prices.write_text('[{"capacity": "spot", "micros_per_hour": 0}]')
    result = run("--ests", "2", "--prices", str(prices))
    assert result.exit_code == 3 and "ELA417" in result.output
    assert len(asked) == 4


@pytest.mark.parametrize("option", ["--hosts", "--prices", "--price-table"])
def test_a_file_that_is_not_there_is_bad_usage(option: str, asked: list[AgentSettings]) -> None:
    result = run("--ests", "2", option, "nowhere")
    assert result.exit_code == 2 and re.search(f"Invalid value for '?{option}", result.output)
    assert not asked


def test_a_rank_of_torchrun_is_an_agent_only_of_a_given_master(asked: list[AgentSettings]) -> None:
    alone = run("--ests", "2", WORLD_SIZE="2", RANK="0")
    assert (alone.exit_code, asked) == (3, [])
    assert "WORLD_SIZE is 2" in alone.output and "ELA426" in alone.output
    assert run("--ests", "2", "--master", "10.0.0.5:50051", WORLD_SIZE="2").exit_code == 4
    assert len(asked) == 1


def test_the_options_of_torchrun_are_taken_with_a_note(asked: list[AgentSettings]) -> None:
    ran = run("--standalone", "--nproc_per_node=3", "--max-restarts", "2")
    assert ran.exit_code == 4, ran.output
    [settings] = asked
    assert settings.settings is not None
    assert (settings.settings.ests, settings.budget.restarts_max) == (3, 2)
    assert "--nproc-per-node 3 is taken as --ests 3" in ran.output
    refused = run("--nnodes", "2", "--nproc-per-node", "2")
    assert (refused.exit_code, len(asked)) == (2, 1)
    assert "--hosts" in refused.output


def test_without_torch_no_worker_is_started(
    asked: list[AgentSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = run("--ests", "2")
    assert (ran.exit_code, asked) == (3, [])
    assert "pip install 'elastane[worker]'" in ran.output


def test_a_relay_is_asked_for_and_refused_with_hosts(asked: list[AgentSettings], tmp_path: Path) -> None:
    assert run("--ests", "2", "--relay").exit_code == 4
    assert run("--ests", "2").exit_code == 4
    assert [settings.relay for settings in asked] == [True, False]
    hosts = tmp_path / "hosts"
    hosts.write_text("#!/bin/sh\necho a:1\n")
    hosts.chmod(0o755)
    refused = run("--ests", "2", "--relay", "--hosts", str(hosts))
    assert refused.exit_code == 2
    assert "a relay is for workers of this machine, not with --hosts" in " ".join(refused.output.split())
    assert len(asked) == 2

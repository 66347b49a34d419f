"""A running pipeline in `elastane plan` and `elastane status`: its last step, its links, a cluster file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.simulate import timeline
from elastane_proto.v1 import pipeline_pb2, ring_pb2
from unit.cli.fake_master import FakeMaster, serving

PLAN = Plan((Stage(0, 2, (0,)), Stage(2, 5, (1,))))
STEP = timeline(
    Profile(tuple(UnitProfile(str(unit), 0.1, 0.2) for unit in range(5))),
    Cluster.uniform([Device("w0"), Device("w1")], 1e9),
    PLAN,
    4,
)


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    """A pipeline of two stages on two of three workers, which told of a step as it is simulated."""
    fake = FakeMaster()
    with serving(fake) as address:
        fake.address = address
        job = fake.jobs["train"]
        job.settings.ests = 4
        told = job.pipeline
        told.units, told.slowest_stage, told.reason, told.risk = 5, -1, "an even cut", "a death costs a step"
        for first, end, worker in ((0, 2, "w0"), (2, 5, "w1")):
            stage = told.stages.add(first_unit=first, end_unit=end, memory=pipeline_pb2.STAGE_MEMORY_PLAIN)
            stage.replicas.append(worker)
        for worker, host, speed in (("w0", "h0", 1.0), ("w1", "h1", 0.5), ("w2", "h2", 0.0)):
            told.devices.add(worker_id=worker, host=host, speed=speed, memory_bytes=2**30)
        told.links.add(source="h0", target="h1", bytes_per_second=2e9)
        for place, worker in enumerate(("w0", "w1")):
            figures = ring_pb2.WorkerFigures(generation=3, blocks_step=128, blocks_began=1000.0)
            for span in STEP.spans:
                if span.device == place:
                    figures.block_seconds.extend((span.start_seconds, span.end_seconds))
            fake.figures[worker] = figures
        yield fake


def cli(master: FakeMaster, *words: str) -> Result:
    return CliRunner().invoke(
        build_app(), list(words), env={"ELASTANE_MASTER": master.address, "COLUMNS": "200"}
    )


@pytest.mark.parametrize("command", ["plan", "status"])
def test_the_last_step_has_a_row_for_each_worker(master: FakeMaster, command: str) -> None:
    text = cli(master, command).stdout
    assert "step 128 as measured" in text and "of it idle" in text and "a death costs a step" in text
    rows = [line for line in text.splitlines() if line.split()[:1] in (["0"], ["1"]) and "F" in line]
    drawn = [row.split()[-1] for row in rows if "·" in row]
    assert len(drawn) == 2 and all(set(one) == set("FB·") and len(one) == 72 for one in drawn)
    document = json.loads(cli(master, command, "--json").stdout)
    step = document["last_step"]
    assert step["step"] == 128 and len(step["blocks"]) == 16
    assert step["bubble"] == pytest.approx(STEP.bubble, abs=1e-3)
    first = min(step["blocks"], key=lambda block: block["start_seconds"])
    assert (first["worker"], first["kind"], first["micro_batch"]) == ("w0", "forward", 0)
    assert document["pipeline"]["devices"][1]["speed"] == 0.5


@pytest.mark.parametrize("command", ["plan", "status"])
def test_steps_that_not_all_have_told_are_not_shown(master: FakeMaster, command: str) -> None:
    master.figures["w1"].blocks_step = 64
    assert "as measured" not in cli(master, command).stdout
    assert json.loads(cli(master, command, "--json").stdout)["last_step"] is None
    master.figures["w1"].blocks_step = 128
    del master.figures["w1"].block_seconds[-2:]
    assert json.loads(cli(master, command, "--json").stdout)["last_step"] is None


@pytest.mark.parametrize("command", ["plan", "status"])
def test_that_steps_have_too_many_blocks_to_be_told_is_said(master: FakeMaster, command: str) -> None:
    for figures in master.figures.values():
        figures.ClearField("block_seconds")
    said = "no step is shown: a worker has more than 128 blocks in each, which are not told"
    master.jobs["train"].settings.ests = 64
    assert said not in cli(master, command).stdout
    master.jobs["train"].settings.ests = 65
    assert said in cli(master, command).stdout


def test_other_jobs_have_no_last_step(master: FakeMaster) -> None:
    master.jobs["train"].ClearField("pipeline")
    assert "last_step" not in json.loads(cli(master, "status", "--json").stdout)


def test_a_cluster_file_has_what_is_measured_and_is_planned_with(master: FakeMaster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    found = cli(master, "plan", "--cluster-out", str(file))
    assert found.exit_code == 0, found.output
    assert "3 devices; 1 of 6 links between them are measured" in found.stdout.replace("\n", " ")
    cluster = Cluster.from_json(file.read_text())
    assert [(d.name, d.speed, d.memory_bytes) for d in cluster.devices] == [
        ("w0", 1.0, 2**30),
        ("w1", 0.5, 2**30),
        ("w2", 1.0, 2**30),
    ]
    assert cluster.bandwidth[0][1] == cluster.bandwidth[1][0] == cluster.bandwidth[1][2] == 2e9
    profile = tmp_path / "profile.json"
    profile.write_text(
        '{"version": 1, "units": [{"name": "0", "forward_seconds": 1, "backward_seconds": 2}]}'
    )
    made = cli(
        master, "plan", "--profile", str(profile), "--cluster", str(file), "--micro-batches", "4", "--json"
    )
    assert made.exit_code == 0, made.output


def test_a_cluster_file_needs_a_pipeline_that_runs(master: FakeMaster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    master.jobs["train"].ClearField("pipeline")
    refused = cli(master, "plan", "--cluster-out", str(file))
    assert refused.exit_code == 2 and "is not a running pipeline" in refused.output and not file.exists()
    profile = tmp_path / "profile.json"
    profile.write_text("{}")
    refused = cli(
        master, "plan", "--profile", str(profile), "--cluster-out", str(file), "--micro-batches", "1"
    )
    assert refused.exit_code == 2 and "a plan without a job" in refused.output


def test_workers_cannot_write_into_the_terminal(master: FakeMaster) -> None:
    evil = "\x1b[31mw0 [bold]"
    master.jobs["train"].pipeline.stages[0].replicas[0] = evil
    master.figures[evil] = master.figures.pop("w0")
    for worker in master.jobs["train"].workers:
        if worker.worker_id == "w0":
            worker.worker_id = evil
    assert "\x1b" not in cli(master, "plan").stdout

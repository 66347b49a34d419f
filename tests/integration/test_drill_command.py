"""`elastane drill` as its users call it."""

from __future__ import annotations

import json
from pathlib import Path

from elastane_cli.chaos import ps_job
from integration.forked_cli import ForkedCommands
from slow import further, slow

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
PIPELINE = SCRIPT.with_name("train_pipeline.py")


@slow
def test_a_drill_holds_and_says_what_it_rests_on(tmp_path: Path, forked_commands: ForkedCommands) -> None:
    done = forked_commands.run(
        *("drill", "--json", "--ests", "2", "--seed", "7"),
        *("--spot-price", "36", "--on-demand-price", "108", "--keep", str(tmp_path / "kept")),
        *(str(SCRIPT), "--epochs", "1", "--size", "80", "--batch-size", "5", "--seed", "3"),
        timeout_seconds=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["held"] and found["steps"] == 8 and found["differing"] == []
    assert [one["node"] for one in found["reclaims"]] == ["spot-1", "spot-2"]
    assert all(one["seconds"] <= one["deadline_seconds"] == 15 for one in found["reclaims"])
    assert found["saved_step"] == found["reclaims"][-1]["step"] and found["tasks_done_twice"] == 0
    assert found["cost"]["spent_micros"] > 0 and found["cost"]["currency"] == "USD"
    assert (tmp_path / "kept" / "reports").is_dir()


@further  # test_pipeline_chaos has the faults, the drill above the command
def test_a_pipeline_is_drilled(tmp_path: Path, forked_commands: ForkedCommands) -> None:
    """The first node hands its units over before it leaves; the last ones leave a checkpoint of all units."""
    done = forked_commands.run(
        *("drill", "--json", "--ests", "3", "--seed", "5", "--pipeline", "2:3"),
        *(str(PIPELINE), "--epochs", "2", "--size", "96", "--batch-size", "4"),
        timeout_seconds=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["held"] and found["steps"] == 16 and found["differing"] == []
    assert found["saved_step"] == found["reclaims"][-1]["step"] and found["tasks_done_twice"] == 0


@further  # test_ps_runs kills one, with copies and without
def test_the_death_of_a_parameter_server_is_drilled(tmp_path: Path, forked_commands: ForkedCommands) -> None:
    """Without copies DONE tasks are done again, at most those since the snapshots; with copies none is."""
    done = forked_commands.run(
        *("drill", "--json", "--ps", "2", "--seed", "3", ps_job.__file__, "--tasks", "300", "--epochs", "1"),
        timeout_seconds=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["held"] and not found["problems"]
    without, having = found["deaths"]
    assert (without["replicas"], having["replicas"]) == (0, 1)
    assert 0 <= without["reopened"] <= without["done"] and having["reopened"] == 0
    for death in (without, having):
        assert 100 <= death["done"] < death["tasks"] == 300
        assert 0 < death["served_seconds"] <= death["task_seconds"]

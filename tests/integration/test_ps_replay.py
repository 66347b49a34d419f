"""`elastane ps replay`: runs with workers and parameter servers that die, computed again bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastane_proto.v1 import job_pb2
from integration.ps_runs import SCRIPT, PsRun
from integration.test_ps_training import with_master
from slow import further, slow


def replayed(run: PsRun, *script: str) -> tuple[int, dict[str, Any], Path]:
    """Replay the run, with other arguments of the script; return code, answer, folder of the result."""
    out = run.folder / f"again-{len(script)}"
    out.mkdir()
    command = [
        sys.executable,
        "-m",
        "elastane_cli",
        "ps",
        "replay",
        "--json",
        str(run.folder / "checkpoints"),
    ]
    command += [str(SCRIPT), "--out", str(out), *(script or run.script)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.stdout or (lines and lines[-1].startswith("{")), done.stderr
    return done.returncode, json.loads(done.stdout or lines[-1]), out


def equal(run: PsRun, worker: str) -> dict[str, Any]:
    code, answer, out = replayed(run)
    assert code == 0 and answer["equal"], answer
    assert json.loads((out / "plain.json").read_text())["digest"] == run.result(worker)["digest"]
    return answer


@slow
async def test_two_workers_are_repeated_and_another_script_is_found(tmp_path: Path) -> None:
    script = ["--model", "deep", "--tasks", "20"]

    def scenario(run: PsRun) -> None:
        run.create(ps_slots=6, ps_journal=True, workers_max=2)
        for number in range(2):
            run.start_ps(f"ps-{number}")
            run.start_worker(f"w{number}")
        assert [run.wait(name) for name in ("w0", "w1")] == [0, 0]
        answer = equal(run, "w0")
        assert answer["tasks"] == 20 and not answer["torn"] and not answer["other_rates"]
        code, answer, _ = replayed(run, *script, "--loss-scale", "1.5")
        assert code == 1 and answer["code"] == "ELA492", answer
        assert answer["facts"]["task"].startswith("clicks 0:") and "gradients" in answer["message"]

    await with_master(tmp_path, script, scenario)


@further  # minutes; lives that were lost are in tests/unit/tables/test_replay_order.py
@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_run_with_deaths_is_repeated(tmp_path: Path, replicas: int) -> None:
    tasks, workers = 80, 4
    script = ["--model", "deep", "--tasks", str(tasks), "--busy-seconds", "0.1", "--epochs", "2"]
    script += ["--prefetch", "2", "--ahead"] if replicas else []

    def scenario(run: PsRun) -> None:
        run.create(
            ps_slots=12,
            ps_journal=True,
            ps_replicas=replicas,
            workers_max=workers + 1,
            ps_scale_by_staleness=True,
            ps_wire=job_pb2.PS_WIRE_FLOAT32 if replicas else job_pb2.PS_WIRE_BFLOAT16,
        )
        for number in range(3):
            run.start_ps(f"ps-{number}")
        for number in range(workers):
            run.start_worker(f"w{number}")
        run.done_reaches(15)
        run.settled(1 + replicas)
        run.saved()
        run.kill_ps("ps-0")
        run.start_ps("ps-3")
        run.done_reaches(50)
        run.kill_worker("w0")
        run.start_worker("w9")
        run.settled(1 + replicas)
        run.kill_ps("ps-1")
        run.done_reaches(100)
        run.settled(1 + replicas)
        run.processes["ps-2"].signal(signal.SIGTERM)
        assert [run.wait(f"w{number}") for number in range(1, workers)] == [0] * (workers - 1)
        assert run.wait("w9") == 0
        answer = equal(run, "w1")
        assert answer["tasks"] >= 2 * tasks
        lives = {one["life"] for one in answer["slots"]}
        assert lives == {0} if replicas else max(lives) > 0

    await with_master(tmp_path, script, scenario)

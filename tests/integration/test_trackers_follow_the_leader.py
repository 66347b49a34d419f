"""job.log to TensorBoard, MLflow and W&B in a training whose leader is killed: each step is there once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_cli.explain import explain
from elastane_cli.rehearse.cluster import local_cluster
from elastane_cli.report.facts import gather
from elastane_cli.report.markdown import as_markdown
from elastane_common.logged import StepStream, get_series
from elastane_proto.history_wire import dated_event_of
from elastane_proto.v1 import job_pb2
from integration.forkserver import ForkServers
from patience import Patience
from slow import slow
from tensorboard_files import shown

SCRIPT = Path(__file__).parent / "scripts" / "logging_steps.py"
FAKES = Path(__file__).parents[1] / "tracker_fakes"
STEPS = 32


def wait_for_trackers(folder: Path, steps: int) -> None:
    """Until all three have that many steps."""
    limit = Patience(60.0)
    while limit.left():
        with contextlib.suppress(OSError, ValueError, StopIteration):
            runs = json.loads((folder / "mlflow.json").read_text())["runs"]
            rows = json.loads(next(folder.glob("wandb-*.json")).read_text())["rows"]
            cursor = json.loads(next((folder / "runs").glob("*/elastane.json")).read_text())
            counts = [len(run["metrics"]) for run in runs.values()] + [len(rows), cursor["next_step"]]
            if counts == [steps] * 3:
                return
        time.sleep(0.05)  # they are other processes, which tell nobody
    raise AssertionError(f"the trackers have not got {steps} steps")


@slow
def test_a_leaders_death_costs_no_step_and_doubles_none(tmp_path: Path, servers: ForkServers) -> None:
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]),
        "FAKE_TRACKERS": str(tmp_path),
        "ELASTANE_LOG_TO": f"tensorboard:{tmp_path / 'runs'},mlflow:exp,wandb:proj",
        "ELASTANE_LOG_FORMAT": "json",
        "ELASTANE_LOG_LEVEL": "debug",
    }
    folder, gates = tmp_path / "cluster", tmp_path / "gates"
    gate = Gate(gates / "16")  # the workers wait in this step until the first leader's trackers have written
    environment |= Rehearsal(gates=str(gates)).environment()
    with local_cluster(
        folder, settings, [str(SCRIPT)], environment=environment, launch=servers.launch
    ) as cluster:
        for name in ("a", "b"):
            cluster.add_worker(name)
        cluster.wait_for_step(16)
        wait_for_trackers(tmp_path, 16)
        leader = cluster.client.get_ring(cluster.job).members[0].worker_id
        os.kill(cluster.workers[leader].pid, signal.SIGKILL)
        gate.open()
        cluster.client.scale_job(cluster.job, 1, 2)  # the other one goes on alone
        job = cluster.wait_for_end()
        history = list(cluster.client.audit_log(cluster.job))
        series = get_series(cluster.client, cluster.job).series
        events = list(cluster.client.events(cluster.job))
        stream = StepStream(cluster.client, cluster.job).batches(follow=False)
        facts = gather(job, events, [step for batch in stream for step in batch], list(series), 0.0)
        logs = {name: (folder / f"{name}.log").read_text() for name in cluster.workers}
    assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED and job.step == STEPS

    losses: dict[int, list[float]] = {}
    for entry in history:
        losses.setdefault(entry.step, []).append(entry.metrics["loss"])
    expected = [(step, sum(losses[step]) / 2) for step in range(STEPS)]
    assert all(len(values) == 2 for values in losses.values())
    assert [(point.step, point.mean) for point in series[0].points] == expected

    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("local-2")
    written = shown(run)["loss"]
    assert [step for step, _ in written] == list(range(STEPS))
    assert all(abs(value - loss) < 1e-6 for (_, value), (_, loss) in zip(written, expected, strict=True))
    (mlflow_run,) = json.loads((tmp_path / "mlflow.json").read_text())["runs"].values()
    assert [(step, value) for _, value, _, step in mlflow_run["metrics"]] == expected
    assert mlflow_run["status"] == "FINISHED"
    wandb_run = json.loads((tmp_path / f"wandb-{run.name}.json").read_text())
    assert [(row["_step"], row["loss"]) for row in wandb_run["rows"]] == expected
    assert wandb_run["ended"]

    # What else is told of it: why the dead leader is out, what it cost, and how far the epochs were.
    told = explain(leader, job, events)
    assert told is not None and told.place == "out" and "its stream" in told.sentence
    death = next(one for one in facts.incidents if not one.planned and leader in one.reason)
    assert death.cost_seconds is not None and facts.lost_seconds >= death.cost_seconds >= 0.0
    assert facts.environment["optimizer"] == "SGD" and facts.steps.next_step == STEPS
    assert f"{leader}: EST 0, " in as_markdown(facts, dated_event_of(events[-1]).time)
    assert any("epoch 4/4: 8 steps in" in log and "loss" in log for log in logs.values())
    lines = [json.loads(line) for log in logs.values() for line in log.splitlines() if line.startswith("{")]
    assert {line["worker"] for line in lines} == {"a", "b"}
    assert all({"job", "generation", "step"} <= set(line) for line in lines)

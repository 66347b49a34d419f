"""Real DDP(gloo) against elastic runs under churn: every hash equal, every sample exactly once.

Churn is aimed at steps and at points inside a step, never at times. A path like 4->1->3->2 is the
number of workers as the run goes on.
"""

from __future__ import annotations

import functools
import math
import signal
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from trace_receiver import Receiver, Span, receiver  # noqa: F401 - a fixture

from compared_runs import compare_runs
from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.processes.child import ExitStatus
from elastane_proto.v1 import job_pb2
from slow import further, slow, slow_except

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
SIZE, BATCH = 200, 5


@dataclass(frozen=True)
class Config:
    """What decides the bits."""

    ests: int
    optimizer: str = "adamw"
    data_workers: int = 0
    epochs: int = 3
    seed: int | None = 3

    @property
    def arguments(self) -> list[str]:
        found = [str(SCRIPT), "--optimizer", self.optimizer, "--epochs", str(self.epochs)]
        found += ["--data-workers", str(self.data_workers), "--size", str(SIZE), "--batch-size", str(BATCH)]
        return found + (["--seed", str(self.seed)] if self.seed is not None else [])

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(math.ceil(SIZE / self.ests) / BATCH)


@functools.cache
def reference(config: Config) -> Path:
    """Reports of the fixed run, made once per configuration."""
    folder = Path(tempfile.mkdtemp(prefix="elastane-reference-"))
    return run_stock_ddp(folder, config.arguments, processes=config.ests)


@dataclass
class Churn:
    """What happens to the run: (step, action), in order; kill: where the first worker dies, 'point:step'."""

    start: int
    acts: list[tuple[int, str]] = field(default_factory=list)
    kill: str = ""
    late_kill: str = ""  # for the first worker that is added


def members(cluster: LocalCluster) -> list[str]:
    return [member.worker_id for member in cluster.client.get_ring(cluster.job).members]


def attending(job: job_pb2.Job) -> set[str]:
    return {worker.worker_id for worker in job.workers}


def act(cluster: LocalCluster, action: str, churn: Churn, gate: Gate) -> None:
    """Carry out one action while the ring stands at the gate, then let it go on."""
    verb, _, count = action.partition(" ")
    times = int(count or 1)
    ring = members(cluster)
    if verb == "add":
        names = set()
        for _ in range(times):
            rehearsal = Rehearsal(gates=str(cluster.folder / "gates"), kill=churn.late_kill)
            churn.late_kill = ""
            names.add(cluster.add_worker(environment=rehearsal.environment()))
        cluster.wait_for(lambda job: names <= attending(job), what=f"{names} at the master")
    elif verb == "kill":
        for name in ring[:times]:
            cluster.workers[name].signal(signal.SIGKILL)
        cluster.wait_for(lambda job: not set(ring[:times]) & attending(job), what="the death noticed")
    elif verb == "master":
        cluster.restart_master()
    gone = ring[-times:]
    if verb == "drain":
        for name in gone:
            cluster.client.drain_worker(cluster.job, name)
    elif verb == "term":
        for name in gone:
            cluster.workers[name].signal(signal.SIGTERM)
    gate.open()
    if verb in ("drain", "term"):
        for name in gone:
            assert cluster.workers[name].wait(60) is not None, cluster.last_lines()
            assert cluster.workers[name].status == ExitStatus(0), cluster.last_lines()


def run_and_compare(tmp_path: Path, config: Config, churn: Churn) -> LocalCluster:
    # All workers of the start are in the first ring: the churn is what the test says and nothing else.
    settings = job_pb2.JobSettings(
        ests=config.ests, workers_min=churn.start, workers_max=config.ests, audit_samples=True
    )
    # Newcomers wait at the master while the gate is held: the next boundary after it takes them in.
    settings.join_window.FromMilliseconds(20)
    gates = tmp_path / "gates"
    held = [(step, action, Gate(gates / str(step))) for step, action in churn.acts]
    with local_cluster(tmp_path, settings, config.arguments) as cluster:
        for index in range(churn.start):
            rehearsal = Rehearsal(gates=str(gates), kill=churn.kill if index == churn.start - 1 else "")
            cluster.add_worker(environment=rehearsal.environment())
        cluster.wait_for(lambda job: job.generation > 0, what="the first ring")
        cluster.client.scale_job(cluster.job, 1, config.ests)
        for step, action, gate in held:
            cluster.wait_for_step(step)
            act(cluster, action, churn, gate)
        job = cluster.wait_for_end()
        assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, job.reason
        history = list(cluster.client.audit_log(cluster.job))
    comparison = compare_runs(
        cluster.reports,
        reference(config),
        history,
        ests=config.ests,
        dataset_size=SIZE,
        steps_per_epoch=config.steps_per_epoch,
    )
    assert comparison.values == config.ests * config.steps_per_epoch * config.epochs
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []
    return cluster


PATHS = {
    "4": Churn(4),
    "1": Churn(1),
    "4->1->3->2": Churn(4, [(4, "drain 3"), (9, "add 2"), (16, "kill")]),
    "1->4": Churn(1, [(5, "add 3")]),
    "2->3->2": Churn(2, [(4, "add"), (12, "term")]),
}


#: The others: with data workers, below.
@pytest.mark.parametrize("path", slow_except(PATHS, further=set(PATHS) - {"1->4"}))
def test_path_with_four_ests(tmp_path: Path, path: str) -> None:
    run_and_compare(tmp_path, Config(4), PATHS[path])


@slow
@pytest.mark.parametrize(
    ("path", "optimizer"), [("4->1->3->2", "adamw"), pytest.param("2->3->2", "sgd", marks=further)]
)
def test_path_with_data_workers(tmp_path: Path, path: str, optimizer: str) -> None:
    run_and_compare(tmp_path, Config(4, optimizer, data_workers=2), PATHS[path])


@pytest.mark.parametrize("data_workers", slow_except([0, 2], 0, further=(2,)))
def test_three_ests_uneven(tmp_path: Path, data_workers: int) -> None:
    churn = Churn(2, [(5, "add"), (11, "kill"), (20, "add")])
    run_and_compare(tmp_path, Config(3, "sgd", data_workers), churn)


@slow
def test_without_a_seed_every_est_starts_from_the_scripts_rng(tmp_path: Path) -> None:
    run_and_compare(tmp_path, Config(4, seed=None), PATHS["2->3->2"])


@pytest.mark.parametrize(
    ("point", "data_workers"),
    [
        ("all_reduce", 0),
        ("applied", 0),
        pytest.param("prepared", 0, marks=slow),
        pytest.param("forward", 2, marks=slow),
        pytest.param("forward", 0, marks=further),
        pytest.param("applied", 2, marks=further),
    ],
)
def test_sigkill_inside_a_step(tmp_path: Path, point: str, data_workers: int) -> None:
    cluster = run_and_compare(tmp_path, Config(4, data_workers=data_workers), Churn(3, kill=f"{point}:7"))
    assert str(cluster.workers["w2"].status) == "ended by SIGKILL"


@pytest.mark.parametrize("step", slow_except([9, 10, 11], further=(9, 11)))
def test_sigkill_around_the_end_of_an_epoch(tmp_path: Path, step: int) -> None:
    run_and_compare(tmp_path, Config(4), Churn(2, kill=f"prepared:{step - 1}"))


def test_sigkill_of_a_receiver_in_the_hand_over(tmp_path: Path) -> None:
    churn = Churn(2, [(5, "add"), (12, "add")], late_kill="hand_over:0")
    cluster = run_and_compare(tmp_path, Config(4), churn)
    assert str(cluster.workers["w2"].status) == "ended by SIGKILL"


def test_sigkill_of_a_donor_in_the_hand_over(tmp_path: Path) -> None:
    churn = Churn(2, [(5, "add")], kill="hand_over:1")
    cluster = run_and_compare(tmp_path, Config(4), churn)
    assert str(cluster.workers["w1"].status) == "ended by SIGKILL"


def test_master_killed_in_training(tmp_path: Path) -> None:
    run_and_compare(tmp_path, Config(4), Churn(3, [(4, "master"), (9, "master"), (15, "master")]))


def train_traced(folder: Path, config: Config) -> LocalCluster:
    """Two workers, one after the other; in step 3 a third one comes, and in step 8 the leader dies."""
    settings = job_pb2.JobSettings(
        ests=config.ests, workers_min=2, workers_max=config.ests, audit_samples=True
    )
    settings.join_window.FromMilliseconds(1)  # it is over when the newcomer is seen to be there
    gates = folder / "gates"
    comes, dies = Gate(gates / "3"), Gate(gates / "8")
    environment = Rehearsal(gates=str(gates)).environment()
    with local_cluster(folder, settings, config.arguments, environment=environment) as cluster:
        cluster.add_worker("w0")
        # Members stand in the order in which they joined, and processes that start together race.
        cluster.wait_for(lambda job: len(job.workers) == 1, what="the first at the master")
        cluster.add_worker("w1")
        cluster.wait_for_step(3)
        cluster.add_worker("w2")
        cluster.wait_for(lambda job: len(job.workers) == 3, what="the third at the master")
        comes.open()
        cluster.wait_for_step(8)
        cluster.workers["w0"].signal(signal.SIGKILL)
        cluster.wait_for(lambda job: len(job.workers) == 2, what="the death noticed")
        dies.open()
        cluster.wait_for_end()
        history = list(cluster.client.audit_log(cluster.job))
    result = compare_runs(cluster.reports, reference(config), history, ests=config.ests, dataset_size=SIZE)
    assert result.equal, result
    return cluster


def test_a_join_and_a_death_are_a_trace_each_and_the_bits_stay(
    receiver: Receiver,  # noqa: F811
    tmp_path: Path,
) -> None:
    """One trace for each change, over real OTLP: from the master and all workers."""
    cluster = train_traced(tmp_path, Config(4))
    spans = receiver.spans
    assert len({span.span for span in spans}) == len(spans)

    traces: dict[bytes, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
    roots = {span.attributes["elastane.ring.cause"]: span for span in spans if span.name == "ring change"}
    assert sorted(roots) == ["join", "loss", "start"] and len(traces) == 3, "no change in two traces"
    for cause, root in roots.items():
        assert root.service == "elastane-master" and root.parent == b""
        assert root.instance == cluster.addresses
        assert root.attributes["elastane.ring.outcome"] == "completed"
        assert root.attributes["elastane.job"] == cluster.job
        others = [span for span in traces[root.trace] if span is not root]
        assert {span.parent for span in others} == {root.span}, cause
        assert all(span.begin >= root.begin and span.end >= span.begin for span in others)
        parts = {span.name: span for span in others if span.service == "elastane-master"}
        expected = {"collect", "prepare", "resume"} - ({"collect"} if cause == "loss" else set())
        assert set(parts) == expected | ({"load"} if cause == "start" else set())
        assert all(span.end <= root.end for span in parts.values())
        generation = root.attributes["elastane.ring.generation"]
        for span in others:
            if span.service == "elastane-worker":
                assert span.attributes["elastane.worker"] == span.instance
                assert span.attributes["elastane.ring.generation"] == generation
                assert span.attributes["elastane.job"] == cluster.job
                assert span.name == "stop" or parts["prepare"].begin <= span.begin

    def told(cause: str) -> dict[str, dict[str, Span]]:
        """By worker and name."""
        found: dict[str, dict[str, Span]] = defaultdict(dict)
        for span in traces[roots[cause].trace]:
            if span.service == "elastane-worker":
                assert span.name not in found[span.instance]
                found[span.instance][span.name] = span
        return found

    join = told("join")
    assert roots["join"].attributes["elastane.ring.planned"] is True
    assert roots["join"].attributes["elastane.ring.members"] == ["w0", "w1", "w2"]
    assert roots["join"].attributes["elastane.ring.ests_moved"] == 1
    assert set(join["w1"]) == {"stop", "form ring", "send state", "first step"}
    # It is killed soon after: what it had not sent yet is lost with it.
    assert {"stop", "form ring", "send state"} <= set(join["w0"]) <= set(join["w1"])
    assert set(join["w2"]) == {"form ring", "receive state", "first step"}
    sent = [join[donor]["send state"].attributes["elastane.handover.bytes"] for donor in ("w0", "w1")]
    received = join["w2"]["receive state"].attributes["elastane.handover.bytes"]
    assert all(sent) and sum(sent) == received

    loss = told("loss")
    assert roots["loss"].attributes["elastane.ring.planned"] is False
    assert "w0" in roots["loss"].attributes["elastane.ring.reason"]
    assert sorted(loss) == ["w1", "w2"]
    for survivor in loss:
        # The step that was in flight is done again: nothing is handed over.
        assert set(loss[survivor]) == {"stop", "form ring", "replay"}
        replay = loss[survivor]["replay"]
        assert replay.attributes["elastane.step"] == roots["loss"].attributes["elastane.step"]
    assert set(told("start")["w0"]) == {"load", "form ring", "send state", "first step"}

"""Pipelines with real masters and workers, under churn, against stock DDP of N processes: every bit equal.

Workers are killed at points inside a step, never at times.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from compared_runs import compare_runs
from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_cli.chaos.network import Relay
from elastane_cli.rehearse.cluster import ClusterError, LocalCluster, local_cluster
from elastane_cli.rehearse.results import read_elastic, read_stock
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.errors import EXIT_START_ANEW
from elastane_common.processes.child import ExitStatus
from elastane_planner.profile import Profile, UnitProfile
from elastane_proto.v1 import job_pb2, ring_pb2
from slow import further, slow

SCRIPT = Path(__file__).parent / "scripts" / "train_pipeline.py"
SIZE, BATCH = 96, 4


@dataclass(frozen=True)
class Config:
    """What decides the bits, and how the script is written."""

    ests: int = 3
    epochs: int = 3
    accumulation: int = 1
    data_workers: int = 0
    modules: bool = False
    evaluate: str = "all"
    amp: bool = False
    split: bool = False
    #: One epoch more is asked for than is trained: the script leaves its loop.
    leaves: bool = False
    disturbs: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        epochs = ["--epochs", str(self.epochs + self.leaves)]
        epochs += ["--stop", str(self.epochs - 1)] if self.leaves else []
        found = [str(SCRIPT), *epochs, "--accumulation", str(self.accumulation)]
        found += ["--size", str(SIZE), "--batch-size", str(BATCH), "--data-workers", str(self.data_workers)]
        flags = [f"--{name}" for name in ("modules", "amp", "split") if getattr(self, name)]
        return [*found, "--evaluate", self.evaluate, *flags, *self.disturbs]

    @property
    def steps_per_epoch(self) -> int:
        return -(-(SIZE // self.ests // BATCH) // self.accumulation)

    @property
    def of_bits(self) -> Config:
        """The same with units as functions, undisturbed: what stock DDP is run with."""
        return replace(self, modules=False, disturbs=())


@functools.cache
def reference(config: Config) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="elastane-pipeline-reference-"))
    return run_stock_ddp(folder, config.arguments, processes=config.ests)


@dataclass
class Churn:
    """What happens to the run. kills: by worker, "point:step"; acts: (step, verb), while the ring is held.

    A cut breaks every connection with the master, in the step that begins then.
    """

    start: int = 3
    stages: tuple[int, int] = (1, 3)
    shadows: int = 0
    checkpoint_steps: int = 0
    kills: dict[str, str] = field(default_factory=dict)
    acts: list[tuple[int, str]] = field(default_factory=list)
    #: Why the job waits before the last worker starts.
    waits: str = ""
    #: What the master has noted, and (seconds, step, workers) of each state of the job that was seen.
    events: list[ring_pb2.Event] = field(default_factory=list)
    seen: list[tuple[float, int, int]] = field(default_factory=list)
    #: States of the job are seen up to its end, and not only while the test waits for something.
    watched: bool = False
    #: Held while the workers evaluate after epoch 1; a newcomer comes meanwhile.
    evaluation: Gate | None = None


def run(folder: Path, config: Config, churn: Churn) -> LocalCluster:
    """Run a pipeline, and compare it with stock DDP in everything: weights, optimizer, buffers, what was
    logged, which samples, what was evaluated."""
    settings = job_pb2.JobSettings(
        ests=config.ests,
        workers_min=1 if churn.waits else churn.start,
        workers_max=config.ests,
        audit_samples=True,
        pipeline_stages_min=churn.stages[0],
        pipeline_stages_max=churn.stages[1],
        pipeline_shadows=churn.shadows,
    )
    settings.join_window.FromMilliseconds(20)
    if churn.checkpoint_steps:
        settings.checkpoint_url = str(folder / "checkpoints")
        settings.checkpoint_interval_steps = churn.checkpoint_steps
    gates = folder / "gates"
    held = [(step, verb, Gate(gates / str(step))) for step, verb in churn.acts]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(local_cluster(folder, settings, config.arguments))
        anew = _Anew(cluster, str(gates))
        cluster.check = anew.start
        relay = stack.enter_context(contextlib.closing(Relay(cluster.addresses)))
        through = {"ELASTANE_MASTER": relay.address} if "cut" in dict(churn.acts).values() else {}
        cluster.on_job = lambda job: churn.seen.append((time.monotonic(), job.step, len(job.workers)))
        for index in range(churn.start):
            name = f"w{index}"
            if churn.waits and index == churn.start - 1:
                cluster.wait_for(lambda job: churn.waits in job.reason, what=churn.waits)
            cluster.add_worker(
                name, Rehearsal(gates=str(gates), kill=churn.kills.get(name, "")).environment() | through
            )
        cluster.wait_for(lambda job: job.generation > 0, what="the first ring")
        cluster.client.scale_job(cluster.job, 1, config.ests)
        for step, verb, gate in held:
            cluster.wait_for_step(step)
            if verb == "add":
                name = cluster.add_worker(environment=Rehearsal(gates=str(gates)).environment())
                cluster.wait_for(lambda job, n=name: n in {w.worker_id for w in job.workers}, what=name)
            elif verb.startswith("drain"):
                cluster.client.drain_worker(cluster.job, verb.split()[1])
            gate.open()
            if verb == "cut":
                relay.reset()
        if churn.evaluation is not None:
            cluster.wait_for(lambda job: job.step >= 2 * config.steps_per_epoch, what="epoch 1")
            name = cluster.add_worker()
            cluster.wait_for(lambda job, n=name: n in {w.worker_id for w in job.workers}, what=name)
            churn.evaluation.open()
        if churn.watched:
            cluster.wait_for(lambda job: job.phase == job_pb2.JOB_PHASE_SUCCEEDED, what="the job's end")
        job = cluster.wait_for_end()
        assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, f"{job.reason}\n{cluster.last_lines()}"
        history = list(cluster.client.audit_log(cluster.job))
        churn.events += cluster.client.events(cluster.job)
    stock = reference(config.of_bits)
    steps = config.steps_per_epoch
    found = compare_runs(
        cluster.reports, stock, history, ests=config.ests, dataset_size=SIZE, steps_per_epoch=steps
    )
    assert found.values == 2 * config.ests * steps * config.epochs
    assert found.audit is not None and found.audit.ok, found.violations
    assert found.differing == []
    if config.evaluate != "none":
        compare_evaluations(cluster.reports, stock, config)
    for name in churn.kills:
        assert cluster.workers[name].status == ExitStatus(-signal.SIGKILL), cluster.last_lines()
    return cluster


def compare_evaluations(reports: Path, stock: Path, config: Config) -> None:
    """Every answer is that of stock's rank 0, and every epoch was evaluated by somebody."""
    right = json.loads((stock / "evaluated-rank0.json").read_text())
    seen = set()
    for path in reports.glob("evaluated-*.json"):
        for epoch, values in json.loads(path.read_text()).items():
            assert values == right[epoch], (path.name, epoch)
            seen.add(epoch)
    assert seen == set(right) and len(right) == config.epochs


@dataclass
class _Anew:
    """Starts workers again that ask for it, as their agent does."""

    cluster: LocalCluster
    gates: str
    started: set[str] = field(default_factory=set)

    def start(self) -> None:
        for name, status in self.cluster.statuses().items():
            if status == ExitStatus(EXIT_START_ANEW) and name not in self.started:
                self.started.add(name)
                self.cluster.add_worker(f"{name}-anew", Rehearsal(gates=self.gates).environment())


def test_stages_join_and_die_and_every_bit_is_stocks(tmp_path: Path) -> None:
    """With shadows a death costs the step in flight; a newcomer takes units over."""
    churn = Churn(2, shadows=1, kills={"w0": "prepared:12"}, acts=[(4, "add")])
    run(tmp_path, Config(), churn)


def test_a_profile_and_a_limit_of_memory_make_the_first_plan(tmp_path: Path) -> None:
    """A step needs more than twice what a worker may use: two would not hold the model, and three only if
    they run forwards again. A gradient that is not finite on one of them has all skip the step."""
    file = tmp_path / "profile.json"
    heavy = UnitProfile("0", 0.06, 0.12, 8_000, activation_bytes=1_000_000, boundary_bytes=1_000)
    others = [
        UnitProfile(str(unit), 0.01, 0.02, 8_000, activation_bytes=1_000_000, boundary_bytes=1_000)
        for unit in range(1, 7)
    ]
    file.write_bytes(Profile((heavy, *others)).to_json())
    limits = ("--profile", str(file), "--memory", "3M")
    config = Config(epochs=2, evaluate="none", amp=True, disturbs=limits)
    churn = Churn(
        stages=(1, 3), waits="2 of at least 3 workers are there; fewer do not have the memory for the model"
    )
    run(tmp_path / "run", config, churn)
    first = next(event.reason for event in churn.events if event.kind == "stages_planned")
    assert "unit 0 on w" in first and "checkpoint" in first and "planned by what was measured" in first
    logged = json.loads((reference(config.of_bits) / "ddp-0.json").read_text())["logged"]
    assert {math.isfinite(step["norm"]) for step in logged} == {True, False}


def deaths(values: Sequence[object], *slow_pairs: tuple[str, object]) -> list[ParameterSet]:
    """Each worker with each value: these pairs are slow, the others further ones."""
    pairs = [(worker, value) for worker in ("w0", "w1", "w2") for value in values]
    return [pytest.param(*pair, marks=slow if pair in slow_pairs else further) for pair in pairs]


#: With shadows, below: in the all-reduce, and prepared (`test_stages_join_and_die_and_every_bit_is_stocks`).
@pytest.mark.parametrize(
    ("worker", "point"),
    deaths(["forward", "all_reduce", "prepared", "applied"], ("w0", "forward"), ("w2", "applied")),
)
def test_any_stage_dies_anywhere_in_a_step(tmp_path: Path, point: str, worker: str) -> None:
    """Units that only the dead worker held come from the checkpoint."""
    run(tmp_path, Config(), Churn(stages=(3, 3), checkpoint_steps=3, kills={worker: f"{point}:10"}))


@slow
def test_streams_that_all_break_at_once_cost_the_step_in_flight(tmp_path: Path) -> None:
    """Each unit has one holder, there is no checkpoint, and every process lives."""
    churn = Churn(stages=(3, 3), acts=[(5, "cut"), (11, "cut")])
    run(tmp_path, Config(), churn)
    kinds = [event.kind for event in churn.events]
    assert not {"units_lost", "history_rewound", "checkpoint_loaded"} & set(kinds)
    assert kinds.count("worker_lost") >= 6


@pytest.mark.parametrize(
    ("worker", "point"), deaths(["forward", "all_reduce", "prepared"], ("w1", "all_reduce"))
)
def test_with_a_shadow_no_step_is_made_again(tmp_path: Path, point: str, worker: str) -> None:
    """Prints how long the next step took to come, of which the promise is a second on a quiet machine."""
    churn = Churn(stages=(3, 3), shadows=1, kills={worker: f"{point}:10"}, watched=True)
    run(tmp_path, Config(epochs=2), churn)
    assert not [event for event in churn.events if event.kind in ("units_lost", "checkpoint_loaded")]
    all_there = next(at for at, _, workers in churn.seen if workers == 3)
    lost, before = next((at, step) for at, step, workers in churn.seen if at > all_there and workers < 3)
    assert 9 <= before <= 11, "the watch has seen the death when it was"
    after = next(at for at, step, _ in churn.seen if at > lost and step > before)
    print(
        f"\nkill -9 {worker} at {point}: the next step is there {after - lost:.2f} s after the master knows"
    )


@slow
def test_two_die_at_once(tmp_path: Path) -> None:
    kills = {"w0": "all_reduce:10", "w2": "all_reduce:10"}
    run(tmp_path, Config(), Churn(stages=(3, 3), shadows=1, checkpoint_steps=3, kills=kills))


@slow
def test_who_alone_holds_units_hands_them_over_and_leaves(tmp_path: Path) -> None:
    churn = Churn(stages=(3, 3), acts=[(4, "drain w0"), (9, "drain w1")])
    run(tmp_path, Config(), churn)


@slow
@pytest.mark.parametrize("step", [pytest.param(7, marks=further), 8])
def test_a_death_at_the_end_of_an_epoch(tmp_path: Path, step: int) -> None:
    """The others evaluate, or are about to."""
    run(tmp_path, Config(), Churn(shadows=1, kills={"w1": f"applied:{step}"}))


@slow
@pytest.mark.parametrize(
    "config",
    [
        Config(data_workers=1, modules=True),
        Config(evaluate="leader", leaves=True),
        Config(amp=True, accumulation=2, evaluate="none"),
        Config(split=True, evaluate="none"),
        # What they have, one at a time.
        pytest.param(Config(accumulation=2), marks=further),
        pytest.param(Config(data_workers=1), marks=further),
        pytest.param(Config(modules=True), marks=further),
        pytest.param(Config(evaluate="leader"), marks=further),
        pytest.param(Config(amp=True), marks=further),
        pytest.param(Config(leaves=True), marks=further),
    ],
    ids=[
        "modules and data workers",
        "the leader evaluates, early stopping",
        "GradScaler and accumulation",
        "split by torch",
        "accumulation",
        "data workers",
        "modules",
        "the leader evaluates",
        "GradScaler",
        "early stopping",
    ],
)
def test_ways_to_write_a_script(tmp_path: Path, config: Config) -> None:
    churn = Churn(2, shadows=1, checkpoint_steps=4, kills={"w1": "all_reduce:9"}, acts=[(2, "add")])
    run(tmp_path, config, churn)


@slow
def test_from_the_first_step_nothing_is_left(tmp_path: Path) -> None:
    """Without a checkpoint all begin anew."""
    run(tmp_path, Config(epochs=2), Churn(stages=(3, 3), kills={"w1": "prepared:1"}))


@pytest.mark.parametrize(("worker", "shadows"), deaths([0, 1], ("w0", 0), ("w1", 1)))
def test_a_worker_dies_while_all_evaluate(tmp_path: Path, worker: str, shadows: int) -> None:
    """With shadows the others evaluate again; without, new processes go on from the checkpoint."""
    config = Config(disturbs=("--dies", worker))
    cluster = run(tmp_path, config, Churn(stages=(3, 3), shadows=shadows, checkpoint_steps=3))
    assert cluster.workers[worker].status == ExitStatus(-signal.SIGKILL), cluster.last_lines()


@slow
def test_a_newcomer_serves_evaluation(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "evaluation")
    config = Config(disturbs=("--gate", str(tmp_path / "evaluation")))
    run(tmp_path / "run", config, Churn(2, stages=(2, 3), evaluation=gate))


@slow
def test_mini_batches_of_an_evaluation_are_the_same_in_all_workers(tmp_path: Path) -> None:
    config = Config(epochs=1, disturbs=("--noise", "0.1"))
    with pytest.raises(ClusterError, match=r"workers evaluate with different mini-batches"):
        run(tmp_path, config, Churn())


@slow
def test_a_unit_that_raises_for_one_est_ends_the_job_as_any_script(tmp_path: Path) -> None:
    """The master's reason names unit and EST; three times at one step is enough."""
    config = Config(epochs=1, evaluate="none", disturbs=("--broken", "17"))
    settings = job_pb2.JobSettings(ests=config.ests, workers_min=1, workers_max=3, pipeline_shadows=1)
    with local_cluster(tmp_path, settings, config.arguments) as cluster:
        for _ in range(3):
            cluster.add_worker()
        with pytest.raises(ClusterError):
            cluster.wait_for_step(1000)
        job = cluster.wait_for_end()
        reason = job.reason
    assert job.phase == job_pb2.JOB_PHASE_FAILED
    assert "ValueError: a sample is broken, in unit 0, in the forward of EST" in reason, reason


@slow
@pytest.mark.parametrize("first", ["a pipeline", "an ordinary script"])
def test_a_job_goes_on_with_a_pipeline_and_without(tmp_path: Path, first: str) -> None:
    """From the other's checkpoint, to the bits of stock DDP."""
    config, url = Config(epochs=2, evaluate="none"), str(tmp_path / "checkpoints")
    half, full = replace(config, epochs=1).arguments, config.arguments
    before, after = [*half], [*full]
    (after if first == "a pipeline" else before).append("--whole")
    settings = job_pb2.JobSettings(
        ests=config.ests,
        workers_min=3,
        workers_max=3,
        checkpoint_url=url,
        checkpoint_interval_steps=4,
        torch_threads=1,
    )
    with local_cluster(tmp_path / "before", settings, before) as cluster:
        for _ in range(3):
            cluster.add_worker()
        cluster.wait_for(lambda job: job.saved_step >= 4, what="a checkpoint")
    with local_cluster(tmp_path / "after", settings, after) as cluster:
        for _ in range(3):
            cluster.add_worker()
        cluster.wait_for_success()
        history = list(cluster.client.audit_log(cluster.job))
    assert min(entry.step for entry in history) >= 4
    found = read_elastic(cluster.reports, history, config.ests).fingerprint
    stock = run_stock_ddp(tmp_path / "stock", after, processes=config.ests)
    assert found == read_stock(stock, config.ests).fingerprint

"""The fixed run, the drill, the comparison.

    stock DDP ─▶ two spot nodes train ─▶ the first is reclaimed ─▶ all are reclaimed ─▶ one more continues

Each reclaim comes in a step that the plan chose: the ring is held at a gate until the master knows of it. So
the job cannot end first, however fast its steps are. Conditions: every worker has left before the deadline,
no step was done twice, the last ones left a checkpoint of everything done, and the result is that of the
fixed run, bit for bit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from elastane.runtime.rehearsal import Rehearsal
from elastane_cli.drill.node import DrillFailed, SpotNode
from elastane_cli.drill.plan import DrillPlan, make_plan
from elastane_cli.rehearse.cluster import ClusterError, LocalCluster
from elastane_cli.rehearse.results import Comparison, compare_outcomes, read_elastic, read_stock
from elastane_cli.rehearse.stock_run import run_stock_ddp, stock_failures_as
from elastane_cli.rehearse.watcher import Watcher
from elastane_proto.v1 import job_pb2

JOB: Final = "drill"
_EXIT_RECLAIMED: Final = 143


@dataclass(frozen=True)
class Reclaim:
    """A reclaimed node. seconds: from its notice to the end of its agent."""

    node: str
    step: int
    workers: int
    seconds: float
    deadline_seconds: float
    problems: tuple[str, ...]


@dataclass(frozen=True)
class DrillResult:
    """Everything found. saved_step: of the checkpoint that the last nodes left; cost: by the master."""

    seed: str
    ests: int
    steps: int
    reclaims: tuple[Reclaim, ...]
    saved_step: int
    done_twice: int
    comparison: Comparison
    fingerprint: dict[str, str]
    cost: job_pb2.Cost

    @property
    def problems(self) -> list[str]:
        """Conditions that did not hold, as text."""
        found = [problem for reclaim in self.reclaims for problem in reclaim.problems]
        if self.saved_step != self.reclaims[-1].step:
            found.append(f"the checkpoint ends at step {self.saved_step}, not {self.reclaims[-1].step}")
        if self.done_twice:
            found.append(f"{self.done_twice} tasks were done twice")
        return [*found, *(f"{name} differs from the fixed run" for name in self.comparison.differing)]

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One call of `elastane drill`.

    folder: for all files. script: without the interpreter. grace_seconds: time between notice and
    termination. prices: of the job, in micros, spot and on demand. timeout_seconds: of each wait. stages:
    minimum and maximum of a pipeline, 0: as many as are worthwhile; shadows: of each stage.
    """

    folder: Path
    script: Sequence[str]
    ests: int
    seed: str
    grace_seconds: float = 15.0
    prices: tuple[int, int] = (0, 0)
    currency: str = "USD"
    threads: int = 1
    timeout_seconds: float = 600.0
    watcher: Watcher = field(default_factory=Watcher)
    stages: tuple[int, int] = (1, 0)
    shadows: int = 0

    def run(self) -> DrillResult:
        """Run the drill. Raises DrillFailed, DrillPlanError; leaves no process behind."""
        self.watcher.stage(f"fixed run: stock DDP with {self.ests} processes")
        with stock_failures_as(DrillFailed, "the fixed run"):
            reports = run_stock_ddp(
                self.folder / "fixed",
                self.script,
                processes=self.ests,
                environment={"ELASTANE_TORCH_THREADS": str(self.threads)},
                timeout_seconds=self.timeout_seconds,
            )
        fixed = read_stock(reports, self.ests)
        plan = make_plan(self.seed, ests=self.ests, steps=fixed.steps)
        with contextlib.ExitStack() as stack:
            play = _Play(self, plan, stack)
            try:
                reclaims, saved_step = play.carry_out()
            except ClusterError as error:
                waited = str(error.args[0]).splitlines()[0]
                raise DrillFailed(f"{waited}\n{play.last_lines()}") from error
            history = list(play.cluster.client.audit_log(JOB))
            found = read_elastic(play.cluster.reports, history, self.ests)
            return DrillResult(
                self.seed,
                self.ests,
                fixed.steps,
                tuple(reclaims),
                saved_step,
                len(history) - len({(entry.step, entry.virtual_rank) for entry in history}),
                compare_outcomes(fixed, found),
                fixed.fingerprint,
                play.cluster.get_job().cost,
            )

    def settings(self, workers: int) -> job_pb2.JobSettings:
        """Return the job's settings. workers: number to wait for at its start."""
        settings = job_pb2.JobSettings(
            ests=self.ests,
            workers_min=min(workers, self.ests),
            workers_max=self.ests,
            audit_samples=True,
            torch_threads=self.threads,
            checkpoint_url=str(self.folder / "checkpoints"),
            spot_price_micros=self.prices[0],
            on_demand_price_micros=self.prices[1],
            currency=self.currency,
            pipeline_stages_min=self.stages[0],
            pipeline_stages_max=self.stages[1],
            pipeline_shadows=self.shadows,
        )
        # The ring is held at a gate while notices are read; the lease must not evict its workers for that.
        settings.lease_min.FromSeconds(max(30, int(self.timeout_seconds)))
        return settings


class _Play:
    """Execution of a plan."""

    def __init__(self, drill: Drill, plan: DrillPlan, stack: contextlib.ExitStack) -> None:
        self._drill = drill
        self._plan = plan
        self._stack = stack
        self._live: list[SpotNode] = []
        self.cluster = LocalCluster(
            drill.folder, drill.settings(sum(plan.workers[:2])), drill.script, job=JOB
        )
        self.cluster.check = self._check
        stack.callback(self.cluster.close)
        self.cluster.start()
        self.cluster.hold_in((plan.one_step, plan.all_step))

    def carry_out(self) -> tuple[list[Reclaim], int]:
        """Return the reclaimed nodes, and the step of the checkpoint that the last of them left."""
        plan = self._plan
        first, second, third = plan.workers
        nodes = self._live = [self._node("spot-1", first), self._node("spot-2", second)]
        self._wait(lambda job: len(job.workers) >= min(first + second, self._drill.ests), "all workers")
        self._wait(lambda job: job.generation > 0, "the first ring")
        self.cluster.client.scale_job(JOB, 1, self._drill.ests)
        reclaims = self._reclaim(plan.one_step, nodes[:1])
        self._live = nodes[1:]
        reclaims += self._reclaim(plan.all_step, nodes[1:])
        job = self.cluster.get_job()
        elsewhere = self._node("elsewhere", third)
        self._drill.watcher.stage(f"elsewhere goes on at step {job.step} with {_workers(third)}")
        if code := elsewhere.wait(self._drill.timeout_seconds):
            raise DrillFailed(f"elsewhere ended with {code}:\n{elsewhere.last_lines()}")
        # It left at the boundary after its notice.
        reclaims[-1] = replace(reclaims[-1], step=job.step)
        return reclaims, job.saved_step

    def _node(self, name: str, workers: int) -> SpotNode:
        drill = self._drill
        node = SpotNode(
            name,
            drill.folder,
            master=self.cluster.master.address,
            job=JOB,
            workers=workers,
            script=drill.script,
            environment={
                "ELASTANE_REPORT_DIR": str(self.cluster.reports),
                "ELASTANE_LOG_TO": "",  # values of a rehearsal belong in no tracker
                "MODEL_URL": "",  # and its model is not uploaded
                **Rehearsal(gates=str(self.cluster.gates)).environment(),
            },
            on_exit=self.cluster.wake,
        )
        self._stack.callback(node.close)
        node.start()
        return node

    def _reclaim(self, step: int, going: Sequence[SpotNode]) -> list[Reclaim]:
        """Reclaim these nodes while the ring is held in `step`, and check how they leave."""
        drill = self._drill
        with self.cluster.held(step, timeout_seconds=drill.timeout_seconds):
            names = ", ".join(node.name for node in going)
            drill.watcher.stage(f"step {step}: {names} will be taken away in {drill.grace_seconds:g} s")
            began = [node.reclaim(drill.grace_seconds) for node in going]
            staying = sum(node.workers for node in self._live if node not in going)
            self._wait(lambda job: _count_staying(job) <= staying, f"{names} to say that its workers go")
        found = []
        for node, since in zip(going, began, strict=True):
            code = node.wait(drill.grace_seconds + 60.0)
            seconds = time.monotonic() - since
            problems = []
            if seconds > drill.grace_seconds or node.has_said("killing"):
                problems.append(f"{node.name} had not left after {drill.grace_seconds:g} s")
            if code != _EXIT_RECLAIMED:
                problems.append(f"{node.name} ended with {code}, not {_EXIT_RECLAIMED}")
            found.append(
                Reclaim(node.name, step, node.workers, seconds, drill.grace_seconds, tuple(problems))
            )
        return found

    def _wait(self, condition: Callable[[job_pb2.Job], bool], what: str) -> None:
        self.cluster.wait_for(condition, timeout_seconds=self._drill.timeout_seconds, what=what)

    def _check(self) -> None:
        """Raise DrillFailed if a node has ended that the plan has not reclaimed."""
        for node in self._live:
            if node.ended is not None:
                raise DrillFailed(f"{node.name} ended too early ({node.ended}):\n{self.last_lines()}")

    def last_lines(self) -> str:
        return "\n".join(node.last_lines() for node in self._live)


def _count_staying(job: job_pb2.Job) -> int:
    return sum(1 for worker in job.workers if worker.state != job_pb2.WORKER_STATE_DRAINING)


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"

"""The fixed run, the drill, the comparison.

    stock DDP ─▶ two spot nodes train ─▶ the first is reclaimed ─▶ all are reclaimed ─▶ one more continues

Each reclaim comes in a step that the plan chose: the ring is held at a gate until the master knows of it. So
the job cannot end first, however fast its steps are. Conditions: every worker has left before the deadline,
no step was done twice, the last ones left a checkpoint of everything done, and the result is that of the
fixed run, bit for bit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from elastane.agent.master_process import EmbeddedMaster
from elastane.agent.reference import StockRunError, run_stock_ddp
from elastane.client import MasterClient
from elastane.drill.node import DrillFailed, SpotNode
from elastane.drill.plan import DrillPlan, make_plan
from elastane.processes.child import ChildProcess
from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane.verify.results import Comparison, compare_outcomes, read_elastic, read_stock
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
    termination. prices: of the job, in micros, spot and on demand. timeout_seconds: of each wait. stage:
    called when a stage begins.
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
    launch: Callable[..., ChildProcess] = ChildProcess
    stage: Callable[[str], None] = field(default=lambda text: None)

    def run(self) -> DrillResult:
        """Run the drill. Raises DrillFailed, DrillPlanError; leaves no process behind."""
        self.stage(f"fixed run: stock DDP with {self.ests} processes")
        try:
            reports = run_stock_ddp(
                self.folder / "fixed",
                self.script,
                processes=self.ests,
                environment={"ELASTANE_TORCH_THREADS": str(self.threads)},
                timeout_seconds=self.timeout_seconds,
                launch=self.launch,
            )
        except StockRunError as error:
            raise DrillFailed(f"the fixed run failed: {error.args[0]}", hint=error.hint) from error
        fixed = read_stock(reports, self.ests)
        plan = make_plan(self.seed, ests=self.ests, steps=fixed.steps)
        with contextlib.ExitStack() as stack:
            play = _Play(self, plan, stack)
            reclaims, saved_step = play.carry_out()
            history = list(play.client.audit_log(JOB))
            found = read_elastic(self.folder / "reports", history, self.ests)
            return DrillResult(
                self.seed,
                self.ests,
                fixed.steps,
                tuple(reclaims),
                saved_step,
                len(history) - len({(entry.step, entry.virtual_rank) for entry in history}),
                compare_outcomes(fixed, found),
                fixed.fingerprint,
                play.client.get_job(JOB).cost,
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
        self._gates = [Gate(drill.folder / "gates" / str(step)) for step in (plan.one_step, plan.all_step)]
        self._master = EmbeddedMaster(drill.folder / "state")
        self._master.start()
        stack.callback(self._master.stop)
        self.client = stack.enter_context(MasterClient(self._master.address, timeout_seconds=60.0))
        for gate in self._gates:
            stack.callback(gate.open)

    def carry_out(self) -> tuple[list[Reclaim], int]:
        """Return the reclaimed nodes, and the step of the checkpoint that the last of them left."""
        plan = self._plan
        first, second, third = plan.workers
        self.client.create_job(JOB, self._drill.settings(first + second))
        nodes = [self._node("spot-1", first), self._node("spot-2", second)]
        self._wait(
            nodes, lambda job: len(job.workers) >= min(first + second, self._drill.ests), "all workers"
        )
        self._wait(nodes, lambda job: job.generation > 0, "the first ring")
        self.client.scale_job(JOB, 1, self._drill.ests)
        reclaims = self._reclaim(self._gates[0], plan.one_step, nodes, nodes[:1], plan.workers[:1])
        reclaims += self._reclaim(self._gates[1], plan.all_step, nodes[1:], nodes[1:], plan.workers[1:2])
        job = self.client.get_job(JOB)
        elsewhere = self._node("elsewhere", third)
        self._drill.stage(f"elsewhere goes on at step {job.step} with {_workers(third)}")
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
            master=self._master.address,
            job=JOB,
            workers=workers,
            script=drill.script,
            environment={
                "ELASTANE_REPORT_DIR": str(drill.folder / "reports"),
                "ELASTANE_LOG_TO": "",  # values of a rehearsal belong in no tracker
                **Rehearsal(gates=str(drill.folder / "gates")).environment(),
            },
        )
        self._stack.callback(node.close)
        node.start()
        return node

    def _reclaim(
        self,
        gate: Gate,
        step: int,
        live: Sequence[SpotNode],
        going: Sequence[SpotNode],
        workers: Sequence[int],
    ) -> list[Reclaim]:
        """Reclaim these nodes in the step at the gate, and check how they leave."""
        drill = self._drill
        self._wait(live, lambda job: job.step >= step, f"step {step}")
        names = ", ".join(node.name for node in going)
        drill.stage(f"step {step}: {names} will be taken away in {drill.grace_seconds:g} s")
        began = [node.reclaim(drill.grace_seconds) for node in going]
        staying = sum(node.workers for node in live if node not in going)
        self._wait(live, lambda job: _count_staying(job) <= staying, f"{names} to say that its workers go")
        gate.open()
        found = []
        for node, count, since in zip(going, workers, began, strict=True):
            code = node.wait(drill.grace_seconds + 60.0)
            seconds = time.monotonic() - since
            problems = []
            if seconds > drill.grace_seconds or node.has_said("killing"):
                problems.append(f"{node.name} had not left after {drill.grace_seconds:g} s")
            if code != _EXIT_RECLAIMED:
                problems.append(f"{node.name} ended with {code}, not {_EXIT_RECLAIMED}")
            found.append(Reclaim(node.name, step, count, seconds, drill.grace_seconds, tuple(problems)))
        return found

    def _wait(self, live: Sequence[SpotNode], condition: Callable[[job_pb2.Job], bool], what: str) -> None:
        with MasterClient(self._master.address, timeout_seconds=60.0) as watcher:
            timer = threading.Timer(self._drill.timeout_seconds, watcher.close)
            timer.daemon = True
            timer.start()
            try:
                for job in watcher.watch_job(JOB):
                    if condition(job):
                        return
                    if any(node.ended is not None for node in live):
                        if condition(watcher.get_job(JOB)):  # the watched state may be older
                            return
                        break
            finally:
                timer.cancel()
        lines = "\n".join(node.last_lines() for node in live)
        raise DrillFailed(f"waited for {what}, in vain:\n{lines}")


def _count_staying(job: job_pb2.Job) -> int:
    return sum(1 for worker in job.workers if worker.state != job_pb2.WORKER_STATE_DRAINING)


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"

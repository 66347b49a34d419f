"""`elastane chaos --ps`: faults of workers, parameter servers, master and store; then every slot is read.

    run 1: fault, next task DONE, fault ... end, audit ─▶ run 2 ...

There is no fixed run to compare with, because the order of pushes is not fixed. In any order each slot must
have applied exactly the DONE tasks and, in the built-in job, weights must contain each task once. A fault is
over once more tasks are DONE than can have been in flight, so that one was pulled and pushed after it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from elastane_cli.chaos import ps_job
from elastane_cli.chaos.plan import ChaosResult, Deck, Injection, RunSummary
from elastane_cli.chaos.ps_faults import PS_FAULTS, PsChaosCluster
from elastane_cli.chaos.run import ChaosFailed
from elastane_cli.rehearse.cluster import ClusterError
from elastane_cli.rehearse.ps_cluster import PS_COMMAND
from elastane_cli.rehearse.watcher import Watcher
from elastane_cli.slot_export import export_state
from elastane_proto.v1 import job_pb2

PS_SCRIPT: Final = (str(Path(ps_job.__file__)),)
FIRST_SECONDS: Final = 180.0
#: Limit of the time without a DONE task after a fault.
RECOVERY_SECONDS_MAX: Final = 120.0
#: Share of faults that are followed by the next one at once.
_BURST: Final = 0.2
_END_SECONDS: Final = 900.0
#: A fault is injected at a random time within this interval.
_MOMENT_SECONDS: Final = 0.4


@dataclass(frozen=True, kw_only=True)
class PsChaos:
    """One call of `elastane chaos --ps`.

    folder: for all files. script: with its arguments; checks_weights: it is the built-in one. ps, workers:
    numbers of processes. replicas: copies of each slot. kills: number of faults, None: as many as fit into
    `minutes`. pace_seconds: added to each task, twice. ps_command: see PsCluster.
    """

    folder: Path
    script: Sequence[str]
    checks_weights: bool
    faults: Sequence[str]
    ps: int
    workers: int
    replicas: int
    seed: str
    kills: int | None = None
    minutes: float | None = None
    pace_seconds: float = 0.0
    ps_command: Sequence[str] = PS_COMMAND
    watcher: Watcher = field(default_factory=Watcher)

    def run(self) -> ChaosResult:
        """Raises ChaosFailed if a run does not end."""
        started = time.monotonic()
        state = _State(self, Deck(self.seed, self.faults), started)
        while not state.over:
            state.round()
        return ChaosResult(
            self.seed,
            1,
            sum(run.steps for run in state.runs),
            time.monotonic() - started,
            tuple(state.injections),
            tuple(state.runs),
            ps=self.ps,
        )

    def settings(self) -> job_pb2.JobSettings:
        """Return the settings of each run's job: staleness is at most twice the number of workers."""
        settings = job_pb2.JobSettings(
            workers_min=1,
            workers_max=2 * self.workers,
            torch_threads=1,
            ps_replicas=self.replicas,
            ps_staleness=2 * self.workers,
        )
        settings.ps_snapshot.FromSeconds(2)
        return settings


@dataclass
class _State:
    """State over all runs so far."""

    chaos: PsChaos
    deck: Deck
    started: float
    injections: list[Injection] = field(default_factory=list)
    runs: list[RunSummary] = field(default_factory=list)

    @property
    def over(self) -> bool:
        if self.chaos.kills is not None and len(self.injections) >= self.chaos.kills:
            return True
        minutes = self.chaos.minutes
        return minutes is not None and time.monotonic() - self.started >= 60.0 * minutes

    def round(self) -> None:
        """Run once, from the first task to the audit."""
        chaos, number = self.chaos, len(self.runs) + 1
        chaos.watcher.stage(f"run {number}")
        started, before = time.monotonic(), len(self.injections)
        cluster = PsChaosCluster(
            chaos.folder / f"run-{number}",
            chaos.settings(),
            list(chaos.script),
            processes=chaos.workers,
            ps=chaos.ps,
            pace_seconds=chaos.pace_seconds,
            ps_command=chaos.ps_command,
            environment={"ELASTANE_MODE": "elastic"},
        )
        try:
            cluster.start()
            cluster.replenish()
            cluster.until(lambda: cluster.commits() > 0, "the first task", FIRST_SECONDS)
            while not self.over and not cluster.is_complete:
                self._inject(cluster, number)
            if len(self.injections) == before and not self.over:
                raise ChaosFailed(
                    "the script's tasks were done before any fault", hint="let it do more tasks, or --pace"
                )
            self.runs.append(self._ended(cluster, number, started))
        except ClusterError as error:
            raise ChaosFailed(f"run {number} failed: {error.args[0]}", hint=error.hint) from error
        finally:
            cluster.close()

    def _inject(self, cluster: PsChaosCluster, number: int) -> None:
        name = self.deck.draw()
        rng = random.Random(f"{self.chaos.seed}/{len(self.injections)}")
        time.sleep(rng.random() * _MOMENT_SECONDS)  # otherwise always just after a task became DONE
        done = cluster.commits()
        with PS_FAULTS[name].act(cluster, rng) as active:
            if active.hold_seconds:
                time.sleep(max(0.0, active.at + active.hold_seconds - time.monotonic()))
        problems = [problem for problem in (active.check(), *cluster.mishaps()) if problem]
        cluster.replenish()
        recovered: float | None = None
        if rng.random() >= _BURST:
            # More than were in flight, so one was leased and pushed after the fault.
            enough = cluster.commits() + self.chaos.workers
            what = f"tasks after: {active.detail}"
            recovered = -active.at + cluster.until(
                lambda: cluster.commits() > enough or cluster.is_complete, what, RECOVERY_SECONDS_MAX
            )
        injection = Injection(
            name, number, done, active.detail, active.hold_seconds or 0.0, recovered, tuple(problems)
        )
        self.injections.append(injection)
        said = injection.in_words("task", "the next fault at once")
        self.chaos.watcher.note(f"  {len(self.injections)}: {said}")

    def _ended(self, cluster: PsChaosCluster, number: int, started: float) -> RunSummary:
        """Let the run finish; read every slot, and the weights of the built-in job."""
        audit = cluster.finish(_END_SECONDS)
        faults = [f"slot {slot.slot}: {fault}" for slot in audit.slots for fault in slot.faults]
        if audit.closing:
            faults.append(f"{audit.closing} FAILED tasks are not closed")
        faults += cluster.mishaps()
        missing = sum(slot.missing for slot in audit.slots)
        surplus = sum(slot.surplus for slot in audit.slots)
        commits = {(one.epoch, one.step) for one in cluster.client.audit_log(cluster.job)}
        # Weights are read from a checkpoint, which the master does not save while slots lack DONE tasks.
        looks = self.chaos.checks_weights and not faults
        differing = self._miscounted(cluster, commits) if looks else []
        return RunSummary(
            number, audit.tasks, len(commits), missing, surplus, tuple(differing), tuple(faults), 0,
            time.monotonic() - started,
        )  # fmt: skip

    def _miscounted(self, cluster: PsChaosCluster, done: set[tuple[int, int]]) -> list[str]:
        saved = cluster.client.checkpoint_slots(cluster.job)
        file = cluster.folder / "model.pt"
        export_state(cluster.slots(), saved.checkpoint, file)
        return ps_job.miscounted(torch.load(file, weights_only=True), done)

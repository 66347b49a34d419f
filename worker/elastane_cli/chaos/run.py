"""Fixed run, rounds and verdict of `elastane chaos`.

    fixed run (stock DDP, traced) ─▶ run 1: fault, check, fault, check ... end, compare ─▶ run 2 ...

A run is the script from its first step to its last on a separate cluster. Faults are injected one after the
other while it trains; the next one waits until the ring is complete again. At the end of each run its whole
result is compared, and after each fault everything visible by then (`promises`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from elastane_cli.chaos import job as built_in
from elastane_cli.chaos import pipeline_job
from elastane_cli.chaos.cluster import ChaosCluster
from elastane_cli.chaos.faults import PROCESS_FAULTS
from elastane_cli.chaos.plan import ChaosResult, Deck, FaultsError, Injection, RunSummary
from elastane_cli.chaos.promises import Digests, Promises, fixed_digests, training_entries
from elastane_cli.chaos.surroundings import SURROUNDING_FAULTS
from elastane_cli.chaos.watch import Seen
from elastane_cli.rehearse.cluster import OVER, ClusterError
from elastane_cli.rehearse.faults import ActiveFault, Fault
from elastane_cli.rehearse.results import Outcome, compare_outcomes, read_elastic, read_stock
from elastane_cli.rehearse.stock_run import run_stock_ddp, stock_failures_as
from elastane_cli.rehearse.watcher import Watcher
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess
from elastane_proto.v1 import job_pb2

FAULTS: Final[Mapping[str, Fault[ChaosCluster]]] = {
    fault.name: fault for fault in (*PROCESS_FAULTS, *SURROUNDING_FAULTS)
}
BUILT_IN_SCRIPT: Final = (str(Path(built_in.__file__)),)
PIPELINE_SCRIPT: Final = (str(Path(pipeline_job.__file__)),)
SURVIVED: Final = ("kill-worker", "oom-worker", "stop-worker", "slow-worker", "spot-notice")
"""Faults of one worker, after which a pipeline with shadows has all its units. Others may cost it the steps
since the last checkpoint."""
#: With fewer steps left, a fault could not be followed by a committed step.
STEPS_LEFT_MIN: Final = 12
#: Minimum number of steps committed undisturbed between two faults.
STEPS_BETWEEN: Final = 3
_RECOVERY_SECONDS_MAX: Final = 120.0
_WHOLE_SECONDS_MAX: Final = 20.0


class ChaosFailed(ElastaneError):  # noqa: N818 - says what happened, as the exit code does
    """A run did not reach its end, or the fixed run failed."""

    code = "ELA413"


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """One call of `elastane chaos`.

    folder: for all files. faults: names. minutes: time limit after which no fault is injected and no run
    begins. workers: maximum of the ring. pace_seconds: added to each mini-batch on the elastic side.
    runs_max, deals_max: end earlier, after this many runs or once every fault the machine allows was injected
    this often. launch: creates processes of workers. with_namespace: see ChaosCluster. stages: minimum and
    maximum of a pipeline, 0: as many as are worthwhile; shadows: of each stage.
    """

    folder: Path
    script: Sequence[str]
    faults: Sequence[str]
    ests: int
    workers: int
    minutes: float
    seed: str
    pace_seconds: float = 0.0
    runs_max: int | None = None
    deals_max: int | None = None
    launch: Callable[..., ChildProcess] = ChildProcess
    with_namespace: bool = True
    watcher: Watcher = field(default_factory=Watcher)
    stages: tuple[int, int] = (1, 0)
    shadows: int = 0

    def run(self) -> ChaosResult:
        """Raises ChaosFailed if a run does not end, FaultsError if the machine allows no fault."""
        started = time.monotonic()
        self.watcher.stage(f"fixed run: stock DDP with {self.ests} processes")
        fixed, digests = self._fixed_run()
        if fixed.steps <= 2 * STEPS_LEFT_MIN:
            raise ChaosFailed(
                f"the script makes {fixed.steps} steps: too few to inject faults into",
                hint=f"let it run more epochs, at least {4 * STEPS_LEFT_MIN} steps",
            )
        state = _State(self, fixed, digests, time.monotonic() + 60.0 * self.minutes)
        while not state.over:
            state.round()
        return ChaosResult(
            self.seed,
            self.ests,
            fixed.steps,
            time.monotonic() - started,
            tuple(state.injections),
            tuple(state.runs),
            state.left_out,
            fixed.fingerprint,
        )

    def _fixed_run(self) -> tuple[Outcome, Digests]:
        folder = self.folder / "fixed"
        traces = folder / "trace"
        with stock_failures_as(ChaosFailed, "the fixed run"):
            reports = run_stock_ddp(
                folder,
                self.script,
                processes=self.ests,
                environment={"ELASTANE_TRACE_DIR": str(traces), "ELASTANE_TORCH_THREADS": "1"},
                timeout_seconds=3600.0,
                launch=self.launch,
            )
        return read_stock(reports, self.ests), fixed_digests(traces)

    def settings(self) -> job_pb2.JobSettings:
        """Return the settings of each run's job: the defaults, except a lease short enough to wait for."""
        settings = job_pb2.JobSettings(
            ests=self.ests,
            workers_min=1,
            workers_max=self.workers,
            checkpoint_interval_steps=20,
            audit_samples=True,
            torch_threads=1,
            pipeline_stages_min=self.stages[0],
            pipeline_stages_max=self.stages[1],
            pipeline_shadows=self.shadows,
        )
        settings.lease_min.seconds = 6
        return settings


@dataclass
class _State:
    """State over all rounds so far."""

    chaos: Chaos
    fixed: Outcome
    digests: Digests
    ends_at: float
    injections: list[Injection] = field(default_factory=list)
    runs: list[RunSummary] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    deck: Deck | None = None

    @property
    def over(self) -> bool:
        chaos = self.chaos
        return (
            time.monotonic() >= self.ends_at
            or (chaos.runs_max is not None and len(self.runs) >= chaos.runs_max)
            or self.dealt
        )

    @property
    def dealt(self) -> bool:
        """True once every fault that the machine allows was injected as often as requested."""
        if self.deck is None or self.chaos.deals_max is None:
            return False
        return len(self.injections) >= self.chaos.deals_max * self.deck.size

    def round(self) -> None:
        """Run once, from the first worker to the comparison."""
        chaos, number = self.chaos, len(self.runs) + 1
        chaos.watcher.stage(f"run {number}")
        started = time.monotonic()
        folder = chaos.folder / f"run-{number}"
        cluster = ChaosCluster(
            folder,
            chaos.settings(),
            chaos.script,
            processes=chaos.workers,
            pace_seconds=chaos.pace_seconds,
            environment={"ELASTANE_MODE": "elastic", "ELASTANE_TRACE_DIR": str(folder / "trace")},
            launch=chaos.launch,
            with_namespace=chaos.with_namespace,
        )
        try:
            self._sift(cluster)
            cluster.start()
            promises = self._inject_faults(cluster, number)
            problems = self._end(cluster, promises, number, started)
        except ClusterError as error:
            raise ChaosFailed(f"run {number} failed: {error.args[0]}", hint=error.hint) from error
        finally:
            cluster.close()
        if problems and self.injections and self.injections[-1].run == number:
            last = self.injections[-1]
            self.injections[-1] = replace(last, problems=(*last.problems, *problems))

    def _sift(self, cluster: ChaosCluster) -> None:
        """Exclude faults that the machine does not allow."""
        if self.deck is not None:
            return
        self.left_out = {
            name: reason for name in self.chaos.faults if (reason := FAULTS[name].missing(cluster))
        }
        allowed = [name for name in self.chaos.faults if name not in self.left_out]
        if not allowed:
            name, reason = next(iter(self.left_out.items()))
            raise FaultsError(f"{name} is not possible here: {reason}", hint="see `elastane chaos --list`")
        self.deck = Deck(self.chaos.seed, allowed)

    def _inject_faults(self, cluster: ChaosCluster, number: int) -> Promises:
        assert self.deck is not None
        job = cluster.wait_for(lambda job: job.steps_per_epoch > 0 and job.step >= 1, what="the first step")
        promises = Promises(
            self.digests,
            cluster.folder / "trace",
            self.chaos.ests,
            job.steps_per_epoch,
            self.fixed.values,
        )
        while not self.over:
            before = self._whole(cluster)
            if before is None:
                break
            name = self.deck.draw()
            injection = self._inject(cluster, promises, FAULTS[name], number)
            if injection is None:
                self.deck.put_back(name)
                break
            self.injections.append(injection)
            self.chaos.watcher.note(f"  {injection.in_words()}")
        return promises

    def _whole(self, cluster: ChaosCluster) -> Seen | None:
        """Wait until the ring is complete and has made a few steps; None if too few steps are left."""
        first = cluster.watch.latest
        last_step = self.fixed.steps - STEPS_LEFT_MIN
        deadline = time.monotonic() + _WHOLE_SECONDS_MAX

        def ready(seen: Seen) -> bool:
            whole = len(seen.members) >= self.chaos.workers
            return (whole and seen.step >= first.step + STEPS_BETWEEN) or seen.step > last_step

        while True:
            cluster.replenish()  # also workers that end some time after the fault
            cluster.watch.forget()
            seen = cluster.watch.first(
                ready, deadline - time.monotonic(), lambda: len(cluster.running) < cluster.processes
            )
            if seen is not None or time.monotonic() >= deadline:
                break
        seen = seen or cluster.watch.latest  # do not wait for a worker that stands by for long
        if seen.phase in OVER or seen.step > last_step:
            return None
        return seen

    def _inject(
        self, cluster: ChaosCluster, promises: Promises, fault: Fault[ChaosCluster], number: int
    ) -> Injection | None:
        """Inject a fault and check the promises; None if the run ended before they could be checked."""
        try:
            return self._inject_and_check(cluster, promises, fault, number)
        except ElastaneError:
            if cluster.is_over:
                return None  # a finished job answers no requests
            raise

    def _inject_and_check(
        self, cluster: ChaosCluster, promises: Promises, fault: Fault[ChaosCluster], number: int
    ) -> Injection | None:
        rng = random.Random(f"{self.chaos.seed}/{fault.name}/{len(self.injections)}")
        promises.skip_events(cluster.client, cluster.job)
        cluster.watch.forget()
        before = cluster.watch.latest
        last_step = self.fixed.steps

        def recovered(seen: Seen) -> bool:
            if seen.at <= active.at or (active.changes_ring and seen.generation <= before.generation):
                return False
            if active.newcomers:
                # History may have been rewound: any step of theirs is a new one.
                return bool(active.newcomers & set(seen.members)) and advanced(seen)
            return seen.step > at_injection or (active.may_rewind and advanced(seen))

        def advanced(seen: Seen) -> bool:
            lowest[0] = min(lowest[0], seen.step)
            return seen.step > lowest[0]

        def ended() -> bool:
            return cluster.is_over or cluster.watch.latest.step >= last_step

        def afresh() -> None:
            lowest[0] = self.fixed.steps

        lowest = [self.fixed.steps]
        with fault.act(cluster, rng) as injected:
            active = self._judged_by(injected, fault.name)
            if cluster.is_over:
                # the job ended while the fault was being injected, possibly before it took effect
                return None
            at_injection = max(
                (one.step for one in cluster.watch.since() if one.at <= active.at), default=before.step
            )
            if active.hold_seconds is None:
                _first(cluster, recovered, ended, afresh)
            elif active.hold_seconds:
                time.sleep(max(0.0, active.at + active.hold_seconds - time.monotonic()))
            kept_seconds = time.monotonic() - active.at
        seen = _first(cluster, recovered, ended, afresh)
        if seen is None and ended():
            return None
        problems = promises.broken(cluster.client, cluster.job, active, before, cluster.watch.since())
        if seen is None:
            latest = cluster.watch.latest
            problems.append(f"no step was committed in {_RECOVERY_SECONDS_MAX:g} s: {latest.reason}")
        return Injection(
            fault.name,
            number,
            before.step,
            active.detail,
            kept_seconds,
            None if seen is None else seen.at - active.at,
            tuple(problems),
        )

    def _judged_by(self, active: ActiveFault, name: str) -> ActiveFault:
        """Return the criteria for a fault: a pipeline may lose the only holder of a unit to it."""
        is_survived = self.chaos.shadows > 0 and name in SURVIVED
        if not self.fixed.is_pipeline or is_survived:
            return active
        return replace(active, may_rewind=True)

    def _end(self, cluster: ChaosCluster, promises: Promises, number: int, started: float) -> list[str]:
        """Let the run finish, and compare its whole result."""
        cluster.hurry()
        cluster.replenish()
        cluster.watch.first(lambda seen: seen.phase in OVER, 600.0, lambda: not cluster.running)
        cluster.wait_for_success(timeout_seconds=120.0)
        history = training_entries(cluster.client, cluster.job)
        outcome = read_elastic(cluster.reports, history, self.chaos.ests)
        comparison = compare_outcomes(self.fixed, outcome)
        audit = outcome.audit
        assert audit is not None
        problems = list(promises.trace_problems())
        self.runs.append(
            RunSummary(
                number,
                outcome.steps,
                audit.entries,
                audit.missing,
                audit.duplicated,
                tuple(comparison.differing),
                tuple(comparison.violations),
                len(promises.steps_compared),
                time.monotonic() - started,
            )
        )
        return problems


def _first(
    cluster: ChaosCluster,
    recovered: Callable[[Seen], bool],
    ended: Callable[[], bool],
    afresh: Callable[[], None],
) -> Seen | None:
    """Wait for recovery, restarting workers that ask for it; None once the time or the job is over.

    afresh: called before all observations are examined again.
    """
    deadline = time.monotonic() + _RECOVERY_SECONDS_MAX
    while True:
        afresh()
        left = deadline - time.monotonic()
        seen = cluster.watch.first(recovered, left, lambda: ended() or bool(cluster.asks_anew))
        if seen is not None or ended() or left <= 0 or not cluster.asks_anew:
            return seen
        cluster.start_anew()

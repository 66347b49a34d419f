"""One elastic run of a script with planned churn, on this machine.

Workers are held at a gate while the ring is changed from outside (`rehearsal.Gate`), and kill themselves
where the plan says so. Nothing waits for a fixed time, so the same plan gives the same churn on a slow
machine.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_cli.rehearse.cluster import ClusterError, LocalCluster, local_cluster
from elastane_cli.rehearse.results import Outcome, read_elastic
from elastane_cli.verify.plan import Act, ChurnPlan
from elastane_common.determinism import Level
from elastane_common.errors import EXIT_START_ANEW, ElastaneError
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_proto.v1 import job_pb2

_LINES_SHOWN = 30
_EVENTS_SHOWN = 20
_ANEW = "-anew"
CHECKPOINT_STEPS = 3
"""Between two checkpoints of a pipeline: few, because such runs are short."""


class RunFailed(ElastaneError):  # noqa: N818 - says what happened, as the exit code does
    """A run of the script did not reach its end; the text contains its last lines.

    steps: number of steps of a run that succeeded, but ended before its plan did; None otherwise.
    """

    code = "ELA411"

    def __init__(self, message: str, *, hint: str = "", steps: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.steps = steps


@dataclass(frozen=True)
class ElasticRun:
    """Parameters of an elastic run. environment: further variables of all workers; timeout in seconds.

    directory: in which the workers start; None: the current one. launch: creates a worker's process, with the
    arguments of `ChildProcess`. stages: minimum and maximum of a pipeline, 0: as many as are worthwhile;
    shadows: of each stage. has_checkpoints: save some, because a death can lose a part of the model.
    """

    script: Sequence[str]
    determinism: Level
    threads: int
    environment: Mapping[str, str]
    timeout_seconds: float
    launch: Callable[..., ChildProcess] = ChildProcess
    directory: Path | None = None
    stages: tuple[int, int] = (1, 0)
    shadows: int = 0
    has_checkpoints: bool = False

    def run(self, folder: Path, plan: ChurnPlan, *, on_step: Callable[[int], None]) -> Outcome:
        """Execute the plan and return the result; all files of the run are left in `folder`.

        on_step: called with the committed step as the run proceeds. Raises RunFailed if a worker that should
        live ends, or the job fails. No process is left running in any case.
        """
        folder.mkdir(parents=True, exist_ok=True)
        settings = job_pb2.JobSettings(
            ests=plan.ests,
            workers_min=len(plan.start),
            workers_max=plan.ests,
            audit_samples=True,
            torch_threads=self.threads,
            determinism=self.determinism.to_proto(),
            pipeline_stages_min=self.stages[0],
            pipeline_stages_max=self.stages[1],
            pipeline_shadows=self.shadows,
        )
        if self.has_checkpoints:
            settings.checkpoint_url = str((folder / "checkpoints").absolute())
            settings.checkpoint_interval_steps = CHECKPOINT_STEPS
        # A joining worker waits at the master while the gate is held: the next boundary admits it.
        settings.join_window.FromMilliseconds(20)
        environment = {**self.environment, "ELASTANE_MODE": "elastic"}
        with contextlib.ExitStack() as stack:
            newcomers = [name for act in plan.acts if act.verb == "add" for name in act.workers]
            gates = {name: Gate(folder / "gates" / name) for name in newcomers}
            for gate in gates.values():
                stack.callback(gate.open)
            cluster = stack.enter_context(
                local_cluster(
                    folder,
                    settings,
                    self.script,
                    environment=environment,
                    directory=self.directory,
                    launch=self.launch,
                )
            )
            cluster.hold_in(act.step for act in plan.acts)
            cluster.on_job = lambda job: on_step(job.step)
            try:
                _Play(cluster, plan, gates, self.timeout_seconds).run()
                history = list(cluster.client.audit_log(cluster.job))
            except RunFailed:
                raise
            except ClusterError as error:
                raise RunFailed(str(error.args[0]), steps=error.steps) from error
            except ElastaneError as error:
                said = str(error.args[0]) if error.args else type(error).__name__
                raise RunFailed(f"the elastic run failed: {said}", hint=error.hint) from error
            return read_elastic(cluster.reports, history, plan.ests)


@dataclass
class _Play:
    """Execution of a plan. gates: file locks holding each joining worker until its step.

    A worker that must restart (when a leader has died in code that EST 0 alone runs) is started again as its
    agent would do it, under a new name.
    """

    cluster: LocalCluster
    plan: ChurnPlan
    gates: Mapping[str, Gate]
    timeout_seconds: float
    #: Current names of restarted workers, by their names in the plan.
    _names: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        self.cluster.check = self._check
        # Joining workers import everything they need and wait at their gates while the others train.
        for name in [*self.plan.start, *self.gates]:
            self._start(name)
        self._wait(lambda job: job.generation > 0, "the first ring")
        self.cluster.client.scale_job(self.cluster.job, 1, self.plan.ests)
        for act in self.plan.acts:
            self._act(act)
        self._wait(lambda job: job.step >= self.plan.steps, f"step {self.plan.steps}")
        self.cluster.wait_for_success(timeout_seconds=self.timeout_seconds)

    def _act(self, act: Act) -> None:
        """Execute an act while the ring is held in its step."""
        cluster = self.cluster
        with cluster.held(act.step, timeout_seconds=self.timeout_seconds):
            if act.verb == "add":
                for name in act.workers:
                    self.gates[name].open()
                self._wait(self._all_there(act.workers), ", ".join(sorted(act.workers)))
            for name in map(self._now, act.workers):
                if act.verb == "drain":
                    cluster.client.drain_worker(cluster.job, name)
                elif act.verb == "term":
                    cluster.workers[name].signal(signal.SIGTERM)
        if act.verb != "add":
            for name in map(self._now, act.workers):
                if cluster.workers[name].wait(self.timeout_seconds) is None:
                    raise RunFailed(f"{name} did not leave at step {act.step}\n{cluster.last_lines()}")
            self._check()

    def _all_there(self, names: Sequence[str]) -> Callable[[job_pb2.Job], bool]:
        return lambda job: {self._now(name) for name in names} <= {w.worker_id for w in job.workers}

    def _now(self, name: str) -> str:
        return self._names.get(name, name)

    def _start(self, name: str) -> None:
        """Start a worker. name: as in the plan."""
        rehearsal = Rehearsal(
            enter=str(self.cluster.folder / "gates" / name) if name in self.gates else "",
            gates=str(self.cluster.gates),
            kill=self.plan.kill_of(name),
        )
        self.cluster.add_worker(self._now(name), environment=rehearsal.environment())

    def _wait(self, condition: Callable[[job_pb2.Job], bool], what: str) -> None:
        self.cluster.wait_for(condition, timeout_seconds=self.timeout_seconds, what=what)

    def _check(self) -> None:
        """Raise RunFailed for a worker that ended although the plan lets it live.

        Restart one that asks for it.
        """
        for name, status in self.cluster.statuses().items():
            if status is None or status == ExitStatus(0):
                continue
            first = name.removesuffix(_ANEW * name.count(_ANEW))
            if status == ExitStatus(-signal.SIGKILL) and first in self.plan.doomed:
                continue
            if status == ExitStatus(EXIT_START_ANEW):
                if self._now(first) == name:
                    self._names[first] = name + _ANEW
                    self._start(first)
                continue
            if (
                status == ExitStatus(-signal.SIGABRT)
                and (self.cluster.reports / f"elastic-{name}.json").exists()
            ):
                continue  # torch's threads can abort the interpreter's exit; the result was written before
            log = self.cluster.folder / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:] if log.exists() else []
            raise RunFailed("\n".join([f"worker {name}: {status}", *lines, *self._last_events()]))

    def _last_events(self) -> list[str]:
        """Return the master's last decisions with their reasons."""
        try:
            events = list(self.cluster.client.events(self.cluster.job))[-_EVENTS_SHOWN:]
        except ElastaneError as error:
            return [f"(no events: {error})"]
        first = events[0].time.ToMilliseconds() if events else 0
        return ["the master's last decisions:"] + [
            f"  {event.time.ToMilliseconds() - first:6d} ms, step {event.step}: {event.kind} {event.reason}"
            for event in events
        ]

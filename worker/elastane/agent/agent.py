"""The supervisor behind `elastane run`: carries out what `SupervisorPolicy` decides.

One thread (the main one: signals and children belong to it) takes events from one queue: exits of
workers and of the embedded master, news of the job, signals, the passing of time. Everything that waits
for something else does so in a thread of its own and puts what it learned into the queue.

    master (embedded or given) -> Create -> workers -> events until Finish -> workers gone -> master gone
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from elastane.agent import policy as policies
from elastane.agent.budget import RestartBudget
from elastane.agent.master_process import EmbeddedMaster, MasterStartError
from elastane.agent.notices.detect import NONE, chosen_source, detect_source
from elastane.agent.notices.fetch import fetcher
from elastane.agent.notices.notice import Notice
from elastane.agent.notices.sources import CLOUDS, Source
from elastane.agent.notices.watch import NoticeWatch
from elastane.agent.output import Output
from elastane.agent.policy import Action, JobView, SupervisorPolicy
from elastane.agent.process import ChildProcess, ExitStatus
from elastane.client import ClientClosedError, MasterClient
from elastane.credentials import worker_environment
from elastane.determinism import level_from_proto, process_environment
from elastane.errors import ElastaneError
from elastane.observe.figures import AgentCounts, figures_file
from elastane_proto.v1 import job_pb2, ring_pb2

if TYPE_CHECKING:
    from elastane.observe.exposition import MetricsPort

#: A master that dies again and again is broken; its workers wait for it meanwhile.
MASTER_BUDGET = RestartBudget(restarts_max=20, delay_min_seconds=0.05)
#: How long a metadata service may take to answer; it is on the node itself.
NOTICE_TIMEOUT_SECONDS = 1.0
#: How long the reason of a worker's leave is asked for.
_ASK_SECONDS = 2.0
#: The embedded master stays this much longer than the job, so that who watches sees the end.
_LINGER_SECONDS = 0.7
#: A master that stays away is spoken of so often.
_SAY_WAITING_SECONDS = 5.0
_RESUMABLE = (
    job_pb2.JOB_PHASE_SUSPENDED,
    job_pb2.JOB_PHASE_FAILED,
    job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED,
)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class AgentSettings:
    """What `elastane run` was asked for.

    command: script and arguments, or "-m", module and arguments. local_workers: most workers on this
    machine. master: "host:port"; empty: an embedded one, with its state in `state_dir` (empty: a
    temporary folder). worker_prefix: worker k is called prefix + k. notices: where spot notices are read,
    see `notices.detect.check_choice`; notices_url: of the metadata service, instead of the
    cloud's own; notices_poll_seconds: how often they are looked for, 0 as the cloud advises.
    metrics: host and port where figures of this agent and its workers are served. http: HOST:PORT of the
    embedded master's HTTP port.
    """

    command: tuple[str, ...]
    job: str
    settings: job_pb2.JobSettings
    local_workers: int
    master: str = ""
    state_dir: Path | None = None
    master_timeout_seconds: float = 600.0
    grace_seconds: float = 30.0
    budget: RestartBudget = field(default_factory=RestartBudget)
    worker_prefix: str = "w"
    notices: str = NONE
    notices_url: str = ""
    notices_poll_seconds: float = 0.0
    metrics: tuple[str, int] | None = None
    http: str = ""


@dataclass(frozen=True)
class _WorkerExited:
    worker: str
    status: ExitStatus


@dataclass(frozen=True)
class _MasterExited:
    status: ExitStatus


@dataclass(frozen=True)
class _JobNews:
    job: job_pb2.Job


@dataclass(frozen=True)
class _JobLost:
    error: ElastaneError


@dataclass(frozen=True)
class _Signalled:
    number: int


@dataclass(frozen=True)
class _Noticed:
    notice: Notice


_Event = _WorkerExited | _MasterExited | _JobNews | _JobLost | _Signalled | _Noticed


class _StoppedEarlyError(Exception):
    """A signal came before there were workers."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Agent:
    """One `elastane run`. `run` from the main thread, once."""

    def __init__(self, settings: AgentSettings, output: Output) -> None:
        self._settings = settings
        self._output = output
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._workers: dict[str, ChildProcess] = {}
        self._master: EmbeddedMaster | None = None
        self._master_deaths: list[float] = []
        self._master_due: float | None = None
        self._temporary_dir: Path | None = None
        self._watch_client: MasterClient | None = None
        self._notice_watch: NoticeWatch | None = None
        self._notice_folder = tempfile.TemporaryDirectory(prefix="elastane-agent-")
        self._notice_file = Path(self._notice_folder.name) / "notice.json"
        self._counts = AgentCounts()
        self._metrics_port: MetricsPort | None = None
        self._address = ""
        self._job = job_pb2.Job()
        self._starting = True
        self._say_waiting_at = 0.0
        self._code: int | None = None
        ids = [f"{settings.worker_prefix}{number}" for number in range(settings.local_workers)]
        self._policy = SupervisorPolicy(ids, settings.budget, grace_seconds=settings.grace_seconds)

    def run(self) -> int:
        """Supervise until the job is over for this agent; returns the exit code.

        Raises ElastaneError when the master cannot be started or reached, or refuses the job.
        """
        with self._signal_handlers():
            try:
                self._open_metrics()
                self._open_master()
                view = self._create_job()
                self._starting = False
                self._watch_job()
                self._watch_notices()
                self._perform(self._policy.start(time.monotonic(), view))
                while self._code is None:
                    self._turn()
            except _StoppedEarlyError as stopped:
                self._code = 128 + stopped.number
            finally:
                self._starting = False
                self._close()
        assert self._code is not None
        return self._code

    # ------------------------------------------------------------------ the start

    def _open_metrics(self) -> None:
        if self._settings.metrics is not None:
            # prometheus_client is loaded by those who serve figures.
            from elastane.observe.exposition import AgentCollector, MetricsPort

            folder = Path(self._notice_folder.name)
            collector = AgentCollector(self._settings.job, self._counts, folder)
            self._metrics_port = MetricsPort(*self._settings.metrics, collector)
            address = self._metrics_port.address
            self._output.say(f"figures at http://{address}/metrics", event="metrics_served", address=address)

    def _open_master(self) -> None:
        if self._settings.master:
            self._address = self._settings.master
            return
        state_dir = self._settings.state_dir
        if state_dir is None:
            state_dir = self._temporary_dir = Path(tempfile.mkdtemp(prefix="elastane-"))
        self._master = EmbeddedMaster(
            state_dir,
            arguments=("--http", self._settings.http) if self._settings.http else (),
            on_exit=lambda status: self._events.put(_MasterExited(status)),
        )
        self._address = self._master.start()
        self._output.say(
            f"embedded master at {self._address}, state in {state_dir}",
            event="master_started",
            address=self._address,
            state_dir=str(state_dir),
        )

    def _create_job(self) -> JobView:
        settings = self._settings
        timeout = settings.master_timeout_seconds
        with MasterClient(self._address, timeout_seconds=timeout, on_wait=self._waiting) as client:
            job, created = client.create_job(settings.job, settings.settings)
            if not created and self._master is not None and job.phase in _RESUMABLE:
                # Nobody else could resume a job whose master lives in this command.
                job = client.resume_job(settings.job)
        self._job = job
        view = job_view(job)
        limits = f"{job.settings.workers_min}:{job.settings.workers_max}"
        how = "new" if created else f"{view.phase} at step {view.step}"
        self._output.say(
            f"job {job.name} ({how}): {job.settings.ests} ESTs on {limits} workers; "
            f"look with: elastane status --master {self._address}",
            event="job_created" if created else "job_found",
            job=job.name,
        )
        return view

    def _waiting(self, seconds: float, error: str) -> None:
        now = time.monotonic()
        if self._watch_client is None and now >= self._say_waiting_at:
            self._say_waiting_at = now + _SAY_WAITING_SECONDS
            self._output.say(f"the master does not answer: {error}; it is tried again", "warning")

    def _watch_job(self) -> None:
        client = self._watch_client = MasterClient(self._address, timeout_seconds=float("inf"))

        def watch() -> None:
            try:
                for job in client.watch_job(self._settings.job):
                    self._events.put(_JobNews(job))
            except ElastaneError as error:
                self._events.put(_JobLost(error))

        threading.Thread(target=watch, name="watch job", daemon=True).start()

    def _watch_notices(self) -> None:
        if self._settings.notices == NONE:
            return
        fetch, choice = fetcher(NOTICE_TIMEOUT_SECONDS), self._settings.notices
        url = self._settings.notices_url

        def find() -> Source | None:
            return chosen_source(choice, fetch, url) or detect_source(fetch, dict.fromkeys(CLOUDS, url))

        self._notice_watch = NoticeWatch(
            find,
            on_notice=lambda notice: self._events.put(_Noticed(notice)),
            on_trouble=lambda text: self._output.say(text, "warning", "spot_notices_unreadable"),
            poll_seconds=self._settings.notices_poll_seconds,
        )
        self._notice_watch.start()

    # ------------------------------------------------------------------ events

    def _turn(self) -> None:
        """Wait for one event, or for time to pass, and act."""
        dues = [due for due in (self._policy.next_due(), self._master_due) if due is not None]
        timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            event = None
        now = time.monotonic()
        if event is not None:
            self._perform(self._handle(now, event))
        if self._master_due is not None and now >= self._master_due and self._code is None:
            self._perform(self._restart_master())
        self._perform(self._policy.tick(time.monotonic()))

    def _handle(self, now: float, event: _Event) -> list[Action]:
        match event:
            case _WorkerExited(worker, status):
                return self._worker_exited(now, worker, status)
            case _JobNews(job):
                self._job = job
                return self._policy.job_changed(now, job_view(job))
            case _Signalled(number):
                return self._policy.signalled(now, number)
            case _Noticed(notice):
                return self._noticed(now, notice)
            case _MasterExited(status):
                return self._master_died(now, f"the embedded master {status}")
            case _JobLost(error):
                if isinstance(error, ClientClosedError):
                    return []
                return self._policy.fatal(now, policies.CODE_REFUSED, f"the job is lost: {error}")

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case policies.Spawn(worker):
                    self._spawn(worker)
                case policies.Announce(seconds, reason):
                    announcement = {"at": time.time() + seconds, "reason": reason}
                    self._notice_file.write_text(json.dumps(announcement))
                case policies.Terminate(worker):
                    self._workers[worker].signal(signal.SIGTERM)
                case policies.Kill(worker):
                    self._workers[worker].kill_group()
                case policies.Say(text, kind, event, worker):
                    facts = {"worker": worker} if worker else {}
                    self._output.say(text, kind, event, **facts)
                case policies.Finish(code):
                    self._code = code

    def _noticed(self, now: float, notice: Notice) -> list[Action]:
        if notice.kind == "rebalance":
            text = f"{notice.source}: {notice.reason}; this node may go soon"
            return [policies.Say(text, "warning", "spot_rebalance")]
        self._counts.spot_notices += 1
        reason = f"spot notice of {notice.source}: {notice.reason}"
        return self._policy.noticed(now, notice.seconds_left(time.time()), reason)

    # ------------------------------------------------------------------ workers

    def _spawn(self, worker: str) -> None:
        child = ChildProcess(
            worker,
            [sys.executable, "-u", *self._settings.command],
            environment=self._worker_environment(worker),
            on_line=self._output.line,
            on_exit=lambda _, status: self._events.put(_WorkerExited(worker, status)),
        )
        child.start()
        self._workers[worker] = child
        self._counts.starts[worker] += 1
        self._output.say(
            f"{worker} started, pid {child.pid}", event="worker_started", worker=worker, pid=child.pid
        )

    def _worker_environment(self, worker: str) -> dict[str, str]:
        settings = self._job.settings
        environment = {
            **worker_environment(os.environ),
            "ELASTANE_METRICS_FILE": (
                str(figures_file(Path(self._notice_folder.name), worker)) if self._metrics_port else ""
            ),
            "PYTHONUNBUFFERED": "1",
            # A peer's death is a normal event here; torch would print a C++ backtrace for it.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            # Unlike values in the agent's own shell give way: they belong to the job.
            **process_environment(level_from_proto(settings.determinism), settings.torch_threads),
            "ELASTANE_MODE": "elastic",
            "ELASTANE_MASTER": self._address,
            "ELASTANE_JOB": self._settings.job,
            "ELASTANE_WORKER_ID": worker,
            "ELASTANE_ESTS": str(settings.ests),
            "ELASTANE_TORCH_THREADS": str(max(1, settings.torch_threads)),
            "ELASTANE_MASTER_TIMEOUT_SECONDS": str(self._settings.master_timeout_seconds),
            "ELASTANE_NOTICE_SECONDS": str(self._settings.grace_seconds),
            "ELASTANE_NOTICE_FILE": str(self._notice_file),
            "ELASTANE_DRAIN_EXIT_CODE": str(policies.EXIT_DRAINED),
        }
        for own in ("ELASTANE_SEED", "ELASTANE_SPOT", "ELASTANE_SPOT_URL"):
            environment.pop(own, None)
        if settings.HasField("seed"):
            environment["ELASTANE_SEED"] = str(settings.seed)
        return environment

    def _worker_exited(self, now: float, worker: str, status: ExitStatus) -> list[Action]:
        self._counts.exited(status.returncode, policies.EXIT_DRAINED)
        if status.returncode != policies.EXIT_DRAINED:
            return self._policy.worker_exited(now, worker, status)
        # Sent away or gone by itself? The master knows; its news may be behind the exit.
        actions: list[Action] = []
        asked = False
        try:
            with MasterClient(self._address, timeout_seconds=_ASK_SECONDS) as client:
                self._job = client.get_job(self._settings.job)
                asked = sent_away(worker, client.events(self._settings.job))
            actions = self._policy.job_changed(now, job_view(self._job))
        except ElastaneError as error:
            actions = [policies.Say(f"why {worker} left is not known: {error.args[0]}", "warning")]
        return [*actions, *self._policy.worker_exited(now, worker, status, asked_to_leave=asked)]

    # ------------------------------------------------------------------ the embedded master

    def _master_died(self, now: float, what: str) -> list[Action]:
        decision = MASTER_BUDGET.decide(now, self._master_deaths, self._master_deaths)
        self._master_deaths.append(now)
        if not decision.allowed:
            return self._policy.fatal(now, policies.CODE_FAILED, f"{what}; {decision.reason}")
        self._master_due = now + decision.delay_seconds
        return [policies.Say(f"{what}; {decision.reason}", "warning", "master_died")]

    def _restart_master(self) -> list[Action]:
        assert self._master is not None
        self._master_due = None
        self._counts.master_restarts += 1
        try:
            self._master.start()
        except MasterStartError as error:
            return self._master_died(time.monotonic(), str(error))
        return [policies.Say(f"embedded master is back at {self._address}", event="master_restarted")]

    # ------------------------------------------------------------------ the end

    def _close(self) -> None:
        if self._notice_watch is not None:
            self._notice_watch.stop()
        for child in self._workers.values():
            child.kill_group()
        for child in self._workers.values():
            child.wait()
        if self._watch_client is not None:
            self._watch_client.close()
        if self._master is not None:
            if self._code == policies.CODE_OK and self._master.running:
                self._linger()
            self._master.stop()
        if self._metrics_port is not None:
            self._metrics_port.close()
        self._notice_folder.cleanup()
        self._dispose_of_state()

    def _linger(self) -> None:
        """Wait a little; a signal ends it."""
        deadline = time.monotonic() + _LINGER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if isinstance(self._events.get(timeout=left), _Signalled):
                    return

    def _dispose_of_state(self) -> None:
        """Remove the temporary state directory, unless somebody may want it."""
        if self._temporary_dir is None:
            return
        resumable = bool(self._settings.settings.checkpoint_url) and self._job.phase not in (
            job_pb2.JOB_PHASE_SUCCEEDED,
            job_pb2.JOB_PHASE_CANCELLED,
        )
        if self._code in (policies.CODE_FAILED, policies.CODE_UNREACHABLE, None) or resumable:
            self._output.say(
                f"state kept: go on with --state-dir {self._temporary_dir}",
                event="state_kept",
                state_dir=str(self._temporary_dir),
            )
            return
        shutil.rmtree(self._temporary_dir, ignore_errors=True)

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        def handler(number: int, frame: FrameType | None) -> None:
            if self._starting:
                raise _StoppedEarlyError(number)
            self._events.put(_Signalled(number))

        before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
        for number, previous in before.items():
            if previous is not signal.SIG_IGN:  # nohup
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


def sent_away(worker: str, events: Iterable[ring_pb2.Event]) -> bool:
    """Whether an operator asked for the worker's leave, by the last that was said of it."""
    last = None
    for event in events:
        if event.worker_id == worker and event.kind in ("worker_joined", "worker_draining"):
            last = event
    return last is not None and last.kind == "worker_draining" and "operator" in last.reason


def job_view(job: job_pb2.Job) -> JobView:
    """What the policy sees of a job."""
    phase = job_pb2.JobPhase.Name(job.phase).removeprefix("JOB_PHASE_").lower()
    return JobView(
        phase=phase,  # type: ignore[arg-type]
        reason=job.reason,
        workers_max=job.settings.workers_max or job.settings.ests,
        step=job.step,
        steps=job.steps_per_epoch * job.epochs,
        standby=frozenset(
            worker.worker_id for worker in job.workers if worker.state == job_pb2.WORKER_STATE_STANDBY
        ),
    )

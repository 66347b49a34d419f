"""The supervisor behind `elastane run`: carries out what `SupervisorPolicy` decides.

The main thread (signals and children belong to it) takes events from one queue: exits of workers and
of the embedded master, job updates, signals, notices, found hosts. Anything that has to block elsewhere runs
in a separate thread and puts its result into the queue.

    master (embedded or given) -> Create -> workers -> events until Finish -> workers gone -> master gone
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Collection, Mapping
from types import FrameType

from elastane_agent.hosts.discovery import Discovery
from elastane_agent.hosts.remote import out_of_reach
from elastane_agent.hosts.slots import HostOffer
from elastane_agent.observe.agent_side import AgentMetrics
from elastane_agent.supervisor import actions as act
from elastane_agent.supervisor.actions import Action
from elastane_agent.supervisor.agent_events import (
    AgentEvent,
    HostsFound,
    JobLost,
    JobNews,
    MasterAway,
    MasterExited,
    Noticed,
    PsExited,
    RelayExited,
    Signalled,
    WarmExited,
    WorkerExited,
)
from elastane_agent.supervisor.draining import ASK_SECONDS, drain_elsewhere
from elastane_agent.supervisor.farewell import what_was_kept
from elastane_agent.supervisor.first_checks import try_checkpoint_url
from elastane_agent.supervisor.gpus import SLOT, gpu_variables
from elastane_agent.supervisor.job_reading import is_undecided, job_view, sent_away
from elastane_agent.supervisor.job_view import JobView
from elastane_agent.supervisor.joining import report_unused_settings, wait_for_job
from elastane_agent.supervisor.log_files import LogFiles
from elastane_agent.supervisor.master_absence import MasterAbsence
from elastane_agent.supervisor.master_keeper import MasterKeeper
from elastane_agent.supervisor.master_process import MasterStartError
from elastane_agent.supervisor.notices.node import NodeNotices
from elastane_agent.supervisor.notices.notice import Notice
from elastane_agent.supervisor.output_reporting import WorkerOutput
from elastane_agent.supervisor.placement import Placement
from elastane_agent.supervisor.policy import OVER, SupervisorPolicy
from elastane_agent.supervisor.price_feed import PriceListFeed, feed_of
from elastane_agent.supervisor.price_table import PriceFeed
from elastane_agent.supervisor.ps_children import PsChildren
from elastane_agent.supervisor.relay_keeper import RelayKeeper
from elastane_agent.supervisor.replaced_stragglers import barred_seconds
from elastane_agent.supervisor.settings import AgentSettings
from elastane_agent.supervisor.warm_pool import WarmPool, is_settled
from elastane_agent.supervisor.worker_command import CAPACITY, local_start, remote_start, worker_variables
from elastane_common.client import MasterClient
from elastane_common.client_errors import ClientClosedError
from elastane_common.errors import EXIT_REFUSED, EXIT_START_ANEW, ElastaneError
from elastane_common.exit_codes import (
    CODE_FAILED,
    CODE_OK,
    CODE_REFUSED,
    EXIT_DRAINED,
    EXIT_RECLAIMED,
)
from elastane_common.gpus import VISIBLE
from elastane_common.job_words import phase_words, progress_words
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Output
from elastane_common.processes.signal_handlers import STOP_SIGNALS, signal_handlers
from elastane_proto.v1 import job_pb2, ring_pb2

#: The embedded master outlives the job by this much, so that connected watchers still see its end.
_LINGER_SECONDS = 0.7
#: Exit codes above this one are 128 + signal number.
_SIGNALLED = 128
_RESUMABLE = (
    job_pb2.JOB_PHASE_SUSPENDED,
    job_pb2.JOB_PHASE_FAILED,
    job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED,
)
#: Exit codes of processes that ended as they were asked to.
_EXPECTED = frozenset({0, EXIT_DRAINED, EXIT_RECLAIMED, EXIT_START_ANEW})


class _StoppedEarlyError(Exception):
    """A stop signal arrived before any worker was started."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Agent:
    """Supervisor of one `elastane run`. Call `run` once, from the main thread."""

    def __init__(self, settings: AgentSettings, output: Output) -> None:
        self._settings = settings
        self._output = output
        files = LogFiles(settings.log_dir, output) if settings.log_dir else None
        self._lines = WorkerOutput(settings.job, output, files)
        self._events: queue.SimpleQueue[AgentEvent] = queue.SimpleQueue()
        self._workers: dict[str, ChildProcess] = {}
        #: Workers that were killed on purpose, because they did not leave in time.
        self._killed: set[str] = set()
        #: GPU of each local worker; empty: all of this machine, or none.
        self._gpus: dict[str, str] = {}
        #: The embedded master; None: the user has given one.
        self._embedded: MasterKeeper | None = None
        #: None: workers connect to the master directly.
        self._relay: RelayKeeper | None = None
        self._absence = MasterAbsence(output, settings.master_timeout_seconds)
        self._watch_client: MasterClient | None = None
        self._notices = NodeNotices(
            settings.notices, settings.notices_url, settings.notices_poll_seconds, settings.capacity
        )
        self._warm = WarmPool(
            settings.warm,
            settings.command,
            output,
            self._lines,
            lambda name, status: self._events.put(WarmExited(name, status)),
        )
        self._workers_over = False
        self._signals = 0
        self._discovery: Discovery | None = None
        self._placement: Placement | None = None
        self._said_of_hosts: set[str] = set()
        self._said_no_host_on_demand = False
        self._prices: PriceFeed | PriceListFeed | None = None
        self._metrics = AgentMetrics(settings.job, settings.metrics, self._worker_figures)
        self._address = ""
        #: Where workers of this machine find the master.
        self._worker_address = ""
        self._job = job_pb2.Job()
        self._starting = True
        self._said_of_what_was_kept = ""
        self._code: int | None = None
        ids: list[str] = []
        if settings.hosts is not None:
            self._placement = Placement(settings.worker_prefix)
        else:
            ids = [f"{settings.worker_prefix}{number}" for number in range(settings.local_workers)]
            self._metrics.keep(ids)
        self._ps = PsChildren(
            settings,
            output,
            self._lines,
            self._notices,
            lambda ps, status: self._events.put(PsExited(ps, status)),
            self._placement,
        )
        self._policy = SupervisorPolicy(
            ids,
            settings.budget,
            grace_seconds=settings.grace_seconds,
            dynamic=settings.hosts is not None,
            on_demand=settings.hosts is None and settings.capacity == "on-demand",
        )

    def run(self) -> int:
        """Supervise until the job is over for this agent; return the exit code.

        Raises ElastaneError if the master cannot be started or reached, or refuses the job.
        """
        with signal_handlers(STOP_SIGNALS, self._stop_signal, keep_ignored=True):
            try:
                if address := self._metrics.serve():
                    where = f"figures at http://{address}/metrics"
                    self._output.say(where, event="metrics_served", address=address)
                self._try_checkpoints(self._settings.settings)
                self._open_master()
                view = self._enter_job()
                self._starting = False
                self._lines.start(self._address)
                self._open_relay()
                self._watch_job()
                self._feed_prices()
                self._watch_notices()
                if view.phase not in OVER:
                    self._perform(self._ps.start(self._address))
                self._perform(self._policy.start(time.monotonic(), view))
                self._watch_hosts()
                while self._code is None:
                    self._run_once()
            except _StoppedEarlyError as stopped:
                self._code = 128 + stopped.number
            finally:
                self._starting = False
                self._close()
        assert self._code is not None
        return self._code

    # ------------------------------------------------------------------ the start

    def _try_checkpoints(self, settings: job_pb2.JobSettings | None) -> None:
        """Fail now, rather than at the first checkpoint, if the checkpoint folder is not writable.

        Skipped when workers run on other hosts, because this one may have no access. Raises RefusedError.
        """
        if settings is not None and settings.checkpoint_url and self._settings.hosts is None:
            try_checkpoint_url(settings.checkpoint_url)

    def _open_master(self) -> None:
        if self._settings.master:
            self._address = self._settings.master
            return
        self._embedded = MasterKeeper(
            self._settings, self._output, lambda status: self._events.put(MasterExited(status))
        )
        self._address = self._embedded.start()

    def _open_relay(self) -> None:
        self._worker_address = self._address
        if self._settings.relay and self._settings.hosts is None:
            self._relay = RelayKeeper(self._output, lambda status: self._events.put(RelayExited(status)))
            self._worker_address = self._relay.start(self._address)

    def _enter_job(self) -> JobView:
        settings, asked = self._settings, self._asked_settings()
        with MasterClient(
            self._address,
            timeout_seconds=settings.master_timeout_seconds,
            on_wait=lambda _, error: self._absence.at_start(self._address, error),
        ) as client:
            if asked is None:
                job, created = (
                    wait_for_job(client, settings.job, settings.job_timeout_seconds, self._output),
                    False,
                )
            else:
                job, created = client.create_job(settings.job, asked)
            if not created and self._embedded is not None and job.phase in _RESUMABLE:
                # The master of this job lives in this command, so no other command can resume it.
                job = client.resume_job(settings.job)
        self._absence.over_at_start()
        self._job = job
        if asked is None:
            self._try_checkpoints(job.settings)
        else:
            report_unused_settings(job, asked, self._output)
        view = self._view_of(job)
        limits = f"{job.settings.workers_min}:{job.settings.workers_max}"
        how = "new" if created else f"{phase_words(job)}, {progress_words(job)}"
        self._output.say(
            f"job {job.name} ({how}): {job.settings.ests} ESTs on {limits} workers; see its state with: "
            f"elastane status --master {self._address}",
            event="job_created" if created else "job_found",
            job=job.name,
        )
        return view

    def _asked_settings(self) -> job_pb2.JobSettings | None:
        """Return the settings of the job to create. Slots are saved beside the state of an embedded master,
        unless there is a folder for checkpoints, or they are on other hosts."""
        asked, embedded = self._settings.settings, self._embedded
        has_none = asked is not None and not asked.checkpoint_url and self._settings.ps
        if asked is None or not has_none or embedded is None or self._settings.hosts is not None:
            return asked
        completed = job_pb2.JobSettings()
        completed.CopyFrom(asked)
        completed.checkpoint_url = str(embedded.model_dir)
        return completed

    def _watch_job(self) -> None:
        client = self._watch_client = MasterClient(
            self._address,
            timeout_seconds=float("inf"),
            # The exit of an embedded master is reported by `MasterExited` already.
            on_wait=None if self._embedded else lambda _, error: self._events.put(MasterAway(error)),
        )

        def watch() -> None:
            try:
                for job in client.watch_job(self._settings.job):
                    self._events.put(JobNews(job))
            except ElastaneError as error:
                self._events.put(JobLost(error))

        threading.Thread(target=watch, name="watch job", daemon=True).start()

    def _feed_prices(self) -> None:
        if self._settings.prices is not None:
            assert self._watch_client is not None
            self._prices = feed_of(self._settings.prices, self._job, self._watch_client, self._output)
            self._prices.start()

    def _watch_notices(self) -> None:
        self._notices.start(
            lambda notice: self._events.put(Noticed(notice)),
            lambda text: self._output.say(text, "warning", "spot_notices_unreadable"),
        )

    def _watch_hosts(self) -> None:
        hosts = self._settings.hosts
        if hosts is None or self._code is not None:
            return
        self._discovery = Discovery(
            hosts.script,
            interval_seconds=hosts.interval_seconds,
            timeout_seconds=hosts.timeout_seconds,
            on_hosts=lambda found: self._events.put(HostsFound(found)),
            on_trouble=lambda text: self._output.say(text, "warning", "discovery_failed"),
        )
        self._discovery.start()

    # ------------------------------------------------------------------ events

    def _run_once(self) -> None:
        """Handle one event, or whatever is due first if no event comes before."""
        places_due = self._placement.next_due() if self._placement is not None else None
        embedded = self._embedded
        disk_due = embedded.look_at_disk() if embedded is not None else None
        restart_due = embedded.restart_due if embedded is not None else None
        relay_due = self._relay.restart_due if self._relay is not None else None
        every = (
            self._policy.next_due(),
            self._ps.policy.next_due(),
            restart_due,
            relay_due,
            places_due,
            disk_due,
        )
        dues = [due for due in every if due is not None]
        timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            event = None
        now = time.monotonic()
        if event is not None:
            self._perform(self._handle(now, event))
        if self._is_restart_due(now) and self._code is None:
            self._perform(self._restart_master())
        now = time.monotonic()
        if self._relay is not None and relay_due is not None and now >= relay_due:
            self._relay.restart()
        if places_due is not None and now >= places_due:
            self._perform(self._places_changed(now))
        self._perform(self._policy.tick(now))
        self._perform(self._ps.tick())

    def _handle(self, now: float, event: AgentEvent) -> list[Action]:
        match event:
            case WorkerExited(worker, status):
                return self._worker_exited(now, worker, status)
            case WarmExited(name, status):
                worker = self._warm.exited(name, status)
                return self._worker_exited(now, worker, status) if worker else []
            case JobNews(job):
                self._absence.over()
                self._job = job
                view = self._view_of(job)
                actions = [*self._policy.job_changed(now, view), *self._attending(now, view)]
                self._preload(view, actions)
                return actions
            case RelayExited(status):
                if self._relay is not None:
                    self._relay.died(now, status)
                return []
            case PsExited(ps, status):
                return self._ps_exited(now, ps, status)
            case Signalled(number):
                return self._signalled(now, number)
            case Noticed(notice):
                return self._noticed(now, notice)
            case HostsFound(hosts):
                return self._hosts_found(now, hosts)
            case MasterAway(error):
                self._absence.while_running(now, self._address, error)
                return []
            case MasterExited(status):
                return self._master_died(now, f"the embedded master {status}")
            case JobLost(error):
                if isinstance(error, ClientClosedError):
                    return []
                return self._fatal(now, CODE_REFUSED, f"the job is lost: {error}")

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case act.Spawn(worker):
                    self._spawn(worker)
                case act.Announce(seconds, reason):
                    self._notices.announce(seconds, reason)
                case act.Terminate(worker, reason):
                    self._terminate(worker, reason)
                case act.Kill(worker):
                    self._killed.add(worker)
                    self._workers[worker].kill_group()
                case act.Say(text, kind, event, worker):
                    facts = {"worker": worker} if worker else {}
                    self._output.say(text, kind, event, **facts)
                case act.Fail(code, text):
                    self._perform(self._fatal(time.monotonic(), code, text))
                case act.Finish(code) if not self._workers_over:
                    self._workers_over = True
                    self._perform(self._end_of_workers(code))
                case act.Finish(code):
                    self._code = code

    def _signalled(self, now: float, number: int) -> list[Action]:
        self._signals += 1
        if self._workers_over:
            return self._ps.perform(self._ps.policy.signalled(now, number))
        actions = self._policy.signalled(now, number)
        if self._signals > 1:
            actions += self._ps.perform(self._ps.policy.kill())
        return actions

    def _ps_exited(self, now: float, ps: str, status: ExitStatus) -> list[Action]:
        if self._placement is not None:
            status = self._placement.status(ps, status)
        self._lines.exited(ps, status, expected=status.returncode in _EXPECTED)
        if self._placement is not None and (fault := self._placement.ended(now, ps, status)):
            self._metrics.counts.spot_notices += fault.first_notice
            failed = self._ps.policy.host_failed(now, ps, fault.text, fault.event)
            return [*self._ps.perform(failed), *self._places_changed(now)]
        return self._ps.perform(self._ps.policy.exited(now, ps, status))

    def _fatal(self, now: float, code: int, text: str) -> list[Action]:
        if self._workers_over:  # only parameter servers are left, and they are no longer needed
            self._output.say(text, "error", "failed")
            return self._ps.perform(self._ps.policy.attending(now, ()))
        return self._policy.fatal(now, code, text)

    def _attending(self, now: float, view: JobView) -> list[Action]:
        return self._ps.perform(self._ps.policy.attending(now, view.task_workers - self._workers.keys()))

    def _end_of_workers(self, code: int) -> list[Action]:
        """Handle the end of all workers: parameter servers leave, unless other agents' workers need them."""
        others = job_view(self._job).task_workers - self._workers.keys()
        return self._ps.perform(self._ps.policy.workers_over(time.monotonic(), code, others))

    def _noticed(self, now: float, notice: Notice) -> list[Action]:
        if notice.kind == "rebalance":
            text = f"{notice.source}: {notice.reason}; this node may be taken away soon"
            return [act.Say(text, "warning", "spot_rebalance")]
        self._metrics.counts.spot_notices += 1
        reason = f"spot notice of {notice.source}: {notice.reason}"
        seconds = notice.seconds_left(time.time())
        actions = self._policy.noticed(now, seconds, reason)
        return [*actions, *self._ps.perform(self._ps.policy.noticed(now, seconds, reason))]

    # ------------------------------------------------------------------ hosts

    def _hosts_found(self, now: float, hosts: Mapping[str, HostOffer]) -> list[Action]:
        assert self._placement is not None
        held = dict.fromkeys(out_of_reach(self._address, hosts), "it cannot reach a master on loopback")
        self._placement.found(hosts, held)
        for host in held.keys() - self._said_of_hosts:
            self._output.say(f"{host} is not used: {held[host]}", "warning", "host_left_out")
        self._said_of_hosts |= held.keys()
        if self._job.settings.on_demand_workers and not self._placement.on_demand():
            self._say_no_host_on_demand()
        return self._places_changed(now)

    def _say_no_host_on_demand(self) -> None:
        if self._said_no_host_on_demand:
            return
        self._said_no_host_on_demand = True
        text = (
            f"no host is listed as on-demand: the job may ask for {self._job.settings.on_demand_workers} "
            "on-demand workers, and none can be started here: only the others are"
        )
        self._output.say(text, "warning", "no_host_on_demand")

    def _places_changed(self, now: float) -> list[Action]:
        assert self._placement is not None
        places = self._placement.wanted(now)
        running = (name for name, child in self._workers.items() if child.status is None)
        self._metrics.keep({*places, *running})
        return self._policy.places_changed(now, places, self._placement.on_demand())

    def _terminate(self, worker: str, reason: str) -> None:
        """Ask a worker to drain and leave. reason: passed on to it; empty: as announced before."""
        child = self._workers[worker]
        if self._placement is None or not self._placement.is_remote(worker):
            if reason:
                with contextlib.suppress(OSError):  # a full disk: the worker leaves without a reason
                    self._notices.announce_to(worker, self._settings.grace_seconds, reason)
            child.signal(signal.SIGTERM)
            return
        job = self._settings.job
        drain_elsewhere(child, self._address, lambda client: client.drain_worker(job, worker, reason=reason))

    # ------------------------------------------------------------------ workers

    def _spawn(self, worker: str) -> None:
        command, environment = self._start_of(worker)
        is_remote = self._placement is not None and self._placement.is_remote(worker)
        if self._placement is not None:
            self._placement.started(time.monotonic(), worker)
        child = None if is_remote else self._warm.take(worker, environment)
        preloaded = child is not None
        if child is None:
            child = ChildProcess(
                worker,
                command,
                environment=environment,
                on_line=self._lines.line,
                on_bytes=self._lines.read,
                on_exit=lambda _, status: self._events.put(WorkerExited(worker, status)),
            )
            child.start()
        self._workers[worker] = child
        self._metrics.counts.starts[worker] += 1
        text = f"{worker} started{', preloaded' * preloaded}, pid {child.pid}"
        self._output.say(text, event="worker_started", worker=worker, pid=child.pid, preloaded=preloaded)

    def _preload(self, view: JobView, actions: Collection[Action]) -> None:
        """Start preloaded workers once all workers of this agent train, and none is about to start."""
        running = [name for name, child in self._workers.items() if child.status is None]
        if not self._settings.warm or actions or not is_settled(view, running):
            return
        own = worker_variables(self._settings, self._job, self._worker_address, "")
        _, environment = local_start(self._settings, own | self._notices.environment())
        del environment["ELASTANE_WORKER_ID"]
        self._warm.fill(environment)

    def _start_of(self, worker: str) -> tuple[list[str], dict[str, str]]:
        """Return command and environment of a worker's local process, which may be a remote shell."""
        own = worker_variables(self._settings, self._job, self._worker_address, worker)
        if self._placement is not None and self._placement.is_remote(worker):
            slot = self._placement.slot(worker)
            capacity = self._placement.capacity(worker) or self._settings.capacity
            return remote_start(self._settings, slot.host, own | {SLOT: str(slot.index)}, capacity)
        command, environment = local_start(self._settings, own | self._notices.environment())
        if self._placement is not None and (of_host := self._placement.capacity(worker)):
            environment |= {CAPACITY: of_host}
        running = (name for name, child in self._workers.items() if child.status is None)
        gpu = gpu_variables(environment, [self._gpus[name] for name in running if name in self._gpus])
        self._gpus[worker] = gpu.get(VISIBLE, "")
        return command, environment | gpu

    def _worker_figures(self, workers: Collection[str]) -> Mapping[str, ring_pb2.WorkerFigures]:
        """Ask the master for the figures of these workers; called by threads of the metrics' port."""
        if not self._job.name:  # the master may not have been started yet
            return {}
        with MasterClient(self._address, timeout_seconds=ASK_SECONDS) as client:
            return client.worker_figures(self._settings.job, workers)

    def _view_of(self, job: job_pb2.Job) -> JobView:
        """Convert a job for the policy; reads the job's events to learn why it is suspended."""
        undecided = False
        if job.phase == job_pb2.JOB_PHASE_SUSPENDED and job.settings.sentinel_steps:
            try:
                with MasterClient(self._address, timeout_seconds=ASK_SECONDS) as client:
                    undecided = is_undecided(client.events(self._settings.job))
            except ElastaneError as error:
                self._output.say(f"cannot find out why the job is suspended: {error.args[0]}", "warning")
        return job_view(job, undecided=undecided)

    def _worker_exited(self, now: float, worker: str, status: ExitStatus) -> list[Action]:
        counts = self._metrics.counts
        if self._placement is not None:
            status = self._placement.status(worker, status)
        counts.exited(status.returncode, (EXIT_DRAINED, EXIT_RECLAIMED, EXIT_START_ANEW))
        expected = worker in self._killed or status.returncode in _EXPECTED
        self._killed.discard(worker)
        self._lines.exited(worker, status, expected=expected)
        if self._placement is not None and (fault := self._placement.ended(now, worker, status)):
            counts.spot_notices += fault.first_notice
            places = self._placement.wanted(now)
            return self._policy.host_failed(now, worker, fault.text, fault.event, places)
        if status.returncode not in (EXIT_DRAINED, EXIT_REFUSED):
            return self._policy.worker_exited(now, worker, status)
        # Ask whether it was told to leave, or its job has failed: the watch may lag behind its exit.
        actions: list[Action] = []
        asked, barred = False, None
        try:
            with MasterClient(self._address, timeout_seconds=ASK_SECONDS) as client:
                self._job = client.get_job(self._settings.job)
                events = list(client.events(self._settings.job))
                asked = sent_away(worker, events)
                barred = barred_seconds(worker, events, time.time())
            actions = self._policy.job_changed(now, self._view_of(self._job))
        except ElastaneError as error:
            actions = [act.Say(f"cannot find out why {worker} left: {error.args[0]}", "warning")]
        if barred and self._placement is not None and status.returncode == EXIT_DRAINED:
            fault = self._placement.barred(now, worker, barred)
            places = self._placement.wanted(now)
            return [*actions, *self._policy.host_failed(now, worker, fault.text, fault.event, places)]
        exited = self._policy.worker_exited(now, worker, status, asked_to_leave=asked, barred_seconds=barred)
        return [*actions, *exited]

    # ------------------------------------------------------------------ the embedded master

    def _is_restart_due(self, now: float) -> bool:
        due = self._embedded.restart_due if self._embedded is not None else None
        return due is not None and now >= due

    def _master_died(self, now: float, what: str) -> list[Action]:
        assert self._embedded is not None
        decision = self._embedded.died(now)
        if not decision.allowed:
            return self._fatal(now, CODE_FAILED, f"{what}; {decision.reason}")
        return [act.Say(f"{what}; {decision.reason}", "warning", "master_died")]

    def _restart_master(self) -> list[Action]:
        assert self._embedded is not None
        self._metrics.counts.master_restarts += 1
        try:
            self._embedded.restart()
        except MasterStartError as error:
            return self._master_died(time.monotonic(), str(error))
        return [act.Say(f"embedded master restarted at {self._address}", event="master_restarted")]

    # ------------------------------------------------------------------ the end

    def _close(self) -> None:
        for feed in (self._discovery, self._prices):
            if feed is not None:
                feed.stop()
        self._notices.stop()
        # Kill all before waiting for any, so that they end at the same time.
        for child in self._workers.values():
            child.kill_group()
        for child in self._workers.values():
            child.wait()
        self._warm.close()
        self._ps.close()
        if self._relay is not None:
            self._relay.stop()
        self._lines.close()
        self._say_what_was_kept()
        if self._watch_client is not None:
            self._watch_client.close()
        embedded = self._embedded
        if embedded is not None:
            if self._code == CODE_OK and embedded.running:
                self._linger()
            embedded.stop()
        self._metrics.close()
        if embedded is not None:
            embedded.dispose_of_state(self._job, self._code, said=self._said_of_what_was_kept)

    def _say_what_was_kept(self) -> None:
        """After a stop signal, report which part of the training is saved (see `farewell`)."""
        if self._code is None or self._code <= _SIGNALLED or not self._job.name:
            return
        with (
            contextlib.suppress(ElastaneError),  # unreachable: report the job as last seen
            MasterClient(self._address, timeout_seconds=ASK_SECONDS) as client,
        ):
            self._job = client.get_job(self._settings.job)
        temporary_dir = self._embedded.temporary_dir if self._embedded is not None else None
        state_dir = str(temporary_dir or "")
        if text := what_was_kept(self._job, state_dir=state_dir, has_slots=self._settings.ps > 0):
            self._said_of_what_was_kept = text
            self._output.say(text, "warning", event="what_was_kept", saved_step=self._job.saved_step)

    def _linger(self) -> None:
        """Keep the embedded master up for `_LINGER_SECONDS`, or until a signal arrives."""
        deadline = time.monotonic() + _LINGER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if isinstance(self._events.get(timeout=left), Signalled):
                    return

    def _stop_signal(self, number: int, frame: FrameType | None) -> None:
        # During the start the main thread may block in the client, where it would not see an event.
        if self._starting:
            raise _StoppedEarlyError(number)
        self._events.put(Signalled(number))

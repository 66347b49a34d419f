"""The samples of one scrape, read from the states of the jobs and from the counters. Pure.

A job's current figures are computed from its state only when a scrape asks for them, so they cost nothing
between scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from elastane_common.observe.metric import Metric
from elastane_master.decisions import pipeline_view, quarantine, stragglers
from elastane_master.decisions.amounts import NANOS
from elastane_master.decisions.cost import CostView
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.run import OVER as RUNS_OVER
from elastane_master.decisions.runs.run import RunState
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.views import service_view
from elastane_master.decisions.state import OVER, Phase
from elastane_master.decisions.views import WorkerPlace, job_view
from elastane_master.metrics import catalogue as known
from elastane_master.metrics.counters import JobCounters, RunCounters
from elastane_master.metrics.measures import Distribution, Histogram, MasterMeasures, SlotMeasures
from elastane_proto.history.fold import CAUSES
from elastane_shards.progress import Progress
from elastane_slots.pushes import Verdict

MICROS = 1_000_000

OVER_SECONDS = 3600.0
"""A finished job is included in scrapes for this long; otherwise scrapes would grow with the store."""

PHASES: tuple[str, ...] = get_args(Phase)
HELD = ("damaged", "too_new")
"""Phases of held jobs, which a master has but does not serve."""

STAGES: tuple[str, ...] = tuple(Stage)
PLACES: tuple[str, ...] = get_args(WorkerPlace)
VERDICTS = tuple(verdict.value for verdict in Verdict)
PS_STATES = ("serving", "draining", "lost", "awaited")
RUN_STATES: tuple[str, ...] = get_args(RunState)
RUNNER_STATES = ("attending", "paused", "silent", "lost")


class Samples:
    """The samples of a scrape: for each metric, pairs of label values and figure."""

    def __init__(self) -> None:
        self.by_metric: dict[Metric, list[tuple[tuple[str, ...], float | Distribution]]] = {}

    def add(self, metric: Metric, value: float | Histogram | Distribution, *labels: str) -> None:
        """Add a sample. labels: values in the order of the metric's label names."""
        assert len(labels) == len(metric.labels), metric.name
        figure = value.distribution() if isinstance(value, Histogram) else value
        self.by_metric.setdefault(metric, []).append((labels, figure))

    def choose(self, metric: Metric, chosen: str, values: Iterable[str], *labels: str) -> None:
        """Add a metric whose last label is a state: 1 for the `chosen` value and 0 for all others."""
        for value in values:
            self.add(metric, float(value == chosen), *labels, value)

    def count(
        self, metric: Metric, counts: Mapping[str, int], *labels: str, values: Iterable[str] = ()
    ) -> None:
        """Add the count of each key as the last label, and 0 for those of `values` without a count."""
        for value in sorted({*counts, *values}):
            self.add(metric, counts.get(value, 0), *labels, value)


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """Facts about the master, read for a scrape.

    phases: of all served jobs, and one of HELD for each held job. gate_refusals: by reason.
    """

    version: str
    protocol: str
    python: str
    leads: bool
    store_reachable: bool
    fencing_token: int
    phases: tuple[str, ...] = ()
    gate_refusals: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts about a job besides its state.

    log_bytes: written since the last snapshot. slots: of its parameter servers.
    """

    lease_waiters: int = 0
    sessions: int = 0
    watchers: int = 0
    pending_appends: int = 0
    log_bytes: int = 0
    snapshot_bytes: int = 0
    slots: SlotMeasures = field(default_factory=SlotMeasures)


def add_master(samples: Samples, facts: MasterFacts, measures: MasterMeasures) -> None:
    """Add the samples of the master itself."""
    add = samples.add
    add(known.BUILD_INFO, 1, facts.version, facts.protocol, facts.python)
    add(known.LEADER, float(facts.leads))
    add(known.FENCING_TOKEN, facts.fencing_token)
    add(known.TAKEOVERS, measures.takeovers)
    add(known.TAKEOVER_SECONDS, measures.takeover_seconds)
    for phase in (*PHASES, *HELD):
        add(known.JOBS, facts.phases.count(phase), phase)
    for method in measures.rpcs.unary.values():
        for code, histogram in method.by_code.items():
            add(known.RPC_SECONDS, histogram, method.name, code)
    for stream in measures.rpcs.streams.values():
        add(known.STREAMS_OPEN, stream.open, stream.name)
        for code, histogram in stream.by_code.items():
            add(known.STREAMS, histogram.count, stream.name, code)
    samples.count(known.REFUSALS, measures.rpcs.refusals + facts.gate_refusals)
    _add_store(samples, facts, measures)
    for (route, status), count in sorted(measures.http.requests.items()):
        add(known.HTTP_REQUESTS, count, route, str(status))
    add(known.HTTP_CONNECTIONS, measures.http.connections)
    add(known.HTTP_REFUSED, measures.http.refused)


def _add_store(samples: Samples, facts: MasterFacts, measures: MasterMeasures) -> None:
    store = measures.store
    samples.add(known.STORE_UP, float(facts.store_reachable))
    samples.add(known.STORE_OUTAGES, store.outages)
    samples.add(known.STORE_APPEND_SECONDS, store.append_seconds)
    samples.add(known.STORE_BATCH_RECORDS, store.batch_records)
    samples.add(known.STORE_WRITTEN, store.bytes_written)
    samples.add(known.STORE_SNAPSHOT_SECONDS, store.snapshot_seconds)


def add_closed(samples: Samples, job: str, phase: Phase, ended_at: float, now: float) -> None:
    """Add the final phase of a closed job, for `OVER_SECONDS` after its end as for other finished jobs."""
    if now - ended_at < OVER_SECONDS:
        samples.choose(known.PHASE, phase, PHASES, job)


def is_shown(machine: JobMachine, now: float) -> bool:
    """Return True if a job is included at time `now`: until `OVER_SECONDS` after its end."""
    state = machine.state
    return state.phase not in OVER or now - state.decided_at < OVER_SECONDS


def add_job(
    samples: Samples, machine: JobMachine, facts: JobFacts, counters: JobCounters, now: float
) -> None:
    """Add the samples of one job. now: on the clock of its decisions."""
    state, job, add = machine.state, machine.state.name, samples.add
    view = job_view(machine, now)
    samples.choose(known.PHASE, state.phase, PHASES, job)
    samples.choose(known.RING_STAGE, state.ring.stage, STAGES, job)
    add(known.CREATED, state.created_at, job)
    add(known.ESTS, state.settings.ests, job)
    add(known.WORKERS_MIN, state.settings.workers_min, job)
    add(known.WORKERS_MAX, state.settings.workers_max or state.settings.ests, job)
    if view.scaling is not None:
        add(known.WORKERS_TARGET, view.scaling.workers_target, job)
        add(known.ON_DEMAND_TARGET, view.scaling.on_demand_target, job)
        if view.scaling.predicted_finish_at is not None:
            add(known.PREDICTED_FINISH, view.scaling.predicted_finish_at, job)
    if view.pipeline is not None:
        stages = view.pipeline.stages
        add(known.STAGES, len(stages), job)
        alone = pipeline_view.held_once(stages)
        add(known.UNITS_ALONE, sum(stage.end_unit - stage.first_unit for stage in alone), job)
        if view.pipeline.step_seconds:
            add(known.STAGE_STEP_SECONDS, view.pipeline.step_seconds, job)
            add(known.STAGE_BUBBLE, view.pipeline.bubble, job)
    places: Counter[str] = Counter(worker.place for worker in view.workers)
    samples.count(known.WORKERS, places, job, values=PLACES)
    add(known.WORKERS_HELD, len(quarantine.held(state)), job)
    slow = [record for record in state.active_members() if record.straggler]
    causes = Counter(record.straggler for record in slow)
    samples.count(known.STRAGGLERS, causes, job, values=stragglers.CAUSES)
    add(known.STRAGGLER_RATIO, min((record.rate_ratio for record in slow), default=1.0), job)
    barred = sum(stragglers.barred_until(state, host, now) is not None for host in state.stragglers.barred)
    add(known.HOSTS_BARRED, barred, job)
    add(known.GENERATION, view.generation, job)
    add(known.STEP, view.step, job)
    add(known.STEPS, state.total_steps, job)
    add(known.EPOCH, view.epoch, job)
    if view.saved_step >= 0:
        add(known.SAVED_STEP, view.saved_step, job)
    if state.checkpoints.saved:
        add(known.SAVED_AT, state.checkpoints.saved[-1].saved_at, job)
    _add_queues(samples, machine, now)
    _add_slots(samples, machine, facts)
    add(known.LEASE_WAITERS, facts.lease_waiters, job)
    add(known.SESSIONS, facts.sessions, job)
    add(known.WATCHERS, facts.watchers, job)
    add(known.CONTEXT_BYTES, state.contexts.bytes(), job)
    add(known.LOG_BYTES, facts.log_bytes, job)
    add(known.PENDING, facts.pending_appends, job)
    add(known.SNAPSHOT_BYTES, facts.snapshot_bytes, job)
    _add_cost(samples, job, view.cost, now)
    _add_counters(samples, job, counters)


def add_runs(samples: Samples, machine: RunsMachine, counters: RunCounters, now: float) -> None:
    """Add the samples of the training service. now: on the clock of its decisions."""
    state, view = machine.state, service_view(machine, now)
    samples.count(known.RUNS, Counter(run.state for run in state.runs.values()), values=RUN_STATES)
    samples.add(known.RUN_QUEUE_AGE, view.oldest_wait_seconds)
    samples.add(known.RUN_SLOTS, view.slots)
    samples.add(known.RUN_SLOTS_USED, view.slots_used)
    samples.count(known.RUNNERS, Counter(map(_runner_state, state.runners.values())), values=RUNNER_STATES)
    samples.add(known.LAUNCHES_FAILED, counters.launches_failed)
    samples.count(known.RUNS_ENDED, counters.ended, values=RUNS_OVER)
    samples.count(known.SCHEDULING, counters.scheduling, values=("decided", "failed"))
    samples.add(known.SCHEDULING_SECONDS, counters.scheduling_seconds)
    samples.add(known.RUN_RHO, counters.rho)


def _runner_state(runner: Runner) -> str:
    if runner.lost:
        return "lost"
    if not runner.attends:
        return "silent"
    return "paused" if runner.leaving or runner.paused_until is not None else "attending"


def _add_cost(samples: Samples, job: str, cost: CostView, now: float) -> None:
    add, currency = samples.add, cost.currency
    for use, nanos in (
        ("useful", cost.useful_nanos),
        ("replayed", cost.replayed_nanos),
        ("idle", cost.idle_nanos),
    ):
        add(known.WORKER_TIME, nanos / NANOS, job, use)
    add(known.CAPACITY_TIME, cost.spot_worker_nanos / NANOS, job, "spot")
    add(known.CAPACITY_TIME, cost.on_demand_worker_nanos / NANOS, job, "on_demand")
    add(known.UNPRICED_TIME, cost.unpriced_nanos / NANOS, job)
    for kind, micros in (
        ("spent", cost.spent_micros),
        ("replayed", cost.replayed_micros),
        ("idle", cost.idle_micros),
        ("on_demand", cost.on_demand_micros),
    ):
        add(known.COST, micros / MICROS, job, currency, kind)
    add(known.SAVED, cost.saved_micros / MICROS, job, currency)
    if cost.savings is not None:
        add(known.SAVINGS, cost.savings, job)
    add(known.PRICE, cost.spot_price_micros / MICROS, job, currency, "spot")
    add(known.PRICE, cost.on_demand_price_micros / MICROS, job, currency, "on_demand")
    for device in cost.devices:
        name = device.device_type
        add(known.DEVICE_COST, device.spent_micros / MICROS, job, currency, name)
        add(known.DEVICE_PRICE, device.spot_price_micros / MICROS, job, currency, name, "spot")
        add(known.DEVICE_PRICE, device.on_demand_price_micros / MICROS, job, currency, name, "on_demand")
    add(known.PRICES_STALE, cost.is_stale(now), job)


def _add_slots(samples: Samples, machine: JobMachine, facts: JobFacts) -> None:
    """Add the samples of a model at parameter servers, if the job has one."""
    job, book = machine.state.name, machine.state.slots
    if book.map is None:
        return
    places = book.map.places
    served = sum(place.served for place in places)
    samples.add(known.SLOTS_SERVED, served, job)
    samples.add(known.SLOTS_WAITING, len(places) - served, job)
    samples.add(known.SLOTS_ALONE, sum(not place.backup for place in places), job)
    states = Counter(record.state for record in book.processes.values())
    samples.count(known.SLOT_PROCESSES, states, job, values=PS_STATES)
    gate = book.gate
    samples.add(known.SLOT_TASKS, len(gate.outstanding), job, "leased")
    samples.add(known.SLOT_TASKS, len(gate.returned), job, "returned")
    samples.add(known.SLOT_TASKS, len(gate.closing), job, "closing")
    samples.add(known.SLOT_STALENESS_WORST, gate.worst(), job)
    if gate.limit is not None:
        samples.add(known.SLOT_STALENESS_LIMIT, gate.limit, job)
    measured = facts.slots
    samples.add(known.SLOT_STALENESS, measured.staleness(), job)
    samples.count(known.SLOT_PUSHES, measured.verdicts, job, values=VERDICTS)
    samples.add(known.SLOT_NON_FINITE, measured.non_finite, job)
    samples.add(known.SLOT_ROWS, measured.rows, job)
    samples.add(known.SLOT_BYTES, measured.weight_bytes, job, "weights")
    samples.add(known.SLOT_BYTES, measured.optimizer_bytes, job, "optimizer")
    samples.add(known.SLOTS_HOT, measured.hot, job)
    samples.add(known.SLOT_UNSAVED, measured.unsaved, job)
    reopened = sum(queue.reopened for queue in machine.queues.dynamic.values())
    samples.add(known.SLOT_REOPENED, reopened, job)


def _add_queues(samples: Samples, machine: JobMachine, now: float) -> None:
    """Add the training's progress, and that of all dynamic datasets together.

    The names of dynamic datasets are no label because their number is unbounded.
    """
    job, queues = machine.state.name, machine.queues
    if queues.lockstep is not None:
        progress = queues.lockstep.progress(now)
        _add_progress(samples, job, "lockstep", [progress])
        if progress.eta_seconds is not None:
            samples.add(known.ETA, progress.eta_seconds, job)
    if queues.dynamic:
        _add_progress(samples, job, "dynamic", [queue.progress(now) for queue in queues.dynamic.values()])


def _add_progress(samples: Samples, job: str, queue: str, progress: list[Progress]) -> None:
    def add(metric: Metric, values: Iterable[float], *labels: str) -> None:
        samples.add(metric, sum(values), job, queue, *labels)

    add(known.TASKS, (one.todo for one in progress), "todo")
    add(known.TASKS, (one.doing for one in progress), "doing")
    add(known.TASKS, (one.done for one in progress), "done")
    add(known.TASKS, (one.failed + one.failed_before for one in progress), "failed")
    add(known.RATE, (one.samples_per_second for one in progress))
    add(known.SAMPLES, (one.samples_done for one in progress))
    add(known.REQUEUED, (one.requeued for one in progress))
    add(known.TIMED_OUT, (one.timed_out for one in progress))


def _add_counters(samples: Samples, job: str, counters: JobCounters) -> None:
    add = samples.add
    add(known.COMMITTED, counters.steps_committed, job)
    add(known.REPLAYED, counters.steps_replayed, job)
    add(known.STEP_SECONDS, counters.step_seconds, job)
    add(known.COMMIT_SECONDS, counters.commit_seconds, job)
    samples.count(known.RING_CHANGES, counters.ring_changes, job, values=CAUSES)
    samples.count(known.LOSSES, counters.losses, job, values=("death", "eviction"))
    samples.count(known.DRAINS, counters.drains, job, values=("operator", "signal", "reclaim", "straggler"))
    add(known.RECLAIMS, counters.drains["reclaim"], job)
    samples.count(known.CHECKPOINTS, counters.checkpoints, job, values=("saved", "repeated", "failed"))
    add(known.CHECKPOINT_SECONDS, counters.checkpoint_seconds, job)
    add(known.CHECKPOINT_BYTES, counters.checkpoint_bytes, job)
    samples.count(known.EVENTS, counters.events, job)

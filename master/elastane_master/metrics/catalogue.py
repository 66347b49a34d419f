"""Catalogue of a master's metrics: name, kind, help and labels. docs/metrics.md is generated from it.

Names follow Prometheus' conventions: a prefix, base units last, `_total` for counters. Every label is
bounded: jobs by ELASTANE_JOBS_MAX and by what a token may see, all others are fixed sets. The label for a job
is `job_name`, because Prometheus itself uses `job` for the scrape target. Pure data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. name: as scraped, a counter's with `_total`. help: one sentence for users."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_all: list[Metric] = []


def _add(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    metric = Metric(f"elastane_{name}", kind, text, labels)
    _all.append(metric)
    return metric


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return _add("gauge", name, text, *labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return _add("counter", f"{name}_total", text, *labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return _add("histogram", name, text, *labels)


# ------------------------------------------------------------------ the master itself

BUILD_INFO = _gauge("build_info", "1; the labels say what runs.", "version", "protocol", "python")
LEADER = _gauge("master_leader", "1 while this master leads its store and serves the jobs, else 0.")
FENCING_TOKEN = _gauge(
    "master_fencing_token", "Token of the leader's lease as this master held it last; 0: never, or no lease."
)
TAKEOVERS = _counter("master_takeovers", "How often this master took the jobs of its store over.")
TAKEOVER_SECONDS = _gauge("master_takeover_seconds", "How long the last takeover of all jobs took.")
JOBS = _gauge("master_jobs", "Jobs that this master serves, by phase.", "phase")

RPC_SECONDS = _histogram(
    "rpc_duration_seconds",
    "Time to serve a unary call, by gRPC status; LeaseTasks waits where there is nothing to lease.",
    "method",
    "code",
)
STREAMS_OPEN = _gauge("rpc_streams_open", "Streams being served.", "method")
STREAMS = _counter("rpc_streams_ended", "Streams that ended, by gRPC status.", "method", "code")
REFUSALS = _counter(
    "rpc_refusals",
    "Calls and messages refused, by the reason of their ErrorDetail; those of tokens and rights included.",
    "reason",
)

STORE_UP = _gauge("store_up", "1 while the store answers the writes of every job, else 0.")
STORE_OUTAGES = _counter("store_outages", "How often the store stopped to answer the writes of a job.")
STORE_APPEND_SECONDS = _histogram(
    "store_append_seconds",
    "Time from sending a write until the store has it; with fsync always until it is on its disk.",
)
STORE_BATCH_RECORDS = _histogram("store_batch_records", "Records that went into one write.")
STORE_WRITTEN = _counter(
    "store_written_bytes", "Bytes of records and snapshots that the store has acknowledged."
)
STORE_SNAPSHOT_SECONDS = _histogram(
    "store_snapshot_seconds", "Time to encode a snapshot; the master stands still for it."
)

HTTP_REQUESTS = _counter("http_requests", "Requests at the HTTP port.", "route", "code")
HTTP_CONNECTIONS = _gauge("http_connections", "Connections open at the HTTP port.")
HTTP_REFUSED = _counter(
    "http_connections_refused",
    "Connections ended because there were too many, or because they were too slow.",
)

# ------------------------------------------------------------------ a job: where it stands

PHASE = _gauge("job_phase", "1 for the phase the job is in, 0 for the others.", "job_name", "phase")
RING_STAGE = _gauge("job_ring_stage", "1 for the stage of the ring, 0 for the others.", "job_name", "stage")
CREATED = _gauge("job_created_timestamp_seconds", "When the job was created, Unix time.", "job_name")
ESTS = _gauge("job_ests", "Logical workers (ESTs) of the job.", "job_name")
WORKERS_MIN = _gauge("job_workers_min", "Fewest workers that train, as scaled.", "job_name")
WORKERS_MAX = _gauge("job_workers_max", "Most workers that train, as scaled.", "job_name")
WORKERS = _gauge("job_workers", "Workers that attend, by what they are.", "job_name", "state")
WORKERS_HELD = _gauge(
    "job_workers_quarantined", "Workers that stand by because they died too often.", "job_name"
)
GENERATION = _gauge("job_generation", "Generation of the ring: grows by one with each change.", "job_name")
STEP = _gauge(
    "job_step", "Next step to commit; goes back when history goes on from a checkpoint.", "job_name"
)
STEPS = _gauge(
    "job_planned_steps", "Steps of the whole training; 0 while the script has not said it.", "job_name"
)
EPOCH = _gauge("job_epoch", "Epoch of the next step to commit, from 0.", "job_name")
SAVED_STEP = _gauge(
    "job_saved_step", "Step that the newest checkpoint goes on from; absent without one.", "job_name"
)
SAVED_AT = _gauge(
    "job_last_checkpoint_timestamp_seconds", "When the newest checkpoint was saved, Unix time.", "job_name"
)
CHECKPOINT_BYTES = _gauge("job_checkpoint_bytes", "Size of the last checkpoint that was saved.", "job_name")
TASKS = _gauge(
    "job_tasks",
    "Tasks of the current epoch by state; a task in doing is a lease. queue: lockstep is the training, "
    "dynamic are all other datasets together.",
    "job_name",
    "queue",
    "state",
)
SAMPLES = _gauge("job_samples_done", "Samples done; less when history goes back.", "job_name", "queue")
RATE = _gauge("job_samples_per_second", "Samples done per second over the last 30 s.", "job_name", "queue")
ETA = _gauge(
    "job_eta_seconds", "Until the training is through at the present rate; absent if not known.", "job_name"
)
LEASE_WAITERS = _gauge("job_lease_waiters", "Calls that wait for a task to lease.", "job_name")
SESSIONS = _gauge("job_sessions", "Streams of workers that attend.", "job_name")
WATCHERS = _gauge("job_watchers", "Watches of the job.", "job_name")
CONTEXT_BYTES = _gauge("job_contexts_bytes", "Size of the EST contexts that are kept.", "job_name")
LOG_BYTES = _gauge("job_log_bytes", "Records written since the last snapshot.", "job_name")
PENDING = _gauge("job_pending_appends", "Decisions that are not durable yet.", "job_name")
SNAPSHOT_BYTES = _gauge("job_snapshot_bytes", "Size of the last snapshot.", "job_name")

# ------------------------------------------------------------------ a job: what it costs

WORKER_TIME = _gauge(
    "job_worker_seconds",
    "Time of all workers by use; what a step took moves from useful to replayed when it is done again.",
    "job_name",
    "use",
)
CAPACITY_TIME = _gauge("job_capacity_seconds", "The same time by what was paid for.", "job_name", "capacity")
UNPRICED_TIME = _gauge("job_unpriced_seconds", "Of this time, without a known price.", "job_name")
COST = _gauge(
    "job_cost_units",
    "Units of the currency: spent in all, of that for replayed and idle time; on_demand is the price of the "
    "useful time there.",
    "job_name",
    "currency",
    "kind",
)
SAVED = _gauge(
    "job_saved_units", "On-demand price of the useful time less what was spent.", "job_name", "currency"
)
SAVINGS = _gauge(
    "job_savings_ratio", "That as a share of the on-demand price; absent while no price is known.", "job_name"
)
PRICE = _gauge(
    "job_price_units",
    "Price of a worker for an hour now; 0: unknown.",
    "job_name",
    "currency",
    "capacity",
)

# ------------------------------------------------------------------ a job: what came to pass

REQUEUED = _counter("job_tasks_requeued", "Tasks that went back to TODO.", "job_name", "queue")
TIMED_OUT = _counter("job_tasks_timed_out", "Tasks whose lease ran out.", "job_name", "queue")
COMMITTED = _counter("job_steps_committed", "Steps committed.", "job_name")
REPLAYED = _counter(
    "job_steps_replayed", "Steps that were begun and done again after a change of the ring.", "job_name"
)
STEP_SECONDS = _histogram("job_step_seconds", "Time from one commit to the next within a ring.", "job_name")
COMMIT_SECONDS = _histogram(
    "job_commit_seconds", "Time from a step's first report until every member has applied it.", "job_name"
)
RING_CHANGES = _counter(
    "job_ring_changes", "Rings that were decided, by what caused them.", "job_name", "cause"
)
LOSSES = _counter("job_workers_lost", "Workers that died or were put out.", "job_name", "cause")
DRAINS = _counter(
    "job_drains", "Workers asked to leave: by an operator, a signal, or a node's end.", "job_name", "cause"
)
RECLAIMS = _counter("job_spot_notices", "Workers that were told that their node goes.", "job_name")
CHECKPOINTS = _counter(
    "job_checkpoints",
    "Checkpoints by outcome; repeated: a change of the ring ended it, it is asked for again.",
    "job_name",
    "outcome",
)
CHECKPOINT_SECONDS = _histogram(
    "job_checkpoint_seconds", "Time from asking for a checkpoint to its manifest.", "job_name"
)
EVENTS = _counter(
    "job_events",
    "Decisions told to people, by kind; `elastane events` has them in words.",
    "job_name",
    "kind",
)

METRICS: tuple[Metric, ...] = tuple(_all)

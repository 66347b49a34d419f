"""Catalogue of a master's metrics: name, kind, help and labels. docs/metrics.md is generated from it.

Names follow Prometheus' conventions: a prefix, base units last, `_total` for counters. Every label is
bounded: jobs by ELASTANE_JOBS_MAX and by what a token may see, all others are fixed sets. The label for a job
is `job_name`, because Prometheus itself uses `job` for the scrape target. Pure data.
"""

from __future__ import annotations

from functools import partial

from elastane_common.observe.metric import Kind, Metric

_all: list[Metric] = []


def _add(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    total = "_total" if kind == "counter" else ""
    metric = Metric(f"elastane_{name}{total}", kind, text, labels)
    _all.append(metric)
    return metric


_gauge, _counter, _histogram = partial(_add, "gauge"), partial(_add, "counter"), partial(_add, "histogram")


# ------------------------------------------------------------------ the master itself

BUILD_INFO = _gauge(
    "build_info", "Always 1; the labels hold the versions in use.", "version", "protocol", "python"
)
LEADER = _gauge("master_leader", "1 while this master leads its store and serves the jobs, else 0.")
FENCING_TOKEN = _gauge(
    "master_fencing_token",
    "Fencing token of the last leader lease that this master held; 0: none yet, or no lease is used.",
)
TAKEOVERS = _counter("master_takeovers", "Number of times that this master took over the jobs of its store.")
TAKEOVER_SECONDS = _gauge("master_takeover_seconds", "Duration of the last takeover of all jobs.")
JOBS = _gauge("master_jobs", "Jobs that this master serves, by phase.", "phase")

RPC_SECONDS = _histogram(
    "rpc_duration_seconds",
    "Time to serve a unary call, by gRPC status; LeaseTasks waits if there is nothing to lease.",
    "method",
    "code",
)
STREAMS_OPEN = _gauge("rpc_streams_open", "Number of open streams.", "method")
STREAMS = _counter("rpc_streams_ended", "Streams that ended, by gRPC status.", "method", "code")
REFUSALS = _counter(
    "rpc_refusals",
    "Calls and messages refused, by the reason in their ErrorDetail, including refused tokens and missing "
    "rights.",
    "reason",
)

STORE_UP = _gauge("store_up", "1 while the store answers the writes of every job, else 0.")
STORE_OUTAGES = _counter(
    "store_outages", "Number of times that the store stopped answering the writes of a job."
)
STORE_APPEND_SECONDS = _histogram(
    "store_append_seconds",
    "Time from sending a write until the store acknowledges it; with appendfsync always, until it is on "
    "disk.",
)
STORE_BATCH_RECORDS = _histogram("store_batch_records", "Number of records in one write.")
STORE_WRITTEN = _counter(
    "store_written_bytes", "Bytes of records and snapshots that the store has acknowledged."
)
STORE_SNAPSHOT_SECONDS = _histogram(
    "store_snapshot_seconds", "Time to encode a snapshot, during which the master serves nothing else."
)

HTTP_REQUESTS = _counter("http_requests", "Requests to the HTTP port.", "route", "code")
HTTP_CONNECTIONS = _gauge("http_connections", "Open connections to the HTTP port.")
HTTP_REFUSED = _counter(
    "http_connections_refused",
    "HTTP connections closed because there were too many, or because they were too slow.",
)

# ------------------------------------------------------------------ the training service

RUNS = _gauge(
    "runs", "Runs of the training service, by state; those that were deleted are not counted.", "state"
)
RUN_QUEUE_AGE = _gauge(
    "run_queue_age_seconds", "How long the run that has waited longest for slots has waited; 0: none waits."
)
RUNS_ENDED = _counter("runs_ended", "Runs that ended, by their final state.", "state")
RUN_SLOTS = _gauge("run_slots", "Slots of the runners that are connected.")
RUN_SLOTS_USED = _gauge("run_slots_used", "Slots of the connected runners that runs take.")
RUNNERS = _gauge(
    "runners",
    "Runners by state; paused: it gets no new ranks; silent: disconnected; lost: its lease has ended, too.",
    "state",
)
LAUNCHES_FAILED = _counter(
    "run_launches_failed",
    "Launches of runs that a runner could not carry out, or did not start or stop in time.",
)

SCHEDULING = _counter(
    "scheduling_decisions",
    "Decisions of the scheduling policy; failed: it raised an error or took too long, and runs are ordered "
    "by fair share until it decides.",
    "outcome",
)
SCHEDULING_SECONDS = _gauge(
    "scheduling_decision_seconds", "Time that the last decision of the scheduling policy took."
)
RUN_RHO = _histogram(
    "run_rho_ratio",
    "Time from queue to end of an elastic run under a scheduling policy, over that of an even share of the "
    "slots, 60 s at least; of runs that succeeded.",
)

# ------------------------------------------------------------------ a job: where it stands

PHASE = _gauge("job_phase", "1 for the current phase of the job, 0 for the others.", "job_name", "phase")
RING_STAGE = _gauge(
    "job_ring_stage", "1 for the current stage of the ring, 0 for the others.", "job_name", "stage"
)
CREATED = _gauge("job_created_timestamp_seconds", "Unix time at which the job was created.", "job_name")
ESTS = _gauge("job_ests", "Logical workers (ESTs) of the job.", "job_name")
WORKERS_MIN = _gauge("job_workers_min", "Current minimum number of workers.", "job_name")
WORKERS_MAX = _gauge("job_workers_max", "Current maximum number of workers.", "job_name")
WORKERS_TARGET = _gauge(
    "job_workers_target",
    "Workers that a job that scales by itself asks for; absent for other jobs.",
    "job_name",
)
ON_DEMAND_TARGET = _gauge(
    "job_on_demand_workers_target", "How many of the workers asked for should be on demand.", "job_name"
)
PREDICTED_FINISH = _gauge(
    "job_predicted_finish_timestamp_seconds",
    "Predicted Unix time of the end of a job that scales by itself; absent if unknown.",
    "job_name",
)
STAGES = _gauge(
    "job_pipeline_stages", "Stages of a pipeline; absent for jobs whose model is not cut.", "job_name"
)
STAGE_BUBBLE = _gauge(
    "job_pipeline_bubble_ratio",
    "Part of a step in which the workers of a pipeline wait for blocks of others, as predicted; absent if "
    "unknown.",
    "job_name",
)
STAGE_STEP_SECONDS = _gauge(
    "job_pipeline_step_seconds", "Time of a pipeline's step, as predicted; absent if unknown.", "job_name"
)
UNITS_ALONE = _gauge(
    "job_pipeline_units_unshared",
    "Units of a pipeline that one worker alone holds: its death sends the job back to a checkpoint.",
    "job_name",
)
WORKERS = _gauge("job_workers", "Connected workers by state.", "job_name", "state")
WORKERS_HELD = _gauge(
    "job_workers_quarantined",
    "Workers in quarantine: they stand by because they died too often, or slow workers on their host were "
    "replaced.",
    "job_name",
)
STRAGGLERS = _gauge(
    "job_stragglers",
    "Workers of the ring that are slower than others of their device type, by cause.",
    "job_name",
    "cause",
)
STRAGGLER_RATIO = _gauge(
    "job_straggler_rate_ratio",
    "Rate of the slowest straggler of the ring over that of others of its device type; 1: no straggler.",
    "job_name",
)
HOSTS_BARRED = _gauge(
    "job_hosts_barred", "Hosts that get no worker because stragglers on them were replaced.", "job_name"
)
GENERATION = _gauge(
    "job_generation", "Generation of the ring; it grows by one with each change of the ring.", "job_name"
)
STEP = _gauge(
    "job_step", "Next step to commit; it goes back when training continues from a checkpoint.", "job_name"
)
STEPS = _gauge(
    "job_planned_steps", "Total number of training steps; 0 until the script has reported it.", "job_name"
)
EPOCH = _gauge("job_epoch", "Epoch of the next step to commit, from 0.", "job_name")
SAVED_STEP = _gauge(
    "job_saved_step", "Step at which the newest checkpoint resumes; absent without a checkpoint.", "job_name"
)
SAVED_AT = _gauge(
    "job_last_checkpoint_timestamp_seconds", "Unix time at which the newest checkpoint was saved.", "job_name"
)
CHECKPOINT_BYTES = _gauge("job_checkpoint_bytes", "Size of the newest checkpoint.", "job_name")
TASKS = _gauge(
    "job_tasks",
    "Tasks of the current epoch by state; a task in doing is leased. queue: lockstep is the training, "
    "dynamic is the sum of all other datasets.",
    "job_name",
    "queue",
    "state",
)
SAMPLES = _gauge(
    "job_samples_done",
    "Samples done; it decreases when the job goes back to a checkpoint.",
    "job_name",
    "queue",
)
RATE = _gauge("job_samples_per_second", "Samples done per second over the last 30 s.", "job_name", "queue")
ETA = _gauge(
    "job_eta_seconds",
    "Estimated time until the training is complete, at the current rate; absent if unknown.",
    "job_name",
)
LEASE_WAITERS = _gauge("job_lease_waiters", "Calls waiting for a task to lease.", "job_name")
SESSIONS = _gauge("job_sessions", "Open session streams of workers.", "job_name")
WATCHERS = _gauge("job_watchers", "Open watches of the job.", "job_name")
CONTEXT_BYTES = _gauge("job_contexts_bytes", "Total size of the EST contexts kept.", "job_name")
LOG_BYTES = _gauge("job_log_bytes", "Size of the records written since the last snapshot.", "job_name")
PENDING = _gauge("job_pending_appends", "Decisions that are not yet durable.", "job_name")
SNAPSHOT_BYTES = _gauge("job_snapshot_bytes", "Size of the last snapshot.", "job_name")

# ------------------------------------------------------------------ a job: its parameter servers

SLOTS_SERVED = _gauge(
    "job_slots_served",
    "Slots of a model at parameter servers that answer pulls and pushes; absent for jobs without slots.",
    "job_name",
)
SLOTS_WAITING = _gauge(
    "job_slots_waiting", "Slots that are being restored or have no parameter server.", "job_name"
)
SLOTS_ALONE = _gauge(
    "job_slots_unbacked",
    "Slots without a backup: the death of one process undoes their last tasks.",
    "job_name",
)
SLOT_PROCESSES = _gauge("job_slots_processes", "Parameter servers by state.", "job_name", "state")
SLOT_TASKS = _gauge(
    "job_slots_tasks",
    "Tasks that may still be pushed: leased, returned by a lost worker, or failed and not closed everywhere.",
    "job_name",
    "state",
)
SLOT_STALENESS_WORST = _gauge(
    "job_slots_staleness_worst", "Highest staleness that a push can have now, in tasks.", "job_name"
)
SLOT_STALENESS_LIMIT = _gauge(
    "job_slots_staleness_limit",
    "Limit of the staleness of a push, in tasks; absent for jobs without one.",
    "job_name",
)
SLOT_STALENESS = _histogram(
    "job_slots_staleness_tasks",
    "Tasks that a slot applied between a task's pull and its push; of connected parameter servers.",
    "job_name",
)
SLOT_PUSHES = _counter(
    "job_slots_pushes",
    "Answers to pushes, one for each slot, by verdict; of the parameter servers that are connected.",
    "job_name",
    "verdict",
)
SLOT_NON_FINITE = _counter(
    "job_slots_pushes_non_finite", "Pushes that were refused for a NaN or an infinity.", "job_name"
)
SLOT_ROWS = _gauge("job_slots_rows", "Rows of embeddings that tasks have used.", "job_name")
SLOT_BYTES = _gauge(
    "job_slots_bytes",
    "Memory of slots at their owners: weights, or the optimizer's states.",
    "job_name",
    "kind",
)
SLOTS_HOT = _gauge("job_slots_hot", "Slots that have more than twice the bytes of the mean.", "job_name")
SLOT_UNSAVED = _gauge(
    "job_slots_processes_unsaved", "Parameter servers whose snapshots fail now.", "job_name"
)
SLOT_REOPENED = _counter(
    "job_slots_tasks_reopened",
    "Completed tasks that are done again, because a slot lost them.",
    "job_name",
)

# ------------------------------------------------------------------ a job: what it costs

WORKER_TIME = _gauge(
    "job_worker_seconds",
    "Total time of all workers by use; the time of a step moves from useful to replayed when the step is "
    "run again.",
    "job_name",
    "use",
)
CAPACITY_TIME = _gauge(
    "job_capacity_seconds", "Total time of all workers by billing type.", "job_name", "capacity"
)
UNPRICED_TIME = _gauge("job_unpriced_seconds", "Part of the workers' time without a known price.", "job_name")
COST = _gauge(
    "job_cost_units",
    "Units of the currency: spent in total, and of that on replayed and on idle time; on_demand is what "
    "the useful time would cost on on-demand machines.",
    "job_name",
    "currency",
    "kind",
)
SAVED = _gauge(
    "job_saved_units", "On-demand price of the useful time minus what was spent.", "job_name", "currency"
)
SAVINGS = _gauge(
    "job_savings_ratio",
    "Savings as a share of the on-demand price; absent while no price is known.",
    "job_name",
)
PRICE = _gauge(
    "job_price_units",
    "Current price of a worker per hour; 0: unknown.",
    "job_name",
    "currency",
    "capacity",
)
DEVICE_COST = _gauge(
    "job_device_cost_units",
    "Amount spent on workers of a device type; empty: type not known.",
    "job_name",
    "currency",
    "device",
)
DEVICE_PRICE = _gauge(
    "job_device_price_units",
    "Current price of a worker of a device type per hour; 0: unknown.",
    "job_name",
    "currency",
    "device",
    "capacity",
)
PRICES_STALE = _gauge(
    "job_prices_stale",
    "1 if the prices are overdue for an update and the last ones are kept, else 0.",
    "job_name",
)

# ------------------------------------------------------------------ a job: what has happened

REQUEUED = _counter("job_tasks_requeued", "Tasks that went back to TODO.", "job_name", "queue")
TIMED_OUT = _counter("job_tasks_timed_out", "Tasks whose lease expired.", "job_name", "queue")
COMMITTED = _counter("job_steps_committed", "Steps committed.", "job_name")
REPLAYED = _counter(
    "job_steps_replayed", "Steps that were started and run again after a change of the ring.", "job_name"
)
STEP_SECONDS = _histogram("job_step_seconds", "Time from one commit to the next within a ring.", "job_name")
COMMIT_SECONDS = _histogram(
    "job_commit_seconds", "Time from a step's first report until every member has applied it.", "job_name"
)
RING_CHANGES = _counter("job_ring_changes", "Changes of the ring by cause.", "job_name", "cause")
LOSSES = _counter("job_workers_lost", "Workers that died or were evicted, by cause.", "job_name", "cause")
DRAINS = _counter(
    "job_drains",
    "Workers asked to leave, by cause: an operator, a signal, the termination of a node, or another worker "
    "in a straggler's place.",
    "job_name",
    "cause",
)
RECLAIMS = _counter(
    "job_spot_notices", "Workers that received a spot-termination notice for their node.", "job_name"
)
CHECKPOINTS = _counter(
    "job_checkpoints",
    "Checkpoints by outcome; repeated: interrupted by a change of the ring and requested again.",
    "job_name",
    "outcome",
)
CHECKPOINT_SECONDS = _histogram(
    "job_checkpoint_seconds", "Time from requesting a checkpoint until its manifest is written.", "job_name"
)
EVENTS = _counter(
    "job_events",
    "Events by kind; `elastane events` shows them in words.",
    "job_name",
    "kind",
)

METRICS: tuple[Metric, ...] = tuple(_all)

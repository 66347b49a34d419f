"""Definitions of all metrics of an agent and its workers. docs/metrics.md is generated from them. Pure data.

The label `worker` is bounded by --local-workers, or by the current slots of --hosts; all other labels have
fixed sets of values.
"""

from __future__ import annotations

from elastane_common.observe.metric import Metric

AGENT_INFO = Metric(
    "elastane_agent_info",
    "gauge",
    "Always 1; the label names the job that this agent runs workers for.",
    ("job_name",),
)
RUNNING = Metric(
    "elastane_agent_workers_running", "gauge", "Running workers, on this machine and on other hosts."
)
STARTS = Metric("elastane_agent_worker_starts_total", "counter", "Worker processes started.")
RESTARTS = Metric(
    "elastane_agent_worker_restarts_total",
    "counter",
    "Worker processes started to replace one that had exited.",
)
EXITS = Metric(
    "elastane_agent_worker_exits_total", "counter", "Worker processes that exited, by outcome.", ("outcome",)
)
NOTICES = Metric(
    "elastane_agent_spot_notices_total",
    "counter",
    "Spot-termination notices received for this node or its hosts.",
)
MASTER_RESTARTS = Metric(
    "elastane_agent_master_restarts_total", "counter", "Number of restarts of the embedded master."
)

_WORKER = ("worker",)
STEP = Metric("elastane_worker_step", "gauge", "Next step that the worker applies.", _WORKER)
GENERATION = Metric(
    "elastane_worker_generation", "gauge", "Generation of the worker's ring; 0: none yet.", _WORKER
)
ESTS = Metric("elastane_worker_ests", "gauge", "ESTs that the worker hosts.", _WORKER)
STEP_SECONDS = Metric(
    "elastane_worker_step_seconds",
    "histogram",
    "Time from the first batch of a step until it is applied.",
    _WORKER,
)
REPLAYED = Metric(
    "elastane_worker_steps_replayed_total", "counter", "Steps that the worker ran again.", _WORKER
)
REPLAY_SECONDS = Metric(
    "elastane_worker_replay_seconds_total", "counter", "Time spent on steps that were run again.", _WORKER
)
DATA_WAIT = Metric(
    "elastane_worker_data_wait_seconds_total", "counter", "Time spent waiting for batches.", _WORKER
)
ALL_REDUCE_WAIT = Metric(
    "elastane_worker_all_reduce_wait_seconds_total",
    "counter",
    "Time from the end of backward until the sums of all workers had arrived.",
    _WORKER,
)
PREPARED_WAIT = Metric(
    "elastane_worker_prepared_wait_seconds_total",
    "counter",
    "Time spent waiting for the master's permission to apply a step (Prepared).",
    _WORKER,
)
AHEAD = Metric(
    "elastane_worker_steps_ahead_total",
    "counter",
    "Steps that the worker applied before the master's permission (Prepared) came.",
    _WORKER,
)
UNDONE = Metric(
    "elastane_worker_steps_undone_total",
    "counter",
    "Steps applied before their Prepared that the worker undid, because they were lost.",
    _WORKER,
)
RINGS = Metric(
    "elastane_worker_rings_formed_total", "counter", "Rings that the worker took part in.", _WORKER
)
RING_CHANGE_SECONDS = Metric(
    "elastane_worker_ring_change_seconds_total",
    "counter",
    "Time from the master's Go until the ring trains, including the hand-over.",
    _WORKER,
)
HANDOVER_SECONDS = Metric(
    "elastane_worker_handover_seconds_total", "counter", "Time spent on handing weights over.", _WORKER
)
HANDOVER_BYTES = Metric(
    "elastane_worker_handover_bytes_total",
    "counter",
    "Bytes of weights and optimizer state handed over.",
    ("worker", "direction"),
)
EST_SECONDS = Metric(
    "elastane_worker_est_seconds",
    "gauge",
    "Time of one EST's part of a step on its device, to the end of its backward, the median of its last "
    "steps; 0: not known yet.",
    _WORKER,
)
AFTER_EST_SECONDS = Metric(
    "elastane_worker_after_est_seconds",
    "gauge",
    "Time that an EST adds to a step by the script's code after its backward, the median of its last steps; "
    "0: not known yet.",
    _WORKER,
)
RING_STEP_SECONDS = Metric(
    "elastane_worker_ring_step_seconds",
    "gauge",
    "Time of a step in the present ring, the median of its last steps; 0: not known yet.",
    _WORKER,
)

CPU = Metric(
    "elastane_worker_cpu_seconds_total",
    "counter",
    "Processor time of the worker's process, without its data workers.",
    _WORKER,
)
MEMORY = Metric(
    "elastane_worker_resident_bytes", "gauge", "Resident memory of the worker's process.", _WORKER
)
GPU_USE = Metric(
    "elastane_worker_gpu_use_ratio",
    "gauge",
    "Share of time in which the worker's GPU ran kernels, of any process; 0: not known.",
    _WORKER,
)
GPU_MEMORY = Metric(
    "elastane_worker_gpu_bytes", "gauge", "Memory that PyTorch has reserved on the worker's GPU.", _WORKER
)

METRICS: tuple[Metric, ...] = (
    AGENT_INFO, RUNNING, STARTS, RESTARTS, EXITS, NOTICES, MASTER_RESTARTS,
    STEP, GENERATION, ESTS, STEP_SECONDS, REPLAYED, REPLAY_SECONDS, DATA_WAIT, ALL_REDUCE_WAIT, PREPARED_WAIT,
    AHEAD, UNDONE,
    RINGS, RING_CHANGE_SECONDS, HANDOVER_SECONDS, HANDOVER_BYTES, EST_SECONDS, AFTER_EST_SECONDS,
    RING_STEP_SECONDS,
    CPU, MEMORY, GPU_USE, GPU_MEMORY,
)  # fmt: skip

"""Metrics that a worker measures about its steps, and an agent about its workers.

Imports no torch and starts no thread. One observation is an addition to a number, so that it does not slow
down the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

STEP_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram buckets of step times, in seconds; one more bucket is unbounded."""


@dataclass
class WorkerFigures:
    """Figures of one worker since its process began. The fields are those of the message WorkerFigures.

    Written by the script's thread and read by one other without a lock: each value is consistent by itself.

    step: the next to apply. generation: of the ring; 0: none yet. ests: number hosted now. step_seconds:
    total of all steps. step_counts: steps by bucket of STEP_BOUNDS. replay_seconds: part of step_seconds in
    steps done again. all_reduce_wait_seconds: from the end of backward until the sums are complete.
    prepared_wait_seconds: from then until the master lets the step be applied. data_wait_seconds: waiting for
    batches. ring_change_seconds: from Go until the ring trains, hand-over included. device_type and all that
    follow it: written by `StepSpeed`, in a pipeline by `PipelineSpeed`; cpu_seconds, resident_bytes, gpu_use,
    gpu_bytes: by `ResourceUse`, with each heartbeat. steps_ahead: applied before their Prepared came;
    steps_undone: the steps among them that were lost.
    """

    step: int = 0
    generation: int = 0
    ests: int = 0
    step_seconds: float = 0.0
    step_counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS) + 1))
    steps_replayed: int = 0
    replay_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    all_reduce_wait_seconds: float = 0.0
    prepared_wait_seconds: float = 0.0
    rings_formed: int = 0
    ring_change_seconds: float = 0.0
    handover_seconds: float = 0.0
    handover_bytes_sent: int = 0
    handover_bytes_received: int = 0
    device_type: str = ""
    ring_workers: int = 0
    est_seconds: float = 0.0
    est_seconds_spread: float = 0.0
    est_steps: int = 0
    ring_step_seconds: float = 0.0
    ring_steps: int = 0
    ests_max: int = 0
    est_rates: float = 0.0
    est_rate_steps: int = 0
    usual_steps: int = 0
    usual_ests_seconds: float = 0.0
    usual_data_wait_seconds: float = 0.0
    usual_all_reduce_wait_seconds: float = 0.0
    usual_between_seconds: float = 0.0
    first_unit: int = 0
    unit_forward_seconds: list[float] = field(default_factory=list)
    unit_backward_seconds: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    link_workers: list[str] = field(default_factory=list)
    link_bytes_per_second: list[float] = field(default_factory=list)
    blocks_step: int = 0
    blocks_began: float = 0.0
    block_seconds: list[float] = field(default_factory=list)
    forward_overhead_seconds: float = 0.0
    backward_overhead_seconds: float = 0.0
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    gpu_use: float = 0.0
    gpu_bytes: int = 0
    after_est_seconds: float = 0.0
    usual_after_seconds: float = 0.0
    steps_ahead: int = 0
    steps_undone: int = 0

    def step_done(self, seconds: float, *, replayed: bool) -> None:
        """Count an applied step that took `seconds`. replayed: it was done again."""
        self.step_seconds += seconds
        self.step_counts[bisect_left(STEP_BOUNDS, seconds)] += 1
        if replayed:
            self.steps_replayed += 1
            self.replay_seconds += seconds


class AgentCounts:
    """Counters of one agent, written by its thread and read by the server's.

    starts: by worker id. exits: by "finished", "drained", "failed", "killed". spot_notices: received for this
    node or its hosts.
    """

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.spot_notices = 0
        self.master_restarts = 0

    def exited(self, returncode: int, drained_codes: Collection[int]) -> None:
        """Count the end of a worker's process. returncode: negative for a signal."""
        if returncode < 0:
            self.exits["killed"] += 1
        elif returncode in drained_codes:
            self.exits["drained"] += 1
        else:
            self.exits["failed" if returncode else "finished"] += 1

    @property
    def running(self) -> int:
        """Number of worker processes that were started and have not been seen to end."""
        return sum(self.starts.values()) - sum(self.exits.values())

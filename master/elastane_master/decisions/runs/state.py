"""State of the training service, as plain values: a snapshot is its MessagePack form."""

from __future__ import annotations

from typing import Final

import msgspec

from elastane_master.decisions.runs.allocation import Allocation
from elastane_master.decisions.runs.queue_shares import QueueShare
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.spec import SpecLimits
from elastane_master.decisions.runs.usage import Use

FAIR_SHARE = "fair-share"
"""The order of `queue.FairShare`, decided with each event."""

PREPARE_SECONDS: Final = 120.0
"""Default of `ServiceSettings.prepare_seconds`."""


class ServiceSettings(msgspec.Struct, frozen=True):
    """Settings of the operator; part of the state, as decisions depend on them.

    lease_seconds: a runner silent for longer is lost. prepare_seconds: time limit of a launch's preparation,
    and again of its start, counted from the runner's last report of progress. starvation_seconds: a run that
    has waited for longer gets slots reserved. retry_seconds, retry_seconds_max: pause before the attempt
    after the first failure, doubled with each further one. relaunch_seconds, relaunch_seconds_max: the same
    for launches that were undone. launch_failures_max: consecutive failed launches after which the attempt
    has failed. runner_failures_max: consecutive failed launches after which a runner is paused;
    pause_seconds, pause_seconds_max: for how long. quiet_seconds: how long an elastic run without instances
    waits for the end of its job. runner_keep_seconds: how long a lost runner is shown. runs_waiting_max:
    further ones are refused. weights: of owners; default 1. scheduling_policy: assigns slots to runs:
    `FAIR_SHARE`, or a policy of elastane_scheduler. reshape_seconds: minimum time between two changes of a
    running run by the policy. queues: shares of the slots, for the policy.
    """

    lease_seconds: float = 60.0
    prepare_seconds: float = PREPARE_SECONDS
    starvation_seconds: float = 600.0
    retry_seconds: float = 10.0
    retry_seconds_max: float = 600.0
    relaunch_seconds: float = 1.0
    relaunch_seconds_max: float = 60.0
    launch_failures_max: int = 10
    runner_failures_max: int = 3
    pause_seconds: float = 60.0
    pause_seconds_max: float = 3600.0
    quiet_seconds: float = 60.0
    runner_keep_seconds: float = 3600.0
    runs_waiting_max: int = 50_000
    weights: dict[str, float] = {}
    limits: SpecLimits = SpecLimits()
    scheduling_policy: str = FAIR_SHARE
    reshape_seconds: float = 30.0
    queues: tuple[QueueShare, ...] = ()


class RunsState(msgspec.Struct):
    """All runs and runners.

    fence: of the newest launch. requests: request ids that took effect, oldest first, and their runs.
    client_keys: of the runs that exist. uses: by owner. slots_max: quotas of owners that have one.
    reserved_turn: the last run to start had its slots reserved; the next in the ordinary order goes before a
    further reservation. jobs_to_cancel: elastic jobs to be cancelled that have not ended yet. records_due:
    finished runs whose records the master has yet to write. allocation: the scheduling policy's decision.
    decided_at: the newest time seen; time never goes back.
    """

    settings: ServiceSettings = ServiceSettings()
    runs: dict[int, Run] = {}
    runners: dict[str, Runner] = {}
    next_run_id: int = 1
    fence: int = 0
    requests: dict[str, int] = {}
    client_keys: dict[str, int] = {}
    uses: dict[str, Use] = {}
    slots_max: dict[str, int] = {}
    reserved_turn: bool = False
    jobs_to_cancel: dict[str, int] = {}
    revision: int = 0
    decided_at: float = 0.0
    records_due: list[int] = []
    allocation: Allocation = msgspec.field(default_factory=Allocation)

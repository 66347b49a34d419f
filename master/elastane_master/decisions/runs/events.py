"""Every event of the training service. Those that changed the state are stored, for replay.

Messages of runners carry the session of their stream; those of an older session are ignored. Requests to
runners are idempotent: a repeated Prepare is answered with Prepared again, a repeated Start or Stop with the
state of the instances.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elastane_master.decisions.runs.allocation import Target
from elastane_master.decisions.runs.runner import RunnerKind
from elastane_master.decisions.runs.spec import RunSpec
from elastane_master.decisions.runs.state import ServiceSettings

DataVerdict = Literal["ready", "preparing", "missing"]
ReportedState = Literal["pending", "prepared", "running", "exited", "lost"]


class RunsEvent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all events."""


class AttemptKey(msgspec.Struct, frozen=True):
    """An attempt's instances on one runner. fence: of the launch."""

    run_id: int
    attempt: int
    fence: int


class Endpoint(msgspec.Struct, frozen=True):
    """Address at which a rank listens."""

    rank: int
    host: str
    port: int


class RankStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instance as its runner sees it.

    exit_code: if `exited`; 128 plus number for a signal. reason: why it is lost; "": unknown.
    """

    rank: int
    state: ReportedState
    host: str = ""
    exit_code: int = 0
    last_line: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""


class RankReport(msgspec.Struct, frozen=True):
    """An instance, and the launch that it belongs to."""

    attempt: AttemptKey
    status: RankStatus


# ------------------------------------------------------------------ users


class RunSubmitted(RunsEvent, frozen=True, tag=True):
    """A submitted run. owner: as in `spec.owner_of`. data: the resolver's answer about its dataset.

    slots_max: the owner's quota from now on; 0: none; None: unchanged. The result is a `Submitted`.
    """

    spec: RunSpec
    owner: str = ""
    request_id: str = ""
    client_key: str = ""
    data: DataVerdict = "ready"
    data_url: str = ""
    data_reason: str = ""
    slots_max: int | None = None


class DataResolved(RunsEvent, frozen=True, tag=True):
    """The resolver's answer about the dataset of a run that waits for it."""

    run_id: int
    data: DataVerdict
    data_url: str = ""
    reason: str = ""


class RunCancelRequested(RunsEvent, frozen=True, tag=True):
    """End a run, whatever its state; one that is over stays as it is."""

    run_id: int
    request_id: str = ""
    by: str = ""


class RunRetryRequested(RunsEvent, frozen=True, tag=True):
    """Queue a failed or cancelled run again, with a full budget."""

    run_id: int
    request_id: str = ""


class PriorityChanged(RunsEvent, frozen=True, tag=True):
    run_id: int
    priority: int
    request_id: str = ""


class RunDeleted(RunsEvent, frozen=True, tag=True):
    """Forget a run that is over."""

    run_id: int
    request_id: str = ""


# ------------------------------------------------------------------ runners


class RunnerJoined(RunsEvent, frozen=True, tag=True):
    """Hello, with all instances that the runner has.

    owners: patterns of owners whose runs its token allows; empty: all. folder_id: distinguishes runners with
    the same name. device_type: of its slots; "": `DEVICE_TYPE`. memory_bytes: of one device; 0: unknown.
    """

    runner_id: str
    session: str
    host: str
    kind: RunnerKind
    slots: int
    labels: dict[str, str] = {}
    algorithms: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    folder_id: str = ""
    device_type: str = ""
    memory_bytes: int = 0


class RunnerStreamLost(RunsEvent, frozen=True, tag=True):
    """The stream ended, or nothing came for too long. heard_at: time of its last message.

    Heartbeats are not stored: `decisions.liveness` keeps their times, and the lease counts from the last one.
    """

    runner_id: str
    session: str
    heard_at: float


class RunnerLeft(RunsEvent, frozen=True, tag=True):
    """The runner accepts no new instances, and leaves when its present ones have ended."""

    runner_id: str
    session: str
    reason: str = ""


class LaunchPrepared(RunsEvent, frozen=True, tag=True):
    runner_id: str
    session: str
    attempt: AttemptKey
    endpoints: tuple[Endpoint, ...]


class LaunchFailed(RunsEvent, frozen=True, tag=True):
    """A launch failed and nothing of it is left on this runner. permanent: it would fail anywhere."""

    runner_id: str
    session: str
    attempt: AttemptKey
    reason: str
    permanent: bool = False


class RankChanged(RunsEvent, frozen=True, tag=True):
    runner_id: str
    session: str
    report: RankReport


class AttemptStopped(RunsEvent, frozen=True, tag=True):
    """Nothing of the launch runs on this runner any more."""

    runner_id: str
    session: str
    attempt: AttemptKey


# ------------------------------------------------------------------ the master


class ElasticJobEnded(RunsEvent, frozen=True, tag=True):
    """The job of an elastic run is over, or could not be created (`failed`)."""

    run_id: int
    job: str
    phase: Literal["succeeded", "failed", "cancelled"]
    reason: str = ""


class ElasticJobScaled(RunsEvent, frozen=True, tag=True):
    """The job of an elastic run wants another number of workers, or has done its tasks.

    workers: 0: it does not scale by itself. tasks_over: it does tasks alone, and all are DONE or FAILED.
    """

    run_id: int
    job: str
    workers: int
    on_demand: int = 0
    tasks_over: bool = False


class RecordWritten(RunsEvent, frozen=True, tag=True):
    """The master has written a run's record, or no longer has to."""

    run_id: int


class AllocationDecided(RunsEvent, frozen=True, tag=True):
    """A decision of the scheduling policy. revision: of the state that it decided about.

    choice, rejected: its explanation, and alternatives with their scores. targets: in the order in which they
    get free slots. failure: why the policy did not decide. unlike: runners that count as a different type
    than they report, with that type.
    """

    policy: str
    revision: int
    targets: tuple[Target, ...] = ()
    choice: str = ""
    rejected: tuple[str, ...] = ()
    failure: str = ""
    unlike: dict[str, str] = {}


class MasterStarted(RunsEvent, frozen=True, tag=True):
    """A master took the service over: every stream is gone, and every lease begins anew."""

    master: str
    settings: ServiceSettings


class Tick(RunsEvent, frozen=True, tag=True):
    """Time passes. Stored only if it changed something."""


AnyRunsEvent = (
    RunSubmitted
    | DataResolved
    | RunCancelRequested
    | RunRetryRequested
    | PriorityChanged
    | RunDeleted
    | RunnerJoined
    | RunnerStreamLost
    | RunnerLeft
    | LaunchPrepared
    | LaunchFailed
    | RankChanged
    | AttemptStopped
    | ElasticJobEnded
    | ElasticJobScaled
    | RecordWritten
    | AllocationDecided
    | MasterStarted
    | Tick
)


class Submitted(msgspec.Struct, frozen=True):
    """Result of `RunSubmitted`. created: False for a run that was there already."""

    run_id: int
    created: bool

"""Effects of the training service's decisions, carried out in order once the event is durable.

Effects lost with a master are repeated: messages to runners when they return, jobs at `MasterStarted`.
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions.runs.events import AttemptKey, Endpoint
from elastane_master.decisions.runs.spec import RunSpec


class RunnerMessage(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages to a runner."""

    attempt: AttemptKey


class Prepare(RunnerMessage, frozen=True, tag=True):
    """Prepare to start these ranks; the edge adds the artifact and checkpoint URLs."""

    spec: RunSpec
    ranks: tuple[int, ...]
    instances: int
    job: str = ""
    data_url: str = ""


class Start(RunnerMessage, frozen=True, tag=True):
    """Start the prepared ranks. endpoints: of all ranks; of an elastic run, of those to start."""

    endpoints: tuple[Endpoint, ...]


class Stop(RunnerMessage, frozen=True, tag=True):
    """SIGTERM, grace, SIGKILL. rank: only this one, of an elastic run."""

    grace_seconds: float
    reason: str
    rank: int | None = None


class Forget(RunnerMessage, frozen=True, tag=True):
    """The launch is over and its outcome is known; its folder may be removed once its logs are stored."""


class RunsEffect(msgspec.Struct, frozen=True, tag=True):
    """Base of all effects."""


class SendToRunner(RunsEffect, frozen=True, tag=True):
    runner_id: str
    session: str
    message: RunnerMessage


class CreateElasticJob(RunsEffect, frozen=True, tag=True):
    """Create the job unless it exists; a permanent failure is answered with `ElasticJobEnded` (failed)."""

    run_id: int
    job: str


class CancelElasticJob(RunsEffect, frozen=True, tag=True):
    """Cancel the job and report its end, even if it does not exist."""

    run_id: int
    job: str


class RunChanged(RunsEffect, frozen=True, tag=True):
    """Views of the run are out of date."""

    run_id: int


class RunEnded(RunsEffect, frozen=True, tag=True):
    """The run has entered a final state."""

    run_id: int


class WriteRecord(RunsEffect, frozen=True, tag=True):
    """Write the record of a finished run if no runner does; answered with `RecordWritten`."""

    run_id: int


class LaunchFailureCounted(RunsEffect, frozen=True, tag=True):
    """A runner failed to make or end a launch, or took too long; for metrics."""

    runner_id: str


class RunsDecision(msgspec.Struct):
    """Outcome of one event.

    durable: the state changed. result: of a user's request: the run's id, or a `Submitted`.
    """

    effects: list[RunsEffect] = []
    durable: bool = False
    result: object = None

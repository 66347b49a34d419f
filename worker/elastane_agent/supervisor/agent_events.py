"""Events that the agent's main thread takes from its queue; `agent` decides on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastane_agent.hosts.slots import HostOffer
from elastane_agent.supervisor.notices.notice import Notice
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ExitStatus
from elastane_proto.v1 import job_pb2


@dataclass(frozen=True)
class WorkerExited:
    """A worker's process has ended."""

    worker: str
    status: ExitStatus


@dataclass(frozen=True)
class WarmExited:
    """A process that was started as a preloaded worker has ended."""

    name: str
    status: ExitStatus


@dataclass(frozen=True)
class PsExited:
    """A parameter server's process has ended."""

    ps: str
    status: ExitStatus


@dataclass(frozen=True)
class MasterExited:
    """The embedded master's process has ended."""

    status: ExitStatus


@dataclass(frozen=True)
class RelayExited:
    """The relay's process has ended."""

    status: ExitStatus


@dataclass(frozen=True)
class JobNews:
    """The master has sent the job's state."""

    job: job_pb2.Job


@dataclass(frozen=True)
class JobLost:
    """The job can no longer be watched, for example because it was deleted."""

    error: ElastaneError


@dataclass(frozen=True)
class MasterAway:
    """The master cannot be reached; the watch continues to try."""

    error: str


@dataclass(frozen=True)
class Signalled:
    """This process has received a stop signal."""

    number: int


@dataclass(frozen=True)
class Noticed:
    """A spot-termination notice has arrived."""

    notice: Notice


@dataclass(frozen=True)
class HostsFound:
    """The hosts script has listed the available hosts."""

    hosts: Mapping[str, HostOffer]


AgentEvent = (
    WorkerExited
    | WarmExited
    | PsExited
    | MasterExited
    | RelayExited
    | JobNews
    | JobLost
    | MasterAway
    | Signalled
    | Noticed
    | HostsFound
)

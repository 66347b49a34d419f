"""What an agent is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elastane.agent.budget import RestartBudget
from elastane.agent.notices.detect import AUTO, NONE
from elastane.agent.price_table import PriceTable
from elastane.hosts.discovery import SCRIPT_TIMEOUT_SECONDS
from elastane_proto.v1 import job_pb2

LOOPBACK: Final = "127.0.0.1:0"


@dataclass(frozen=True)
class HostSettings:
    """Hosts that come and go.

    script: prints them, run every `interval_seconds` for `timeout_seconds` at most. template: how a command
    is run on another host. passed: names of this process's variables that workers elsewhere get too.
    """

    script: Path
    template: str
    interval_seconds: float = 5.0
    timeout_seconds: float = SCRIPT_TIMEOUT_SECONDS
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentSettings:
    """What `elastane run` was asked for.

    command: script and arguments, or "-m", module and arguments. settings: of the job to create; None: it
    is joined as the master has it, once it is there, within `job_timeout_seconds`. local_workers: most
    workers on this machine. master: "host:port"; empty: an embedded one, with its state in `state_dir`
    (empty: a temporary folder), at `listen` ("host:port"; port 0: a free one). worker_prefix: worker k is
    called prefix + k. notices: where spot notices are read, see `notices.detect.check_choice`; notices_url:
    of the metadata service, instead of the cloud's own; notices_poll_seconds: how often they are looked for,
    0 as the cloud advises. capacity: "spot", "on-demand", or "auto": as the metadata service says. hosts:
    where workers run, if not on this machine alone. prices: told to the master as their times come. metrics:
    host and port where figures of the agent are served. http: HOST:PORT of the embedded master's HTTP port.
    """

    command: tuple[str, ...]
    job: str
    settings: job_pb2.JobSettings | None
    local_workers: int
    master: str = ""
    job_timeout_seconds: float = 600.0
    state_dir: Path | None = None
    master_timeout_seconds: float = 600.0
    grace_seconds: float = 30.0
    budget: RestartBudget = field(default_factory=RestartBudget)
    worker_prefix: str = "w"
    listen: str = LOOPBACK
    hosts: HostSettings | None = None
    notices: str = NONE
    notices_url: str = ""
    notices_poll_seconds: float = 0.0
    capacity: str = AUTO
    prices: PriceTable | None = None
    metrics: tuple[str, int] | None = None
    http: str = ""

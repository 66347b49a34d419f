"""Settings of an agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elastane_agent.hosts.discovery import SCRIPT_TIMEOUT_SECONDS
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.notices.detect import AUTO, NONE
from elastane_agent.supervisor.price_feed import PriceFeedSettings
from elastane_agent.supervisor.price_table import PriceTable
from elastane_proto.v1 import job_pb2

LOOPBACK: Final = "127.0.0.1:0"


@dataclass(frozen=True)
class HostSettings:
    """Settings for hosts that are added and removed while the job runs.

    script: discovery script that prints the hosts, run every `interval_seconds` for `timeout_seconds` at
    most. template: command line that runs a command on another host. passed: names of this process's
    environment variables that remote workers get too.
    """

    script: Path
    template: str
    interval_seconds: float = 5.0
    timeout_seconds: float = SCRIPT_TIMEOUT_SECONDS
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentSettings:
    """Settings of one `elastane run`.

    command: script and arguments, or "-m", module and arguments. settings: of the job to create; None: wait
    up to `job_timeout_seconds` for a job that somebody else creates. local_workers: maximum number of workers
    on this machine; 0: only parameter servers. master: "host:port"; empty: start an embedded one, with its
    state in `state_dir` (None: a temporary folder), at `listen` ("host:port"; port 0: a free one).
    worker_prefix: worker k is called prefix + k. notices: source of spot notices, see
    `notices.detect.check_choice`; notices_url: URL of the metadata service, instead of the cloud's own;
    notices_poll_seconds: polling interval, 0: as the cloud advises. capacity: "spot", "on-demand", or "auto":
    ask the metadata service. hosts: where workers run; None: on this machine only. prices: a table, sent to
    the master as prices become due, or a feed that is read periodically. metrics: host and port where the
    agent serves its metrics. http: HOST:PORT of the embedded master's HTTP port. ps: number of parameter
    servers on all hosts; number k is called ps_prefix + k. warm: number of preloaded workers.
    relay: carry the sessions of local workers to the master in one stream.
    log_dir: folder or fsspec URL for all output of workers; empty: it is kept nowhere.
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
    prices: PriceTable | PriceFeedSettings | None = None
    metrics: tuple[str, int] | None = None
    http: str = ""
    ps: int = 0
    ps_prefix: str = "ps-"
    warm: int = 0
    log_dir: str = ""
    relay: bool = False

"""Typed settings of a worker process, read from the ELASTANE_* variables that the agent sets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from elastane_common.determinism import DEFAULT_LEVEL, Level
from elastane_common.errors import RefusedError, bad_environment
from elastane_proto.job_settings import DEFAULTS
from elastane_proto.v1 import common_pb2


class WorkerEnvironment(BaseSettings):
    """Settings of one worker process; every one can be set as ELASTANE_<NAME>.

    Read by `elastane.init`. Durations are seconds.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_", extra="ignore")

    mode: Literal["auto", "elastic", "ddp", "plain", "doctor", "profile", "replay"] = Field(
        default="auto", description="auto: elastic with a master, plain without"
    )
    master: str = Field(
        default="",
        description="host:port of the master; several comma-separated, or a DNS name that resolves to all",
    )
    job: str = Field(default="default", description="name of the job")
    worker_id: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}",
        description="name of this worker; default: host name and a random suffix",
    )
    ests: int = Field(default=0, description="number of logical workers (N); set by the agent")
    seed: int | None = Field(
        default=None, description="seed S for a script that sets none: EST r starts from S + r"
    )
    torch_threads: int = Field(
        default=DEFAULTS.torch_threads, ge=1, description="number of torch threads; it decides the bits"
    )
    determinism: Level = Field(
        default=DEFAULT_LEVEL, description="determinism level (d0, d1 or d2); set by the agent"
    )
    master_timeout_seconds: float = Field(
        default=600.0, gt=0, description="how long to wait for a master that does not answer"
    )
    notice_seconds: float = Field(default=30.0, gt=0, description="time to leave after SIGTERM")
    notice_file: str = Field(
        default="", description="file in which the agent announces when and why the node is terminated"
    )
    capacity: Literal["", "spot", "on-demand"] = Field(
        default="", description="how this node is billed; empty: what the agent finds out, otherwise unknown"
    )
    capacity_file: str = Field(
        default="", description="file in which the agent writes how the node is billed"
    )
    hang_seconds: float = Field(
        default=60.0,
        gt=0,
        description="an evicted worker exits if its script has not left its step after this time",
    )
    drain_exit_code: int = Field(default=0, description="exit code of a drained worker")
    ddp_backend: Literal["", "gloo", "nccl"] = Field(
        default="",
        description="backend of stock DDP (mode ddp); only gloo adds in the same order as the elastic mode",
    )
    fingerprint_steps: int = Field(
        default=DEFAULTS.fingerprint_steps,
        ge=0,
        description="number of steps within which workers compare all of their state; 0: never",
    )
    repeat_check: bool = Field(
        default=True,
        description="run one turn twice in the first two epochs and after 64, 128, 256 ... steps, and "
        "compare the gradients",
    )
    steps_max: int = Field(default=0, ge=0, description="maximum number of global steps to train; 0: all")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="minimum level of log lines"
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="format of Elastane's own lines on stderr"
    )
    log_to: str | None = Field(
        default=None,
        description="trackers for the logged values: KIND[:WHERE], several comma-separated; set but empty: "
        "none, not even those that the script names",
    )
    progress: bool | None = Field(
        default=None,
        description="show a progress bar of the epochs on the leader's stderr; default: as "
        "passed to job.epochs",
    )
    model_takeover_seconds: float = Field(
        default=60.0,
        gt=0,
        description="how long the next worker waits for the leader's upload of the model before it uploads",
    )
    store_host: str = Field(
        default="", description="address at which other workers reach this one; default: this host's"
    )
    shared_memory: bool = Field(
        default=True, description="sum gradients in shared memory if the whole ring is on one machine"
    )
    ring_messages: Literal["sockets", "gloo"] = Field(
        default="sockets",
        description="what carries the messages of a ring on CPUs: the workers' own connections, or torch's "
        "gloo; gloo if one worker of the ring asks for it",
    )
    ring_tls: bool = Field(
        default=True,
        description="encrypt the connections between the workers of a ring, and to parameter servers, if "
        "that to the master is; a ring is not encrypted if one of its workers has this off",
    )
    apply_ahead: bool = Field(
        default=True,
        description="apply a step before the master has answered, where the answer takes long, and undo it "
        "if the step is lost",
    )
    report_dir: str = Field(default="", description="folder for fingerprints of the result, for comparisons")
    report_state: bool = Field(
        default=False, description="also write the leader's digests of each tensor there"
    )

    def resolved_mode(self) -> Literal["elastic", "ddp", "plain", "doctor", "profile", "replay"]:
        """Return the mode set, or for "auto": elastic with a master, plain without."""
        if self.mode != "auto":
            return self.mode
        return "elastic" if self.master else "plain"

    def notice(self) -> tuple[float, str]:
        """Return the seconds left to leave and the reason, from the agent's notice file or the settings."""
        try:
            notice = json.loads(Path(self.notice_file).read_text()) if self.notice_file else {}
            announced = notice.get("workers", {}).get(self.worker_id, notice)
            return max(0.1, float(announced["at"]) - time.time()), str(announced["reason"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self.notice_seconds, "SIGTERM"

    def capacity_type(self) -> common_pb2.CapacityType:
        """Return how this node is billed (spot, on-demand), as far as is known now."""
        capacity: str = self.capacity
        if not capacity and self.capacity_file:
            with contextlib.suppress(OSError):
                capacity = Path(self.capacity_file).read_text().strip()
        return _CAPACITIES.get(capacity, common_pb2.CAPACITY_TYPE_UNSPECIFIED)

    def rendezvous_host(self) -> str:
        """Address this worker's rendezvous store listens on; loopback if the master is on loopback."""
        if self.store_host:
            return self.store_host
        master_host, _, port = self.master.split(",")[0].rpartition(":")
        master_host = master_host.strip("[]")
        if master_host in ("localhost", "::1") or master_host.startswith("127."):
            return "127.0.0.1"
        return _address_towards(master_host, int(port)) or socket.gethostbyname(socket.gethostname())


_CAPACITIES = {
    "spot": common_pb2.CAPACITY_TYPE_SPOT,
    "on-demand": common_pb2.CAPACITY_TYPE_ON_DEMAND,
}


def _address_towards(host: str, port: int) -> str:
    """Return this machine's address on the route to `host`, or "". Sends nothing: the socket is UDP.

    The address of the machine's own name is often 127.0.1.1 (Debian), which no other machine can use.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def encrypts_connections() -> bool:
    """Return ELASTANE_RING_TLS, for commands, which need no other setting. Raises RefusedError."""
    try:
        return WorkerEnvironment().ring_tls
    except ValidationError as error:
        raise bad_environment(error.errors()) from error


def read_environment() -> WorkerEnvironment:
    """Read the process's settings. Raises RefusedError that names every invalid variable."""
    try:
        environment = WorkerEnvironment()
    except ValidationError as error:
        raise bad_environment(error.errors(), hint="start workers with `elastane run`") from error
    if environment.resolved_mode() == "elastic" and environment.ests < 1:
        raise RefusedError(
            f"ELASTANE_MASTER is set but ELASTANE_ESTS is {os.environ.get('ELASTANE_ESTS', 'not set')}",
            hint="start workers with `elastane run`, which passes the job's number of logical workers",
        )
    return environment

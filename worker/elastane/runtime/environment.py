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

from elastane.determinism import DEFAULT_LEVEL, Level
from elastane.errors import RefusedError
from elastane_proto.v1 import common_pb2


class WorkerEnvironment(BaseSettings):
    """Settings of one worker process; every one can be set as ELASTANE_<NAME>.

    Read by `elastane.init`. Durations are seconds.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_", extra="ignore")

    mode: Literal["auto", "elastic", "ddp", "plain", "doctor"] = Field(
        default="auto", description="auto: elastic where there is a master, plain where there is none"
    )
    master: str = Field(
        default="",
        description="host:port of the master; several separated by commas, or a name with several addresses",
    )
    job: str = Field(default="default", description="name of the job")
    worker_id: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}",
        description="name of this worker; the host's and a random one by default",
    )
    ests: int = Field(default=0, description="N; the agent passes the job's")
    seed: int | None = Field(
        default=None, description="of a script that gives none: EST r starts from it + r"
    )
    torch_threads: int = Field(default=1, ge=1, description="threads of torch; they decide the bits")
    determinism: Level = Field(default=DEFAULT_LEVEL, description="d0, d1 or d2; the agent passes the job's")
    master_timeout_seconds: float = Field(
        default=600.0, gt=0, description="how long a master that is away is waited for"
    )
    notice_seconds: float = Field(default=30.0, gt=0, description="time to leave after SIGTERM")
    notice_file: str = Field(default="", description="where the agent writes when and why the node goes")
    capacity: Literal["", "spot", "on-demand"] = Field(
        default="", description="what this node is paid as; empty: as the agent finds out, else not known"
    )
    capacity_file: str = Field(default="", description="where the agent writes what it found out")
    hang_seconds: float = Field(
        default=60.0, gt=0, description="an evicted worker whose script stays in its step for so long ends"
    )
    drain_exit_code: int = Field(default=0, description="exit code of a worker that has drained")
    ddp_backend: Literal["", "gloo", "nccl"] = Field(
        default="", description="of the stock mode; only gloo's order of additions is the elastic one"
    )
    fingerprint_steps: int = Field(
        default=32, ge=0, description="workers compare all their state within so many steps; 0: never"
    )
    repeat_check: bool = Field(
        default=True,
        description="run one turn twice in the first two epochs and after 64, 128, 256 ... steps, and compare"
        " its gradients",
    )
    steps_max: int = Field(default=0, ge=0, description="global steps to train at most; 0: all")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level of log lines"
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="of Elastane's own lines on stderr"
    )
    log_to: str | None = Field(
        default=None,
        description="trackers that get the logged values: KIND[:WHERE], several with commas; set and empty: "
        "none, also of those that the script names",
    )
    progress: bool | None = Field(
        default=None, description="of the epochs, on the leader's stderr; default: as job.epochs says"
    )
    store_host: str = Field(
        default="", description="address other workers reach this one at; default: this host's"
    )
    shared_memory: bool = Field(
        default=True, description="gradients are summed in shared memory where a machine has the whole ring"
    )
    metrics_file: str = Field(default="", description="where figures for the agent are written each second")
    report_dir: str = Field(
        default="", description="where fingerprints of the result are written, for comparisons"
    )
    report_state: bool = Field(
        default=False, description="write the leader's digests tensor by tensor there too"
    )

    def resolved_mode(self) -> Literal["elastic", "ddp", "plain", "doctor"]:
        """Return the mode set, or for "auto": elastic with a master, plain without."""
        if self.mode != "auto":
            return self.mode
        return "elastic" if self.master else "plain"

    def notice(self) -> tuple[float, str]:
        """Return the seconds left to leave and the reason, from the agent's notice file or the settings."""
        try:
            told = json.loads(Path(self.notice_file).read_text()) if self.notice_file else {}
            announced = told.get("workers", {}).get(self.worker_id, told)
            return max(0.1, float(announced["at"]) - time.time()), str(announced["reason"])
        except (OSError, ValueError, KeyError):
            return self.notice_seconds, "SIGTERM"

    def capacity_type(self) -> common_pb2.CapacityType:
        """Return how this node is billed (spot, on-demand), as far as is known now."""
        told: str = self.capacity
        if not told and self.capacity_file:
            with contextlib.suppress(OSError):
                told = Path(self.capacity_file).read_text().strip()
        return _CAPACITIES.get(told, common_pb2.CAPACITY_TYPE_UNSPECIFIED)

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


def read_environment() -> WorkerEnvironment:
    """Read the process's settings. Raises RefusedError that names every invalid variable."""
    try:
        environment = WorkerEnvironment()
    except ValidationError as error:
        wrong = "; ".join(
            f"ELASTANE_{'_'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
            for item in error.errors()
        )
        raise RefusedError(f"bad environment: {wrong}", hint="start workers with `elastane run`") from error
    if environment.resolved_mode() == "elastic" and environment.ests < 1:
        raise RefusedError(
            f"ELASTANE_MASTER is set but ELASTANE_ESTS is {os.environ.get('ELASTANE_ESTS', 'not set')}",
            hint="start workers with `elastane run`, which passes the job's number of logical workers",
        )
    return environment

"""Settings of a master: command-line options, then ELASTANE_* variables, then the defaults here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode

from elastane_master.decisions.machine import VERSION
from elastane_master.decisions.retention import Retention
from elastane_master.decisions.runs.queue_shares import QueueShare
from elastane_master.decisions.runs.state import FAIR_SHARE, PREPARE_SECONDS, ServiceSettings
from elastane_master.decisions.snapshot_version import version_of
from elastane_master.jobs.limits import Limits
from elastane_master.runs.data_service import FILE_URL
from elastane_master.runs.queue_table import BadQueueTable, parse_queues
from elastane_master.runs.service import ServiceOptions
from elastane_master.security.settings import SecuritySettings
from elastane_master.security.store_access import StoreAccess
from elastane_master.store.connection import StoreOptions
from elastane_master.store.log import LogOptions
from elastane_scheduler.policies.catalogue import POLICIES


class MasterSettings(Limits):
    """Settings of one master process; the limits of limits.py are settings, too.

    listen: HOST:PORT; port 0 takes a free one, an empty host all interfaces. store: URL of a Redis or Valkey;
    empty: a private one in state_dir. store_fsync: fsync mode of the private store. port_file: file that
    receives the address once it is served. stop_grace_seconds: time for calls in flight when the master is
    stopped. security: tokens, certificates, and what is allowed without them. standby: while another master
    leads the store, None and True: wait; False: exit with code 3. advertise: HOST:PORT at which others reach
    this master; empty: the address it listens at. leader_lease_seconds: a leader is replaced after this time
    without contact to the store. keep_finished: which finished jobs are kept, as parsed by `Retention.parse`;
    others are deleted. artifact_url: fsspec URL for code and artifacts of runs; empty: a folder in the state
    directory. http: HOST:PORT of dashboard, metrics and probes; empty: none. http_port_file: file
    that receives the address once it is served.
    """

    listen: str = "127.0.0.1:50051"
    store: str = ""
    state_dir: Path = Path(".elastane")
    store_fsync: Literal["everysec", "always", "no"] = Field(
        default="everysec", description="appendfsync setting of the private store"
    )
    store_timeout_seconds: float = Field(
        default=15.0, gt=0, description="how long a starting master waits for its store"
    )
    store_replicas: int = Field(
        default=0,
        ge=0,
        description="number of replicas of the store that must have a write before it is acknowledged",
    )
    port_file: Path | None = None
    standby: bool | None = None
    advertise: str = ""
    leader_lease_seconds: float = Field(default=3.0, ge=0.1, le=3600)
    keep_finished: str = "30d"
    close_finished_seconds: float = Field(
        default=300.0,
        gt=0,
        description="time after which a finished job that nobody queries is closed: only a small record of "
        "it stays in memory",
    )
    artifact_url: str = Field(
        default="",
        description="fsspec URL of the folder for code, models and logs of runs; default: a folder in the "
        "state directory, out of reach of runners on other machines",
    )
    dataset_root: str = Field(
        default="",
        description="URL of the folder of datasets, ID/HASH/manifest.json; without it runs name a URL below "
        "the artifact URL",
    )
    data_service: str = Field(
        default="",
        description="HOST:PORT of a data management service that is asked for datasets without a URL",
    )
    data_service_url: str = Field(
        default=FILE_URL,
        description="URL of what the data service names by bucket and path",
    )
    runner_lease_seconds: float = Field(
        default=60.0,
        gt=0,
        description="time after which the processes of a silent runner are given up",
    )
    prepare_seconds: float = Field(
        default=PREPARE_SECONDS,
        gt=0,
        description="time after which a launch is undone whose runner reports no progress with preparing or "
        "starting it",
    )
    starvation_seconds: float = Field(
        default=600.0,
        gt=0,
        description="time after which slots are reserved for a waiting run, whatever its priority",
    )
    owner_weights: Annotated[dict[str, float], NoDecode] = Field(
        default_factory=dict,
        description="shares of owners in the queue of runs, OWNER=WEIGHT,...; 1 for those not named",
    )
    scheduling_policy: str = Field(
        default=FAIR_SHARE,
        description="who decides which runs have which slots: fair-share, or a policy of `elastane "
        "simulate`, such as foresight, which also grows and shrinks running elastic runs",
    )
    reshape_seconds: float = Field(
        default=30.0,
        ge=0,
        description="time for which the scheduling policy leaves a running run alone after changing its "
        "instances",
    )
    scheduling_queues: Annotated[tuple[QueueShare, ...], NoDecode] = Field(
        default=(),
        description="TOML file of queues, each with a weight, guaranteed slots, and the owners of its runs; "
        "for a scheduling policy",
    )
    http: str = ""
    http_port_file: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    snapshot_seconds: float = Field(
        default=1.0, ge=0, description="minimum time between snapshots of a job's state"
    )
    history_entries_max: int = Field(
        default=2_000_000, ge=1, description="number of committed tasks kept for audits"
    )
    events_max: int = Field(default=10_000, ge=1, description="number of events kept per job")
    stop_grace_seconds: float = Field(
        default=2.0, ge=0, description="time that calls in flight have to finish when the master is stopped"
    )
    security: SecuritySettings = Field(default_factory=SecuritySettings)

    @field_validator("listen", "http")
    @classmethod
    def _has_port(cls, listen: str, info: ValidationInfo) -> str:
        port = listen.rpartition(":")[2]
        if info.field_name == "http" and not listen:
            return listen
        if ":" not in listen or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("must be HOST:PORT with a port from 0 to 65535")
        return listen

    @field_validator("data_service_url")
    @classmethod
    def _names_a_file(cls, data_service_url: str) -> str:
        try:
            data_service_url.format(bucket="", path="")
        except (LookupError, ValueError, AttributeError) as error:
            raise ValueError(f"may hold {{bucket}} and {{path}}, and no other braces: {error}") from error
        return data_service_url

    @field_validator("keep_finished")
    @classmethod
    def _is_retention(cls, keep_finished: str) -> str:
        Retention.parse(keep_finished)
        return keep_finished

    @field_validator("scheduling_policy")
    @classmethod
    def _is_policy(cls, scheduling_policy: str) -> str:
        known = (FAIR_SHARE, *POLICIES)
        if scheduling_policy not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return scheduling_policy

    @field_validator("owner_weights", mode="before")
    @classmethod
    def _are_weights(cls, weights: object) -> object:
        if not isinstance(weights, str):
            return weights
        try:
            pairs = [pair.rpartition("=") for pair in weights.split(",") if pair]
            found = {owner.strip(): float(weight) for owner, _, weight in pairs}
        except ValueError as error:
            raise ValueError(f"must be OWNER=WEIGHT,...: {error}") from error
        if not all(owner and 0 < weight < math.inf for owner, weight in found.items()):
            raise ValueError("must be OWNER=WEIGHT,... with weights above 0")
        return found

    @field_validator("scheduling_queues", mode="before")
    @classmethod
    def _are_queues(cls, scheduling_queues: object) -> object:
        if not isinstance(scheduling_queues, (str, Path)) or not str(scheduling_queues):
            return scheduling_queues or ()
        try:
            return parse_queues(Path(scheduling_queues).read_text())
        except (OSError, UnicodeDecodeError, BadQueueTable) as error:
            raise ValueError(f"{scheduling_queues}: {error}") from error

    @field_validator("advertise", "data_service")
    @classmethod
    def _is_address(cls, address: str, info: ValidationInfo) -> str:
        host, _, port = address.rpartition(":")
        if address and not (host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
            whom = "workers and clients reach" if info.field_name == "advertise" else "this master reaches"
            raise ValueError(f"must be HOST:PORT as {whom} it")
        return address

    @model_validator(mode="after")
    def _can_stand_by(self) -> MasterSettings:
        if self.standby and not self.store:
            raise ValueError(
                "--standby needs --store: another master cannot take over a store in a state directory"
            )
        return self

    @model_validator(mode="after")
    def _has_a_policy_for_its_queues(self) -> MasterSettings:
        if self.scheduling_queues and self.scheduling_policy == FAIR_SHARE:
            raise ValueError(
                "--scheduling-queues needs a --scheduling-policy: fair-share never takes slots back"
            )
        return self

    @property
    def listen_host(self) -> str:
        """Host of `listen`; all interfaces if it names none."""
        return self.listen.rpartition(":")[0] or "[::]"

    @property
    def listen_port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def http_host(self) -> str:
        """Host of `http`; all interfaces if it names none."""
        return self.http.rpartition(":")[0] or "[::]"

    @property
    def http_port(self) -> int:
        return int(self.http.rpartition(":")[2])

    def store_options(self) -> StoreOptions:
        return StoreOptions(
            url=self.store,
            state_dir=self.state_dir,
            fsync=self.store_fsync,
            start_timeout_seconds=self.store_timeout_seconds,
            connections_max=self.store_connections_max,
            access=StoreAccess(
                ca=self.security.store_ca,
                cert=self.security.store_cert,
                key=self.security.store_key,
                password_file=self.security.store_password_file,
            ),
        )

    def service_options(self) -> ServiceOptions:
        return ServiceOptions(
            artifact_url=self.artifact_url or (self.state_dir.absolute() / "artifacts").as_uri(),
            dataset_root=self.dataset_root,
            data_service=self.data_service,
            data_service_url=self.data_service_url,
            settings=ServiceSettings(
                lease_seconds=self.runner_lease_seconds,
                prepare_seconds=self.prepare_seconds,
                starvation_seconds=self.starvation_seconds,
                runs_waiting_max=self.runs_waiting_max,
                weights=self.owner_weights,
                scheduling_policy=self.scheduling_policy,
                reshape_seconds=self.reshape_seconds,
                queues=self.scheduling_queues,
            ),
        )

    def log_options(self) -> LogOptions:
        return LogOptions(
            snapshot_seconds=self.snapshot_seconds,
            history_entries_max=self.history_entries_max,
            events_max=self.events_max,
            replicas=self.store_replicas,
            state_version=VERSION,
            version_of=version_of,
        )

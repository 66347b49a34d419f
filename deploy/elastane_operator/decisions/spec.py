"""The spec of an ElasticJob: reading and validation.

The CRD's schema lets the API server check most of it; rules across fields are checked here as well, because
servers before 1.25 do not support them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from elastane_proto.job_settings import DEFAULTS, SETTINGS
from elastane_scheduler.autoscaling.modes import Deadline, parse_mode
from elastane_scheduler.errors import InvalidSettings

NAME_CHARACTERS_MAX = 50
"""Limit for names: a pod's name, a host name of at most 63 characters, adds "-worker-" and an index."""

JOB_CHARACTERS_MAX = 63

WEIGHT_MAX = 1_000_000
"""Weights of queues and of jobs are whole numbers from 1 to this: the API server has no exact decimals."""

PRIORITY_MAX = 1_000_000

PS_COUNT_MAX = 1000
"""As many as a master takes in a job by default (ELASTANE_PS_PER_JOB_MAX)."""

_ANOTHER_MOMENT = 1_000_000.5
"""Seconds since the epoch: a time that means the same then and at the epoch is a moment."""

_CODES = re.compile(r"^(\d{1,3})(?:-(\d{1,3}))?$")
_PRICE = re.compile(r"^(\d{1,9})(?:\.(\d{1,6}))?$")


class InvalidSpecError(ValueError):
    """The spec is invalid. problems: one message each, beginning with the field."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Part of the spec; field names follow Kubernetes' spelling."""


class Workers(_Part, frozen=True):
    max: int
    min: int = DEFAULTS.workers_min


class ExitCodes(_Part, frozen=True):
    """Exit codes to retry. retryable: codes or ranges of them; see `is_retryable`."""

    retryable: tuple[str, ...] = ("128-255",)


class Checkpoint(_Part, frozen=True):
    url: str = ""
    interval_steps: int = DEFAULTS.checkpoint_interval_steps
    keep: int = DEFAULTS.checkpoint_keep
    on_delete: Literal["Save", "Skip"] = "Skip"
    timeout_seconds: int = 120


class Spot(_Part, frozen=True):
    """Prices per worker and hour, as decimal numbers in strings."""

    provider: Literal["Auto", "None", "AWS", "GCP", "Azure", "Alibaba"] = "Auto"
    price: str = ""
    on_demand_price: str = ""
    currency: str = DEFAULTS.currency


class SecretName(_Part, frozen=True):
    name: str


class TlsSecret(_Part, frozen=True):
    """Secret with TLS files. client_certificate: callers present tls.crt and tls.key to the master."""

    name: str
    client_certificate: bool = False


class Storage(_Part, frozen=True):
    size: str
    storage_class_name: str = ""


class OwnMaster(_Part, frozen=True):
    """Settings of a per-job master."""

    image: str = ""
    store_url: str = ""
    store_secret: SecretName | None = None
    resources: dict[str, Any] = {}
    storage: Storage | None = None


class MasterSpec(_Part, frozen=True):
    address: str = ""
    token_secret: SecretName | None = None
    tls_secret: TlsSecret | None = None
    per_job: OwnMaster | None = None


class Scheduling(_Part, frozen=True):
    """Membership in a pool. queue: of the pool. priority: higher ones come first. weight: part of a share."""

    pool: str
    queue: str = "default"
    priority: int = 0
    weight: int = 1
    deadline: datetime | None = None


class OnDemand(_Part, frozen=True):
    """Pods on on-demand nodes. workers: their maximum. node_selector, tolerations: added to these pods."""

    workers: int
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()


class Scaling(_Part, frozen=True):
    """Autoscaling of the job. mode: as for `elastane run --auto`; a deadline must be an absolute time."""

    mode: str
    over_budget: Literal["Cheapest", "Suspend"] = "Cheapest"
    spot_policy: Literal["Wide", "Uniform"] = "Wide"
    cold_start_seconds: int = int(DEFAULTS.cold_start_seconds)
    on_demand: OnDemand | None = None


class Pipeline(_Part, frozen=True):
    """Stages of a script with prepare_pipeline. stages_max: 0: as many as are worthwhile."""

    stages_min: int = DEFAULTS.pipeline_stages_min
    stages_max: int = DEFAULTS.pipeline_stages_max
    shadows: int = DEFAULTS.pipeline_shadows


class ParameterServers(_Part, frozen=True):
    """Parameter servers of a script with prepare_ps, one pod each.

    resources: of their containers. node_selector, tolerations: replace the template's unless None.
    """

    count: int
    slots: int = DEFAULTS.ps_slots
    replicas: int = DEFAULTS.ps_replicas
    staleness: int | None = DEFAULTS.ps_staleness
    snapshot_seconds: int = int(DEFAULTS.ps_snapshot_seconds)
    non_finite: Literal["Refuse", "Skip", "Fail"] = "Refuse"
    wire: Literal["Float32", "Bfloat16"] = "Float32"
    resources: dict[str, Any] = {}
    node_selector: dict[str, str] | None = None
    tolerations: tuple[dict[str, Any], ...] | None = None


class JobSpec(_Part, frozen=True):
    """The spec with defaults filled in; they equal those of the CRD."""

    template: dict[str, Any]
    ests: int
    workers: Workers
    master: MasterSpec
    max_wait_seconds: int = 0
    recovery_policy: Literal["Fixed", "Elastic"] = "Elastic"
    restart_budget: int = 6
    restart_backoff_seconds: int = 10
    exit_codes: ExitCodes = ExitCodes()
    suspend: bool = False
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    checkpoint: Checkpoint = Checkpoint()
    spot: Spot = Spot()
    priority_class_name: str = ""
    queue_name: str = ""
    seed: int | None = None
    torch_threads: int = DEFAULTS.torch_threads
    determinism: Literal["D0", "D1", "D2"] = "D1"
    job_name: str = ""
    scheduling: Scheduling | None = None
    scaling: Scaling | None = None
    pipeline: Pipeline | None = None
    parameter_servers: ParameterServers | None = None


class Identity(msgspec.Struct, frozen=True):
    """Identity of an ElasticJob object. deleted: time of its deletion request."""

    namespace: str
    name: str
    uid: str
    generation: int = 1
    deleted: datetime | None = None
    finalizers: tuple[str, ...] = ()
    resource_version: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_identity(body: Mapping[str, Any]) -> Identity:
    """Read the identity of an object as returned by the API server."""
    metadata = body["metadata"]
    return Identity(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        deleted=read_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        resource_version=metadata.get("resourceVersion", ""),
    )


def read_spec(body: Mapping[str, Any]) -> JobSpec:
    """Read the spec of an ElasticJob. Raises InvalidSpecError listing every problem."""
    given = body.get("spec")
    if not isinstance(given, Mapping):
        raise InvalidSpecError(["spec is missing"])
    try:
        spec = msgspec.convert(_without_nulls(given), JobSpec)
    except msgspec.ValidationError as error:
        raise InvalidSpecError([f"spec: {error}"]) from None
    if problems := check(spec, body["metadata"]["name"]):
        raise InvalidSpecError(problems)
    return spec


def check(spec: JobSpec, name: str) -> list[str]:
    """Return the problems of a spec in words; empty if it is valid."""
    problems = []
    if len(name) > NAME_CHARACTERS_MAX:
        problems.append(
            f"metadata.name must have at most {NAME_CHARACTERS_MAX} characters, it has {len(name)}"
        )
    workers = spec.workers
    if workers.min < 1:
        problems.append("workers.min must be at least 1")
    if workers.min > workers.max:
        problems.append(f"workers.min ({workers.min}) must be at most workers.max ({workers.max})")
    if workers.min > spec.ests:
        problems.append(f"workers.min ({workers.min}) must be at most ests ({spec.ests})")
    if spec.checkpoint.interval_steps and not spec.checkpoint.url:
        problems.append("checkpoint.intervalSteps needs a checkpoint.url")
    if spec.checkpoint.on_delete == "Save" and not spec.checkpoint.url:
        problems.append("checkpoint.onDelete Save needs a checkpoint.url")
    if bool(spec.master.address) == (spec.master.per_job is not None):
        problems.append("give either master.address or master.perJob")
    if spec.scheduling is not None:
        problems += _check_scheduling(spec.scheduling, spec.checkpoint)
    if spec.scaling is not None:
        problems += _check_scaling(spec.scaling, spec)
    if spec.pipeline is not None:
        problems += _check_pipeline(spec.pipeline)
    if spec.parameter_servers is not None:
        problems += _check_parameter_servers(spec.parameter_servers, spec)
    containers = spec.template.get("spec", {}).get("containers")
    if not isinstance(containers, list) or not containers:
        problems.append("template.spec.containers must hold a container")
    for codes in spec.exit_codes.retryable:
        if _code_range(codes) is None:
            problems.append(
                f"exitCodes.retryable: {codes!r} is no exit code from 1 to 255 and no range of them"
            )
    for field, price in (("price", spec.spot.price), ("onDemandPrice", spec.spot.on_demand_price)):
        if price and _PRICE.match(price) is None:
            problems.append(f"spot.{field}: {price!r} is no price, as in 0.35")
    return problems


def _check_scheduling(scheduling: Scheduling, checkpoint: Checkpoint) -> list[str]:
    problems = []
    if not scheduling.pool:
        problems.append("scheduling.pool must name an ElasticPool")
    if not checkpoint.url:
        problems.append("scheduling.pool needs a checkpoint.url: a job may have to give all its devices up")
    if not scheduling.queue:
        problems.append("scheduling.queue must not be empty")
    if not 1 <= scheduling.weight <= WEIGHT_MAX:
        problems.append(f"scheduling.weight must be from 1 to {WEIGHT_MAX}, it is {scheduling.weight}")
    if abs(scheduling.priority) > PRIORITY_MAX:
        problems.append(
            f"scheduling.priority must be from -{PRIORITY_MAX} to {PRIORITY_MAX}, it is {scheduling.priority}"
        )
    if scheduling.deadline is not None and scheduling.deadline.tzinfo is None:
        problems.append("scheduling.deadline must have a time zone, as in 2026-01-01T00:00:00Z")
    return problems


def _check_scaling(scaling: Scaling, spec: JobSpec) -> list[str]:
    problems = []
    try:
        mode = parse_mode(scaling.mode, 0.0, currency=spec.spot.currency)
        later = parse_mode(scaling.mode, _ANOTHER_MOMENT, currency=spec.spot.currency)
    except InvalidSettings as error:
        return [f"scaling.mode: {error} ({error.hint})" if error.hint else f"scaling.mode: {error}"]
    if mode != later:
        problems.append(
            f"scaling.mode: {scaling.mode!r} means another time each time it is read: give the deadline with "
            "its date and zone, as deadline=2026-12-04T18:00+01:00"
        )
    if mode is not None and spec.scheduling is not None:
        problems.append("give either scaling or scheduling: in a pool, its policy decides")
    if mode is not None and spec.recovery_policy == "Fixed":
        problems.append("scaling needs recoveryPolicy Elastic: with Fixed the number of workers is fixed")
    if scaling.cold_start_seconds < 0:
        problems.append(f"scaling.coldStartSeconds must be at least 0, it is {scaling.cold_start_seconds}")
    on_demand = scaling.on_demand
    if on_demand is None:
        return problems
    if not isinstance(mode, Deadline):
        problems.append("scaling.onDemand is for a deadline: no other mode asks for on-demand workers")
    if not 1 <= on_demand.workers <= spec.workers.max:
        problems.append(
            f"scaling.onDemand.workers must be from 1 to workers.max ({spec.workers.max}), "
            f"it is {on_demand.workers}"
        )
    if not on_demand.node_selector and not on_demand.tolerations:
        problems.append(
            "scaling.onDemand needs a nodeSelector or tolerations: nothing else tells on-demand nodes apart"
        )
    return problems


def _check_pipeline(pipeline: Pipeline) -> list[str]:
    problems = []
    for field, name in (
        ("stagesMin", "pipeline_stages_min"),
        ("stagesMax", "pipeline_stages_max"),
        ("shadows", "pipeline_shadows"),
    ):
        value = getattr(pipeline, name.removeprefix("pipeline_"))
        if bound := SETTINGS[name].out_of_bounds(value):
            problems.append(f"pipeline.{field} must be {bound}, it is {value}")
    if 0 < pipeline.stages_max < pipeline.stages_min:
        problems.append(
            f"pipeline.stagesMin ({pipeline.stages_min}) must be at most pipeline.stagesMax "
            f"({pipeline.stages_max})"
        )
    return problems


def _check_parameter_servers(servers: ParameterServers, spec: JobSpec) -> list[str]:
    problems = []
    if not 1 <= servers.count <= PS_COUNT_MAX:
        problems.append(
            f"parameterServers.count must be from 1 to {PS_COUNT_MAX}, it is {servers.count}; to stop the "
            "job, suspend it"
        )
    for field, name in (
        ("slots", "ps_slots"),
        ("replicas", "ps_replicas"),
        ("staleness", "ps_staleness"),
        ("snapshotSeconds", "ps_snapshot_seconds"),
    ):
        value = getattr(servers, name.removeprefix("ps_"))
        if value is not None and (bound := SETTINGS[name].out_of_bounds(value)):
            problems.append(f"parameterServers.{field} must be {bound}, it is {value}")
    if servers.replicas >= servers.count:
        problems.append("parameterServers.replicas needs a count that is larger")
    if not spec.checkpoint.url:
        problems.append("parameterServers needs a checkpoint.url: their slots are saved there")
    if spec.scheduling is not None or spec.scaling is not None or spec.pipeline is not None:
        problems.append("parameterServers excludes scheduling, scaling and pipeline: these are for rings")
    return problems


def is_retryable(codes: ExitCodes, code: int) -> bool:
    """True if a pod with this exit code is replaced."""
    ranges = (_code_range(entry) for entry in codes.retryable)
    return any(found[0] <= code <= found[1] for found in ranges if found is not None)


def price_micros(price: str) -> int:
    """Parse a price into millionths of the currency's unit, exactly; 0 means unknown. Raises ValueError."""
    if not price:
        return 0
    match = _PRICE.match(price)
    if match is None:
        raise ValueError(f"{price!r} is no price")
    return int(match[1]) * 1_000_000 + int((match[2] or "").ljust(6, "0"))


def job_name(identity: Identity, spec: JobSpec) -> str:
    """Name of the job at its master.

    It contains the uid: an object recreated under an old name is a new job.
    """
    if spec.job_name:
        return spec.job_name
    ending = f"-{identity.uid[:8]}"
    readable = f"{identity.namespace}.{identity.name}"[: JOB_CHARACTERS_MAX - len(ending)].rstrip("-._")
    return readable + ending


def read_time(text: str | None) -> datetime | None:
    """Parse a Kubernetes timestamp."""
    return datetime.fromisoformat(text) if text else None


def write_time(time: datetime) -> str:
    """Format a time as Kubernetes does, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _code_range(text: str) -> tuple[int, int] | None:
    match = _CODES.match(text)
    if match is None:
        return None
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    return (first, last) if 1 <= first <= last <= 255 else None


def _without_nulls(value: Any) -> Any:
    """Remove null fields, which mean the same as absent ones."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value

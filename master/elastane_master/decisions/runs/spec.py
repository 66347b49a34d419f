"""Spec of a run as a user submits it, and its validation.

The structs have the fields of training.proto by name. A spec never changes; `resolved` fills in its defaults.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_proto.job_settings import SECONDS_MAX, JobSettings
from elastane_proto.launcher_variables import LAUNCHER_VARIABLES
from elastane_proto.rank_variables import VARIABLES
from elastane_scheduler.autoscaling.modes import Deadline, parse_mode
from elastane_scheduler.errors import InvalidSettings

Framework = Literal["elastane", "pytorch", "tensorflow", "horovod", "plain"]

INSTANCES = "PARALLEL_INSTANCES"
"""The parameter that gives the number of instances where the spec does not."""
NAME_MAX = 128
TEXT_MAX = 4096
COMMAND_MAX = 1000
LABELS_MAX = 64
SECRETS_MAX = 64
PARAMETERS_MAX = 1000
PARAMETERS_BYTES_MAX = 96 * 1024
"""Limit of all parameters as one JSON text, because Linux starts no process with a variable of 128 KiB."""
SLOTS_MAX = 65_536
PRIORITY_MAX = 1000
RETRIES_MAX = 1000
RETRIES_DEFAULT = 3
GRACE_SECONDS = 30.0
GRACE_SECONDS_MAX = 3600.0

SERVICE_VARIABLES = frozenset({*LAUNCHER_VARIABLES, *(variable.name for variable in VARIABLES)})
"""Variables that the service, or a launcher within a run, sets for instances."""
SYSTEM_VARIABLES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "IFS", "ENV", "BASH_ENV"})
"""Variables by which a parameter could change what is executed."""
RESERVED_PREFIXES = ("ELASTANE_", "HOROVOD_", "LD_", "PYTHON", "DYLD_", "GLIBC_", "MALLOC_")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,7}")
_HASH = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_+=-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,511}")
_KUBERNETES_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9._-]{1,253}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\x00-\x1f\x7f]+|/[^\x00-\x1f\x7f]*")
_GIT_URL = re.compile(r"(https|ssh|git|file)://[^\s\x00-\x1f\x7f]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


class DatasetRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data of a run, as the proto's DatasetRef. url: empty if the resolver knows it."""

    id: str = ""
    version_hash: str = ""
    url: str = ""
    verify_files: bool = False


class GitCommit(msgspec.Struct, frozen=True):
    """A commit of a git repository. commit: 40 hexadecimal digits."""

    url: str = ""
    commit: str = ""


class CodeRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Program of an instance; exactly one of the first three is not None."""

    archive_sha256: str | None = None
    git: GitCommit | None = None
    installed: bool | None = None
    image: str = ""


class SecretRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A secret by reference; exactly one of `file` and `kubernetes` is not None."""

    variable: str = ""
    file: str | None = None
    kubernetes: str | None = None


class RunSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A submitted spec, as the proto's RunSpec. 0, empty and None mean the default."""

    algorithm: str = ""
    name: str = ""
    output_model_name: str = ""
    dataset: DatasetRef | None = None
    parameters: dict[str, str] = {}
    framework: Framework = "elastane"
    instances: int = 0
    instances_min: int = 0
    code: CodeRef | None = None
    command: tuple[str, ...] = ()
    slots_per_instance: int = 0
    runner_labels: dict[str, str] = {}
    labels: dict[str, str] = {}
    priority: int = 0
    retries_max: int | None = None
    run_time_max_seconds: float | None = None
    grace_seconds: float | None = None
    secrets: tuple[SecretRef, ...] = ()
    job: JobSettings | None = None
    owner: str = ""
    chief: bool = False
    parameter_servers: int = 0


class Demand(msgspec.Struct, frozen=True):
    """A spec with its defaults, as decisions use it.

    instances_min: fewest instances to run with; all of them unless `elastic`. retries_max: further attempts.
    run_time_max_seconds: infinite without a limit.
    """

    instances: int
    instances_min: int
    slots_per_instance: int
    elastic: bool
    retries_max: int
    run_time_max_seconds: float
    grace_seconds: float

    @property
    def slots_min(self) -> int:
        """Minimum number of slots to start the run."""
        return self.instances_min * self.slots_per_instance


class SpecLimits(msgspec.Struct, frozen=True):
    """Limits set by the operator. owners: who may own runs; empty: everybody."""

    instances_max: int = 4096
    parameters_bytes_max: int = PARAMETERS_BYTES_MAX
    owners: tuple[str, ...] = ()


def resolved(spec: RunSpec) -> Demand:
    """Fill in the defaults of a spec that `check` has passed."""
    elastic = spec.framework == "elastane"
    instances = spec.instances or int(spec.parameters.get(INSTANCES, "1"))
    limit = spec.run_time_max_seconds
    return Demand(
        instances=instances,
        instances_min=(spec.instances_min or spec.parameter_servers + 1) if elastic else instances,
        slots_per_instance=spec.slots_per_instance or 1,
        elastic=elastic,
        retries_max=RETRIES_DEFAULT if spec.retries_max is None else spec.retries_max,
        run_time_max_seconds=limit or math.inf,
        grace_seconds=GRACE_SECONDS if spec.grace_seconds is None else spec.grace_seconds,
    )


def differing_fields(one: RunSpec, other: RunSpec) -> list[str]:
    """Names of the fields in which two specs differ."""
    return [name for name in RunSpec.__struct_fields__ if getattr(one, name) != getattr(other, name)]


def owner_of(spec: RunSpec, caller: str, all_owners: bool) -> str:
    """Return the owner of the run. all_owners: the caller may name others.

    Raises Rejection("permission_denied") for a caller that names another owner without that right.
    """
    if spec.owner in ("", caller):
        return caller
    if not all_owners:
        raise Rejection(
            "permission_denied",
            f"{caller or 'this caller'} may not submit runs of {spec.owner!r}",
            hint="leave the owner out, or use a token for all owners",
            field="spec.owner",
        )
    return spec.owner


def check(spec: RunSpec, limits: SpecLimits) -> None:
    """Raise Rejection("invalid_argument") that names the first field that cannot be accepted."""
    for field, problem, hint in _problems(spec, limits):
        raise Rejection("invalid_argument", f"{field}: {problem}", hint=hint, field=f"spec.{field}")


def check_owner(owner: str, limits: SpecLimits) -> None:
    """Raise Rejection("invalid_argument") for an owner that is not allowed."""
    if owner and not NAME.fullmatch(owner):
        raise Rejection("invalid_argument", f"owner: {_shown(owner)}", hint=_NAME_HINT, field="spec.owner")
    if limits.owners and owner not in limits.owners:
        raise Rejection(
            "invalid_argument",
            f"owner: {_shown(owner)} is not known here",
            hint="the operator lists the owners whose runs are taken",
            field="spec.owner",
        )


Problem = tuple[str, str, str]
"""A field, what is wrong with it, and what can be done."""

_NAME_HINT = "1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit"


def _problems(spec: RunSpec, limits: SpecLimits) -> Iterator[Problem]:
    yield from _names(spec)
    yield from _dataset(spec.dataset)
    yield from _parameters(spec.parameters, limits)
    yield from _numbers(spec, limits)
    yield from _code(spec)
    yield from _command(spec.command)
    yield from _labels("runner_labels", spec.runner_labels)
    yield from _labels("labels", spec.labels)
    yield from _secrets(spec)


def _names(spec: RunSpec) -> Iterator[Problem]:
    if not spec.output_model_name:
        yield "output_model_name", "is empty", "name the model that the run makes"
    elif not NAME.fullmatch(spec.output_model_name):
        yield "output_model_name", _shown(spec.output_model_name), _NAME_HINT
    if not spec.algorithm and spec.code is None:
        yield "algorithm", "is empty, and there is no code", "name an algorithm of a runner, or give the code"
    elif spec.algorithm and not NAME.fullmatch(spec.algorithm):
        yield "algorithm", _shown(spec.algorithm), _NAME_HINT
    if len(spec.name) > NAME_MAX or _CONTROLS.search(spec.name):
        yield "name", _shown(spec.name), f"at most {NAME_MAX} characters, without controls"


def _dataset(dataset: DatasetRef | None) -> Iterator[Problem]:
    if dataset is None:
        return
    if not _DATASET.fullmatch(dataset.id):
        yield (
            "dataset.id",
            _shown(dataset.id),
            "names of letters, digits and ._-, joined by slashes; none begins with a dot",
        )
    if dataset.version_hash and not _HASH.fullmatch(dataset.version_hash):
        yield "dataset.version_hash", _shown(dataset.version_hash), "1 to 128 letters, digits and -_:+="
    if dataset.url and (not _URL.fullmatch(dataset.url) or len(dataset.url) > TEXT_MAX):
        yield "dataset.url", _shown(dataset.url), "an fsspec URL such as s3://bucket/folder"
    elif ".." in dataset.url.split("/"):
        yield "dataset.url", f"{_shown(dataset.url)} has a part `..`", "give the folder itself"


def _parameters(parameters: dict[str, str], limits: SpecLimits) -> Iterator[Problem]:
    if len(parameters) > PARAMETERS_MAX:
        yield "parameters", f"{len(parameters)} of them", f"at most {PARAMETERS_MAX}"
        return
    for name, value in parameters.items():
        where = f"parameters[{_shown(name)}]"
        if not _VARIABLE.fullmatch(name):
            yield (
                where,
                "is not the name of a variable",
                "capital letters, digits and underscores, no digit first",
            )
        elif is_reserved(name):
            yield where, "is set by the service, or decides what is executed", "choose another name"
        elif "\0" in value:
            yield where, "its value has a NUL", "a variable cannot hold one"
    size = len(json.dumps(parameters, sort_keys=True))
    if size > limits.parameters_bytes_max:
        yield (
            "parameters",
            f"{size} bytes as JSON",
            f"at most {limits.parameters_bytes_max}; put what is larger into the data or the code",
        )


def is_reserved(name: str) -> bool:
    """True if neither a parameter nor a secret may have this name."""
    return name in SERVICE_VARIABLES or name in SYSTEM_VARIABLES or name.startswith(RESERVED_PREFIXES)


def _numbers(spec: RunSpec, limits: SpecLimits) -> Iterator[Problem]:
    yield from _instances(spec, limits)
    if not 0 <= spec.slots_per_instance <= SLOTS_MAX:
        yield "slots_per_instance", f"{spec.slots_per_instance}", f"1 to {SLOTS_MAX}"
    if problem := priority_problem(spec.priority):
        yield "priority", str(spec.priority), problem
    if spec.retries_max is not None and not 0 <= spec.retries_max <= RETRIES_MAX:
        yield "retries_max", str(spec.retries_max), f"0 to {RETRIES_MAX}"
    limit, grace = spec.run_time_max_seconds, spec.grace_seconds
    if limit is not None and not 0 <= limit <= SECONDS_MAX:
        yield "run_time_max", f"{limit} s", f"0 (no limit) to {SECONDS_MAX:.0f} s"
    if grace is not None and not 0 <= grace <= GRACE_SECONDS_MAX:
        yield "grace", f"{grace} s", f"0 to {GRACE_SECONDS_MAX:.0f} s"
    if spec.job is not None and spec.framework == "elastane":
        yield from _of_the_job(spec.job)
        if spec.parameter_servers and (spec.job.scaling or spec.job.pipeline_stages_max):
            yield "parameter_servers", "the job scales by itself or is a pipeline", "leave them out, or that"
    if spec.job is not None and spec.framework != "elastane":
        yield "job", f"settings of an elastic job, and the framework is {spec.framework}", "leave them out"


def _of_the_job(job: JobSettings) -> Iterator[Problem]:
    """Check what the job would refuse at creation, so that the run does not wait for slots only to fail."""
    try:
        mode = parse_mode(job.scaling, 0.0, currency=job.currency)
    except InvalidSettings as error:
        yield "job.scaling", str(error), error.hint
        return
    if mode is not None and job.recovery == "fixed":
        yield "job.scaling", "a job with fixed recovery cannot scale", "leave one of them out"
    if job.on_demand_workers and not isinstance(mode, Deadline):
        yield "job.on_demand_workers", "only a deadline asks for on-demand workers", "leave it out"
    least, most = job.pipeline_stages_min, job.pipeline_stages_max
    if 0 < most < least:
        yield (
            "job.pipeline_stages_max",
            str(most),
            f"at least {least}, the minimum; 0: as many as are worthwhile",
        )


def _instances(spec: RunSpec, limits: SpecLimits) -> Iterator[Problem]:
    field, given = "instances", spec.instances
    text = spec.parameters.get(INSTANCES)
    if text is not None:
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            yield f"parameters[{INSTANCES!r}]", _shown(text), "a whole number from 1 on, in digits"
            return
        if given and given != int(text):
            yield "instances", f"is {given}, and the parameter {INSTANCES} {text}", "give one of them"
            return
        if not given:
            field, given = f"parameters[{INSTANCES!r}]", int(text)
    instances = given if given or text is not None else 1
    if not 1 <= instances <= limits.instances_max:
        yield field, str(instances), f"1 to {limits.instances_max}"
        return
    if spec.instances_min and spec.framework != "elastane" and spec.instances_min != instances:
        yield (
            "instances_min",
            f"{spec.instances_min} of {instances}, and a {spec.framework} run starts with all or none",
            "leave it out",
        )
    elif not 0 <= spec.instances_min <= instances:
        yield "instances_min", str(spec.instances_min), f"1 to {instances}, the number of instances"
    yield from _roles(spec, instances)


def _roles(spec: RunSpec, instances: int) -> Iterator[Problem]:
    if spec.chief and spec.framework != "tensorflow":
        yield "chief", f"a role of TensorFlow, and the framework is {spec.framework}", "leave it out"
    if spec.parameter_servers and spec.framework not in ("elastane", "tensorflow"):
        yield "parameter_servers", f"a {spec.framework} run has none", "leave it out"
    elif not 0 <= spec.parameter_servers < (spec.instances_min or instances):
        yield (
            "parameter_servers",
            f"{spec.parameter_servers} of {spec.instances_min or instances} instances",
            "instances count chief, workers and parameter servers, and at least one is no parameter server",
        )


def priority_problem(priority: int) -> str:
    """Return the allowed range if a priority is out of range; "" if it is not."""
    return "" if abs(priority) <= PRIORITY_MAX else f"-{PRIORITY_MAX} to {PRIORITY_MAX}"


def _code(spec: RunSpec) -> Iterator[Problem]:
    code = spec.code
    if code is None:
        return
    given = (code.archive_sha256 is not None) + (code.git is not None) + bool(code.installed)
    if given != 1:
        yield "code", f"{given} sources", "one of archive_sha256, git and installed"
    if code.archive_sha256 is not None and not _SHA256.fullmatch(code.archive_sha256):
        yield "code.archive_sha256", _shown(code.archive_sha256), "64 hexadecimal digits, in lower case"
    if code.git is not None:
        if not _GIT_URL.fullmatch(code.git.url) or len(code.git.url) > TEXT_MAX:
            yield "code.git.url", _shown(code.git.url), "https://, ssh://, git:// or file://"
        if not _COMMIT.fullmatch(code.git.commit):
            yield "code.git.commit", _shown(code.git.commit), "40 hexadecimal digits, in lower case"
    if code.image and not _IMAGE.fullmatch(code.image):
        yield "code.image", _shown(code.image), "name of a container image, as registry/name:tag"
    if not spec.command and not spec.algorithm:
        yield "command", "is empty, and there is no algorithm", "say what an instance executes"


def _command(command: tuple[str, ...]) -> Iterator[Problem]:
    if len(command) > COMMAND_MAX:
        yield "command", f"{len(command)} words", f"at most {COMMAND_MAX}"
    elif command and not command[0]:
        yield "command", "its program is empty", "name it first"
    elif sum(map(len, command)) > PARAMETERS_BYTES_MAX:
        yield "command", "is too long", f"at most {PARAMETERS_BYTES_MAX} characters"
    elif any("\0" in word for word in command):
        yield "command", "has a NUL", "an argument cannot hold one"


def _labels(field: str, labels: dict[str, str]) -> Iterator[Problem]:
    if len(labels) > LABELS_MAX:
        yield field, f"{len(labels)} labels", f"at most {LABELS_MAX}"
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or (value and not _LABEL.fullmatch(value)):
            yield (
                field,
                f"{_shown(name)}={_shown(value)}",
                "letters, digits and ._/- within, at most 128 of them",
            )


def _secrets(spec: RunSpec) -> Iterator[Problem]:
    if len(spec.secrets) > SECRETS_MAX:
        yield "secrets", f"{len(spec.secrets)} of them", f"at most {SECRETS_MAX}"
    names: set[str] = set()
    for place, secret in enumerate(spec.secrets):
        where = f"secrets[{place}]"
        if not _VARIABLE.fullmatch(secret.variable):
            yield f"{where}.variable", _shown(secret.variable), "capital letters, digits and underscores"
        elif is_reserved(secret.variable):
            yield f"{where}.variable", f"{secret.variable} is set by the service", "choose another name"
        elif secret.variable in names or secret.variable in spec.parameters:
            yield f"{where}.variable", f"{secret.variable} is given twice", "a variable has one value"
        names.add(secret.variable)
        if (secret.file is None) == (secret.kubernetes is None):
            yield where, "needs a file or a Kubernetes secret", "give one of them"
        elif secret.file is not None:
            parts = secret.file.split("/")
            if not secret.file or secret.file.startswith("/") or ".." in parts or "\0" in secret.file:
                yield f"{where}.file", _shown(secret.file), "a path below the runner's folder of secrets"
        elif not _KUBERNETES_SECRET.fullmatch(secret.kubernetes or ""):
            yield f"{where}.kubernetes", _shown(secret.kubernetes or ""), "NAME/KEY of a Kubernetes secret"


def _shown(text: str) -> str:
    """A value as an error shows it: quoted, controls escaped, cut."""
    return repr(text if len(text) <= 60 else text[:57] + "...")

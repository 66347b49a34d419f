"""The environment of each rank of a run, filled by pure functions.

A rank gets the variables of its framework (`rank_variables.VARIABLES`), all parameters as one JSON
object, and each parameter by its name. A parameter with the name of a variable of the table is refused, and
so is one that no process can be started with. docs/training-environment.md is the table for users.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from elastane_common.errors import ElastaneError
from elastane_proto.rank_variables import MASTER_PORT_DEFAULT, VARIABLES, Framework

INSTANCES_MAX: Final = 4096
#: Linux' limit for one variable, NAME=value and the NUL after it: execve fails beyond it (MAX_ARG_STRLEN).
VARIABLE_BYTES_MAX: Final = 128 * 1024
#: Bytes of all variables of a rank. Linux allows 2 MiB with the arguments, less under a small stack limit.
ENVIRONMENT_BYTES_MAX: Final = 512 * 1024
#: Parameters must not begin with it: such variables are settings of agents and workers, and credentials.
RESERVED_PREFIX: Final = "ELASTANE_"

_PARAMETER_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class LaunchSpecError(ElastaneError):
    """A run cannot be launched as specified; the text names the field or parameter."""

    code = "ELA451"


_RESERVED: Final = frozenset(variable.name for variable in VARIABLES)


class Endpoint(NamedTuple):
    """Address of a rank. host: name or address, IPv6 without brackets. port: its own (TensorFlow)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """Everything that determines the environment of an attempt's ranks.

    attempt: from 1. fence: of the launch. instances: number of ranks, or of workers for Elastane. endpoints:
    one for each rank, in order. dataset_hash: of the data set's version. master_port: where rank 0 listens.
    parameters: of the submission. chief: rank 0 is TensorFlow's chief. parameter_servers: so many of the
    last ranks are. rendezvous: Horovod's rendezvous server. elastane_masters: addresses, comma-separated.
    elastane_job: that the workers join.
    """

    job_id: str
    attempt: int
    framework: Framework
    algorithm: str
    model_name: str
    instances: int
    endpoints: tuple[Endpoint, ...]
    fence: int = 0
    dataset_id: str = ""
    dataset_hash: str = ""
    dataset_url: str = ""
    model_url: str = ""
    checkpoint_url: str = ""
    metadata_store: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    master_port: int = MASTER_PORT_DEFAULT
    chief: bool = False
    parameter_servers: int = 0
    rendezvous: Endpoint | None = None
    elastane_masters: str = ""
    elastane_job: str = ""

    def serves(self, rank: int) -> bool:
        """True if the rank is a parameter server."""
        return rank >= self.instances - self.parameter_servers


def environment(spec: LaunchSpec, rank: int) -> dict[str, str]:
    """Return the variables of a rank. Raises LaunchSpecError, also if they are too large for a process."""
    check(spec)
    assert 0 <= rank < spec.instances
    variables = _of_rank(spec, rank)
    _check_size(variables)
    return variables


def check(spec: LaunchSpec) -> None:
    """Check all fields except their sizes. Raises LaunchSpecError, which names the first invalid one."""
    if not 1 <= spec.instances <= INSTANCES_MAX:
        raise LaunchSpecError(
            f"{spec.instances} instances are not between 1 and {INSTANCES_MAX}",
            hint="ask for fewer, or for 1",
        )
    if len(spec.endpoints) != spec.instances:
        raise LaunchSpecError(f"{spec.instances} instances have {len(spec.endpoints)} endpoints")
    if spec.attempt < 1:
        raise LaunchSpecError(f"attempt {spec.attempt} is not a number from 1")
    for name in ("job_id", "model_name"):
        if not getattr(spec, name):
            raise LaunchSpecError(f"{name} is empty", hint="every job needs one")
    _check_ports(spec)
    _check_framework(spec)
    for name, value in spec.parameters.items():
        check_parameter(name, value)


def check_parameter(name: str, value: str) -> None:
    """Check one parameter's name and value. Raises LaunchSpecError with the reason."""
    if not _PARAMETER_NAME.fullmatch(name):
        raise LaunchSpecError(
            f"the parameter name {name!r} is not allowed",
            hint="a name has capital letters, digits and underscores, and does not begin with a digit",
            parameter=name,
        )
    if name in _RESERVED or name.startswith(RESERVED_PREFIX):
        raise LaunchSpecError(
            f"the parameter {name} would replace a variable of the service",
            hint="rename it; docs/training-environment.md lists the names that are taken",
            parameter=name,
        )
    _encoded(name, value)


def _check_ports(spec: LaunchSpec) -> None:
    ports = [spec.master_port, *(endpoint.port for endpoint in spec.endpoints)]
    if spec.rendezvous is not None:
        ports.append(spec.rendezvous.port)
    for port in ports:
        if not 1 <= port <= 65535:
            raise LaunchSpecError(f"port {port} is not between 1 and 65535")
    for endpoint in spec.endpoints:
        if not endpoint.host:
            raise LaunchSpecError("an endpoint has no host")


def _check_framework(spec: LaunchSpec) -> None:
    if not 0 <= spec.parameter_servers < spec.instances:
        raise LaunchSpecError(
            f"{spec.parameter_servers} parameter servers of {spec.instances} instances leave no worker",
            hint="instances count workers, chief and parameter servers together",
        )
    if spec.framework is Framework.TENSORFLOW:
        if len(set(spec.endpoints)) < spec.instances:
            raise LaunchSpecError(
                "two ranks have the same endpoint", hint="TensorFlow needs a port for each rank"
            )
    elif spec.chief or (spec.parameter_servers and spec.framework is not Framework.ELASTANE):
        raise LaunchSpecError(f"{spec.framework} runs have neither a chief nor parameter servers")
    if spec.framework is Framework.HOROVOD and spec.rendezvous is None:
        raise LaunchSpecError("a Horovod run has no rendezvous server")
    if spec.framework is Framework.ELASTANE and not spec.elastane_masters:
        raise LaunchSpecError("an Elastane run has no address of a master")


def _of_rank(spec: LaunchSpec, rank: int) -> dict[str, str]:
    variables = {**spec.parameters, **_of_job(spec)}
    if spec.framework is Framework.ELASTANE:
        return variables | {
            "ELASTANE_MASTER": spec.elastane_masters,
            "ELASTANE_JOB": spec.elastane_job or spec.job_id,
            "ELASTANE_LOCAL_WORKERS": str(int(not spec.serves(rank))),
        }
    place = _place(spec, rank)
    variables |= {
        "WORLD_SIZE": str(spec.instances),
        "RANK": str(rank),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "MASTER_ADDR": spec.endpoints[0].host,
        "MASTER_PORT": str(spec.master_port),
    }
    if spec.framework is Framework.TENSORFLOW:
        variables["TF_CONFIG"] = _tf_config(spec, rank)
    if spec.framework is Framework.HOROVOD:
        variables |= _horovod(spec, rank, place)
    return variables


def _of_job(spec: LaunchSpec) -> dict[str, str]:
    return {
        "JOB_ID": spec.job_id,
        "JOB_ATTEMPT": str(spec.attempt),
        "ELASTANE_RUN_FENCE": str(spec.fence),
        "ALGORITHM_NAME": spec.algorithm,
        "MODEL_NAME": spec.model_name,
        "TRAINING_DATASET_ID": spec.dataset_id,
        "TRAINING_DATASET_VERSION_HASH": spec.dataset_hash,
        "TRAINING_DATA_URL": spec.dataset_url,
        "MODEL_URL": spec.model_url,
        "CHECKPOINT_URL": spec.checkpoint_url,
        "METADATA_STORE": spec.metadata_store,
        "TRAINING_PARAMETERS": json.dumps(dict(spec.parameters), sort_keys=True),
    }


class _Place(NamedTuple):
    """Position of a rank among those of its host, and of its host among those with its local rank."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def _place(spec: LaunchSpec, rank: int) -> _Place:
    hosts = [endpoint.host for endpoint in spec.endpoints]
    host = hosts[rank]
    local_rank = hosts[:rank].count(host)
    with_local_rank = [name for name in dict.fromkeys(hosts) if hosts.count(name) > local_rank]
    return _Place(local_rank, hosts.count(host), with_local_rank.index(host), len(with_local_rank))


def _tf_config(spec: LaunchSpec, rank: int) -> str:
    """Return TF_CONFIG: the chief is rank 0, then come workers, then parameter servers."""
    chiefs = int(spec.chief)
    workers_end = spec.instances - spec.parameter_servers
    addresses = [str(endpoint) for endpoint in spec.endpoints]
    parts = {"chief": (0, chiefs), "worker": (chiefs, workers_end), "ps": (workers_end, spec.instances)}
    cluster = {kind: addresses[first:end] for kind, (first, end) in parts.items() if first < end}
    kind = next(kind for kind, (first, end) in parts.items() if first <= rank < end)
    task = {"type": kind, "index": rank - parts[kind][0]}
    return json.dumps({"cluster": cluster, "task": task}, sort_keys=True)


def _horovod(spec: LaunchSpec, rank: int, place: _Place) -> dict[str, str]:
    assert spec.rendezvous is not None
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(spec.instances),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_HOSTNAME": spec.endpoints[rank].host,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": spec.rendezvous.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(spec.rendezvous.port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def _check_size(variables: Mapping[str, str]) -> None:
    total_bytes = 0
    for name, value in variables.items():
        size_bytes = len(_encoded(name, value)) + len(name) + 2  # "=" and the NUL at its end
        if size_bytes > VARIABLE_BYTES_MAX:
            raise LaunchSpecError(
                f"the variable {name} has {size_bytes} bytes, more than {VARIABLE_BYTES_MAX}",
                hint="put large parameters into a file of the code or of the data set",
                limit=VARIABLE_BYTES_MAX,
            )
        total_bytes += size_bytes
    if total_bytes > ENVIRONMENT_BYTES_MAX:
        raise LaunchSpecError(
            f"the environment of a rank has {total_bytes} bytes, more than {ENVIRONMENT_BYTES_MAX}",
            hint="put large parameters into a file of the code or of the data set",
            limit=ENVIRONMENT_BYTES_MAX,
        )


def _encoded(name: str, value: str) -> bytes:
    """Encode a value as bytes for a process. Raises LaunchSpecError if that is impossible."""
    if "\0" in value:
        raise LaunchSpecError(f"the value of {name} contains NUL", hint="a process cannot be given it")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise LaunchSpecError(f"the value of {name} is not valid Unicode", hint="send it as UTF-8") from None

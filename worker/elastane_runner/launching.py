"""Preparation of a launch: code, secrets, ports, and the plan by which its ranks start.

Prepare blocks, and is done in a thread. Nothing that is secret is kept on disk.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf import json_format

from elastane_common import layout
from elastane_common.addresses import parse_addresses, split_address
from elastane_common.artifact_mark import check_mark
from elastane_common.code_archive import ArchiveError
from elastane_common.errors import ElastaneError
from elastane_common.gpus import VISIBLE
from elastane_proto.rank_variables import Framework
from elastane_proto.v1 import training_pb2
from elastane_runner.algorithms import Algorithm
from elastane_runner.archive import ArchiveLimits
from elastane_runner.code_folder import CodeCache, CodeError, clone, make_readable
from elastane_runner.engine import AttemptPlan, CodeSource, RankPlan, SecretKey
from elastane_runner.environment import (
    Endpoint,
    LaunchSpec,
    LaunchSpecError,
    check_parameter,
    environment,
)
from elastane_runner.held_ports import HeldPort
from elastane_runner.launches import Launch, LaunchRecord, Unit
from elastane_runner.progress import Tell, untold
from elastane_runner.rank_gpus import seen_by
from elastane_runner.secret_files import read_secret

#: How long a worker waits for the job that the service creates for its run.
JOB_SECONDS: Final = 600
GRACE_SECONDS_DEFAULT: Final = 30.0
LOOPBACK: Final = "127.0.0.1"
#: Variables of the runner by which a worker of an elastic run reaches its master.
WORKER_VARIABLES: Final = (
    "ELASTANE_TLS_CA", "ELASTANE_TLS_CERT", "ELASTANE_TLS_KEY", "ELASTANE_TLS_SERVER_NAME",
    "ELASTANE_INSECURE",
)  # fmt: skip


class LaunchError(ElastaneError):
    """A launch is impossible here. is_permanent: it would fail again, anywhere."""

    code = "ELA456"

    def __init__(self, message: str, *, hint: str = "", is_permanent: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_permanent = is_permanent


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """Settings of the operator for all launches of a runner.

    host: under which other ranks reach this machine. masters: their addresses. secrets: folder of secret
    files. worker_token_file: of the workers of elastic runs; "": they have none. environ: of the runner.
    interpreter: Python of those workers. has_own_network: ranks that are started together have a network
    interface and a loopback of their own, where they do not meet others of their run. pod_host: of ranks that
    are pods, the name of one by its unit and number: they reach each other by it, fetch their code by
    themselves, and take the secrets of their namespace; None: ranks are on this machine. gpus: names of those
    that ranks are given; None: it does not matter to them which they use. capacity: how the machines of ranks
    are billed, "spot" or "on-demand"; "": workers ask their cloud.
    """

    host: str
    masters: str
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    secrets: Path | None = None
    worker_token_file: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    limits: ArchiveLimits = field(default_factory=ArchiveLimits)
    interpreter: str = sys.executable
    has_own_network: bool = False
    pod_host: Callable[[Unit, int], str] | None = None
    gpus: tuple[str, ...] | None = None
    capacity: str = ""


@dataclass
class Preparation:
    """Resources for starting the ranks of one launch.

    image: of containers; "": the runner's own. ports: of the ranks that are prepared and not started. code:
    where pods fetch it. secret_keys: of Kubernetes secrets, by their variables.
    """

    folder: Path
    command: tuple[str, ...]
    secrets: Mapping[str, str]
    image: str = ""
    ports: dict[int, HeldPort] = field(default_factory=dict)
    code: CodeSource = field(default_factory=CodeSource)
    secret_keys: Mapping[str, SecretKey] = field(default_factory=dict)

    def release(self, ranks: Iterable[int] | None = None) -> None:
        """Release the ports of these ranks; None: all."""
        for rank in list(self.ports if ranks is None else ranks):
            if (port := self.ports.pop(rank, None)) is not None:
                port.release()


class ServiceStorage(NamedTuple):
    """Location of code and artifacts, as Welcome gives it. mark: see `artifact_mark`."""

    url: str = ""
    mark: str = ""


def spec_of(record: LaunchRecord) -> training_pb2.RunSpec:
    """Return the run's spec."""
    return json_format.ParseDict(record.spec, training_pb2.RunSpec(), ignore_unknown_fields=True)


def grace_seconds(record: LaunchRecord) -> float:
    """Return the time between SIGTERM and SIGKILL of a run's ranks."""
    spec = spec_of(record)
    return spec.grace.ToTimedelta().total_seconds() if spec.HasField("grace") else GRACE_SECONDS_DEFAULT


def is_elastic(spec: training_pb2.RunSpec) -> bool:
    """True if the ranks of a run are workers of a job of JobService."""
    return spec.framework in (training_pb2.FRAMEWORK_UNSPECIFIED, training_pb2.FRAMEWORK_ELASTANE)


def check_network(record: LaunchRecord, ranks: Iterable[int], settings: LaunchSettings) -> None:
    """Refuse ranks whose network cannot reach the hosts that they need. Raises LaunchError.

    ranks: those that are started here.
    """
    if not settings.has_own_network and settings.pod_host is None:
        return
    hint = "let this runner's ranks have the host's network, or choose runners by their labels"
    if record.elastic:
        if any(_is_loopback(split_address(one)[0]) for one in parse_addresses(settings.masters)):
            raise LaunchError(
                f"workers in a network of their own do not reach the master at {settings.masters}",
                hint=f"give the runner an address of the master that they reach; or {hint}",
            )
        return
    if settings.pod_host is not None:  # ranks of a cluster reach each other, whichever runner has them
        return
    instances = spec_of(record).instances or 1
    if (here := len(set(ranks))) < instances:
        raise LaunchError(
            f"{instances - here} of {instances} instances are elsewhere, and those of this runner "
            "have a network of their own",
            hint=hint,
        )


def prepare(
    launch: Launch,
    storage: ServiceStorage,
    cache: CodeCache,
    settings: LaunchSettings,
    tell: Tell = untold,
) -> Preparation:
    """Unpack the code of a launch and read its secrets. Raises LaunchError, whatever the cause.

    tell: called with its progress.
    """
    spec = spec_of(launch.record)
    try:
        algorithm = settings.algorithms.get(spec.algorithm)
        command = tuple(spec.command) or (algorithm.command if algorithm is not None else ())
        if not command:
            raise LaunchError(
                f"the run has no command, and this runner offers no algorithm {spec.algorithm!r}",
                hint="give a command, or choose an algorithm that a runner offers",
                is_permanent=True,
            )
        check_mark(storage.url, storage.mark)
        image = spec.code.image or (algorithm.image if algorithm is not None else "")
        if settings.pod_host is not None:
            code = _code_source(spec, algorithm, storage.url)
            keys = {one.variable: _secret_key(one) for one in spec.secrets}
            return Preparation(launch.folder, command, {}, image, code=code, secret_keys=keys)
        secrets = {one.variable: _secret(one, settings) for one in spec.secrets}
        folder = _code(launch, spec, algorithm, storage.url, cache, settings, tell)
    except (ArchiveError, LaunchSpecError, ValueError) as error:
        raise LaunchError(str(error), is_permanent=True) from error
    except CodeError as error:
        raise LaunchError(str(error), is_permanent=error.is_permanent) from error
    except LaunchError:
        raise
    except (OSError, ElastaneError) as error:
        raise LaunchError(str(error)) from error
    return Preparation(folder, command, secrets, image)


def _secret_key(secret: training_pb2.SecretRef) -> SecretKey:
    """Return a secret of the ranks' namespace, whose value the runner does not see."""
    if secret.WhichOneof("source") != "kubernetes":
        raise LaunchError(
            f"the secret {secret.variable} is a file, and the ranks of this runner are pods",
            hint="give a secret of Kubernetes, or choose runners by their labels",
            is_permanent=True,
        )
    check_parameter(secret.variable, "")
    name, _, key = secret.kubernetes.partition("/")
    return SecretKey(name, key)


def _code_source(spec: training_pb2.RunSpec, algorithm: Algorithm | None, service_url: str) -> CodeSource:
    """Return where the ranks' own containers find the code."""
    match spec.code.WhichOneof("source"):
        case "archive_sha256":
            return CodeSource(service_url=service_url, archive_sha256=spec.code.archive_sha256)
        case "git":
            return CodeSource(git_url=spec.code.git.url, git_commit=spec.code.git.commit)
        case None if algorithm is not None:
            return CodeSource(folder=algorithm.folder)
        case _:
            return CodeSource()


def _secret(secret: training_pb2.SecretRef, settings: LaunchSettings) -> str:
    if secret.WhichOneof("source") != "file":
        raise LaunchError(
            f"the secret {secret.variable} is Kubernetes' own, and this runner starts processes",
            hint="give a file, or choose runners by their labels",
            is_permanent=True,
        )
    value = read_secret(settings.secrets, secret.variable, secret.file)
    check_parameter(secret.variable, value)  # nor does a secret replace a variable of the service
    return value


def _code(
    launch: Launch,
    spec: training_pb2.RunSpec,
    algorithm: Algorithm | None,
    service_url: str,
    cache: CodeCache,
    settings: LaunchSettings,
    tell: Tell,
) -> Path:
    """Return the folder that the ranks are started in."""
    target = launch.folder / "code"
    launch.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    source = spec.code.WhichOneof("source")
    if source is None and algorithm is not None and algorithm.folder:
        return Path(algorithm.folder)
    if target.is_dir():
        shutil.rmtree(target)  # of a runner that was killed before it had started a rank
    if source == "archive_sha256":
        cache.unpack(service_url, spec.code.archive_sha256, target, settings.limits, tell)
    elif source == "git":
        clone(spec.code.git.url, spec.code.git.commit, target, tell)
    else:
        target.mkdir()
    make_readable(target)
    return target


# ---------------------------------------------------------------- start


def plan(
    launch: Launch,
    preparation: Preparation,
    ranks: Iterable[int],
    endpoints: Mapping[int, Endpoint],
    settings: LaunchSettings,
    tell: Tell = untold,
) -> AttemptPlan:
    """Return the plan for starting these ranks together. Raises LaunchSpecError.

    endpoints: where each rank of the run listens; of an elastic run they do not matter. tell: of the plan.
    """
    record = launch.record
    if settings.has_own_network:
        endpoints = {rank: Endpoint(LOOPBACK, one.port) for rank, one in endpoints.items()}
    spec = launch_spec(record, endpoints, settings)
    own = _of_worker(settings) if record.elastic else {}
    chosen = sorted(ranks)
    unit = record.unit_of(chosen[0])
    return AttemptPlan(
        run=unit.run,
        attempt=unit.attempt,
        fence=record.fence,
        folder=preparation.folder,
        image=preparation.image,
        slots_per_rank=spec_of(record).slots_per_instance or 1,
        ranks=tuple(
            RankPlan(
                agent_command(record, preparation.command, settings, serves=spec.serves(rank))
                if record.elastic
                else preparation.command,
                {**_gpus(record, rank, chosen), **environment(spec, rank), **own, **preparation.secrets},
                rank,
                preparation.secret_keys,
            )
            for rank in chosen
        ),
        code=preparation.code,
        is_elastic=record.elastic,
        grace_seconds=grace_seconds(record),
        tell=tell,
    )


def launch_spec(
    record: LaunchRecord, endpoints: Mapping[int, Endpoint], settings: LaunchSettings
) -> LaunchSpec:
    """Return everything that determines the environment of a launch's ranks. Raises LaunchSpecError."""
    spec = spec_of(record)
    instances = spec.instances or 1
    if record.elastic:
        addresses: tuple[Endpoint, ...] = (Endpoint(settings.host, 1),) * instances
    else:
        missing = [rank for rank in range(instances) if rank not in endpoints]
        if missing:
            raise LaunchSpecError(f"rank {missing[0]} of {instances} has no endpoint")
        addresses = tuple(endpoints[rank] for rank in range(instances))
    number = spec.framework or training_pb2.FRAMEWORK_ELASTANE
    framework = Framework(training_pb2.Framework.Name(number).removeprefix("FRAMEWORK_").lower())
    return LaunchSpec(
        job_id=str(record.run_id),
        attempt=record.attempt,
        fence=record.fence,
        framework=framework,
        algorithm=spec.algorithm,
        model_name=spec.output_model_name,
        instances=instances,
        endpoints=addresses,
        dataset_id=spec.dataset.id,
        dataset_hash=spec.dataset.version_hash,
        dataset_url=record.data_url or spec.dataset.url,
        model_url=layout.model_url(record.artifact_url) if record.artifact_url else "",
        checkpoint_url=record.checkpoint_url,
        metadata_store=settings.environ.get("MLFLOW_TRACKING_URI", ""),
        parameters=dict(spec.parameters),
        chief=spec.chief,
        parameter_servers=spec.parameter_servers,
        master_port=addresses[0].port,
        rendezvous=addresses[0] if framework is Framework.HOROVOD else None,
        elastane_masters=settings.masters,
        elastane_job=record.job,
    )


def agent_command(
    record: LaunchRecord, script: tuple[str, ...], settings: LaunchSettings, *, serves: bool = False
) -> tuple[str, ...]:
    """Return the command of a rank of an elastic run: an agent that joins the run's job.

    serves: with one parameter server, and no worker.
    """
    return (
        settings.interpreter, "-P", "-m", "elastane_cli", "run", "--master", settings.masters,
        "--job", record.job, "--job-timeout", str(JOB_SECONDS), "--local-workers", str(int(not serves)),
        "--ps", str(int(serves)), "--exit-codes", "pod", *script,
    )  # fmt: skip


def _gpus(record: LaunchRecord, rank: int, ranks: Iterable[int]) -> dict[str, str]:
    """Return the variable that names the GPUs of a rank; a parameter of the run may override it."""
    if rank not in record.gpus:
        return {}
    together = {one: record.gpus[one] for one in ranks}
    number = spec_of(record).framework
    by_local_rank = not record.elastic and number != training_pb2.FRAMEWORK_TENSORFLOW
    return {VISIBLE: ",".join(seen_by(rank, together, numbers_by_local_rank=by_local_rank))}


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _of_worker(settings: LaunchSettings) -> dict[str, str]:
    given = {name: value for name in WORKER_VARIABLES if (value := settings.environ.get(name))}
    if settings.worker_token_file:
        given["ELASTANE_TOKEN_FILE"] = settings.worker_token_file
    if settings.capacity:
        given["ELASTANE_CAPACITY"] = settings.capacity
    return given

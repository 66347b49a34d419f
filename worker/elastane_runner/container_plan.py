"""Parameters of a rank's container, from an attempt's plan and the runner's options. Pure.

A rank gets what it needs and no more: a root that it cannot write to, no capabilities, no way to new
privileges, a user that is not root, limits of memory, processors and processes, folders that were named. What
the engine is told here is also what the next runner finds: labels say which run, attempt and rank a container
is, so that nothing else has to be remembered for it to be adopted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from elastane_runner.engine import AttemptPlan, EngineError, RankPlan
from elastane_runner.rank_labels import labels

#: Where a rank finds the run's code, and is started.
CODE: Final = "/elastane/code"
#: The only place that a rank can write to, beside folders of the options; empty at its start.
TEMPORARY: Final = "/tmp"

#: The least that Docker accepts.
MEMORY_BYTES_MIN: Final = 6 * 1024 * 1024

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_USER: Final = re.compile(r"[1-9][0-9]*(:[0-9]+)?")
_BILLION: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """Limits of the ranks of an attempt.

    image: it has to be on the machine; nothing is pulled. user: UID or UID:GID, not root; it must be able to
    read the code. memory_bytes: with no swap beside it; None: no limit. cpus: processors, may be a fraction.
    processes_max: threads count. temporary_bytes: of /tmp, shared_memory_bytes: of /dev/shm; both are memory.
    network: an engine's network by name, "bridge", "none", or "host" where `allows_host_network`. Ranks of
    one attempt share its interface and loopback, whichever it is. read_folders, write_folders: of the
    machine, seen at the same paths.
    """

    image: str
    user: str = "10001:10001"
    memory_bytes: int | None = None
    cpus: float | None = None
    processes_max: int = 4096
    temporary_bytes: int = 1024**3
    shared_memory_bytes: int = 1024**3
    network: str = "bridge"
    allows_host_network: bool = False
    read_folders: tuple[Path, ...] = ()
    write_folders: tuple[Path, ...] = ()


def options_of(plan: AttemptPlan, options: ContainerOptions) -> ContainerOptions:
    """Return the options of an attempt: its own image if it names one, and limits for all slots of a rank.

    options: of the runner. image: of attempts that name none. memory_bytes, cpus: of one slot.
    """
    slots = plan.slots_per_rank
    return replace(
        options,
        image=plan.image or options.image,
        memory_bytes=None if options.memory_bytes is None else options.memory_bytes * slots,
        cpus=None if options.cpus is None else options.cpus * slots,
    )


def image_reference(name: str) -> str:
    """Return the name of an image without its tag if it has a digest: engines do not take both."""
    path, at, digest = name.partition("@")
    folder, slash, last = path.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}" if at else name


def check_options(options: ContainerOptions) -> None:
    """Refuse options that would not confine a rank, or that engines read differently. Raises EngineError."""
    if not options.image:
        raise EngineError("no image is named", hint="give the algorithm an image")
    if not _USER.fullmatch(options.user):
        raise EngineError(
            f"ranks cannot run as {options.user!r}", hint="a user is UID or UID:GID as numbers, and not root"
        )
    if options.network == "host" and not options.allows_host_network:
        raise EngineError(
            "the host's network is not allowed", hint="allow it for this runner, or name another network"
        )
    if not _NAME.fullmatch(options.network):
        raise EngineError(f"{options.network!r} is not the name of a network")
    if options.memory_bytes is not None and options.memory_bytes < MEMORY_BYTES_MIN:
        raise EngineError(
            f"{options.memory_bytes} bytes of memory are too few", hint=f"{MEMORY_BYTES_MIN} at least"
        )
    if options.cpus is not None and not options.cpus >= 0.01:
        raise EngineError(f"{options.cpus} processors are too few", hint="0.01 at least")
    for name in ("processes_max", "temporary_bytes", "shared_memory_bytes"):
        if getattr(options, name) < 1:
            raise EngineError(f"{name} is {getattr(options, name)}: from 1")
    for folder in (*options.read_folders, *options.write_folders):
        _check_folder(folder)


def container_arguments(
    plan: AttemptPlan, rank: RankPlan, options: ContainerOptions, *, runner: str, image: str = ""
) -> dict[str, Any]:
    """Return the arguments of `containers.create` of Docker's SDK for one rank of a plan.

    runner: whose containers these are. image: the id that the name of the options stands for.
    """
    arguments: dict[str, Any] = {
        "image": image or options.image,
        "name": container_name(runner, plan, rank.rank),
        "entrypoint": [rank.command[0]],
        "command": list(rank.command[1:]),
        "environment": {"HOME": TEMPORARY, "PYTHONUNBUFFERED": "1", **rank.environment},
        "working_dir": CODE,
        "labels": labels(runner, plan, rank.rank),
        "user": options.user,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        # As the first process of a container, a script would ignore SIGTERM unless it handles it.
        "init": True,
        "network_mode": _network(runner, plan, rank.rank, options),
        "ipc_mode": "private",
        "pids_limit": options.processes_max,
        "shm_size": options.shared_memory_bytes,
        # Docker's own default is noexec, with which compilers of kernels fail.
        "tmpfs": {TEMPORARY: f"rw,nosuid,nodev,exec,mode=1777,size={options.temporary_bytes}"},
        "volumes": _volumes(plan.folder, options),
        # Whole: bytes that the engine drops would shift the offsets of the log that is made of it.
        "log_config": {"type": "json-file", "config": {"max-size": "1000g"}},
    }
    if options.memory_bytes is not None:
        arguments["mem_limit"] = arguments["memswap_limit"] = options.memory_bytes
    if options.cpus is not None:
        arguments["nano_cpus"] = round(options.cpus * _BILLION)
    return arguments


def container_name(runner: str, plan: AttemptPlan, rank: int) -> str:
    """Return the name of a rank's container, for people; programs use the labels."""
    return f"elastane-{runner}-{plan.run}-{plan.attempt}-{rank}"


def _network(runner: str, plan: AttemptPlan, rank: int, options: ContainerOptions) -> str:
    """Return the network of a rank: the first has its own; others join it, so all share a loopback."""
    first = plan.ranks[0].rank
    if options.network == "host" or rank == first:
        return options.network
    return f"container:{container_name(runner, plan, first)}"


def _volumes(code: Path, options: ContainerOptions) -> dict[str, dict[str, str]]:
    _check_folder(code)
    volumes = {str(code): {"bind": CODE, "mode": "ro"}}
    volumes |= {str(folder): {"bind": str(folder), "mode": "ro"} for folder in options.read_folders}
    volumes |= {str(folder): {"bind": str(folder), "mode": "rw"} for folder in options.write_folders}
    return volumes


def _check_folder(folder: Path) -> None:
    if not folder.is_absolute() or folder == Path("/") or ".." in folder.parts or ":" in str(folder):
        raise EngineError(
            f"the folder {folder} cannot be shown to a container",
            hint="its path is absolute, not '/', and without ':' and '..'",
        )

"""Which rank runs where, and the variables it gets: pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastane.errors import RefusedError

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]")
SLOTS_MAX = 1024


class HostsFormatError(RefusedError):
    """What a discovery script printed is no list of hosts."""

    code = "ELA408"


@dataclass(frozen=True)
class Slot:
    """One place for a process. index: from 0 on its host."""

    host: str
    index: int


@dataclass(frozen=True)
class Process:
    """One rank of a round, and all that torchrun tells one.

    group_rank: of its host among the hosts, in their order.
    """

    rank: int
    slot: Slot
    local_world_size: int
    group_rank: int
    group_world_size: int
    world_size: int


def parse_hosts(text: str) -> dict[str, int]:
    """Slots by host of lines "HOST" or "HOST:SLOTS", in their order; "#" begins a comment.

    A host named twice has the slots of both lines; one with 0 slots is left out. Raises HostsFormatError.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        host, colon, count = words.rpartition(":") if not words.endswith("]") else (words, "", "")
        if not colon:
            host, count = words, "1"
        # No leading "-": a host's name becomes an argument of ssh.
        if not _HOST.fullmatch(host) or not count.isdecimal() or int(count) > SLOTS_MAX:
            raise HostsFormatError(
                f"line {number} names no host: {line[:80]!r}",
                hint=f"a line is HOST or HOST:SLOTS, with at most {SLOTS_MAX} slots",
                line=number,
            )
        if int(count):
            hosts[host] = hosts.get(host, 0) + int(count)
    return hosts


def choose(hosts: Mapping[str, int], before: Sequence[Slot], workers_max: int) -> tuple[Slot, ...]:
    """The slots to use: those of before that are still there first, in their order, then new ones.

    So a host that stays keeps low ranks, and rank 0 moves only when its host goes. The slots of one host
    stand together, as local ranks must.
    """
    kept = list(dict.fromkeys(slot.host for slot in before if slot.host in hosts))
    order = kept + [host for host in hosts if host not in kept]
    return tuple(Slot(host, index) for host in order for index in range(hosts[host]))[:workers_max]


def processes(slots: Sequence[Slot]) -> list[Process]:
    """The ranks of a round, in order."""
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    sizes = {host: sum(slot.host == host for slot in slots) for host in hosts}
    return [
        Process(rank, slot, sizes[slot.host], hosts.index(slot.host), len(hosts), len(slots))
        for rank, slot in enumerate(slots)
    ]


def environment(
    process: Process, *, leader: str, port: int, restarts: int, restarts_max: int, run_id: str
) -> dict[str, str]:
    """The variables torchrun gives a rank. leader, port: where rank 0 listens for the others."""
    return {
        "RANK": str(process.rank),
        "LOCAL_RANK": str(process.slot.index),
        "WORLD_SIZE": str(process.world_size),
        "LOCAL_WORLD_SIZE": str(process.local_world_size),
        "GROUP_RANK": str(process.group_rank),
        "GROUP_WORLD_SIZE": str(process.group_world_size),
        "ROLE_RANK": str(process.rank),
        "ROLE_WORLD_SIZE": str(process.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": leader.strip("[]"),
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts_max),
        "TORCHELASTIC_RUN_ID": run_id,
    }


def tf_config(slots: Sequence[Slot], rank: int, port: int) -> str:
    """TF_CONFIG of a rank: every rank is a worker, at the port after `port` by its local number."""
    workers = [f"{slot.host}:{port + 1 + slot.index}" for slot in slots]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def check_template(template: str) -> list[str]:
    """The words of a template; raises RefusedError unless {host} and {command} are in it, each once."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise RefusedError(f"bad template {template!r}: {error}") from error
    for name in ("{host}", "{command}"):
        if sum(word.count(name) for word in words) != 1:
            raise RefusedError(
                f"the template must have {name} once: {template!r}", hint="like 'ssh -tt {host} {command}'"
            )
    return words


def remote_command(
    template: str, host: str, command: Sequence[str], variables: Mapping[str, str], folder: str
) -> list[str]:
    """What starts `command` on the host: the template with the whole of it as one quoted shell line."""
    assigned = [f"{name}={value}" for name, value in variables.items()]
    line = f"cd {shlex.quote(folder)} && exec env {shlex.join([*assigned, *command])}"
    return [
        word.replace("{host}", host.strip("[]")).replace("{command}", line)
        for word in check_template(template)
    ]

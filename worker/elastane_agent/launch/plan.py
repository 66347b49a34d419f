"""Assignment of ranks to hosts, and the variables of each rank: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastane_agent.hosts.slots import Slot


@dataclass(frozen=True)
class Process:
    """One rank of a round, with the values that torchrun sets for a rank.

    group_rank: index of its host among the hosts, in their order.
    """

    rank: int
    slot: Slot
    local_world_size: int
    group_rank: int
    group_world_size: int
    world_size: int


def choose(hosts: Mapping[str, int], before: Sequence[Slot], workers_max: int) -> tuple[Slot, ...]:
    """Choose the slots to use: previous ones that still exist first, in their order, then new ones.

    So a host that stays keeps low ranks, and rank 0 moves only when its host disappears. The slots of one
    host are adjacent, as local ranks must be.
    """
    kept = list(dict.fromkeys(slot.host for slot in before if slot.host in hosts))
    order = kept + [host for host in hosts if host not in kept]
    return tuple(Slot(host, index) for host in order for index in range(hosts[host]))[:workers_max]


def processes(slots: Sequence[Slot]) -> list[Process]:
    """Return the ranks of a round, in order."""
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    sizes = {host: sum(slot.host == host for slot in slots) for host in hosts}
    return [
        Process(rank, slot, sizes[slot.host], hosts.index(slot.host), len(hosts), len(slots))
        for rank, slot in enumerate(slots)
    ]


def environment(
    process: Process, *, leader: str, port: int, restarts: int, restarts_max: int, run_id: str
) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank.

    leader, port: where rank 0 listens for the others.
    """
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
    """Return TF_CONFIG of a rank: every rank is a worker, on the port after `port` by its local number."""
    workers = [f"{slot.host}:{port + 1 + slot.index}" for slot in slots]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})

"""Models and clusters for the planner's benchmark and tests: random ones, and three topologies.

Instances drawn from (V, L, M) alone would mostly be easy. So sizes in bytes are drawn such that links, sums
and blocks each limit some instances, and half of the clusters have devices of different speeds.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile


class Instance(NamedTuple):
    """Input of the planner: a model and a cluster."""

    profile: Profile
    cluster: Cluster
    micro_batches: int


def random_instance(
    rng: random.Random,
    devices: tuple[int, int] = (3, 4),
    units: tuple[int, int] = (4, 7),
    micro_batches: tuple[int, int] = (2, 16),
) -> Instance:
    """Return a model and a cluster with sizes in these ranges, both ends included."""
    count = rng.randint(*devices)
    profile = random_profile(rng, rng.randint(*units))
    uneven = rng.random() < 0.5
    speeds = [rng.choice([0.5, 1.0, 2.0]) if uneven else 1.0 for _ in range(count)]
    bandwidth = [[0.0] * count for _ in range(count)]
    for u in range(count):
        for v in range(u):
            bandwidth[u][v] = bandwidth[v][u] = rng.choice([10.0, 50.0, 200.0])
    cluster = Cluster(
        tuple(Device(f"d{index}", speed) for index, speed in enumerate(speeds)), tuple(map(tuple, bandwidth))
    )
    return Instance(profile, cluster, rng.randint(*micro_batches))


def random_profile(rng: random.Random, units: int) -> Profile:
    """Return a model of so many units."""
    return Profile(
        tuple(
            UnitProfile(
                f"unit{index}",
                forward_seconds=rng.uniform(0.1, 2.0),
                backward_seconds=rng.uniform(0.2, 4.0),
                parameter_bytes=int(rng.choice([0, 1, 10, 100]) * rng.uniform(0, 10)),
                boundary_bytes=int(rng.choice([0, 1, 5]) * rng.uniform(0, 10)),
            )
            for index in range(units)
        )
    )


def random_plan(rng: random.Random, instance: Instance) -> Plan:
    """Return a random plan, good or bad, on some or all devices in any order."""
    units, devices = len(instance.profile.units), list(range(len(instance.cluster.devices)))
    rng.shuffle(devices)
    used = devices[: rng.randint(1, len(devices))]
    stages = rng.randint(1, min(len(used), len(instance.profile.cuts) + 1))
    begins = [0, *sorted(rng.sample(instance.profile.cuts, stages - 1))]
    seats = [0, *sorted(rng.sample(range(1, len(used)), stages - 1)), len(used)]
    groups = [tuple(used[seats[stage] : seats[stage + 1]]) for stage in range(stages)]
    return Plan(tuple(map(Stage, begins, (*begins[1:], units), groups)))


def servers(count: int, devices: int, inside: float, between: float, *, interleaved: bool = False) -> Cluster:
    """Return servers of equal devices; interleaved: devices are numbered server by server in turn."""
    total = count * devices
    host = [index % count if interleaved else index // devices for index in range(total)]
    matrix = tuple(
        tuple(inside if host[u] == host[v] else between for v in range(total)) for u in range(total)
    )
    return Cluster(tuple(Device(f"d{index:02}") for index in range(total)), matrix)


def reference_topologies() -> dict[str, Cluster]:
    """Return four GPUs with NVLink, 2 x 2 on 25 Gbit/s Ethernet numbered in turn, 4 x 2 on 50 Gbit/s."""
    near = {(0, 3), (3, 0), (1, 2), (2, 1)}
    nvlink = tuple(tuple(50e9 if (u, v) in near else 25e9 for v in range(4)) for u in range(4))
    return {
        "B": Cluster(tuple(Device(f"d{index}") for index in range(4)), nvlink),
        "C": servers(2, 2, 10e9, 25e9 / 8, interleaved=True),
        "A": servers(4, 2, 10e9, 50e9 / 8),
    }


def divided(profile: Profile, parts: int) -> Profile:
    """Return the profile of a micro-batch, by dividing all figures of the measured batch by `parts`."""
    return Profile(
        tuple(
            msgspec.structs.replace(
                unit,
                forward_seconds=unit.forward_seconds / parts,
                backward_seconds=unit.backward_seconds / parts,
                boundary_bytes=unit.boundary_bytes // parts,
                activation_bytes=unit.activation_bytes // parts,
                workspace_bytes=unit.workspace_bytes // parts,
            )
            for unit in profile.units
        )
    )

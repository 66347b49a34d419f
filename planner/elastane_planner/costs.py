"""Duration of a plan's parts: blocks, frames and sums, and the load W of the most loaded part.

    block      (seconds of its units + a block's overhead) / speed of the device
    frame      boundary bytes / bandwidth of its link
    sums       (n + 1) (r - 1) / r * parameter bytes / least bandwidth, n = ceil(M / r)

The sums cost more than the 2 (r - 1) / r of an all-reduce of one addend (n = 1): the gradients of each
micro-batch are sent separately, because they must be added in the canonical order of the micro-batches, and
neighbours in that order are on different replicas. Sending the result to a shadow adds parameter bytes /
bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf, lcm
from typing import NamedTuple

from elastane_planner.cluster import Cluster
from elastane_planner.errors import InvalidRequest
from elastane_planner.plan import Memory, Plan, Stage
from elastane_planner.profile import Profile


class Floor(NamedTuple):
    """Seconds of a stage: the work of its busiest replica, its fastest blocks, its sums without shadows."""

    work: float
    forward: float
    backward: float
    sums: float


class Costs:
    """Costs of plan parts for one model, one cluster and one number of micro-batches."""

    def __init__(self, profile: Profile, cluster: Cluster, micro_batches: int) -> None:
        """Raises InvalidRequest without a micro-batch."""
        if micro_batches < 1:
            raise InvalidRequest("a step has at least one micro-batch", micro_batches=micro_batches)
        self.profile, self.cluster, self.micro_batches = profile, cluster, micro_batches
        units = profile.units
        self.speeds = tuple(device.speed for device in cluster.devices)
        self._forward = _sums([unit.forward_seconds for unit in units])
        self._backward = _sums([unit.backward_seconds for unit in units])
        self._parameters = _sums([float(unit.parameter_bytes) for unit in units])
        self._activations = _sums([float(unit.activation_bytes) for unit in units])
        self._boundary = [float(unit.boundary_bytes) for unit in units]
        self._floors: dict[tuple[int, int, tuple[int, ...], Memory], Floor] = {}
        self._slowest: dict[tuple[int, ...], float] = {}
        self._fastest: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def block_seconds(
        self, first: int, end: int, device: int, memory: Memory = "plain"
    ) -> tuple[float, float]:
        """Return the seconds of forward and of backward of units [first, end) on a device.

        Recomputation runs the forward again. A swap copies during the computation: the slower of the two
        counts.
        """
        speed, profile = self.speeds[device], self.profile
        again = (self._forward[end] - self._forward[first]) / speed
        forward = again + profile.forward_overhead_seconds / speed
        backward = self._backward[end] - self._backward[first] + profile.backward_overhead_seconds
        backward /= speed
        if memory == "checkpoint":
            return forward, backward + again
        if memory == "swap":
            stash = self._activations[end] - self._activations[first]
            copy = _over(stash, self.cluster.devices[device].host_bandwidth)
            return max(forward, copy), max(backward, copy)
        return forward, backward

    def frame_seconds(self, cut: int, source: int, target: int) -> float:
        """Return the seconds of a micro-batch's frame over the cut before unit `cut`, in either direction."""
        return _over(self._boundary[cut - 1], self.cluster.bandwidth[source][target])

    def sum_seconds(self, first: int, end: int, devices: Sequence[int], shadows: Sequence[int] = ()) -> float:
        """Return the seconds to add the gradients of units [first, end) over the replicas."""
        replicas, size = len(devices), self._parameters[end] - self._parameters[first]
        seconds = 0.0
        if replicas > 1:
            local = -(-self.micro_batches // replicas)
            seconds = _over((local + 1) * (replicas - 1) / replicas * size, self.least_bandwidth(devices))
        if shadows:
            bandwidth = self.cluster.bandwidth
            seconds += _over(size, min(bandwidth[source][target] for source in devices for target in shadows))
        return seconds

    def seconds(self, first: int, end: int) -> float:
        """Return the seconds of forward and backward of units [first, end) at speed 1."""
        return self._forward[end] - self._forward[first] + self._backward[end] - self._backward[first]

    def boundary_bytes(self, cut: int) -> float:
        """Return the bytes of a frame over the cut before unit `cut`."""
        return self._boundary[cut - 1]

    def least_bandwidth(self, devices: Sequence[int]) -> float:
        """Return the bandwidth of the slowest link among these devices; infinite for one alone."""
        group = tuple(devices)
        least = self._slowest.get(group)
        if least is None:
            bandwidth = self.cluster.bandwidth
            least = min((bandwidth[u][v] for u in group for v in group if u != v), default=inf)
            self._slowest[group] = least
        return least

    def floor(self, stage: Stage) -> Floor:
        """Return a lower bound of a stage's time. Cached, because the plans of a search share most stages."""
        key = (stage.first_unit, stage.end_unit, stage.devices, stage.memory)
        floor = self._floors.get(key)
        if floor is None:
            times = [self.block_seconds(key[0], key[1], device, stage.memory) for device in stage.devices]
            count, replicas = self.micro_batches, stage.replicas
            floor = self._floors[key] = Floor(
                work=max(len(range(j, count, replicas)) * sum(pair) for j, pair in enumerate(times)),
                forward=min(forward for forward, _ in times),
                backward=min(backward for _, backward in times),
                sums=self.sum_seconds(key[0], key[1], stage.devices),
            )
        return floor

    def frame_floor(self, cut: int, sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
        """Return the seconds of a frame over a cut on the fastest link from a group to another."""
        fastest = self._fastest.get((sources, targets))
        if fastest is None:
            bandwidth = self.cluster.bandwidth
            fastest = max(bandwidth[source][target] for source in sources for target in targets)
            self._fastest[sources, targets] = fastest
        return _over(self._boundary[cut - 1], fastest)

    def stage_load(self, first: int, end: int, devices: Sequence[int], memory: Memory = "plain") -> float:
        """Return the load of a stage in a step: ceil(M / r) blocks of its slowest replica, and its sums."""
        slowest = min(devices, key=lambda device: self.speeds[device])
        seconds = sum(self.block_seconds(first, end, slowest, memory))
        return -(-self.micro_batches // len(devices)) * seconds + self.sum_seconds(first, end, devices)

    def link_load(self, cut: int, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Return the load of the busiest link over a cut, in the slower direction.

        Replica j of r sends to replica k of q the micro-batches m with m mod r = j and m mod q = k: one in
        lcm(r, q).
        """
        frames = -(-self.micro_batches // lcm(len(sources), len(targets)))
        return _over(frames * self._boundary[cut - 1], self.least_link(sources, targets))

    def least_link(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Return the bandwidth of the slowest link between two groups, in its slower direction."""
        bandwidth = self.cluster.bandwidth
        return min(min(bandwidth[u][v], bandwidth[v][u]) for u in sources for v in targets)

    def load(self, plan: Plan) -> float:
        """Return W of a plan: the load of its most loaded stage or link."""
        stages = plan.stages
        loads = [self.stage_load(stage.first_unit, stage.end_unit, stage.devices) for stage in stages]
        links = [
            self.link_load(after.first_unit, before.devices, after.devices)
            for before, after in pairwise(stages)
        ]
        return max(loads + links)


def _sums(values: list[float]) -> list[float]:
    """Return the sums of the first 0, 1, 2, ... values."""
    return list(accumulate(values, initial=0.0))


def _over(size: float, bandwidth: float) -> float:
    """Return the seconds to send `size` bytes: 0 for no bytes, otherwise infinite without a link."""
    if not size:
        return 0.0
    return size / bandwidth if bandwidth else inf

"""Plans of one job: the step time on given devices, and the devices needed for a step time. Pure.

A job has N ESTs. Device i runs one EST's part of a step in c_i seconds and takes at most m_i ESTs. A step
ends when the last device is done, so its time is the least T with

    sum over devices of min(floor(T / c_i), m_i) >= N

and T is one of the values a c_i, a = 1..N: they are sorted once for each shape and searched by bisection.
More than one device adds the exchange, `exchange_seconds + peer_seconds (P - 1)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.pool import Counts

#: Quotients this near to a whole number are that number: T is a multiple of c in floating point.
TOLERANCE = 1e-9
ESTS_MAX = 2**20
_CACHE_MAX = 50_000


@dataclass(frozen=True, eq=False)
class Shape:
    """All that determines a job's speed. Equal jobs should share one object, and so the cache of plans.

    ests: N. est_seconds: seconds of one EST's part of a step on each device type; infinite where the job may
    not run. limits: most ESTs on one device of each type. mixes: whether devices of unlike types may train
    together. workers_min: fewest devices with which the job may run. exchange_seconds, peer_seconds: the
    exchange of gradients. workers_max: most devices that it uses; 0: one for each EST. kinds: of each type,
    where only types of one kind may train together (`mixing.kinds_at`); empty: all. Raises InvalidSettings.
    """

    ests: int
    est_seconds: tuple[float, ...]
    limits: tuple[int, ...] = ()
    mixes: bool = True
    workers_min: int = 1
    exchange_seconds: float = 0.0
    peer_seconds: float = 0.0
    workers_max: int = 0
    kinds: tuple[int, ...] = ()
    _steps: dict[Counts, float] = field(default_factory=dict, init=False, repr=False)
    _least: dict[Counts, int] = field(default_factory=dict, init=False, repr=False)
    _alone: dict[Counts, Counts | None] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.ests <= ESTS_MAX:
            raise InvalidSettings(f"a job cannot have {self.ests} ESTs", hint=f"Give 1 to {ESTS_MAX}.")
        if not 1 <= self.workers_min <= self.ests:
            raise InvalidSettings(
                f"{self.workers_min} workers at least for {self.ests} ESTs",
                hint="A worker hosts one EST or more.",
            )
        if self.workers_max and self.workers_max < self.workers_min:
            raise InvalidSettings(
                f"at most {self.workers_max} workers, and at least {self.workers_min}",
                hint="Give a larger limit.",
            )
        for seconds in self.est_seconds:
            if seconds != math.inf:
                check_amount("the seconds of an EST", seconds, positive=True)
        if all(seconds == math.inf for seconds in self.est_seconds):
            raise InvalidSettings("a job that may run on no device type", hint="Measure it on one at least.")
        check_amount("the seconds of the exchange", self.exchange_seconds)
        check_amount("the seconds of the exchange for each peer", self.peer_seconds)
        limits = self.limits or (self.ests,) * len(self.est_seconds)
        if any(limit < 0 for limit in limits):
            raise InvalidSettings("a negative EST limit", hint="0 keeps a job away from a device type.")
        capped = (min(limit, self.ests) for limit in limits)
        usable = zip(capped, self.est_seconds, strict=True)
        object.__setattr__(self, "limits", tuple(0 if c == math.inf else limit for limit, c in usable))
        usable_types = tuple(i for i, limit in enumerate(self.limits) if limit)
        object.__setattr__(self, "usable", usable_types)
        object.__setattr__(self, "groups", self._make_groups())
        object.__setattr__(self, "levels", self._make_levels())
        is_plain = len(self.groups) == 1 and not (self.workers_max and len(self.groups[0]) > 1)
        object.__setattr__(self, "_is_plain", is_plain)

    #: Indices of the device types that the job may use.
    usable: tuple[int, ...] = field(default=(), init=False, repr=False)
    #: These, divided into those that may train together.
    groups: tuple[tuple[int, ...], ...] = field(default=(), init=False, repr=False)
    #: One group, in which any number of devices counts: their sum decides.
    _is_plain: bool = field(default=False, init=False, repr=False)
    #: Step times that are possible, ascending, each with the ESTs that one device of each type can run in it.
    levels: tuple[tuple[float, Counts], ...] = field(default=(), init=False, repr=False)

    def _make_groups(self) -> tuple[tuple[int, ...], ...]:
        types = len(self.est_seconds)
        if self.kinds and len(self.kinds) != types:
            raise InvalidSettings(
                f"{len(self.kinds)} kinds of {types} device types", hint="Give each type a kind."
            )
        kinds = (self.kinds or (0,) * types) if self.mixes else tuple(range(types))
        members: dict[int, list[int]] = {}
        for i in self.usable:
            members.setdefault(kinds[i], []).append(i)
        return tuple(map(tuple, members.values()))

    def _make_levels(self) -> tuple[tuple[float, Counts], ...]:
        # With at most P devices one of them runs ceil(N / P) ESTs: of equal ones no step is shorter.
        fewest = -(-self.ests // self.workers_max) if self.workers_max else 1
        values = sorted(
            a * self.est_seconds[i]
            for group in self.groups
            for i in group
            for a in range(fewest if len(group) == 1 else 1, self.limits[i] + 1)
        )
        distinct: list[float] = []
        for value in values:
            if not distinct or value > distinct[-1] * (1 + TOLERANCE):
                distinct.append(value)
        return tuple((value, self.capacities(value)) for value in distinct)

    def capacities(self, seconds: float) -> Counts:
        """Return how many ESTs one device of each type can run within `seconds`."""
        return tuple(
            0 if c == math.inf else min(int(seconds / c * (1 + TOLERANCE)), limit)
            for c, limit in zip(self.est_seconds, self.limits, strict=True)
        )

    def level(self, devices: Counts) -> int | None:
        """Return the index of the least level that `devices` reach, or None where they cannot hold all ESTs.

        Where types may not mix, the best of those that may train together count.
        """
        capped = tuple(map(min, devices, (self.ests,) * len(devices)))
        found = self._least.get(capped)
        if found is None:
            found = self._search(capped)
            if len(self._least) < _CACHE_MAX:
                self._least[capped] = found
        return found if found >= 0 else None

    def _search(self, devices: Counts) -> int:
        low, high = 0, len(self.levels)
        while low < high:
            middle = (low + high) // 2
            if self._holds(self.levels[middle][1], devices):
                high = middle
            else:
                low = middle + 1
        return low if low < len(self.levels) else -1

    def _holds(self, capacities: Counts, devices: Counts) -> bool:
        if self._is_plain:
            return sum(n * a for n, a in zip(devices, capacities, strict=True)) >= self.ests
        return any(self._carries(group, capacities, devices) for group in self.groups)

    def _carries(self, group: Sequence[int], capacities: Counts, devices: Counts) -> bool:
        """Return whether devices of these types hold all ESTs; the best `workers_max` count."""
        if not self.workers_max:
            return sum(devices[i] * capacities[i] for i in group) >= self.ests
        carried, left = 0, self.workers_max
        for i in sorted(group, key=lambda i: -capacities[i]):
            count = min(left, devices[i])
            carried, left = carried + count * capacities[i], left - count
        return carried >= self.ests

    def step_seconds(self, devices: Counts) -> float:
        """Return the seconds of a step on `devices`, exchange included; infinite where they cannot train."""
        found = self._steps.get(devices)
        if found is None:
            level = self.level(devices) if sum(devices) >= self.workers_min else None
            found = math.inf if level is None else self.levels[level][0] + self.exchange(sum(devices))
            if len(self._steps) < _CACHE_MAX:
                self._steps[devices] = found
        return found

    def exchange(self, devices: int) -> float:
        """Return the seconds that the exchange adds to a step on this many devices."""
        return self.exchange_seconds + self.peer_seconds * (devices - 1) if devices > 1 else 0.0

    def devices_at(self, level: int, free: Counts, prices: Sequence[float]) -> Counts | None:
        """Return a small and cheap set of devices of `free` that reaches a level, or None.

        Types are filled in the order of price per EST; what is more than needed is then dropped, dearest
        first. At least `workers_min` devices are taken; where they would be more than `workers_max`, those
        that hold the most ESTs each are.
        """
        capacities = self.levels[level][1]
        if not self._holds(capacities, free):
            return None
        order = sorted(
            (i for i, capacity in enumerate(capacities) if capacity and free[i]),
            key=lambda i: (prices[i] / capacities[i], -capacities[i], i),
        )
        if len(self.groups) > 1:
            fitting = [group for group in self.groups if self._carries(group, capacities, free)]
            cheapest = next(group for i in order for group in fitting if i in group)
            order = [i for i in order if i in cheapest]
        taken, need = self._filled(order, capacities, free)
        if self.workers_max and sum(taken) > self.workers_max:
            order.sort(key=lambda i: (-capacities[i], prices[i], i))
            taken, need = self._filled(order, capacities, free)
        for i in sorted(order, key=lambda i: (-prices[i], i)):
            dropped = min(taken[i], -need // capacities[i])
            taken[i] -= dropped
            need += dropped * capacities[i]
        return self._gang(taken, order, free)

    def _filled(self, order: Sequence[int], capacities: Counts, free: Counts) -> tuple[list[int], int]:
        """Take devices in this order until they hold all ESTs; return them, and the ESTs still to place."""
        taken, need = [0] * len(free), self.ests
        for i in order:
            taken[i] = min(free[i], -(-need // capacities[i]))
            need -= taken[i] * capacities[i]
            if need <= 0:
                break
        return taken, need

    def _gang(self, taken: list[int], order: Sequence[int], free: Counts) -> Counts | None:
        missing = self.workers_min - sum(taken)
        for i in order:
            if missing <= 0:
                break
            more = min(missing, free[i] - taken[i])
            taken[i] += more
            missing -= more
        return tuple(taken) if missing <= 0 else None

    def widest(self, free: Counts, prices: Sequence[float]) -> Counts | None:
        """Return the devices of `free` with which a step is fastest; among equals few, then cheap ones.

        None where none can train.
        """
        level = self.level(free)
        return None if level is None else self.devices_at(level, free, prices)

    def alone(self, offered: Counts) -> Counts | None:
        """Return the devices with which the job is fastest if it is alone with all offered devices."""
        if offered not in self._alone:
            if len(self._alone) >= _CACHE_MAX:
                self._alone.clear()
            self._alone[offered] = self.widest(offered, (1.0,) * len(offered))
        return self._alone[offered]

    def bound_to(self, index: int) -> Shape:
        """Return the shape of the job once it is bound to a device type, and those that may train with it."""
        group = next((group for group in self.groups if index in group), (index,))
        seconds = tuple(c if i in group else math.inf for i, c in enumerate(self.est_seconds))
        return Shape(
            self.ests,
            seconds,
            self.limits,
            len(group) > 1,
            self.workers_min,
            self.exchange_seconds,
            self.peer_seconds,
            self.workers_max,
        )


def ladder(ests: int) -> tuple[int, ...]:
    """Return the worthwhile numbers of equal devices: any other is as fast as the next smaller one."""
    return tuple(sorted({-(-ests // a) for a in range(1, ests + 1)}))


@dataclass(frozen=True)
class Waste:
    """Return EasyScale's waste of a plan, and the rate that it leaves, in ESTs a second."""

    waste: float
    rate: float
    capability: float

    @property
    def fraction(self) -> float:
        """Unused part of the devices' capability."""
        return self.waste / self.capability if self.capability else 0.0


def waste(shape: Shape, devices: Counts) -> Waste:
    """Return EasyScale's waste of a plan: rate = capability - waste = N / T, for one type and for mixtures.

    Raises InvalidSettings for devices that cannot hold all ESTs.
    """
    level = shape.level(devices)
    if level is None:
        raise InvalidSettings(
            "these devices cannot hold all ESTs", hint="Ask for more, or raise the EST limit."
        )
    seconds, capacities = shape.levels[level]
    used = [(n, 1 / c, a) for n, c, a in zip(devices, shape.est_seconds, capacities, strict=True) if n]
    capability = sum(n * speed for n, speed, _ in used)
    # f = max A_i / C_i is T where the slowest device is full: the share it needs is its own A_i.
    idle = sum(n * (speed - a / seconds) for n, speed, a in used)
    surplus = (sum(n * a for n, _, a in used) - shape.ests) / seconds
    return Waste(idle + surplus, capability - idle - surplus, capability)

"""Memory of a stage: weights, gradients by EST, optimizer state, and the stash of micro-batches in flight.

    weights     p                parameters, and buffers of the stage: twice, and of each micro-batch
    optimizer   o
    gradients   n p              kept apart by micro-batch, n of them on this replica; the sum takes the place
                                 of one. With replicas also two pieces of each micro-batch of the others
    stash       plain            q a          what backward needs of each micro-batch in flight
                checkpoint       q i + a      the stage's input of each; what one forward, run again, keeps
                swap             2 a          one in work and one on its way; q a in the host's memory
    working     q e + e + w i + i
                                 outputs until the next stage takes them, their gradients ahead of time;
                                 w inputs ahead of time, and the gradient of one on its way. And what units
                                 take while they run, beside the stash of those before them

q, the micro-batches in flight, is counted in the order in which blocks are run. With r replicas, w is
1 + 2 / r, rounded up: as far as a stage before with as many replicas runs ahead in list ordering
(`schedule.lags`), less the input in work. A unit's stash has its input and not its output, which is its
successor's input or sent away; a stage keeps at least its input. A shadow keeps weights, optimizer state and
one sum of gradients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple, get_args

import msgspec

from elastane_planner.amounts import bytes_text
from elastane_planner.cluster import Device
from elastane_planner.costs import Costs
from elastane_planner.errors import DoesNotFit
from elastane_planner.plan import Memory, Plan, Stage
from elastane_planner.profile import workspace_of
from elastane_planner.schedule import Order, in_flight

MODES: Final[tuple[Memory, ...]] = get_args(Memory)
_PIECE_BYTES: Final = 1 << 20
"""Size of a piece of gradients in transit to the member that adds them (`stage_sums.PIECE_ELEMENTS`)."""

_UNITS_DIVIDED_MAX: Final = 32
"""With more units, `least_devices` looks at groups of them."""
_FEW_UNITS: Final = (1, 2, 3, 5)
"""And at plans whose stages have so many at most."""


class Need(NamedTuple):
    """Bytes that a device needs. host: of its machine's memory, for swapped activations."""

    weights: int = 0
    optimizer: int = 0
    gradients: int = 0
    stash: int = 0
    host: int = 0
    working: int = 0

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return self.weights + self.optimizer + self.gradients + self.stash + self.working

    def with_(self, other: Need) -> Need:
        """Return the sum of both: a replica of one stage may be the shadow of another."""
        return Need(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Misfit(msgspec.Struct, frozen=True):
    """A stage that does not fit: its device needs at least `bytes` and has `memory_bytes`."""

    stage: int
    first_unit: int
    end_unit: int
    device: int
    bytes: int
    memory_bytes: int


class MemoryNeeds:
    """Memory needs of one model's stages on one cluster, with one number of micro-batches."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._cluster, self._micro_batches = costs.cluster, costs.micro_batches
        units = costs.profile.units
        self._parameters = _sums([unit.parameter_bytes for unit in units])
        self._optimizer = _sums([unit.optimizer_bytes for unit in units])
        self._buffers = _sums([unit.buffer_bytes for unit in units])
        self._activations = _sums([unit.activation_bytes for unit in units])
        self._outputs = [unit.boundary_bytes for unit in units]
        self._workspaces: dict[tuple[int, int], int] = {}
        self.limited = any(device.memory_bytes is not None for device in costs.cluster.devices)
        """Whether any device has a limit; without, every plan fits."""

    def replica(
        self,
        first: int,
        end: int,
        local: int,
        flying: int,
        memory: Memory = "plain",
        *,
        replicas: int | None = None,
    ) -> Need:
        """Return the need of a replica of units [first, end).

        local: micro-batches of a step that it runs; flying: how many of them are in flight at once; replicas:
        of the stage, by default as many as run `local` each.
        """
        parameters = self._parameters[end] - self._parameters[first]
        received = self._outputs[first - 1] if first else 0
        own = self._activations[first + 1] - self._activations[first]
        kept = self._activations[end] - self._activations[first] + max(0, received - own)
        host = 0
        if memory == "plain" or not flying:
            stash = flying * kept
        elif memory == "checkpoint":
            stash = flying * received + kept
        else:
            stash = min(flying, 2) * kept
            host = flying * kept
        elsewhere = self._micro_batches - local
        if replicas is None:
            replicas = -(-self._micro_batches // local) if local else self._micro_batches
        piece = min(_PIECE_BYTES, -(-parameters // replicas))
        waiting = max(1, min(1 - -2 // replicas, local - 1))
        return Need(
            weights=parameters + (2 + local) * (self._buffers[end] - self._buffers[first]),
            optimizer=self._optimizer[end] - self._optimizer[first],
            gradients=max(local, 1) * parameters + (1 + 2 * elsewhere) * piece,
            stash=stash,
            host=host,
            working=self._frames(first, end, flying, waiting) + self._workspace(first, end),
        )

    def _frames(self, first: int, end: int, flying: int, waiting: int) -> int:
        """Return the bytes of frames on their way to and from a replica of units [first, end)."""
        before = self._outputs[first - 1] if first else 0
        after = self._outputs[end - 1] if end < len(self._outputs) else 0
        return (flying + 1) * after + (waiting + 1) * before

    def _workspace(self, first: int, end: int) -> int:
        """Return `workspace_of` units [first, end). Cached, because a search asks repeatedly."""
        known = self._workspaces.get((first, end))
        if known is None:
            known = self._workspaces[first, end] = workspace_of(self._costs.profile.units[first:end])
        return known

    def shadow(self, first: int, end: int) -> Need:
        """Return the need of a device that holds units [first, end) and applies their sums."""
        parameters = self._parameters[end] - self._parameters[first]
        return Need(
            weights=parameters + 2 * (self._buffers[end] - self._buffers[first]),
            optimizer=self._optimizer[end] - self._optimizer[first],
            gradients=parameters,
        )

    def by_device(self, plan: Plan, order: Order | None = None) -> dict[int, Need]:
        """Return the need of each device of a plan; order: None for list ordering."""
        flying = _in_flight(plan, self._micro_batches, order)
        needs = self._shadows(plan)
        for index, stage in enumerate(plan.stages):
            for replica, device in enumerate(stage.devices):
                own = self._own(stage, replica, flying[index], stage.memory)
                needs[device] = own.with_(needs.get(device, Need()))
        return needs

    def fit(self, plan: Plan, order: Order | None = None) -> Plan | Misfit:
        """Return the plan with the cheapest memory mode of each stage that fits its devices, or the misfit.

        Cheapest: plain, then the mode with the shorter blocks on the slowest replica.
        """
        if not self.limited:
            return plan
        flying = _in_flight(plan, self._micro_batches, order)
        shadows = self._shadows(plan)
        stages: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            least: Misfit | None = None
            for memory in self._modes(stage):
                misfit = self._worst_replica(index, stage, flying[index], memory, shadows)
                if misfit is None:
                    stages.append(msgspec.structs.replace(stage, memory=memory))
                    break
                least = misfit if least is None else min(least, misfit, key=_lack)
            else:
                assert least is not None
                return least
        for device, need in shadows.items():
            if device not in plan.devices:
                index = next(i for i in range(len(plan.stages)) if device in plan.shadows_of(i))
                if misfit := self._misfit(index, plan.stages[index], device, need):
                    return misfit
        return msgspec.structs.replace(plan, stages=tuple(stages))

    def does_not_fit(self, misfit: Misfit) -> DoesNotFit:
        """Return the error that names the stage, its bytes, and the smallest sufficient number of devices."""
        devices = self._cluster.devices
        limits = [device for device in devices if device.memory_bytes is not None]
        largest = max(limits, key=lambda device: device.memory_bytes or 0)
        least = self.least_devices(largest)
        units = self._costs.profile.units
        names = units[misfit.first_unit].name
        if misfit.end_unit - misfit.first_unit > 1:
            names += f" to {units[misfit.end_unit - 1].name}"
        if least is None:
            unit, needed = self._worst_unit(largest)
            facts: dict[str, object] = {"unit": units[unit].name, "unit_bytes": needed, "devices": "none"}
            hint = (
                f"unit {unit} ({units[unit].name}) alone needs {bytes_text(needed)} on any number of such "
                "devices: divide it, make micro-batches smaller, or give devices more memory"
            )
        else:
            facts = {"devices": least}
            each = bytes_text(largest.memory_bytes or 0)
            hint = f"{least} devices with {each} each would do, or smaller micro-batches"
        return DoesNotFit(
            f"stage {misfit.stage} (units {names}) needs {bytes_text(misfit.bytes)} on "
            f"{devices[misfit.device].name}, which has {bytes_text(misfit.memory_bytes)}",
            hint=hint,
            stage=misfit.stage,
            bytes=misfit.bytes,
            memory_bytes=misfit.memory_bytes,
            device=devices[misfit.device].name,
            **facts,
        )

    def least_devices(self, device: Device) -> int | None:
        """Return the smallest number of devices like this one for which a plan fits; None: there is none.

        From the last stage to the first: fewest devices for units [l, L) in k stages. A micro-batch more in
        flight is due to the devices behind a stage (`schedule.lags`), so fewest of them are best for it, too.
        Models of many units are examined in groups, or with few units per stage; fewer devices may then
        suffice.
        """
        if device.memory_bytes is None:
            return 1
        finest = [0, *self._costs.profile.cuts, len(self._outputs)]
        if len(finest) <= _UNITS_DIVIDED_MAX:
            return self._least(device, finest)
        step = -(-len(finest) // _UNITS_DIVIDED_MAX)
        options = [self._least(device, [*finest[:-1:step], finest[-1]])]
        options += [self._least(device, finest, groups_max=few) for few in _FEW_UNITS]
        return min((option for option in options if option is not None), default=None)

    def _least(self, device: Device, cuts: Sequence[int], groups_max: int | None = None) -> int | None:
        """`least_devices` with stages that begin only at `cuts`, and have at most groups_max groups."""
        groups = len(cuts) - 1
        # With so many stages behind, all micro-batches are in flight (a lag is four times as many at least).
        full = min(groups - 1, -(-self._micro_batches // 4))
        # behind[k][l]: (devices, - replicas of the last stage) of the best k stages for groups [l, groups);
        # behind[full]: of `full` and more.
        behind: list[dict[int, tuple[int, int]]] = [{} for _ in range(full + 2)]
        behind[0][groups] = (0, 0)
        for first in range(groups - 1, -1, -1):
            for later in range(full + 1):
                for end in range(first + 1, min(groups, first + (groups_max or groups)) + 1):
                    if end not in behind[later]:
                        continue
                    devices, last = behind[later][end]
                    more = self._replicas(device, cuts[first], cuts[end], later, devices, -last)
                    if more is not None:
                        option = (devices + more, last if later else -more)
                        into = behind[min(later + 1, full + 1)]
                        into[first] = min(into.get(first, option), option)
            if first in behind[full + 1]:
                merged = behind[full + 1][first]
                behind[full][first] = min(behind[full].get(first, merged), merged)
        return min((stages[0][0] for stages in behind if 0 in stages), default=None)

    def _replicas(
        self, device: Device, first: int, end: int, later: int, behind: int, last: int
    ) -> int | None:
        """Return the fewest replicas with which units [first, end) fit; `behind`: devices of later stages."""

        def fits(replicas: int) -> bool:
            local = -(-self._micro_batches // replicas)
            lag = replicas + 2 * behind - last + 2 * later if later else 0
            flying = min(local, lag // replicas + 1)
            return any(
                _keeps_to(device, self.replica(first, end, local, flying, memory, replicas=replicas))
                for memory in MODES
            )

        if not self._keeps_weights(device, first, end):
            return None
        count, fewest = self._micro_batches, 1
        while fewest <= count:
            local = -(-count // fewest)
            most = count if local == 1 else -(-count // (local - 1)) - 1
            if fits(most):  # with equally many micro-batches per replica, more replicas need less
                return bisect_left(range(most + 1), True, lo=fewest, key=fits)
            fewest = most + 1
        return None

    def _keeps_weights(self, device: Device, first: int, end: int) -> bool:
        """Return whether the memory that does not shrink with more replicas fits."""
        return _keeps_to(device, self.shadow(first, end))

    def _worst_unit(self, device: Device) -> tuple[int, int]:
        """Return the unit that needs most memory if each micro-batch has its own device, and its bytes."""
        needs = [
            min(
                need.total
                for memory in MODES
                if _host_keeps_to(device, need := self.replica(unit, unit + 1, 1, 1, memory))
            )
            for unit in range(len(self._outputs))
        ]
        worst = max(range(len(needs)), key=lambda unit: needs[unit])
        return worst, needs[worst]

    def _modes(self, stage: Stage) -> Sequence[Memory]:
        """Return the modes in which a stage may keep its stash, cheapest first."""

        def seconds(memory: Memory) -> float:
            return max(
                sum(self._costs.block_seconds(stage.first_unit, stage.end_unit, device, memory))
                for device in stage.devices
            )

        timed = [(seconds(memory), place, memory) for place, memory in enumerate(MODES)]
        return [memory for time, place, memory in sorted(timed) if time < inf or not place]

    def _worst_replica(
        self, index: int, stage: Stage, flying: int, memory: Memory, shadows: Mapping[int, Need]
    ) -> Misfit | None:
        """Return the replica that lacks most memory; None if all fit."""
        worst: Misfit | None = None
        for replica, device in enumerate(stage.devices):
            need = self._own(stage, replica, flying, memory)
            misfit = self._misfit(index, stage, device, need.with_(shadows.get(device, Need())))
            if misfit is not None:
                worst = misfit if worst is None else max(worst, misfit, key=_lack)
        return worst

    def _own(self, stage: Stage, replica: int, flying: int, memory: Memory) -> Need:
        local = len(range(replica, self._micro_batches, stage.replicas))
        return self.replica(
            stage.first_unit, stage.end_unit, local, min(flying, local), memory, replicas=stage.replicas
        )

    def _shadows(self, plan: Plan) -> dict[int, Need]:
        needs: dict[int, Need] = {}
        for index, stage in enumerate(plan.stages):
            for device in plan.shadows_of(index):
                held = self.shadow(stage.first_unit, stage.end_unit)
                needs[device] = held.with_(needs.get(device, Need()))
        return needs

    def _misfit(self, index: int, stage: Stage, device: int, need: Need) -> Misfit | None:
        known = self._cluster.devices[device]
        if _keeps_to(known, need):
            return None
        limit = known.memory_bytes
        return Misfit(
            stage=index,
            first_unit=stage.first_unit,
            end_unit=stage.end_unit,
            device=device,
            bytes=need.total,
            memory_bytes=limit if limit is not None else need.total,
        )


def counted_in_flight(plan: Plan, order: Order) -> tuple[int, ...]:
    """Return, by stage, the most micro-batches that a replica keeps for backward at once in an order."""
    most = [0] * len(plan.stages)
    for own in order.values():
        kept = 0
        for block in own:
            kept += 1 if block.kind == "F" else -1
            most[block.stage] = max(most[block.stage], kept)
    return tuple(most)


def _in_flight(plan: Plan, micro_batches: int, order: Order | None) -> tuple[int, ...]:
    if order is None:
        return in_flight((stage.replicas for stage in plan.stages), micro_batches)
    return counted_in_flight(plan, order)


def _keeps_to(device: Device, need: Need) -> bool:
    limit = device.memory_bytes
    return (limit is None or need.total <= limit) and _host_keeps_to(device, need)


def _host_keeps_to(device: Device, need: Need) -> bool:
    if not need.host:
        return True
    return device.host_bandwidth > 0 and (
        device.host_memory_bytes is None or need.host <= device.host_memory_bytes
    )


def _lack(misfit: Misfit) -> int:
    return misfit.bytes - misfit.memory_bytes


def _sums(values: list[int]) -> list[int]:
    return list(accumulate(values, initial=0))

"""A plan: stages of consecutive units, each on one or several devices.

Replica j of a stage with r replicas runs the micro-batches j, j + r, ...: always whole ones, since dividing
them would change BatchNorm and the order of additions. Devices without a stage stand by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from elastane_planner.errors import InvalidPlan

Memory = Literal["plain", "checkpoint", "swap"]
"""How a stage keeps activations for its backward: as autograd does, only its input, or in host memory."""


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Units [first_unit, end_unit) on `devices` (indices into the cluster), replica j on devices[j]."""

    first_unit: int
    end_unit: int
    devices: tuple[int, ...]
    memory: Memory = "plain"

    @property
    def replicas(self) -> int:
        """Number of devices that run the stage."""
        return len(self.devices)

    def replica_of(self, micro_batch: int) -> int:
        """Return the device that runs a micro-batch."""
        return self.devices[micro_batch % len(self.devices)]


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stages in the order of the model, and their shadows.

    Shadows hold a stage's units and apply the same sums, but do not compute it (most are replicas of another
    stage). `shadows` is empty or has a tuple for each stage.
    """

    stages: tuple[Stage, ...]
    shadows: tuple[tuple[int, ...], ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that compute, stage by stage."""
        return tuple(device for stage in self.stages for device in stage.devices)

    def shadows_of(self, stage: int) -> tuple[int, ...]:
        """Return the shadows of a stage."""
        return self.shadows[stage] if self.shadows else ()

    def holders(self, unit: int) -> tuple[int, ...]:
        """Return the devices that hold a unit: replicas of its stage, then shadows."""
        for index, stage in enumerate(self.stages):
            if stage.first_unit <= unit < stage.end_unit:
                return stage.devices + self.shadows_of(index)
        raise InvalidPlan(f"no stage has unit {unit}", unit=unit)

    def check(self, units: int, devices: int, cuts: Sequence[int] | None = None) -> None:
        """Raise InvalidPlan unless this is a valid plan for these numbers of units and devices.

        cuts: where stages may begin (`Profile.cuts`); None: anywhere.
        """
        if not self.stages:
            raise InvalidPlan("a plan has at least one stage")
        expected = 0
        for index, stage in enumerate(self.stages):
            if stage.first_unit != expected or stage.end_unit <= stage.first_unit:
                raise InvalidPlan(
                    f"stage {index} has units [{stage.first_unit}, {stage.end_unit}); {expected} comes next",
                    hint="Stages cover all units in order, and none is empty.",
                    stage=index,
                )
            if index and cuts is not None and expected not in cuts:
                raise InvalidPlan(
                    f"stage {index} begins at unit {expected}, between units that share parameters",
                    hint="Units with the same tie must share a stage.",
                    stage=index,
                    unit=expected,
                )
            if not stage.devices:
                raise InvalidPlan(f"stage {index} has no device", stage=index)
            expected = stage.end_unit
        if expected != units:
            raise InvalidPlan(f"the stages have {expected} units, the model has {units}", units=units)
        self._check_devices(devices)

    def _check_devices(self, count: int) -> None:
        """Raise InvalidPlan if a device is unknown, computes twice, or is a shadow of its own stage."""
        if len(set(self.devices)) != len(self.devices):
            raise InvalidPlan("a device runs at most one stage, once", devices=self.devices)
        if self.shadows and len(self.shadows) != len(self.stages):
            raise InvalidPlan("shadows are told for every stage or for none", shadows=len(self.shadows))
        for index, stage in enumerate(self.stages):
            held = stage.devices + self.shadows_of(index)
            if len(set(held)) != len(held):
                raise InvalidPlan(f"a device is twice in stage {index} and its shadows", stage=index)
            for device in held:
                if not 0 <= device < count:
                    raise InvalidPlan(f"stage {index} needs device {device} of {count}", stage=index)

    def text(self, names: Sequence[str] | None = None) -> str:
        """Return the plan in one line, as people are shown it: `units 0-3 on a, b | 4-5 on c, checkpoint`."""

        def named(devices: tuple[int, ...]) -> str:
            return ", ".join(names[device] if names is not None else str(device) for device in devices)

        parts = []
        for index, stage in enumerate(self.stages):
            last = stage.end_unit - 1
            units = f"{stage.first_unit}-{last}" if last > stage.first_unit else str(last)
            text = f"{units} on {named(stage.devices)}"
            if stage.memory != "plain":
                text += f", {stage.memory}"
            if shadows := self.shadows_of(index):
                text += f", shadow {named(shadows)}"
            parts.append(text)
        return "units " + " | ".join(parts)

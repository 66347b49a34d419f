"""Which device types may train a job together, and what a job bound to one type would gain from others.

Pure.

At D1 a job stays on the type that it began with. At D2 unlike CPUs train together with equal bits, and each
EST's part of a step takes longer, as the processors do not use all that they have (docs/decisions/0007).
How much longer depends on the model, so what is told is the gain if D2 cost nothing, and how much it may
cost before nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from elastane_scheduler.job_plan import DeviceSpeed, JobPlan
from elastane_scheduler.plan import TOLERANCE, Shape

_GPU_MAKERS = ("NVIDIA", "Tesla", "GeForce", "Quadro", "AMD Instinct", "AMD Radeon")
_CPU_VENDORS = ("Intel", "AMD")

Level = Literal["d0", "d1", "d2"]
"""Determinism level of a job."""


def kinds_at(level: Level, device_types: Sequence[str]) -> tuple[int, ...]:
    """Return the kind of each device type, by its name, for `Shape`: jobs are planned on types of one kind.

    The same rule as `kind_at`.
    """
    names = [kind_at(level, name) for name in device_types]
    return tuple(names.index(name) for name in names)


def kind_at(level: Level, device_type: str) -> str:
    """Return the kind of a device type at a level: types of equal kind may train one job together.

    D1: each type by itself. D2: processors of one vendor together, if their names tell it; all else by
    itself, as GPUs of unlike models differ at every level. D0: all processors, and all GPUs. Who plans by
    this plans no ring that the master would refuse for its devices (docs/decisions/0007).
    """
    if level == "d1":
        return device_type
    is_gpu = device_type.startswith(_GPU_MAKERS)
    if level == "d0":
        return "GPUs" if is_gpu else "processors"
    vendor = "" if is_gpu else _vendor(device_type)
    return f"processors of {vendor}" if vendor else device_type


def _vendor(device_type: str) -> str:
    return next((vendor for vendor in _CPU_VENDORS if vendor in device_type), "")


@dataclass(frozen=True)
class Other:
    """Devices of another type. est_seconds: of this job's ESTs there; None: nobody has measured the type."""

    device_type: str
    count: int
    est_seconds: float | None


@dataclass(frozen=True)
class Mixture:
    """A job's workers together with devices of another type.

    obstacle: why they may not train together at D2 either, else "". step_seconds: if D2 cost nothing; None:
    not known. speedup: steps in a second, over those now. cost_max: how many times as long an EST's part of a
    step may take at D2 before the mixture is slower; 1 and less: there is nothing to gain.
    """

    other: Other
    obstacle: str = ""
    step_seconds: float | None = None
    speedup: float | None = None
    cost_max: float | None = None


def mixtures(plan: JobPlan, others: Iterable[Other]) -> list[Mixture]:
    """Return what adding all devices of each other type would change; the job's own type is left
    out. Empty before the job was measured.
    """
    own = plan.device
    if own is None or not plan.workers:
        return []
    return [_mixture(plan, own, other) for other in others if other.device_type != own.device_type]


def _mixture(plan: JobPlan, own: DeviceSpeed, other: Other) -> Mixture:
    if obstacle := obstacle_at_d2(own.device_type, other.device_type):
        return Mixture(other, obstacle)
    if other.est_seconds is None:
        return Mixture(other)
    seconds = (own.est_seconds, other.est_seconds)
    added = tuple(each + own.after_est_seconds for each in seconds)
    shape = Shape(plan.ests, added, (own.ests_max or plan.ests, plan.ests))
    now, mixed = shape.level((plan.workers, 0)), shape.level((plan.workers, other.count))
    if now is None or mixed is None:
        return Mixture(other)
    alone_seconds, mixed_seconds = shape.levels[now][0], shape.levels[mixed][0]
    step_seconds = mixed_seconds + plan.rest_seconds
    cost_max, gain = 1.0, alone_seconds / mixed_seconds - 1
    if gain >= TOLERANCE:
        # Only computing takes longer at D2, not the script's code after it, which is the larger part where
        # devices are fast: the slower type bounds the cost.
        cost_max += gain * max(added) / max(seconds)
    return Mixture(other, "", step_seconds, (alone_seconds + plan.rest_seconds) / step_seconds, cost_max)


def obstacle_at_d2(one: str, other: str) -> str:
    """Return why devices of two types cannot train one job at D2, by their names; "": none is known.

    The master compares more facts when a worker joins (docs/decisions/0007).
    """
    gpus = [name.startswith(_GPU_MAKERS) for name in (one, other)]
    if all(gpus):
        return "GPUs of different models do not give equal bits, not even at D2"
    if any(gpus):
        return "a GPU and a processor do not give equal bits, not even at D2"
    vendors = {_vendor(name) for name in (one, other)} - {""}
    if len(vendors) > 1:
        return "processors of two vendors do not give equal bits, at D2 either"
    return ""

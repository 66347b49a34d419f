"""The spec of an ElasticPool: reading and validation.

The CRD's schema lets the API server check most of it; rules across fields are checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from elastane_operator.decisions.spec import WEIGHT_MAX, InvalidSpecError
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.pool import DEVICES_MAX

COOL_DOWN_SECONDS_MAX = 3600


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Part of the spec; field names follow Kubernetes' spelling."""


class DeviceType(_Part, frozen=True):
    """Devices of one type, one for each worker pod.

    node_selector, tolerations: added to the pods. quota: devices that the pool may use at one time.
    processor: vendor of the CPUs if these compute; empty: GPUs compute, or unknown.
    """

    name: str
    quota: int
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    processor: Literal["", "Intel", "AMD"] = ""

    def kind(self, *, mixes: bool) -> str:
        """Return its kind for a job, whose workers need types of one kind. mixes: the job may mix CPUs."""
        return f"processors of {self.processor}" if mixes and self.processor else self.name


class PoolQueue(_Part, frozen=True):
    """A queue. weight: its share of devices that are not guaranteed. guaranteed: devices by type."""

    name: str
    weight: int = 1
    guaranteed: dict[str, int] = {}


class PoolSpec(_Part, frozen=True):
    """The spec with defaults filled in; they equal those of the CRD."""

    types: tuple[DeviceType, ...]
    policy: str = "foresight"
    queues: tuple[PoolQueue, ...] = ()
    cool_down_seconds: int = 30

    def device_type(self, name: str) -> DeviceType | None:
        """Return the device type of that name, or None."""
        return next((each for each in self.types if each.name == name), None)

    def kind_of(self, name: str, *, mixes: bool) -> str:
        """Return the kind of a device type; its name if the pool no longer has it."""
        each = self.device_type(name)
        return name if each is None else each.kind(mixes=mixes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the device types, in their order."""
        return tuple(each.name for each in self.types)

    @property
    def quotas(self) -> tuple[int, ...]:
        """Devices of each type, in the order of `names`."""
        return tuple(each.quota for each in self.types)


def read_pool_spec(body: Mapping[str, Any]) -> PoolSpec:
    """Read the spec of an ElasticPool. Raises InvalidSpecError listing every problem."""
    try:
        spec = msgspec.convert(body.get("spec"), PoolSpec)
    except msgspec.ValidationError as error:
        raise InvalidSpecError([f"spec: {error}"]) from None
    if problems := check_pool(spec):
        raise InvalidSpecError(problems)
    return spec


def check_pool(spec: PoolSpec) -> list[str]:
    """Return the problems of a spec in words; empty if it is valid."""
    problems = []
    try:
        make_policy(spec.policy)
    except InvalidSettings as error:
        problems.append(f"policy: {error}")
    if not spec.types:
        problems.append("types must name a device type")
    problems += [f"types: {name} is named twice" for name in _doubled(spec.names)]
    problems += [f"queues: {name} is named twice" for name in _doubled([q.name for q in spec.queues])]
    for each in spec.types:
        if not 0 <= each.quota <= DEVICES_MAX:
            problems.append(f"types[{each.name}].quota must be from 0 to {DEVICES_MAX}, it is {each.quota}")
    if not 0 <= spec.cool_down_seconds <= COOL_DOWN_SECONDS_MAX:
        problems.append(f"coolDownSeconds must be from 0 to {COOL_DOWN_SECONDS_MAX}")
    for queue in spec.queues:
        problems += _check_queue(queue, spec)
    for each in spec.types:
        promised = sum(queue.guaranteed.get(each.name, 0) for queue in spec.queues)
        if promised > each.quota:
            problems.append(
                f"queues guarantee {promised} devices of {each.name}, "
                f"and types[{each.name}].quota is {each.quota}"
            )
    return problems


def _check_queue(queue: PoolQueue, spec: PoolSpec) -> list[str]:
    problems = []
    if not 1 <= queue.weight <= WEIGHT_MAX:
        problems.append(f"queues[{queue.name}].weight must be from 1 to {WEIGHT_MAX}, it is {queue.weight}")
    for name, count in queue.guaranteed.items():
        field = f"queues[{queue.name}].guaranteed.{name}"
        if spec.device_type(name) is None:
            problems.append(f"{field}: the pool has no such type; it has {', '.join(spec.names)}")
        if not 0 <= count <= DEVICES_MAX:
            problems.append(f"{field} must be from 0 to {DEVICES_MAX}, it is {count}")
    return problems


def _doubled(names: tuple[str, ...] | list[str]) -> list[str]:
    return sorted({name for name in names if list(names).count(name) > 1})

"""Devices, and the bandwidth between them.

Links are full duplex, one for each ordered pair of devices: `bandwidth[u][v]` bytes per second from u to v.
0 means that u cannot send to v: no plan uses that link. Directions may differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from elastane_planner.errors import InvalidCluster

VERSION = 1
"""Version of the JSON form. Readers refuse a newer one."""


class Device(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One device: times of a unit are divided by `speed`. memory_bytes: what a plan may use; None: no limit.

    host_bandwidth (bytes per second, 0: never) and host_memory_bytes (None: no limit) apply to swapping.
    """

    name: str
    speed: float = 1.0
    memory_bytes: int | None = None
    host_bandwidth: float = 0.0
    host_memory_bytes: int | None = None


class Cluster(msgspec.Struct, frozen=True, dict=True):
    """Devices and their links. Construction raises InvalidCluster."""

    devices: tuple[Device, ...]
    bandwidth: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.devices:
            raise InvalidCluster("a cluster has at least one device", hint="Name the devices.")
        names = set()
        for device in self.devices:
            if device.name in names:
                raise InvalidCluster(f"two devices are named {device.name!r}", device=device.name)
            names.add(device.name)
            _check_device(device)
        count = len(self.devices)
        if len(self.bandwidth) != count or any(len(row) != count for row in self.bandwidth):
            raise InvalidCluster(
                f"the bandwidth of {count} devices is a matrix of {count} rows and {count} columns",
                hint="Measure the missing links, or write 0 where there is none.",
                devices=count,
            )
        for source, row in enumerate(self.bandwidth):
            for target, value in enumerate(row):
                if source != target and not (math.isfinite(value) and value >= 0):
                    ends = self.devices[source].name, self.devices[target].name
                    raise InvalidCluster(
                        f"the bandwidth from {ends[0]} to {ends[1]} is {value}",
                        hint="Bytes per second, finite; 0 where there is no link.",
                        source=ends[0],
                        target=ends[1],
                    )

    @classmethod
    def uniform(cls, devices: Sequence[Device], bandwidth: float) -> Cluster:
        """Return a cluster whose links all have this bandwidth (bytes per second)."""
        return cls(tuple(devices), tuple((bandwidth,) * len(devices) for _ in devices))

    def to_json(self) -> bytes:
        """Return the JSON of this cluster."""
        document = {"version": VERSION, "devices": self.devices, "bandwidth": self.bandwidth}
        return msgspec.json.encode(document) + b"\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> Cluster:
        """Read what `to_json` wrote. Raises InvalidCluster, which says where the text is wrong."""
        try:
            document = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidCluster(
                f"not a cluster: {error}", hint="Measure one with `elastane profile`."
            ) from error
        if document.version > VERSION:
            raise InvalidCluster(
                f"the cluster has version {document.version}; this program reads up to {VERSION}",
                hint="Read it with the version of Elastane that wrote it, or a newer one.",
                version=document.version,
            )
        return cls(document.devices, document.bandwidth)


class _Document(msgspec.Struct):
    version: int
    devices: tuple[Device, ...]
    bandwidth: tuple[tuple[float, ...], ...]


_decoder = msgspec.json.Decoder(_Document)


def _check_device(device: Device) -> None:
    """Raise InvalidCluster if a value of a device is impossible."""
    wrong = {
        "speed": not (math.isfinite(device.speed) and device.speed > 0),
        "memory_bytes": device.memory_bytes is not None and device.memory_bytes <= 0,
        "host_bandwidth": not (math.isfinite(device.host_bandwidth) and device.host_bandwidth >= 0),
        "host_memory_bytes": device.host_memory_bytes is not None and device.host_memory_bytes < 0,
    }
    for field, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidCluster(
                f"{field} of {device.name} is {getattr(device, field)}",
                hint="A speed is above 0, and so is memory; leave memory out where it has no limit.",
                device=device.name,
                field=field,
            )

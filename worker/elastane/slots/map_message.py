"""Converts slot maps and settings from the master's messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elastane.tables.spec import Wire
from elastane_proto.v1 import job_pb2, ps_pb2
from elastane_slots.slot_map import SlotMap, SlotPlace

_WIRES: Final[dict[int, Wire]] = {job_pb2.PS_WIRE_BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class ToldMap:
    """A map with the addresses of its processes. sources: by slot, the checkpoint to restore from, or "".

    addresses: address and secret by process. draining: processes that shall leave.
    """

    map: SlotMap
    sources: tuple[str, ...]
    addresses: dict[str, tuple[str, bytes]]
    draining: frozenset[str] = frozenset()


def map_from_proto(message: ps_pb2.SlotMap) -> ToldMap:
    """Convert a map from its message."""
    places = tuple(
        SlotPlace(
            owner=place.owner,
            backup=place.backup,
            target=place.target,
            joining=place.joining,
            begun=place.begun,
            life=place.life,
            fence=place.fence,
            since=place.since,
            restoring=place.restoring,
        )
        for place in message.places
    )
    return ToldMap(
        SlotMap(message.generation, places),
        tuple(place.source for place in message.places),
        {process.ps_id: (process.address, process.secret) for process in message.processes},
        frozenset(process.ps_id for process in message.processes if process.draining),
    )


def wire_of(settings: ps_pb2.PsSettings) -> Wire:
    """Return the type in which float32 values are sent."""
    return _WIRES.get(settings.wire, "float32")

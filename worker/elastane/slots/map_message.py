"""Slot maps and settings in the master's messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elastane.tables.spec import Wire
from elastane_proto.v1 import job_pb2, ps_pb2
from elastane_slots.slot_map import SlotMap, SlotPlace

_WIRES: Final[dict[int, Wire]] = {job_pb2.PS_WIRE_BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class ToldMap:
    """A map with where its processes are. sources: by slot, the checkpoint that it goes back to, or "".

    addresses: by process, where it listens and its secret. draining: processes that are to go.
    """

    map: SlotMap
    sources: tuple[str, ...]
    addresses: dict[str, tuple[str, bytes]]
    draining: frozenset[str] = frozenset()


def map_from_proto(message: ps_pb2.SlotMap) -> ToldMap:
    """Read a map."""
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
    """Form of float32 values in messages."""
    return _WIRES.get(settings.wire, "float32")

"""A model's units: their times and bytes.

A unit is a consecutive part of a model that is never cut. Times are those of one micro-batch on a device of
speed 1. Stored as JSON that people may edit; `version` lets readers refuse newer formats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec

from elastane_planner.errors import InvalidProfile

VERSION = 1
"""Version of the JSON form. Readers refuse a newer one."""

UNITS_MAX = 100_000
_OVERHEADS = ("forward_overhead_seconds", "backward_overhead_seconds")


class UnitProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Figures of one unit, finite and not negative. 0 seconds: not measured, or nothing to do.

    boundary_bytes: output of one micro-batch (also the size of its gradient). activation_bytes: kept for the
    backward of one micro-batch. workspace_bytes: further memory used while a forward or backward runs. Units
    with the same tie > 0 share parameters, and so a stage.
    """

    name: str
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    boundary_bytes: int = 0
    activation_bytes: int = 0
    buffer_bytes: int = 0
    tie: int = 0
    workspace_bytes: int = 0


def workspace_of(units: Sequence[UnitProfile]) -> int:
    """Return the memory that consecutive units use while they run, beside their stash.

    While a unit runs, forward or backward, the stash of the units after it does not exist yet or any more.
    """
    most = behind = 0
    for unit in reversed(units):
        most = max(most, unit.workspace_bytes - behind)
        behind += unit.activation_bytes
    return most


class Profile(msgspec.Struct, frozen=True, dict=True):
    """The units of a model, in order. Construction raises InvalidProfile.

    Overheads: time of a forward or backward block beside its units, independent of their number: frames,
    generators, bookkeeping. 0: not measured.
    """

    units: tuple[UnitProfile, ...]
    forward_overhead_seconds: float = 0.0
    backward_overhead_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < len(self.units) <= UNITS_MAX:
            raise InvalidProfile(
                f"a profile has 1 to {UNITS_MAX} units, not {len(self.units)}",
                hint="Give at least one unit.",
                units=len(self.units),
            )
        for field in _OVERHEADS:
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidProfile(
                    f"{field} is {value}", hint="Times are finite and not negative.", field=field
                )
        for index, unit in enumerate(self.units):
            for field in unit.__struct_fields__[1:]:
                value = getattr(unit, field)
                if not (math.isfinite(value) and value >= 0):
                    raise InvalidProfile(
                        f"{field} of unit {index} ({unit.name}) is {value}",
                        hint="Times and bytes are finite and not negative.",
                        unit=unit.name,
                        index=index,
                        field=field,
                    )

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Indices of units before which a stage may begin, except the first: never between tied units."""
        last = {unit.tie: index for index, unit in enumerate(self.units) if unit.tie}
        cuts, until = [], 0
        for index, unit in enumerate(self.units):
            if index > until:
                cuts.append(index)
            until = max(until, last.get(unit.tie, index))
        return tuple(cuts)

    @property
    def measured(self) -> bool:
        """True if any time is known."""
        return any(unit.forward_seconds or unit.backward_seconds for unit in self.units)

    def to_json(self) -> bytes:
        """Return the JSON of this profile, indented for people."""
        overheads = {field: value for field in _OVERHEADS if (value := getattr(self, field))}
        document = {"version": VERSION, **overheads, "units": self.units}
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> Profile:
        """Read what `to_json` wrote. Raises InvalidProfile, which says where the text is wrong."""
        try:
            document = _decoder.decode(text)
            if document.version > VERSION:
                raise InvalidProfile(
                    f"the profile has version {document.version}; this program reads up to {VERSION}",
                    hint="Read it with the version of Elastane that wrote it, or a newer one.",
                    version=document.version,
                )
            units = _units.decode(document.units)
            return cls(units, document.forward_overhead_seconds, document.backward_overhead_seconds)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidProfile(
                f"not a profile: {error}", hint="Write one with `elastane profile`."
            ) from error


class _Document(msgspec.Struct):
    version: int
    units: msgspec.Raw
    forward_overhead_seconds: float = 0.0
    backward_overhead_seconds: float = 0.0


_decoder = msgspec.json.Decoder(_Document)
_units = msgspec.json.Decoder(tuple[UnitProfile, ...])

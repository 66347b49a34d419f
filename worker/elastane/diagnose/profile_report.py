"""Report of a script's process for `elastane profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from elastane_common.atomic_writes import write_atomically
from elastane_planner.profile import Profile

#: Begins the lines of progress that the script's process writes to its stderr.
PROGRESS: Final = "elastane profile: "


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """A profile for one size of micro-batches, in samples (0: unknown). spread: of each unit's times."""

    samples: int
    profile: Profile
    spread: list[float]


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles, the script's own size first. device: what was measured. names: classes of the units."""

    profiles: list[Sized]
    classes: list[str]
    device: str
    threads: int
    steps: int


_decoder: Final = msgspec.json.Decoder(ProfileReport)


def write_report(path: Path, report: ProfileReport) -> None:
    """Write the report as a whole: a reader never sees a part of it."""
    write_atomically(path, msgspec.json.encode(report))


def read_report(path: Path) -> ProfileReport | None:
    """Return the report; None if the script ended before there was one."""
    try:
        return _decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None

"""Launches on this runner: their state, and the part of it that is kept on disk.

    FOLDER/id                                        tells this runner from others of its name (`folder_id`)
    FOLDER/launches/RUN-ATTEMPT-FENCE/launch.json    a launch (`LaunchRecord`), written before its ranks start
                                      code/          what its ranks are started in, unless that is elsewhere
    FOLDER/engine/                                   the ranks, as their engine keeps them

A rank of a black box is started together with the others here, and an elastic rank by itself, since those
come and go one by one: each such group is one unit of the engine, named by launch and rank. An elastic rank
that is prepared anew after it has ended is a further try of its unit; only the newest is the rank's.
"""

from __future__ import annotations

import re
import shutil
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from elastane_runner.engine import AttemptRecord, RankRecord, RankState
from elastane_runner.process_records import read_record, write_record

_LAUNCH: Final = "launch.json"
_FOLDER: Final = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)")
_UNIT: Final = re.compile(r"run-([0-9]+)-([0-9]+)-([0-9]+)(?:-([0-9]+))?")


class LaunchKey(NamedTuple):
    """Name of a launch, like AttemptKey."""

    run_id: int
    attempt: int
    fence: int


class Unit(NamedTuple):
    """A group of ranks that the engine starts together: its names of run and attempt."""

    run: str
    attempt: int


class LaunchRecord(msgspec.Struct, kw_only=True):
    """A launch as a runner records it, to find it again after its own restart.

    spec: RunSpec in protobuf's JSON. tries: of each rank that was prepared here, how often; of a black box
    once. uploaded: its logs are at the artifact URL. prior_bytes: of the log that an earlier launch of the
    attempt had stored for a rank. gpus: of the newest try of each rank.
    """

    run_id: int
    attempt: int
    fence: int
    elastic: bool
    job: str = ""
    artifact_url: str = ""
    checkpoint_url: str = ""
    data_url: str = ""
    spec: dict[str, Any] = {}
    created_at: float = 0.0
    tries: dict[int, int] = {}
    uploaded: bool = False
    prior_bytes: dict[int, int] = {}
    gpus: dict[int, list[str]] = {}

    @property
    def key(self) -> LaunchKey:
        return LaunchKey(self.run_id, self.attempt, self.fence)

    def unit_of(self, rank: int) -> Unit:
        """Return the engine's unit of the newest try of a rank."""
        name = f"run-{self.run_id}-{self.attempt}-{self.fence}"
        if self.elastic:
            return Unit(f"{name}-{rank}", self.tries[rank])
        return Unit(name, 1)

    def units(self) -> list[Unit]:
        """Return all units of the launch, including those of older tries."""
        found: dict[Unit, None] = {}
        for rank, tries in self.tries.items():
            newest = self.unit_of(rank)
            for number in range(1, tries + 1) if self.elastic else (1,):
                found[Unit(newest.run, number)] = None
        return list(found)


def launch_of(unit: str) -> LaunchKey | None:
    """Return the launch that a unit of the engine belongs to; None for a name that is not ours."""
    found = _UNIT.fullmatch(unit)
    return LaunchKey(*map(int, found.groups()[:3])) if found else None


@dataclass
class Rank:
    """State of one rank as reported to the master. state: prepared, running, exited or lost; reason: why."""

    rank: int
    state: str = "prepared"
    exit_code: int = 0
    last_line: bytes = b""
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""

    @property
    def lives(self) -> bool:
        return self.state in ("prepared", "running")

    def apply(
        self, state: RankState, returncode: int | None, last_line: bytes, now: float, reason: str = ""
    ) -> None:
        """Adopt the engine's report."""
        self.last_line, self.reason = last_line or self.last_line, reason
        match state:
            case RankState.RUNNING:
                self.state, self.started_at = "running", self.started_at or now
            case RankState.EXITED:
                assert returncode is not None
                self.state, self.exit_code, self.ended_at = "exited", exit_code(returncode), now
            case _:
                self.state, self.ended_at = "lost", now


def exit_code(returncode: int) -> int:
    """Return a process's exit code as it is reported: 128 plus the signal's number."""
    return returncode if returncode >= 0 else 128 - returncode


def rank_of(record: RankRecord, now: float) -> Rank:
    """Return a rank as its engine found it."""
    rank = Rank(record.rank, started_at=record.started_at)
    rank.apply(record.state, record.returncode, record.last_line, record.ended_at or now, record.reason)
    return rank


@dataclass
class Launch:
    """A launch on this runner. ranks: the newest try of each. stopping: a Stop for all of it has come."""

    record: LaunchRecord
    folder: Path
    ranks: dict[int, Rank] = field(default_factory=dict)
    stopping: bool = False
    _saving: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def key(self) -> LaunchKey:
        return self.record.key

    @property
    def lives(self) -> bool:
        return any(rank.lives for rank in self.ranks.values())

    def save(self) -> None:
        """Write the record. Raises OSError. Thread-safe: elastic ranks are prepared side by side."""
        with self._saving:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_record(self.folder / _LAUNCH, msgspec.to_builtins(self.record, str_keys=True))


class LaunchStore:
    """The folders of launches of one runner."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "launches"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def new(self, record: LaunchRecord) -> Launch:
        """Return a launch that is not on disk yet."""
        return Launch(record, self._path(record.key))

    def load(self, attempts: list[AttemptRecord], now: float) -> list[Launch]:
        """Return the launches that have ranks, which the engine has found; the others are removed."""
        found: dict[LaunchKey, Launch] = {}
        units = {(one.run, one.attempt): one for one in attempts if one.launched}
        for path in sorted(self._folder.iterdir()):
            record = _read(path)
            if record is None:
                shutil.rmtree(path, ignore_errors=True)
                continue
            launch = Launch(record, path)
            for rank in record.tries:
                attempt = units.get(record.unit_of(rank))
                for one in attempt.ranks if attempt is not None else ():
                    if one.rank == rank:
                        launch.ranks[rank] = rank_of(one, now)
            if any(unit in units for unit in record.units()):
                found[launch.key] = launch
            else:
                shutil.rmtree(path, ignore_errors=True)
        return list(found.values())

    def remove(self, launch: Launch) -> None:
        """Delete everything that is kept of a launch."""
        shutil.rmtree(launch.folder, ignore_errors=True)

    def _path(self, key: LaunchKey) -> Path:
        return self._folder / f"{key.run_id}-{key.attempt}-{key.fence}"


def folder_id(folder: Path) -> str:
    """Return the id of a runner's folder, which is created the first time. Raises OSError."""
    path = folder / "id"
    if not path.exists():
        write_record(path, {"id": uuid.uuid4().hex})
    return str((read_record(path) or {}).get("id", ""))


def _read(path: Path) -> LaunchRecord | None:
    if not _FOLDER.fullmatch(path.name):
        return None
    try:
        return msgspec.convert(read_record(path / _LAUNCH), LaunchRecord, strict=False)
    except msgspec.ValidationError:
        return None

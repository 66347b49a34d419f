"""Interface that starts, watches and ends the ranks of a run: processes, containers or pods.

An engine outlives the runner that uses it, or is found again by the next one: ranks go on while no runner is
there. A run's attempt is launched whole or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol

from elastane_common.errors import ElastaneError
from elastane_common.run_record import RankImage
from elastane_runner.progress import Tell, untold

LOG_CAP_BYTES_DEFAULT: Final = 64 * 1024 * 1024


class EngineError(ElastaneError):
    """An engine cannot do what was requested; the text says why. Nothing was started."""

    code = "ELA452"
    is_permanent: ClassVar[bool] = False
    """The same launch would fail again, anywhere."""


class EngineUnreachableError(EngineError):
    """The engine does not answer. It may answer later, and its ranks may still run."""

    code = "ELA458"


class CodeFetchError(EngineError):
    """The code is not available where ranks fetch it: the same launch would fail again."""

    code = "ELA457"
    is_permanent = True


class ImageMissingError(EngineError):
    """The image is not available where the ranks are: the same launch would fail again."""

    code = "ELA459"
    is_permanent = True


class SecretKey(NamedTuple):
    """A value of a Kubernetes secret."""

    secret: str
    key: str


@dataclass(frozen=True, kw_only=True)
class CodeSource:
    """Location of the code for ranks that cannot see the runner's disk.

    archive_sha256: of an archive at service_url. git_url, git_commit: of a repository. folder: of the image,
    with what is installed there; "" for all of them: an empty folder.
    """

    service_url: str = ""
    archive_sha256: str = ""
    git_url: str = ""
    git_commit: str = ""
    folder: str = ""

    @property
    def is_fetched(self) -> bool:
        return bool(self.archive_sha256 or self.git_url)


@dataclass(frozen=True)
class RankPlan:
    """Start parameters of one rank.

    command: the program, found by the PATH of the environment, and its arguments. rank: its number among all
    ranks of the run, others of which may be elsewhere. secret_keys: of Kubernetes secrets, by the variables
    that get their values.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    rank: int = 0
    secret_keys: Mapping[str, SecretKey] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AttemptPlan:
    """Ranks of an attempt that are started here together.

    run: its id. attempt: from 1. fence: grows with each lease of the run; a lower one than was seen is stale.
    folder: the unpacked code, which the ranks are started in. image: of containers; "": the runner's own.
    slots_per_rank: slots that each rank takes, by which limits grow. log_cap_bytes: of each rank's log on
    disk. code: where pods fetch it, which do not see the folder. is_elastic: the ranks are workers of a job.
    grace_seconds: what ranks have between SIGTERM and SIGKILL if something else than the runner ends them.
    tell: told what the launch waits for, from a thread.
    """

    run: str
    attempt: int
    fence: int
    folder: Path
    ranks: tuple[RankPlan, ...]
    image: str = ""
    slots_per_rank: int = 1
    log_cap_bytes: int = LOG_CAP_BYTES_DEFAULT
    code: CodeSource = CodeSource()
    is_elastic: bool = False
    grace_seconds: float = 30.0
    tell: Tell = field(default=untold, compare=False, repr=False)


class RankState(StrEnum):
    """WAITING: not started; final for an attempt that was undone. LOST: ended without an exit code."""

    WAITING = "waiting"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """One rank as an engine found it.

    returncode: of EXITED, negative for a signal. last_line: of its log. started_at, ended_at: seconds since
    the Unix epoch; None: it has not, or that is not known. reason: why it is LOST; "": nobody knows.
    """

    rank: int
    state: RankState
    returncode: int | None = None
    last_line: bytes = b""
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """An attempt known to an engine. launched: all its ranks were started; otherwise it was rolled back."""

    run: str
    attempt: int
    fence: int
    launched: bool
    ranks: tuple[RankRecord, ...]


@dataclass(frozen=True, kw_only=True)
class RankEvent:
    """A rank has started (RUNNING) or ended (EXITED, LOST). Other fields: as in RankRecord."""

    run: str
    attempt: int
    rank: int
    state: RankState
    returncode: int | None = None
    last_line: bytes = b""
    reason: str = ""


class Engine(Protocol):
    """Starts, watches and ends the ranks of attempts. Its user calls `adopt` first."""

    async def launch(self, attempt: AttemptPlan) -> None:
        """Start all ranks, or none: then EngineError."""

    async def adopt(self) -> list[AttemptRecord]:
        """Find existing attempts, and watch their ranks; incomplete launches are rolled back.

        What cannot be asked about its ranks yet is asked again in the background: they count as running
        until their end comes by `watch`. Raises EngineError once something was launched.
        """

    async def stop(self, run: str, attempt: int, grace_seconds: float) -> None:
        """End all ranks, and return when nothing of them is left: SIGTERM, then SIGKILL after the grace.

        Waits for a launch of the run; does nothing to ranks that have ended. A stop that has begun goes on
        without its caller, and a further one may shorten the grace. Raises EngineError for an attempt that
        is not known.
        """

    def watch(self) -> AsyncIterator[RankEvent]:
        """Yield events of ranks from `launch` or `adopt` on. For one reader; it never ends."""

    def rank_folder(self, run: str, attempt: int, rank: int) -> Path:
        """Return the folder with the log of a rank, for `rank_logs`."""

    def image(self, run: str, attempt: int) -> RankImage | None:
        """Return the image of an attempt's ranks; None for processes, and if it is not known."""

    async def remove(self, run: str, attempt: int) -> None:
        """Delete everything stored of an attempt, including its logs; do nothing if there is none.

        Raises EngineError while a rank runs.
        """

    def close(self) -> None:
        """Stop watching, and let another engine adopt the ranks, which continue."""

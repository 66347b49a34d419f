"""Interface to whatever runs ranks in containers or pods.

A pod counts as a container here: it has one that runs the rank. All functions block; the engine calls them in
threads. Whatever goes wrong is an EngineError, of a class that says whether it may pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from elastane_common.run_record import RankImage
from elastane_runner.engine import AttemptPlan


class ContainerMissingError(LookupError):
    """There is no such container."""


class Found(NamedTuple):
    """A container that bears labels."""

    container: str
    labels: Mapping[str, str]


class ContainerState(NamedTuple):
    """State of a container as the engine reports it.

    is_running: also before it has run. started_at, ended_at: seconds since the Unix epoch; None: not yet.
    exit_code: of one that has ended, 128 and more for a signal; None: it has none. is_disrupted: something
    other than the rank and its runner has ended it, as a drained node does. reason: of that, in words.
    """

    is_running: bool
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = 0
    is_disrupted: bool = False
    reason: str = ""


class LogStream(Protocol):
    """Bytes of a log as they come; `close` ends a wait for more from another thread."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class LaunchCalls(Protocol):
    """The containers of one launch. image: of all; its digest may not be known before they run."""

    @property
    def image(self) -> RankImage: ...

    def create(self) -> dict[int, str]:
        """Create all containers; return their ids by rank."""

    def start(self, container: str) -> None:
        """Start a container, and return once it has started. Raises EngineError."""

    def cancel(self) -> None:
        """Make `start` stop waiting; called from another thread."""


class RankClient(Protocol):
    """Calls of the system that runs the ranks of one runner. Thread-safe."""

    def prepare(self, plan: AttemptPlan) -> LaunchCalls:
        """Check a plan, and return the calls by which it is launched. Raises EngineError."""

    def find(self, labels: Mapping[str, str]) -> list[Found]:
        """Return the containers that bear all these labels, ended ones too."""

    def state(self, container: str) -> ContainerState:
        """Return the state of a container. Raises ContainerMissingError."""

    def log(self, container: str, *, follows: bool) -> AbstractContextManager[LogStream]:
        """Open the log of a container from its beginning, both streams in one.

        follows: to its end. A connection that breaks is an end too. Raises ContainerMissingError.
        """

    def kill(self, container: str, signal: str, grace_seconds: float) -> None:
        """Signal a container; nothing if it has ended or is gone.

        grace_seconds: after which SIGKILL will follow SIGTERM.
        """

    def release(self, container: str) -> None:
        """Release a container whose end and log are recorded; it may be deleted from now on."""

    def remove(self, run: str, attempt: int) -> None:
        """Kill and delete the containers of an attempt, and everything that belongs to them."""

    def close(self) -> None:
        """Close the connections."""

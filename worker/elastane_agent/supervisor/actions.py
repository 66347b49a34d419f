"""Actions that policies decide and agents carry out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spawn:
    """Start this worker, or this parameter server."""

    worker: str


@dataclass(frozen=True)
class Terminate:
    """Ask this worker to drain and leave (SIGTERM).

    reason: passed to the worker, which reports it to the master; empty: the one of the last `Announce`.
    """

    worker: str
    reason: str = field(default="", compare=False)


@dataclass(frozen=True)
class Announce:
    """Notify the workers that their node is taken away in `seconds`; `Terminate` actions follow."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Kill:
    """SIGKILL this worker and its process group."""

    worker: str


@dataclass(frozen=True)
class Say:
    """Print a message. kind: as in `Output.say`; event: its machine-readable name."""

    text: str
    kind: str = "info"
    event: str = "message"
    worker: str = ""


@dataclass(frozen=True)
class Fail:
    """Give up, for the reason in `text`: workers leave, and the agent exits with `code`."""

    code: int
    text: str


@dataclass(frozen=True)
class Finish:
    """Exit with this code: none of the policy's processes runs any more."""

    code: int


Action = Spawn | Announce | Terminate | Kill | Say | Fail | Finish

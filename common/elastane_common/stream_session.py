"""Stream events and reconnection, common to the sessions of workers and of runners. Pure.

Each kind of session has its own state machine (`elastane.runtime.session_machine`,
`elastane_runner.attending`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: Upper limit of the backoff after a standby master's answer: another one leads, or soon will.
STANDBY_SECONDS_MAX: Final = 0.5


@dataclass(frozen=True)
class Started:
    """The session begins."""


@dataclass(frozen=True)
class StreamOpened:
    """A stream has been opened, as `Connect` asked, and Hello is sent."""


@dataclass(frozen=True)
class StreamEnded:
    """The stream has ended.

    code: name of the gRPC status; empty: the master ended it without an error. reason: name of the
    ErrorReason without its prefix, empty if there is none; hint, facts and is_retryable: of its ErrorDetail.
    """

    code: str = ""
    text: str = "stream closed"
    reason: str = ""
    is_retryable: bool = False
    hint: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Connect:
    """Wait, then open a stream.

    stays: connect to the same master; otherwise to `leader`, if it is one of the masters' addresses, or to
    the next one.
    """

    wait_seconds: float = 0.0
    stays: bool = False
    leader: str = ""

"""Error classes of this package.

    ShardsError
    ├── InvalidSettings     a size, a source or a parameter is out of range       invalid_argument
    │   └── InvalidSource   the description of a dataset is impossible            invalid_argument
    ├── InvalidRequest      an argument of a transition is invalid                invalid_argument
    ├── IllegalTransition   the current state does not allow the transition       wrong_phase
    ├── NotHolder           the task is not leased to that worker                 stale
    ├── InvalidSnapshot     the bytes are not a snapshot of this kind             invalid_argument
    └── InvariantViolated   a bug in this package: the state contradicts itself   (stop)

Every error is raised before any state changes. `reason` is the lower-case name of the matching value in the
API's ErrorReason; `facts` are machine-readable details, `hint` tells people what to do.
"""

from __future__ import annotations


class ShardsError(Exception):
    """Base class of all errors here: a message, its facts, and a hint for the caller."""

    reason = "invalid_argument"

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, str] = {name: str(value) for name, value in facts.items()}


class InvalidSettings(ShardsError):  # noqa: N818 - named after the fact, as the API names it
    """A parameter is out of range. Do not retry."""


class InvalidSource(InvalidSettings):
    """The description of a dataset is impossible: empty, a negative entry, a decreasing watermark."""


class InvalidRequest(ShardsError):  # noqa: N818
    """An argument of a call is malformed, or names a task that was never leased. Do not retry."""


class IllegalTransition(ShardsError):  # noqa: N818
    """The current state does not allow this transition, for example a commit before all reports."""

    reason = "wrong_phase"


class NotHolder(ShardsError):  # noqa: N818
    """The worker does not hold the task's lease, or no longer holds it."""

    reason = "stale"


class InvalidSnapshot(ShardsError):  # noqa: N818
    """The bytes passed to `restore` were not written by `snapshot` of the same class, or are damaged."""


class InvariantViolated(ShardsError):  # noqa: N818
    """No sequence of transitions reaches this state: a bug in this package, never the caller's."""

    reason = "internal"

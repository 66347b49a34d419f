"""The errors of this package, as one tree.

    ShardsError
    ├── InvalidSettings     a size, a source or a parameter is out of range       invalid_argument
    │   └── InvalidSource   what is said about the dataset itself is not possible invalid_argument
    ├── InvalidRequest      an argument of a transition makes no sense            invalid_argument
    ├── IllegalTransition   the state does not allow the transition now           wrong_phase
    ├── NotHolder           the task is not leased to that worker                 stale
    ├── InvalidSnapshot     the bytes are no snapshot of this kind                invalid_argument
    └── InvariantViolated   our own bug: the state contradicts itself             (stop)

Every error is raised before anything changed. `reason` is the name, in lower case, that the API's
ErrorReason gives it; `facts` are for machines, `hint` is for people.
"""

from __future__ import annotations


class ShardsError(Exception):
    """Base of all errors here: a message, the facts behind it and what the caller can do."""

    reason = "invalid_argument"

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, str] = {name: str(value) for name, value in facts.items()}


class InvalidSettings(ShardsError):  # noqa: N818 - named after the fact, as the API names it
    """A parameter is out of range. Do not retry."""


class InvalidSource(InvalidSettings):
    """A dataset cannot be like that: empty, decreasing offsets, a watermark that goes backwards."""


class InvalidRequest(ShardsError):  # noqa: N818
    """An argument of a call is malformed, or names a task that was never leased. Do not retry."""


class IllegalTransition(ShardsError):  # noqa: N818
    """The transition is not possible in this state, for example a commit before all reports."""

    reason = "wrong_phase"


class NotHolder(ShardsError):  # noqa: N818
    """The worker does not hold the task's lease (any more)."""

    reason = "stale"


class InvalidSnapshot(ShardsError):  # noqa: N818
    """Bytes handed to `restore` were not made by `snapshot` of the same class, or are damaged."""


class InvariantViolated(ShardsError):  # noqa: N818
    """A state that no sequence of transitions can reach: a bug in this package, never the caller's."""

    reason = "internal"

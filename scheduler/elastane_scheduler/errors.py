"""Error classes of this package.

    SchedulerError
    ├── InvalidSettings    a cost, price, weight or size is out of range, a name is unknown
    └── InvalidTrace       a line of a trace cannot be read

`facts` are machine-readable details, `hint` tells people what to do.
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Base class of all errors here: a message, its facts, and a hint for the caller."""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, str] = {name: str(value) for name, value in facts.items()}


class InvalidSettings(SchedulerError):  # noqa: N818 - named after the fact, as in elastane_shards
    """A parameter is out of range or names something unknown."""


class InvalidTrace(SchedulerError):  # noqa: N818
    """A trace is malformed; `line` counts from 1, its header included."""

    def __init__(self, message: str, *, line: int, hint: str = "") -> None:
        super().__init__(f"line {line}: {message}", hint=hint, line=line)
        self.line = line

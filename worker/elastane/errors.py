"""The errors a user of Elastane can meet.

    ElastaneError
    ├── RefusedError            the master refused this worker or request: do not retry
    ├── MasterUnreachableError  no answer within the stated time
    ├── JobMissingError         the master has no job of that name, and none came within the stated time
    ├── UnsupportedError        the script asks for something that would not keep the bits
    ├── StepError               the loop body broke a rule of the step (unused parameter, no optimizer.step)
    └── (modules add their own: StateError, CheckpointError, DataWorkerError, ...)

Each error says what happened in its text, what to do in `hint`, and the facts in `facts`.
"""

from __future__ import annotations

from typing import Final

EXIT_SCRIPT_RAISED: Final = 1
EXIT_REFUSED: Final = 82
EXIT_MASTER_UNREACHABLE: Final = 83


class ElastaneError(Exception):
    """Base of all errors of Elastane.

    Attributes: hint (what the user can do, may be empty), facts (names and values for machines),
    exit_code (what a worker process exits with when the error ends it).
    """

    exit_code: int = EXIT_SCRIPT_RAISED

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, object] = facts

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


class RefusedError(ElastaneError):
    """The master refused this worker or request; the same call will be refused again."""

    exit_code = EXIT_REFUSED


class MasterUnreachableError(ElastaneError):
    """No master answered within the stated time."""

    exit_code = EXIT_MASTER_UNREACHABLE


class JobMissingError(ElastaneError):
    """The job that was to be joined was not created within the stated time; it may be later."""


class UnsupportedError(ElastaneError):
    """The script uses something with which the result would not be exact; said before training."""

    exit_code = EXIT_REFUSED


class StepError(ElastaneError):
    """The loop body broke a rule of the step; the same script would break it again."""

    exit_code = EXIT_REFUSED

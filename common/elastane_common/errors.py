"""Errors that users of Elastane can meet.

    ElastaneError
    ├── RefusedError            the master refused this worker or request: do not retry
    │   └── WorkerReplacedError another process joined later with this worker's id
    ├── MasterUnreachableError  no answer within the stated time
    ├── JobMissingError         the master has no such job, and none was created within the stated time
    ├── UnsupportedError        the script uses something that would not keep the bits
    ├── StepError               the loop body broke a rule of the step (unused parameter, no optimizer.step)
    └── (modules add their own: StateError, CheckpointError, DataWorkerError, ...)

An error's text says what happened, `hint` what to do, and `facts` has the data. Its `code` never changes:
docs/errors.md and `elastane errors CODE` give causes and remedies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

EXIT_SCRIPT_RAISED: Final = 1
EXIT_REFUSED: Final = 82
EXIT_MASTER_UNREACHABLE: Final = 83
#: History was rewound to before what the process has trained: it must be restarted.
EXIT_START_ANEW: Final = 84


_POINTER: Final = re.compile(r"^ *\[ELA\d{3}\] elastane errors ELA\d{3}: .*$")


def _pointer(code: str) -> str:
    """Return the pointer to the documentation, with the code in brackets as in `line`.

    It is indented, unlike any error text, so that `reason_of` can tell them apart.
    """
    return f"  [{code}] elastane errors {code}: what causes it, and what to do"


def reason_of(traceback: str) -> str:
    """Return the line of a traceback's text that says what happened: its last, without pointers to codes.

    Used if only text is available: from data workers, and from processes that wrote a log.
    """
    lines = (line for line in reversed(traceback.splitlines()) if line.strip() and not _POINTER.match(line))
    return next(lines, "")


class ElastaneError(Exception):
    """Base class of all errors of Elastane.

    Attributes: hint (what the user can do, may be empty), facts (names and values for machines), exit_code
    (of a worker process that ends with the error), code (its page in docs/errors.md; each class has its own).
    """

    code: str = "ELA400"
    exit_code: int = EXIT_SCRIPT_RAISED

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, object] = facts
        # As a note, not in the text: tracebacks show it, comparisons and stored reasons do not contain it.
        self.add_note(_pointer(self.code))

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message

    def line(self) -> str:
        """Return the text with its code, for use without a traceback."""
        return f"{self} [{self.code}]"


class RefusedError(ElastaneError):
    """The master refused this worker or request; the same call will be refused again."""

    code = "ELA402"
    exit_code = EXIT_REFUSED


def bad_environment(faults: Iterable[Mapping[str, Any]], *, hint: str = "") -> RefusedError:
    """Return the refusal of a process with invalid ELASTANE_* variables. faults: pydantic's."""
    wrong = "; ".join(f"ELASTANE_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in faults)
    return RefusedError(f"bad environment: {wrong}", hint=hint)


class WorkerReplacedError(RefusedError):
    """Another process joined later with this worker's id: that one stays, and this one ends for good."""

    code = "ELA424"


class MasterUnreachableError(ElastaneError):
    """No master answered within the stated time."""

    code = "ELA401"
    exit_code = EXIT_MASTER_UNREACHABLE


class JobMissingError(ElastaneError):
    """The job to join was not created within the stated time; it may be created later."""

    code = "ELA420"


class UnsupportedError(ElastaneError):
    """The script uses something with which the result would not be exact; raised before training."""

    code = "ELA301"
    exit_code = EXIT_REFUSED


class JobFailedError(ElastaneError):
    """The master ended the job as failed while this worker took part; the text is the reason."""

    code = "ELA340"
    exit_code = EXIT_REFUSED


class StepError(ElastaneError):
    """The loop body broke a rule of the step; the same script would break it again."""

    code = "ELA302"
    exit_code = EXIT_REFUSED


class RepeatDiffersError(StepError):
    """A repetition from the same state gave different gradients, outputs or mini-batches."""

    code = "ELA344"


class LoaderUseError(StepError):
    """The prepared loader is read ahead, or a second iterator is requested."""

    code = "ELA364"

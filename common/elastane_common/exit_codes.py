"""Exit codes of `elastane run`, and the form in which orchestrators learn what is transient: pure.

Kubernetes operators read 1-127 as permanent and 128-255 as retryable. Our shell codes do not follow that: 4,
for a master that does not answer, is transient. A container therefore asks for `pod` codes, in which a
transient code becomes 200 + code. That range is clear of 128 + signal number, which ends at 192.
docs/exit-codes.md has the table.
"""

from __future__ import annotations

from typing import Final, Literal

from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_START_ANEW

#: Exit codes of the agent itself.
CODE_OK, CODE_FAILED, CODE_USAGE, CODE_REFUSED, CODE_UNREACHABLE = 0, 1, 2, 3, 4
#: Too few workers joined within the job's max wait.
CODE_MAX_WAIT: Final = 5
#: No job of that name was created within --job-timeout.
CODE_NO_JOB: Final = 6
#: The sentinel has suspended the job: workers compute different bits, and it cannot tell which are right.
CODE_UNDECIDED: Final = 7

#: Exit code of drained workers; passed to them in ELASTANE_DRAIN_EXIT_CODE.
EXIT_DRAINED: Final = 80
#: Exit code of the agent on another host whose worker left because that host is being taken away.
EXIT_RECLAIMED: Final = 81

#: Texts for the exit codes that only pass between workers and their agent.
IN_WORDS: Final = {
    EXIT_DRAINED: "drained",
    EXIT_RECLAIMED: "left: its host is being taken away",
    EXIT_REFUSED: "was refused",
    EXIT_MASTER_UNREACHABLE: "could not reach the master",
    EXIT_START_ANEW: "must be restarted",
}

TRANSIENT: Final = frozenset({CODE_UNREACHABLE, CODE_NO_JOB})
"""Codes below 128 that a later attempt may not meet, without a change of script, settings or rights."""

_TRANSIENT_BASE: Final = 200

Style = Literal["shell", "pod"]


def exit_code(code: int, style: Style) -> int:
    """Return the code to exit with: 200 + code if it is transient and the style is "pod", else unchanged."""
    return _TRANSIENT_BASE + code if style == "pod" and code in TRANSIENT else code

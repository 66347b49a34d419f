"""What `elastane run` exits with, and how an orchestrator is told what may pass: pure.

Kubernetes operators read 1-127 as permanent and 128-255 as retryable. Our own codes follow the shell and say
4 for a master that does not answer, which passes by itself. So a container asks for `pod` codes: what is
transient then comes as 200 and the code. They stay clear of 128 + signal, which ends at 192.
docs/exit-codes.md has the table.
"""

from __future__ import annotations

from typing import Final, Literal

from elastane.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_START_ANEW

#: Exit codes of the agent itself.
CODE_OK, CODE_FAILED, CODE_USAGE, CODE_REFUSED, CODE_UNREACHABLE = 0, 1, 2, 3, 4
#: Too few workers were there within the job's max wait.
CODE_MAX_WAIT: Final = 5
#: No job of that name came within --job-timeout.
CODE_NO_JOB: Final = 6
#: The sentinel has suspended the job: workers compute different bits, and nobody can say which are right.
CODE_UNDECIDED: Final = 7

#: What the agent asks drained workers to exit with (ELASTANE_DRAIN_EXIT_CODE).
EXIT_DRAINED: Final = 80
#: What the agent of another host ends with when its worker left because that host is being taken away.
EXIT_RECLAIMED: Final = 81

#: What workers tell their agent, and nobody else, by the code they exit with.
IN_WORDS: Final = {
    EXIT_DRAINED: "drained",
    EXIT_RECLAIMED: "left: its host is being taken away",
    EXIT_REFUSED: "was refused",
    EXIT_MASTER_UNREACHABLE: "could not reach the master",
    EXIT_START_ANEW: "is to be started anew",
}

TRANSIENT: Final = frozenset({CODE_UNREACHABLE, CODE_NO_JOB})
"""Codes below 128 whose cause may pass without anybody changing script, settings or rights."""

_TRANSIENT_BASE: Final = 200

Style = Literal["shell", "pod"]


def exit_code(code: int, style: Style) -> int:
    """The code to exit with: as it is for a shell, 200 + code for a pod where the cause is transient."""
    return _TRANSIENT_BASE + code if style == "pod" and code in TRANSIENT else code

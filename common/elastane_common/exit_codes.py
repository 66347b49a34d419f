"""Exit codes of all commands, and the form in which orchestrators learn what is transient: pure.

A code means the same in every command. The master's own are in `elastane_master.master_process`, those that
pass between workers and their agent in `errors`.

Kubernetes operators read 1-127 as permanent and 128-255 as retryable. Our shell codes do not follow that: 4,
for a master that does not answer, is transient. A container therefore asks for `pod` codes, in which a
transient code becomes 200 + code. That range is clear of 128 + signal number, which ends at 192.
docs/exit-codes.md has the table.
"""

from __future__ import annotations

from typing import Final, Literal

from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED, EXIT_START_ANEW

CODE_OK: Final = 0
CODE_FAILED: Final = 1
CODE_USAGE: Final = 2
CODE_REFUSED: Final = 3
#: No master answers.
CODE_UNREACHABLE: Final = 4
#: Too few workers joined within the job's max wait.
CODE_MAX_WAIT: Final = 5
#: No job of that name was created within --job-timeout.
CODE_NO_JOB: Final = 6
#: The sentinel has suspended the job: workers compute different bits, and it cannot tell which are right.
CODE_UNDECIDED: Final = 7
#: verify, doctor, drill and chaos: a run of the script failed or did not end.
CODE_RUN_FAILED: Final = 11
#: submit: the run was cancelled.
CODE_RUN_CANCELLED: Final = 12
#: submit: Ctrl-C detached from the run, which goes on; 128 + SIGINT.
CODE_DETACHED: Final = 130

# verify --reference, of the original script: it raised or did not start; did not end in time; trained nothing
# with DistributedDataParallel; ran with other ranks; other parameters, or other steps, than the converted.
CODE_ORIGINAL_FAILED: Final = 5
CODE_ORIGINAL_LATE: Final = 6
CODE_ORIGINAL_EMPTY: Final = 7
CODE_ORIGINAL_RANKS: Final = 8
CODE_OTHER_ARCHITECTURE: Final = 9
CODE_OTHER_STEPS: Final = 10

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

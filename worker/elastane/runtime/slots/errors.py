"""What a script that trains with parameter servers can do wrong."""

from __future__ import annotations

from elastane_common.errors import EXIT_REFUSED, ElastaneError, StepError


class PsOptimizerError(ElastaneError):
    """The optimizer, or one of its settings, cannot run at parameter servers."""

    code = "ELA481"
    exit_code = EXIT_REFUSED


class RowIdError(ElastaneError):
    """An embedding was asked for a row that it does not have."""

    code = "ELA482"


class NonFiniteGradientError(ElastaneError):
    """A gradient has a NaN or an infinity; nothing of the task was applied."""

    code = "ELA483"


class NotPushedError(StepError):
    """A task was neither pushed nor skipped, or the model was used outside of `job.push`."""

    code = "ELA484"


class ReplayError(ElastaneError):
    """A run cannot be computed again, or this is another one than that of the journal."""

    code = "ELA492"


class PsModeError(ElastaneError):
    """Parameter servers cannot be used in this mode, or beside what the script has prepared."""

    code = "ELA496"
    exit_code = EXIT_REFUSED

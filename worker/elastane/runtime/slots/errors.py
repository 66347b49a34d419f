"""Errors of scripts that train with parameter servers."""

from __future__ import annotations

from elastane_common.errors import EXIT_REFUSED, ElastaneError, StepError


class PsOptimizerError(ElastaneError):
    """Parameter servers do not support the optimizer, or one of its settings."""

    code = "ELA481"
    exit_code = EXIT_REFUSED


class RowIdError(ElastaneError):
    """An embedding was called with an id outside of its table."""

    code = "ELA482"


class NonFiniteGradientError(ElastaneError):
    """A gradient contains NaN or infinity; no part of the task was applied."""

    code = "ELA483"


class NotPushedError(StepError):
    """A task was neither pushed nor skipped, or the model was used outside of `job.push`."""

    code = "ELA484"


class ReplayError(ElastaneError):
    """A run cannot be replayed, or its replay differs from the journal."""

    code = "ELA492"


class PsModeError(ElastaneError):
    """Parameter servers cannot be used in this mode, or together with what the script has prepared."""

    code = "ELA496"
    exit_code = EXIT_REFUSED

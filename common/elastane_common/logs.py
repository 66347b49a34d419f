"""Log lines of Elastane in a worker: on stderr, unless the script configures structlog itself.

Each line has the job, the worker, and its generation and step (`elastane_proto.log_lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elastane_proto import log_lines

LINES_PER_SECOND_MAX = 100

_facts: Callable[[], Mapping[str, Any]] = dict


def configure_logs(level: str, form: log_lines.Form = "console") -> None:
    """Send lines of `level` and above to stderr, unless the script has configured structlog itself."""
    if structlog.is_configured():
        return
    log_lines.configure(level, form, lines_per_second=LINES_PER_SECOND_MAX, facts=lambda: _facts())


def say_where(facts: Callable[[], Mapping[str, Any]]) -> None:
    """Set the callback for the fields of each line: job, worker, generation and step.

    The callback runs in any thread that logs, so it must not block.
    """
    global _facts
    _facts = facts

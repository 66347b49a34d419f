"""What Elastane says inside a worker: to stderr, only what matters, unless the script configures it itself.

Each line has the job, the worker, and the generation and step it is in (`elastane_proto.log_lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elastane_proto import log_lines

LINES_PER_SECOND_MAX = 100

_facts: Callable[[], Mapping[str, Any]] = dict


def configure_logs(level: str, form: log_lines.Form = "console") -> None:
    """Send lines of `level` and above to stderr; a script that has configured structlog keeps its way."""
    if structlog.is_configured():
        return
    log_lines.configure(level, form, lines_per_second=LINES_PER_SECOND_MAX, facts=lambda: _facts())


def say_where(facts: Callable[[], Mapping[str, Any]]) -> None:
    """What each line has from now on: job, worker, generation and step, as `facts` gives them then.

    Called by the attendance of this process, which knows them; from any thread, so it may not wait.
    """
    global _facts
    _facts = facts

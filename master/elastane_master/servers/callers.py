"""Caller of the rpc being served: set by the gate, used where an answer depends on it.

The gate removes other people's jobs from every list that it passes on. A page must take that into account
before: the token of the next page names the last job, and a page may not consist of jobs that are removed.
The training service shows and changes only runs of owners that the caller's token is for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from elastane_master.security.tokens import ANYBODY, Principal

covers: ContextVar[Callable[[str], bool]] = ContextVar("covers", default=lambda job: True)
"""Predicate: may this caller know of the job of that name? Calls from inside the master see all."""

principal: ContextVar[Principal] = ContextVar("principal", default=ANYBODY)
"""The caller of an rpc of the training service. Calls from inside the master may do everything."""

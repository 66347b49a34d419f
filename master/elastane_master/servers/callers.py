"""Which jobs the caller of the rpc under way may see: set by the gate, asked where a list is made in pages.

The gate takes others' jobs out of every list that it passes on. A page has to know of them before that: the
token of the next page names the last job, and a page may not consist of jobs that are taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

covers: ContextVar[Callable[[str], bool]] = ContextVar("covers", default=lambda job: True)
"""Predicate: may this caller know of the job of that name? Calls from inside the master see all."""

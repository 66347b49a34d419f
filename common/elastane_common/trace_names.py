"""Names of spans that workers add to their traces, by which `elastane trace` brings them together. Pure."""

from __future__ import annotations

from typing import Final

MARK: Final = "elastane: applied step "
"""A worker has applied the step of this number."""


def est_span(rank: int) -> str:
    """Return the name of the span of an EST's turn: its mini-batch, forward and backward."""
    return f"EST {rank}"

"""Faults of the master itself."""

from __future__ import annotations


class MachineBroken(Exception):  # noqa: N818 - says what happened
    """The decision code failed on an event; the state is as it was before it."""

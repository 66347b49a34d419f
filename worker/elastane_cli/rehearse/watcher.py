"""Receives the progress of a rehearsal."""

from __future__ import annotations


class Watcher:
    """This one ignores it. Called from the rehearsal's thread."""

    def stage(self, text: str, steps: int | None = None) -> None:
        """Begin a stage; steps: its number of global steps, if known."""

    def step(self, step: int) -> None:
        """Report the steps committed in this stage."""

    def note(self, text: str) -> None:
        """Report a line to keep."""

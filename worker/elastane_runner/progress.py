"""Progress of the slow parts of a launch: set by the working thread, read for the master."""

from __future__ import annotations

from collections.abc import Callable

#: Called with what is being done, in words, whenever it has moved on. From any thread.
Tell = Callable[[str], None]


def untold(words: str) -> None:
    """Do nothing; for callers without progress reports."""


class Progress:
    """Whether a launch has progressed since the last check, and its current step."""

    def __init__(self) -> None:
        self._words = ""

    def tell(self, words: str) -> None:
        """Set the current step, and record that there was progress."""
        self._words = words

    def take(self) -> str:
        """Return the last step; "": no progress since the last call."""
        words, self._words = self._words, ""
        return words

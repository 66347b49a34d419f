"""Progress of a launch's slow parts: set where the work is done, read for the master."""

from __future__ import annotations

from collections.abc import Callable

#: Called with what is being done, in words, whenever it has moved on. From any thread.
Tell = Callable[[str], None]


def untold(words: str) -> None:
    """Tell nobody."""


class Progress:
    """Whether a launch has progressed since the last look, and its present step."""

    def __init__(self) -> None:
        self._words = ""

    def tell(self, words: str) -> None:
        """Say what is being done. It has moved on."""
        self._words = words

    def take(self) -> str:
        """Return what was said last; "": nothing since the last call."""
        words, self._words = self._words, ""
        return words

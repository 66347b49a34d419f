"""The last lines of a text that grows, bounded by their number and bytes. Pure.

Agents keep those of each worker in it, and so does the master.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

LINES_MAX: Final = 1000
BYTES_MAX: Final = 64 * 1024
"""Limit of the lines that an agent keeps of one worker."""
LINE_BYTES_MAX: Final = 4096
"""Limit of one line; the rest of a longer line is left out."""
LINE_OVERHEAD_BYTES: Final = 100
"""Counted for each line beside its text, so that empty lines are bounded, too."""


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


Line = TypeVar("Line", bound=_Sized)


class LastLines(Generic[Line]):
    """The last of a sequence of numbered lines. Line: what is kept of one, with its `size_bytes`.

    Numbers ascend, and may have gaps: lines that were left out before they came here.
    """

    def __init__(self, lines_max: int = LINES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._lines_max, self._bytes_max = lines_max, bytes_max
        self._kept: deque[tuple[int, Line]] = deque()
        self.size_bytes = 0
        self.end = 0
        """Number of the next line."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, number: int, line: Line) -> None:
        """Keep a line, and drop the oldest ones beyond the bounds; the newest always stays."""
        assert number >= self.end, "numbers ascend"
        self._kept.append((number, line))
        self.size_bytes += line.size_bytes
        self.end = number + 1
        while len(self._kept) > 1 and (
            len(self._kept) > self._lines_max or self.size_bytes > self._bytes_max
        ):
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """Drop the oldest line."""
        _, line = self._kept.popleft()
        self.size_bytes -= line.size_bytes

    def since(self, number: int) -> Iterator[tuple[int, Line]]:
        """Yield the kept lines from a number on, with their numbers. Do not add lines meanwhile."""
        later = 0
        for known, _ in reversed(self._kept):
            if known < number:
                break
            later += 1
        for index in range(len(self._kept) - later, len(self._kept)):
            yield self._kept[index]

    def last(self, lines: int) -> int:
        """Return the number of the first of the last `lines` lines; `end` for 0."""
        if lines <= 0:
            return self.end
        return self._kept[-min(lines, len(self._kept))][0] if self._kept else self.end


def cut_line(text: str, bytes_max: int = LINE_BYTES_MAX) -> tuple[str, int]:
    """Return the beginning of a line within a limit, and the number of bytes left out."""
    if len(text) * 4 <= bytes_max:
        return text, 0
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return text, 0
    kept = data[:bytes_max].decode("utf-8", "ignore")
    return kept, len(data) - len(kept.encode())

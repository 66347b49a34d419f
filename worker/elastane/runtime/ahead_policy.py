"""When a worker applies a step ahead of its Prepared: where that hides more time than it costs. Pure.

To undo the step, a copy is made of everything that the optimizer changes. The copy costs its time in every
step, and is worth it where the master's answer comes later than the optimizer: where the master is far away,
or busy. Both times are measured, and a step whose answer is there in time never pays for a copy.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

BYTES_MAX: Final = 256 * 2**20
"""Most that is copied: larger states take memory that the script may need, and belong to longer steps."""
WAIT_SECONDS_MIN: Final = 0.002
"""Shorter waits are not worth the second step that a death costs."""
WORTH: Final = 2.0
"""Going ahead pays if the wait for the master takes at least this multiple of the copy's duration."""
COPIED_BYTES_PER_SECOND: Final = 4e9
"""Of copies that have not been measured yet."""
MEASURED: Final = 9
"""Number of last steps whose waits, and copies, are judged by their median."""
MEASURED_MIN: Final = 3


class AheadPolicy:
    """Judges one worker's steps. bytes_max: of the copy; 0: no step is applied ahead."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._waits: deque[float] = deque(maxlen=MEASURED)
        self._copies: deque[float] = deque(maxlen=MEASURED)
        #: The script has asked, in the last step that it applied, whether it was applied.
        self._is_asked = False
        #: The last step for which it was judged could be undone, and its copy was worth its time.
        self._was_wanted = False

    @property
    def may_pay(self) -> bool:
        """True unless no copy, however small, would be worth its time. Known before the copy's size is."""
        if not self._bytes_max or self._is_asked or len(self._waits) < MEASURED_MIN:
            return False
        return median(self._waits) >= WAIT_SECONDS_MIN

    @property
    def expects(self) -> bool:
        """True if the next step is likely to be applied ahead, as the last one that was judged.

        What a report says, before it is known whether the step can be undone.
        """
        return self._was_wanted and self.may_pay

    def wants(self, size_bytes: int) -> bool:
        """True if the next step is to be applied ahead, if it may. size_bytes: of the copy."""
        if size_bytes > self._bytes_max or not self.may_pay:
            return False
        copy = median(self._copies) if self._copies else size_bytes / COPIED_BYTES_PER_SECOND
        return median(self._waits) >= WORTH * copy

    def judged(self, *, is_wanted: bool) -> None:
        """Note whether a step could be undone, and was wanted."""
        self._was_wanted = is_wanted

    def waited(self, seconds: float) -> None:
        """Note how long after the optimizer was called the master's answer came; 0: it was there."""
        self._waits.append(seconds)

    def copied(self, seconds: float) -> None:
        """Note how long the copy took."""
        self._copies.append(seconds)

    def stepped(self, *, is_asked: bool) -> None:
        """Note the end of a turn that has applied its step. is_asked: it has read `job.stepped`, or has done
        something else that waits for Prepared; then there is nothing to hide.
        """
        self._is_asked = is_asked

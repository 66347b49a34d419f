"""State of a push: decides what a worker does after each slot's answer. Pure.

A task is done when every slot has confirmed it; its report contains the sum of the lives in these answers. As
long as a slot's answer is not final, the same bytes are sent again, under the same name, to the owner in the
newest map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from elastane.slots.access import PushOutcome
from elastane.slots.frames import CODE_OK, CODE_UNINITIALISED, VERDICTS, SlotFrameError
from elastane_slots.pushes import AGAIN_VERDICTS, DONE_VERDICTS, RETURNED_VERDICTS, Verdict

#: Seconds between two attempts without a newer map: doubles from the first value to the last.
AGAIN_SECONDS_MIN: Final = 0.005
AGAIN_SECONDS_MAX: Final = 0.1
#: Reason for giving a task back.
REASONS: Final = {
    Verdict.RESTORED: "slot {} went back to a snapshot after the lease, or the lease has ended",
    Verdict.TOO_OLD: "slot {} has applied too many tasks since the pull",
}


def pause_seconds(rounds: int) -> float:
    """Return the seconds to wait for a newer map before asking again. rounds: so far without an answer."""
    return float(min(AGAIN_SECONDS_MAX, AGAIN_SECONDS_MIN * 2 ** min(rounds, 10)))


def verdict_of(code: int) -> Verdict | None:
    """Return the verdict for a code; None for CODE_OK and CODE_UNINITIALISED. Raises SlotFrameError."""
    if code in (CODE_OK, CODE_UNINITIALISED):
        return None
    if not 1 <= code <= len(VERDICTS):
        raise SlotFrameError(f"an answer of number {code}")
    return VERDICTS[code - 1]


class PushState:
    """A push in progress to `slots`, all slots of the model.

    open: slots without a final answer. uninitialised: open slots that need their initial values first.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self.open = set(slots)
        self.uninitialised: set[int] = set()
        self._lives: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._staleness = 0
        self._generations: set[int] = set()
        self._returned = ""
        self._closed = False

    @property
    def outcome(self) -> PushOutcome | None:
        """The outcome of the task; None while it is unknown.

        The first refusal by any slot decides it; later answers change nothing.
        """
        if self._closed:
            return PushOutcome("closed")
        if self._returned:
            return PushOutcome("returned", self._returned)
        if self.open:
            return None
        lives, versions = sum(self._lives.values()), dict(self._versions)
        generations = tuple(sorted(self._generations))
        return PushOutcome("done", "", lives, self._staleness, versions, generations)

    def answered(
        self, slots: Sequence[int], code: int, life: int, version: int, staleness: int, generation: int = 0
    ) -> None:
        """Process an answer of slots. generation: of the map under which it was given.

        Raises SlotFrameError for an answer that no parameter server would give.
        """
        if code == CODE_UNINITIALISED:
            self.uninitialised.update(slots)
            return
        verdict = verdict_of(code)
        if verdict is None:
            raise SlotFrameError(f"a push was answered with {code}")
        new = self.open.intersection(slots)
        if verdict in AGAIN_VERDICTS or not new:
            return
        if verdict in DONE_VERDICTS:
            self.open -= new
            self._lives.update(dict.fromkeys(new, life))
            self._versions.update(dict.fromkeys(new, version))
            self._generations.add(generation)
            self._staleness = max(self._staleness, staleness)
        elif verdict in RETURNED_VERDICTS:
            self._returned = self._returned or REASONS[verdict].format(min(new))
        else:
            self._closed = True

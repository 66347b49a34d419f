"""What a parameter server counts."""

from __future__ import annotations

from elastane.slots.frames import CODE_UNINITIALISED, CODES
from elastane_ps.figures import Figures
from elastane_ps.held import Holdings
from elastane_slots.pushes import Verdict


def test_staleness_is_of_what_was_applied() -> None:
    figures = Figures()
    applied, too_old = CODES[Verdict.APPLIED], CODES[Verdict.TOO_OLD]
    figures.answered([(applied, staleness) for staleness in (0, 0, 1, 3)])
    figures.answered([(applied, 4), (too_old, 50), (CODE_UNINITIALISED, 0), (applied, 9)])
    message = figures.message(Holdings("ps-0"), {})
    assert list(message.staleness_counts[:6]) == [2, 1, 0, 2, 0, 1] and not any(message.staleness_counts[6:])
    assert message.staleness_sum == 17
    assert dict(message.verdicts) == {"applied": 6, "too_old": 1}

"""What a parameter server counts."""

from __future__ import annotations

from elastane_ps.figures import Figures
from elastane_ps.held import Holdings


def test_staleness_is_of_what_was_applied() -> None:
    figures = Figures()
    for staleness in (0, 0, 1, 3, 4, 9):
        figures.answered("applied", staleness)
    figures.answered("too_old", 50)
    message = figures.message(Holdings("ps-0"), {})
    assert list(message.staleness_counts[:6]) == [2, 1, 0, 2, 0, 1] and not any(message.staleness_counts[6:])
    assert message.staleness_sum == 17
    assert dict(message.verdicts) == {"applied": 6, "too_old": 1}

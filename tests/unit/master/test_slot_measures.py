"""What parameter servers have counted, together, and how fast each is pushed to."""

from __future__ import annotations

from elastane_master.jobs.limits import Limits
from elastane_master.jobs.slot_sessions import PsSession, SlotSessions
from elastane_proto.v1 import ps_pb2


class Telling:
    """Sessions of two parameter servers, at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sessions = SlotSessions(
            lambda event: NotImplemented, lambda told: None, lambda: self.now, Limits(), lambda: None
        )
        for ps in ("ps-0", "ps-1"):
            self.sessions.sessions[ps] = PsSession(ps, 10)

    def tell(self, ps: str, figures: ps_pb2.PsFigures) -> None:
        session = self.sessions.sessions[ps]
        self.sessions.keep_figures(session, figures.SerializeToString(), figures.push_frames)


def test_figures_of_all_are_added() -> None:
    telling = Telling()
    assert telling.sessions.measured().verdicts == {} and telling.sessions.measured().hot == 0
    first = ps_pb2.PsFigures(
        verdicts={"applied": 5, "too_old": 1, "nonsense": 9}, staleness_counts=[3, 2], staleness_sum=2
    )
    for slot, size in enumerate((10, 10, 100)):
        first.slots.add(slot=slot, rows=2, weight_bytes=size, optimizer_bytes=1)
    telling.tell("ps-0", first)
    second = ps_pb2.PsFigures(
        verdicts={"applied": 2},
        staleness_counts=[1, 0, 1],
        staleness_sum=2,
        non_finite=4,
        unsaved_error="full",
    )
    telling.tell("ps-1", second)
    found = telling.sessions.measured()
    assert found.verdicts == {"applied": 7, "too_old": 1}
    assert (found.staleness_counts, found.staleness_sum) == ((4, 2, 1), 4)
    assert (found.rows, found.weight_bytes, found.optimizer_bytes, found.hot) == (6, 120, 3, 1)
    assert (found.non_finite, found.unsaved) == (4, 1)


def test_pushes_a_second_are_those_of_the_last_seconds() -> None:
    telling = Telling()
    rates = telling.sessions.push_rates
    for now, frames, told in ((0, 10, None), (1, 50, None), (2, 70, 30), (3, 71, 30), (4, 74, 2), (6, 3, 0)):
        telling.now = float(now)
        telling.tell("ps-0", ps_pb2.PsFigures(push_frames=frames))
        assert rates.get("ps-0") == told, now

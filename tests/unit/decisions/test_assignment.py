"""Order of members, ranges, and the holder that is never left out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastane_master.decisions.assignment import Candidate, choose_members, even_ranges

candidates = st.lists(
    st.builds(
        Candidate,
        worker=st.just(""),
        store_address=st.just("a:1"),
        place=st.none() | st.integers(0, 20),
        joined_order=st.integers(0, 20),
        step=st.sampled_from((-1, -1, 4, 5)),
        draining=st.booleans(),
    ),
    max_size=8,
).map(
    lambda drawn: [
        Candidate(
            f"w{i}", c.store_address, None if c.place is None else 100 * i + c.place, i, c.step, c.draining
        )
        for i, c in enumerate(drawn)
    ]
)


@given(ests=st.integers(1, 64), places=st.integers(1, 64))
def test_ranges_are_contiguous_and_even(ests: int, places: int) -> None:
    ranges = even_ranges(ests, min(places, ests))
    assert ranges[0][0] == 0 and ranges[-1][1] == ests
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    sizes = {end - start for start, end in ranges}
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


@given(candidates, st.integers(1, 8), st.integers(1, 4), st.integers(0, 8), st.booleans())
def test_choice(drawn: list[Candidate], ests: int, low: int, high: int, planned: bool) -> None:
    choice = choose_members(drawn, ests=ests, workers_min=low, workers_max=high, planned=planned)
    members = choice.members
    by_name = {candidate.worker: candidate for candidate in drawn}
    staying = [candidate for candidate in drawn if not candidate.draining]
    if len(staying) < low:
        assert members == () and choice.reason == f"{len(staying)} of at least {low} workers are there"
        return
    assert choice.reason.startswith(f"{len(members)} worker")
    chosen = [by_name[member.worker] for member in members]
    limit = min(high or ests, ests)
    extra = any(candidate.draining for candidate in chosen)
    assert min(limit, len(staying)) <= len(chosen) <= limit + extra
    assert len(chosen) <= ests
    keys = [(c.place is None, c.place or 0, c.joined_order) for c in chosen]
    assert keys == sorted(keys), "survivors keep their order, newcomers come after them"
    somebody_holds = any(candidate.step >= 0 for candidate in drawn)
    if somebody_holds and not (planned and ests == 1):
        assert any(candidate.step >= 0 for candidate in chosen), "the state would be lost"
    if extra:
        assert not any(candidate.step >= 0 for candidate in staying), "a draining worker stays without need"


def test_survivors_keep_their_places_and_newcomers_come_last() -> None:
    drawn = [
        Candidate("new", "n:1", None, 1, -1),
        Candidate("b", "b:1", 2, 3, 5),
        Candidate("a", "a:1", 0, 2, 5),
    ]
    members = choose_members(drawn, ests=8, workers_min=1, workers_max=0).members
    assert [(m.worker, m.start, m.end) for m in members] == [("a", 0, 3), ("b", 3, 6), ("new", 6, 8)]

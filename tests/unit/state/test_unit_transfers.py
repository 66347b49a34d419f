"""Who gives which units to whom, worked out of a plan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastane.state.unit_transfers import Transfer, initial_of, read_by, saved_by, transfers, units_of
from unit.state.pipelines import a_plan


def test_a_member_has_the_units_of_its_stages_as_replica_or_shadow() -> None:
    plan = a_plan([2, 5, 6], [[0, 1], [2], [0]], shadows=[[], [1], []])
    assert units_of(plan, 0) == {0, 1, 5}
    assert units_of(plan, 1) == {0, 1, 2, 3, 4}
    assert units_of(plan, 3) == frozenset()


def test_each_unit_is_saved_by_replica_0_of_its_stage_alone() -> None:
    plan = a_plan([2, 5, 6], [[1, 0], [2], [0]], shadows=[[], [1], []])
    assert [saved_by(plan, member) for member in range(4)] == [{5}, {0, 1}, {2, 3, 4}, frozenset()]


def test_units_go_from_all_who_hold_them_to_all_who_lack_them() -> None:
    # Members 0 and 1 held units 0-3 and 4-5; member 2 is new and takes over 2-3, member 0 now has 4-5 too.
    plan = a_plan([2, 4, 6], [[0], [2], [1, 0]], held=[range(4), range(4, 6), ()])
    assert transfers(plan, [0, 1], [2]) == (
        Transfer((2, 3), False, (0,), (2,)),
        Transfer((), True, (0, 1), (2,)),
        Transfer((4, 5), False, (1,), (0,)),
    )


def test_the_common_part_rides_with_units_of_the_same_members() -> None:
    plan = a_plan([2], [[2]], held=[range(2), range(2), ()])
    assert transfers(plan, [1, 0], [2]) == (Transfer((0, 1), True, (0, 1), (2,)),)
    assert transfers(plan, [], []) == (Transfer((0, 1), False, (0, 1), (2,)),)


def test_what_nobody_holds_is_read_or_begins_anew() -> None:
    plan = a_plan([2, 4], [[0], [1]], checkpoint="step-000000000004-g000001")
    assert transfers(plan, [], [0, 1]) == ()
    assert read_by(plan, 1) == {"step-000000000004-g000001": {2, 3}} and read_by(plan, 2) == {}
    assert initial_of(plan, 0) == frozenset()
    anew = a_plan([2, 4], [[0], [1]])
    assert initial_of(anew, 0) == {0, 1} and read_by(anew, 0) == {} and transfers(anew, [], []) == ()


@given(st.data())
def test_everybody_gets_what_it_lacks_once(data: st.DataObject) -> None:
    members, units = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    some = st.sets(st.integers(0, members - 1), min_size=1)
    cut = sorted(data.draw(st.sets(st.integers(1, units), max_size=3)) | {units})
    held = [data.draw(st.sets(st.integers(0, units - 1))) for _ in range(members)]
    replicas = [sorted(data.draw(some)) for _ in cut]
    plan = a_plan(cut, replicas, held=held)
    for member in range(members):
        received = [u for t in transfers(plan, [], []) if member in t.receivers for u in t.units]
        lacked = units_of(plan, member) - held[member] - initial_of(plan, member)
        assert sorted(received) == sorted(lacked)
        for transfer in transfers(plan, [], []):
            if member in transfer.donors:
                assert held[member] >= set(transfer.units) and member not in transfer.receivers

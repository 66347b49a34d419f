"""What a process says to a push, row by row of its table, and that refused pushes change nothing."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSnapshot
from elastane_slots.held_slots import HeldSlots, SlotRecord
from elastane_slots.pushes import (
    AGAIN_VERDICTS,
    DONE_VERDICTS,
    RETURNED_VERDICTS,
    Pulled,
    Push,
    Verdict,
)
from elastane_slots.tasks import TaskName, TaskRun

GENERATION = 5


def task(index: int) -> TaskName:
    return TaskName("clicks", 0, index)


NEWEST = Pulled(2, 3)


def push(
    index: int = 9, *, lease: int = 100, generation: int = GENERATION, pulled: Pulled | None = NEWEST
) -> Push:
    return Push(task(index), lease, generation, pulled)


def held(staleness_max: int | None = 2) -> HeldSlots:
    """Slot 1 of 4, in its third life, with tasks 0..2 applied, 7 closed, fenced at lease 50."""
    slots = HeldSlots(4, staleness_max)
    slots.learn(GENERATION)
    record = SlotRecord(life=2, fence=50, since=4)
    for index in range(3):
        record.applied.add(task(index))
    record.close(task(7))
    slots.hold(1, record)
    return slots


@pytest.mark.parametrize(
    ("slot", "lease", "generation", "verdict"),
    [
        (1, 51, 5, None),
        (1, 51, 4, None),
        (1, 50, 5, Verdict.RESTORED),
        (1, 0, 5, None),  # an evaluation
        (1, 51, 3, Verdict.OLD_GENERATION),
        (1, 51, 6, Verdict.NOT_YET),  # a fence may be in the map that is not known here
        (1, 0, 6, Verdict.NOT_YET),
        (2, 51, 5, Verdict.MOVED),
        (2, 51, 6, Verdict.NOT_YET),
    ],
)
def test_which_pulls_are_answered(slot: int, lease: int, generation: int, verdict: Verdict | None) -> None:
    assert held().judge_pull(slot, lease, generation) is verdict


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (push(), Verdict.APPLIED),
        (push(pulled=Pulled(2, 1)), Verdict.APPLIED),
        (push(pulled=Pulled(2, 0)), Verdict.TOO_OLD),
        (push(pulled=Pulled(1, 3)), Verdict.RESTORED),
        (push(pulled=Pulled(1, 900)), Verdict.RESTORED),
        (push(pulled=Pulled(3, 0)), Verdict.RESTORED),
        (push(lease=50), Verdict.RESTORED),
        (push(lease=50, pulled=None), Verdict.RESTORED),
        (push(pulled=None), Verdict.APPLIED),
        (push(2), Verdict.APPLIED_BEFORE),
        (push(2, lease=1, pulled=Pulled(0, 0)), Verdict.APPLIED_BEFORE),
        (push(7), Verdict.CLOSED),
        (push(7, lease=1), Verdict.CLOSED),
        (push(generation=3), Verdict.OLD_GENERATION),
        (push(2, generation=3), Verdict.OLD_GENERATION),
        (push(generation=4), Verdict.APPLIED),
        (push(generation=6), Verdict.APPLIED),
    ],
)
def test_each_push_has_its_verdict(given: Push, verdict: Verdict) -> None:
    slots = held()
    before = slots[1].encode()
    answer = slots.judge(1, given)
    assert answer.verdict is verdict
    assert (answer.life, answer.generation) == (2, GENERATION)
    assert answer.version == 3 + (verdict is Verdict.APPLIED)
    assert slots[1].encode() == before
    if verdict is not Verdict.APPLIED:
        with pytest.raises(IllegalTransition):
            slots.record(1, given)
        assert slots[1].encode() == before


def test_a_push_is_applied_once() -> None:
    slots = held()
    slots.record(1, push())
    assert slots[1].version == 4 and task(9) in slots[1].applied
    again = slots.judge(1, push(lease=101, pulled=Pulled(2, 4)))
    assert (again.verdict, again.version) == (Verdict.APPLIED_BEFORE, 4)
    with pytest.raises(IllegalTransition):
        slots.record(1, push())
    assert slots[1].version == 4


def test_staleness_counts_what_was_applied_since_the_pull() -> None:
    slots = held(staleness_max=None)
    assert slots.judge(1, push(pulled=Pulled(2, 0))).staleness == 3
    assert slots.judge(1, push(pulled=Pulled(2, 0))).verdict is Verdict.APPLIED
    assert slots.judge(1, push(pulled=None)).staleness == 0
    assert slots[1].pulled() == Pulled(2, 3)


def test_a_version_that_the_slot_never_had_is_of_an_owner_that_was_forgotten() -> None:
    assert held().judge(1, push(pulled=Pulled(2, 4))).verdict is Verdict.RESTORED


def test_a_frozen_slot_applies_nothing_and_still_says_what_it_has() -> None:
    slots = held()
    slots[1].frozen = True
    assert slots.judge(1, push()).verdict is Verdict.FROZEN
    assert slots.judge(1, push(2)).verdict is Verdict.APPLIED_BEFORE
    with pytest.raises(IllegalTransition):
        slots[1].close(task(8))


def test_slots_of_others() -> None:
    slots = held()
    assert slots.judge(0, push()).verdict is Verdict.MOVED
    assert slots.judge(0, push(generation=6)).verdict is Verdict.NOT_YET
    assert slots.judge(0, push()).life == -1
    slots.learn(4)  # late news
    assert slots.generation == GENERATION
    record = slots.release(1)
    assert slots.judge(1, push()).verdict is Verdict.MOVED
    with pytest.raises(InvalidRequest):
        slots.release(1)
    slots.hold(1, record)
    assert list(slots) == [1] and 1 in slots and 0 not in slots


def test_a_slot_moves_with_all_that_it_knows() -> None:
    there = HeldSlots(4, 2)
    there.learn(6)
    there.hold(1, SlotRecord.decode(held()[1].encode(), since=6))
    # A push that the old owner applied, and whose answer was lost, is sent to the new one.
    assert there.judge(1, push(2, generation=6)).verdict is Verdict.APPLIED_BEFORE
    assert there.judge(1, push(7, generation=6)).verdict is Verdict.CLOSED
    assert there.judge(1, push(generation=6)).verdict is Verdict.APPLIED  # a pull from there is known here
    assert there.judge(1, push(generation=5)).verdict is Verdict.OLD_GENERATION


def test_a_closed_task_stays_out_and_an_applied_one_stays_in() -> None:
    record = held()[1]
    assert record.close(task(1)) is True
    assert record.close(task(8)) is record.close(task(8)) is False
    assert task(1) not in record.closed
    record.validate()


def test_lives_follow_one_another() -> None:
    record = held()[1]
    record.restored(2, 50, since=7)  # told twice
    record.restored(4, 60, since=8)
    assert (record.life, record.fence, record.since) == (4, 60, 8)
    for life, fence in ((3, 70), (4, 61)):
        with pytest.raises(IllegalTransition):
            record.restored(life, fence, since=9)


@pytest.mark.parametrize(
    ("slot", "given"),
    [
        (4, push()),
        (-1, push()),
        (1, push(lease=0)),
        (1, push(index=-1)),
        (1, push(index=2**63)),
        (1, push(generation=-1)),
        (1, push(pulled=Pulled(-1, 0))),
        (1, msgspec.structs.replace(push(), name=TaskName("", 0, 1))),
        (1, msgspec.structs.replace(push(), name=TaskName("clicks", -1, 1))),
    ],
)
def test_pushes_that_no_client_sends_are_refused(slot: int, given: Push) -> None:
    slots = held()
    before = slots[1].encode()
    with pytest.raises(InvalidRequest):
        slots.judge(slot, given)
    assert slots[1].encode() == before


def test_impossible_slots_and_limits_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        HeldSlots(4, -1)
    with pytest.raises(InvalidRequest):
        HeldSlots(4).hold(4, SlotRecord())


def test_spoiled_records_are_not_read() -> None:
    whole = held()[1].encode()
    for length in range(len(whole)):
        with pytest.raises(InvalidSnapshot):
            SlotRecord.decode(whole[:length], since=0)
    with pytest.raises(InvalidSnapshot):
        SlotRecord.decode(msgspec.msgpack.encode([-1, 0, b"", b""]), since=0)


@pytest.mark.parametrize("seed", range(20))
def test_slots_judged_together_are_judged_as_each_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Random(seed)
    for _ in range(100):
        slots = HeldSlots(6, draw.choice([None, 2]))
        slots.learn(GENERATION)
        #: What slots differ in, if in anything.
        differ = draw.choice(["", "since", "life", "fence", "closed", "frozen", "seen", "applied"])
        common = SlotRecord(draw.randrange(2), draw.choice([0, 50]), draw.choice([4, GENERATION]))
        common.applied.add_run(TaskRun("clicks", 0, 0, draw.randrange(5)))
        for slot in range(draw.choice([5, 6])):
            record = SlotRecord.decode(common.encode(), common.since)
            record.since += differ == "since" and draw.randrange(2)
            record.life += differ == "life" and draw.randrange(2)
            record.fence += differ == "fence" and 50 * draw.randrange(2)
            record.frozen = differ == "frozen" and draw.random() < 0.5
            if differ == "closed":
                record.close(task(draw.choice([9, 10])))
            if differ == "applied":
                record.applied.add(task(draw.choice([9, 10])))
            slots.hold(slot, record)
        owned = list(slots)
        if draw.random() < 0.5:
            slots.record_all(owned, push(8))  # they share their names now
        lease, generation = draw.choice([40, 60]), draw.choice([3, 5, 6])
        given = push(draw.choice([0, 2, 8, 9]), lease=lease, generation=generation)
        versions = common.version, max(0, common.version - 2), common.version + 5
        seen = [*(Pulled(common.life, version) for version in versions), None]
        same = draw.choice(seen)
        differs = differ == "seen"
        asked = [(slot, draw.choice(seen) if differs else same) for slot in range(6) if draw.random() < 0.9]
        pulls = [slot for slot, _ in asked]
        together = slots.judge_all(given, asked), slots.judge_pulls(pulls, given.lease, given.generation)
        with monkeypatch.context() as patched:
            patched.setattr(HeldSlots, "_judge_together", lambda *_: None)
            alone = [slots.judge_all(given, [one])[0] for one in asked]
        one_by_one = [slots.judge_pull(slot, given.lease, given.generation) for slot in pulls]
        assert together == (alone, one_by_one)


def test_every_verdict_says_what_follows() -> None:
    groups = [DONE_VERDICTS, RETURNED_VERDICTS, AGAIN_VERDICTS, {Verdict.CLOSED}]
    assert sorted(verdict for group in groups for verdict in group) == sorted(Verdict)

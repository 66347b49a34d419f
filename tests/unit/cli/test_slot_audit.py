"""The audit of slots: its own decoder, and every fault that it must find."""

from __future__ import annotations

import random

import msgspec
import pytest

from elastane_cli.slot_audit import MasterView, Name, SlotAuditError, SlotContent, audit_slots, decode_record
from elastane_slots.held_slots import SlotRecord
from elastane_slots.tasks import TaskName


def names(*tasks: int, epoch: int = 0, dataset: str = "clicks") -> set[Name]:
    return {(dataset, epoch, task) for task in tasks}


def record(applied: set[Name], closed: set[Name] = frozenset(), life: int = 2) -> SlotContent:  # type: ignore[assignment]
    """Through the bytes that a parameter server sends."""
    slot = SlotRecord(life, fence=7)
    for name in applied:
        slot.applied.add(TaskName(*name))
    for name in closed:
        slot.closed.add(TaskName(*name))
    return decode_record(slot.encode())


@pytest.mark.parametrize("seed", range(20))
def test_the_decoder_reads_what_servers_write(seed: int) -> None:
    rng = random.Random(seed)
    applied: set[Name] = set()
    for dataset in ("clicks", "views"):
        for epoch in range(rng.randrange(6)):
            count = rng.randrange(1, 30)
            share = rng.choice([1.0, 0.9, 0.3])
            applied |= names(
                *(task for task in range(count) if rng.random() < share), epoch=epoch, dataset=dataset
            )
    found = record(applied, names(5, 6, epoch=50))
    assert found.applied == applied
    assert (found.life, found.fence, found.closed) == (2, 7, names(5, 6, epoch=50))


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x01",
        msgspec.msgpack.encode([1, 2, b"", b""]),
        msgspec.msgpack.encode([1, 2, msgspec.msgpack.encode([2, []]), msgspec.msgpack.encode([1, []])]),
        msgspec.msgpack.encode([1, 2, msgspec.msgpack.encode([1, [["d", [], [[0, [1]]]]]]), b"\x92\x01\x90"]),
        msgspec.msgpack.encode(
            [1, 2, msgspec.msgpack.encode([1, [["d", [[0, 2, 3]], [[1, [0, 2]]]]]]), b"\x92\x01\x90"]
        ),
    ],
)
def test_bytes_that_are_no_record_are_refused(stored: bytes) -> None:
    with pytest.raises(SlotAuditError):
        decode_record(stored)


def view(**sets: object) -> MasterView:
    given: dict[str, object] = {"done": names(0, 1, 2), "open": set(), "failed": set(), **sets}
    return MasterView(**given)  # type: ignore[arg-type]


def check(content: SlotContent, before: MasterView, after: MasterView | None = None) -> list[str]:
    found = audit_slots({4: content}, {4: 2}, before, after or before)
    assert found.ok == (not found.slots[0].faults)
    return list(found.slots[0].faults)


def test_a_slot_with_what_is_done_is_fine() -> None:
    assert check(record(names(0, 1, 2)), view()) == []


def test_a_done_task_that_is_not_applied_is_missing() -> None:
    (fault,) = check(record(names(0, 2)), view())
    assert fault == "task 1 of epoch 0 of clicks is DONE, and not applied here"


def test_a_task_that_is_applied_and_unknown_is_surplus() -> None:
    (fault,) = check(record(names(0, 1, 2, 9)), view())
    assert fault == "task 9 of epoch 0 of clicks is applied here, and no task of the job"


def test_tasks_in_flight_are_no_fault() -> None:
    before, after = view(open=names(3, 4)), view(done=names(0, 1, 2, 3), open=names(4))
    assert check(record(names(0, 1, 2, 3, 4)), before, after) == []
    assert audit_slots({4: record(names(0, 1, 2, 4))}, {4: 2}, before, after).slots[0].in_flight == 1


def test_what_became_done_while_slots_were_read_is_not_missed() -> None:
    assert check(record(names(0, 1)), view(done=names(0, 1)), view()) == []


def test_what_was_opened_again_meanwhile_is_not_missed() -> None:
    assert check(record(names(0, 1)), view(), view(done=names(0, 1), open=names(2))) == []


def test_what_failed_tasks_left_must_be_listed() -> None:
    after = view(failed=names(7), left={("clicks", 0, 7): [4]})
    assert check(record(names(0, 1, 2, 7)), after) == []
    (fault,) = check(record(names(0, 1, 2, 7)), view(failed=names(7)))
    assert "FAILED and applied here, which the master does not list" in fault
    (fault,) = check(record(names(0, 1, 2)), after)
    assert "said to be applied here, and is not" in fault
    # Until all slots have said what they have, nothing is listed.
    assert check(record(names(0, 1, 2, 7)), view(failed=names(7), closing=1)) == []


def test_what_is_closed_is_not_applied() -> None:
    found = SlotContent(2, 0, frozenset(names(0, 1, 2)), frozenset(names(2)))
    assert check(found, view()) == ["task 2 of epoch 0 of clicks is applied and closed"]


def test_another_life_than_the_maps_is_a_fault() -> None:
    assert check(record(names(0, 1, 2), life=1), view()) == ["it is in life 1, and the map says 2"]


def test_of_many_faults_some_are_named_and_all_counted() -> None:
    found = audit_slots(
        {0: record(set())}, {0: 2}, view(done=names(*range(30))), view(done=names(*range(30)))
    )
    assert found.slots[0].missing == 30
    assert len(found.slots[0].faults) == 21 and found.slots[0].faults[-1] == "and 10 more"

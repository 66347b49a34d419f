"""Parameter servers and slots as `elastane ps` shows them."""

from __future__ import annotations

import pytest

from elastane_cli.views.slots import (
    gate_line,
    place_state,
    ps_rows,
    slot_rows,
    status_lines,
    summary_lines,
)
from elastane_common.sizes import size_text
from elastane_proto.v1 import ps_pb2


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**20 + 2**17, "3.1 MiB"), (2**50, "1024.0 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def found() -> ps_pb2.GetSlotsResponse:
    response = ps_pb2.GetSlotsResponse()
    response.map.generation = 9
    for owner, backup, more in (
        ("ps-0", "ps-1", {}),
        ("ps-1", "", {"restoring": True, "life": 1}),
        ("ps-1", "", {"target": "ps-0"}),
        ("", "", {"restoring": True}),
    ):
        response.map.places.add(owner=owner, backup=backup, **more)
    response.model.slots = 4
    response.model.tensors.add(name="weight")
    response.model.tables.add(name="users")
    response.model.tables.add(name="items")
    first = response.processes.add(ps_id="ps-1", state="serving", slots=2)
    first.figures.verdicts["applied"] = 1200
    first.figures.staleness_counts.extend([600, 600])
    first.figures.slots.add(slot=1, version=600, rows=10, weight_bytes=100, optimizer_bytes=100)
    first.figures.slots.add(slot=2, version=600, rows=990, weight_bytes=2**20, optimizer_bytes=2**20)
    response.processes.add(ps_id="ps-0", state="draining", slots=1, backups=1)
    response.snapshots.add(slot=0, life=0, version=550)
    response.snapshots.add(slot=1, life=0, version=500)  # of the life before
    response.gate.outstanding, response.gate.worst = 3, 3
    return response


def test_a_row_for_each_parameter_server() -> None:
    silent, measured = ps_rows(found())
    assert silent == ("ps-0", "draining", "1", "1", "-", "-", "-", "-", "-", "-", "-")
    assert measured == (
        *("ps-1", "serving", "2", "0", "1,000", "2.0 MiB", "1,200"),
        *("0", "1", "1", "-"),
    )


def test_a_slot_with_many_times_the_mean_is_hot() -> None:
    response = found()
    for slot in range(10, 20):
        response.processes[0].figures.slots.add(slot=slot, weight_bytes=1000)
    assert list(ps_rows(response))[1][-1] == "2 (2.0 MiB)"


def test_a_row_for_each_slot() -> None:
    rows = list(slot_rows(found()))
    assert rows[0] == ("0", "ps-0", "ps-1", "served", "0", "-", "-", "-", "550")
    assert rows[1] == ("1", "ps-1", "-", "is restored", "1", "600", "10", "200 B", "-")
    assert rows[2][3] == "moves to ps-0"
    assert rows[3][:4] == ("3", "-", "-", "waits for a parameter server")


def test_states_of_a_place() -> None:
    assert place_state(ps_pb2.SlotPlace(owner="a", joining="b")) == "is copied to b"
    rewound = ps_pb2.SlotPlace(owner="a", restoring=True, source="slot-checkpoints/c-1")
    assert place_state(rewound) == "is restored from slot-checkpoints/c-1"


def test_the_lines_below() -> None:
    response = found()
    assert list(summary_lines(response)) == [
        "model: 1 tensor and 2 tables in 4 slots; map 9",
        "staleness: any number, 3 possible now; 3 tasks in flight, 0 given back",
    ]
    response.gate.limit, response.gate.closing = 8, 1
    response.gate.waiting = "slot 1 is \x1b[31mrestored"
    response.reopened, response.checkpoint = 5, "c-2"
    for task in range(4):
        response.left.add(dataset="clicks", epoch=0, task=task, slots=[1, 3])
    response.processes[0].figures.unsaved_error = "No space left on device"
    lines = list(summary_lines(response))
    assert lines[1].startswith("staleness: at most 8") and lines[1].endswith(
        "1 FAILED and not closed everywhere"
    )
    assert lines[2] == "no task is leased: slot 1 is \ufffd[31mrestored"
    assert lines[3] == "5 DONE tasks opened again, as slots were restored"
    assert lines[4] == "FAILED task 0 of epoch 0 of clicks has left its gradient in slots: 1, 3"
    assert lines[7] == "and 1 more FAILED tasks: see --json"
    assert lines[8] == "newest checkpoint: c-2"
    assert lines[9].startswith("ps-1 cannot save its slots since") and "No space left" in lines[9]


def test_what_status_and_why_say() -> None:
    line, *rest = status_lines(found())
    assert line == "parameter servers: ps-0 (draining), ps-1; 2 of 4 slots served"
    assert rest == list(summary_lines(found()))


def test_before_a_model_is_registered() -> None:
    assert next(iter(summary_lines(ps_pb2.GetSlotsResponse()))) == "no worker has registered a model yet"
    assert gate_line(ps_pb2.LeaseGate()).startswith("staleness: any number")

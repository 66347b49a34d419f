"""An outbox: in order, nothing lost, what is refused set aside, and nobody who puts waits."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

import patience
from elastane_common.outbox import Outbox, OutboxError, OutboxSender, RefusedEntryError, doubling_wait

WAIT_SECONDS = 30.0


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "box")


def test_entries_are_sent_in_order_and_removed(outbox: Outbox) -> None:
    sent: list[Any] = []
    for number in range(12):
        outbox.put({"number": number})
    OutboxSender(outbox, sent.append).send_waiting()
    assert [entry["number"] for entry in sent] == list(range(12))
    assert outbox.waiting() == outbox.refused() == []


def test_an_entry_that_fails_keeps_its_place(outbox: Outbox) -> None:
    names = [outbox.put({"number": number}) for number in range(3)]
    sent: list[int] = []

    def send(entry: dict[str, Any]) -> None:
        if entry["number"] == 1:
            raise ConnectionError("nobody there")
        sent.append(entry["number"])

    with pytest.raises(ConnectionError):
        OutboxSender(outbox, send).send_waiting()
    assert sent == [0] and outbox.waiting() == names[1:]


def test_a_refused_entry_is_set_aside_with_its_reason(outbox: Outbox, tmp_path: Path) -> None:
    sent: list[int] = []

    def send(entry: dict[str, Any]) -> None:
        if entry["number"] == 1:
            raise RefusedEntryError("no such thing")
        sent.append(entry["number"])

    names = [outbox.put({"number": number}) for number in range(3)]
    (tmp_path / "box" / f"{names[0]}.json").write_bytes(b"{")
    OutboxSender(outbox, send).send_waiting()
    assert sent == [2] and outbox.refused() == names[:2]
    assert '"no such thing"' in (tmp_path / "box" / "refused" / f"{names[1]}.json").read_text()


def test_a_new_process_goes_on_where_the_old_one_was_and_never_takes_a_name_again(tmp_path: Path) -> None:
    first = Outbox(tmp_path)
    names = [first.put({"number": number}) for number in range(2)]
    (tmp_path / ".x.json.1.tmp").write_bytes(b"half")  # as a killed writer leaves it
    first.refuse(names[1], "no")
    second = Outbox(tmp_path)
    assert second.waiting() == names[:1]
    assert second.put({}) > names[1]


def test_the_thread_tries_again_and_sends_what_is_put_later(outbox: Outbox) -> None:
    sent: queue.SimpleQueue[int] = queue.SimpleQueue()
    failures, waits = iter([True, True, False, False, False]), []

    def send(entry: dict[str, Any]) -> None:
        if next(failures):
            raise ConnectionError("not yet")
        sent.put(entry["number"])

    def wait_seconds(failed: int) -> float:
        waits.append(failed)
        return 0.0

    def next_sent() -> int:
        return patience.wait(lambda seconds: sent.get(timeout=seconds), WAIT_SECONDS)

    sender = OutboxSender(outbox, send, wait_seconds=wait_seconds)
    outbox.put({"number": 0})
    sender.start()
    assert next_sent() == 0
    outbox.put({"number": 1})
    assert next_sent() == 1
    sender.stop(WAIT_SECONDS)
    assert waits == [1, 2]
    outbox.put({"number": 2})
    assert len(outbox.waiting()) == 1


def test_a_receiver_that_does_not_answer_stops_neither_who_puts_nor_the_end(outbox: Outbox) -> None:
    asked, answer = threading.Event(), threading.Event()
    sender = OutboxSender(outbox, lambda entry: (asked.set(), answer.wait()))  # type: ignore[arg-type]
    outbox.put({})
    sender.start()
    assert asked.wait(WAIT_SECONDS)
    outbox.put({})
    sender.stop()
    assert len(outbox.waiting()) == 2
    answer.set()


def test_waits_double_up_to_a_minute() -> None:
    assert [doubling_wait(failures) for failures in (1, 2, 3, 7, 10_000)] == [1.0, 2.0, 4.0, 60.0, 60.0]


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutboxError, match="cannot list"):
        Outbox(tmp_path / "file")

"""New rows that do not fit are refused, and nothing of their push is applied."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from elastane.slots.frames import CODES, Inspected, PsMemoryError, Pushed
from elastane_ps.memory import RESERVED_BYTES, Room
from elastane_slots.pushes import Verdict
from unit.ps.cluster import Worker, cluster
from unit.ps.test_bad_input import OWN, SPEC, rows_push

ROW_BYTES = 16 * 4


def contents(worker: Worker) -> list[Inspected]:
    return [one for _, one in sorted(worker.inspect().items())]


def pushed(worker: Worker, ids: list[int], task: int) -> int:
    header, body = rows_push(ids)
    answer = (
        worker.connection("ps-0").send(msgspec.structs.replace(header, task=task), body).result(10).header
    )
    assert isinstance(answer, Pushed)
    return answer.answers[0].code


def test_new_rows_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int | None] = [None]
    monkeypatch.setattr(Room, "left_bytes", lambda room: left[0])
    with cluster(SPEC) as (_, worker):
        assert pushed(worker, OWN[:1], 60) == CODES[Verdict.APPLIED]
        before, left[0] = contents(worker), ROW_BYTES
        with pytest.raises(PsMemoryError, match=f"{SPEC.tables[0].name}.*bytes, and {ROW_BYTES} are left"):
            pushed(worker, OWN, 61)
        assert contents(worker) == before
        # What has rows already is applied, and the same push when there is room.
        left[0] = 0
        assert pushed(worker, OWN[:1], 62) == CODES[Verdict.APPLIED]
        left[0] = 2**20
        assert pushed(worker, OWN, 61) == CODES[Verdict.APPLIED]


def test_what_is_left_is_the_limit_without_what_is_used() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    left = Room(used + RESERVED_BYTES + 2**30).left_bytes()
    assert left is not None and abs(left - 2**30) < 2**28

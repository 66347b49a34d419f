"""The master's own records: written until that has worked, and never in the place of a runner's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import patience
from elastane_common.artifacts import ArtifactError, read_record, write_record
from elastane_common.record_writing import RunFacts
from elastane_common.run_record import RunRecord
from elastane_master.runs import record_writer
from elastane_master.runs.record_writer import EndedRun, RecordWriter
from elastane_proto.v1 import training_pb2


def ended(url: str, seconds: int = 20) -> EndedRun:
    run = training_pb2.Run(
        run_id=7, state="RUN_STATE_CANCELLED", created={"seconds": 10}, ended={"seconds": seconds}
    )
    return EndedRun(RunFacts(run), url, "")


async def written(runs: list[EndedRun | None]) -> None:
    """Write the record of a run that is found like this, one time after the other."""
    done = asyncio.Event()

    def found(run_id: int) -> EndedRun | None:
        return runs.pop(0) if len(runs) > 1 else runs[0]

    writer = RecordWriter(found, lambda run_id: done.set(), retry_seconds=0.0)
    writer.begin(7)
    writer.begin(7)
    async with patience.within(30):
        await done.wait()
    await writer.close()


async def test_it_is_written_once_storage_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [ArtifactError("away"), OSError("full")]

    def write(url: str, record: RunRecord) -> None:
        if failures:
            raise failures.pop()
        write_record(url, record)

    monkeypatch.setattr(record_writer, "write_record", write)
    await written([ended(str(tmp_path))])
    record = read_record(str(tmp_path))
    assert record is not None and (record.state, record.ended_at, failures) == ("cancelled", 20.0, [])


@pytest.mark.parametrize(("of_this_end", "reason"), [(True, "a runner's"), (False, "")])
async def test_the_record_that_a_runner_has_written_of_this_end_stays(
    tmp_path: Path, of_this_end: bool, reason: str
) -> None:
    at = 20.0 if of_this_end else 15.0
    there = RunRecord(run_id=7, state="failed", reason="a runner's", created_at=10.0, ended_at=at, spec={})
    write_record(str(tmp_path), there)
    await written([ended(str(tmp_path))])
    record = read_record(str(tmp_path))
    assert record is not None and record.reason == reason


async def test_a_run_that_ends_again_meanwhile_is_recorded_again(tmp_path: Path) -> None:
    await written([ended(str(tmp_path)), ended(str(tmp_path), 30)])
    record = read_record(str(tmp_path))
    assert record is not None and record.ended_at == 30.0


@pytest.mark.parametrize("found", [None, ended("")])
async def test_there_is_nothing_to_write_of_a_run_that_is_gone_or_stored_nowhere(
    found: EndedRun | None,
) -> None:
    await written([found])

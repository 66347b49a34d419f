"""A worker that is sent away does not outlast its node's notice for a checkpoint that was given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from elastane.runtime import saving
from elastane.runtime.saving import CheckpointSaver
from elastane_proto.v1 import ring_pb2


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Storage that answers once the event is set."""
    answers = threading.Event()
    monkeypatch.setattr(saving, "write_manifest", lambda *args, **kwargs: answers.wait(60))
    yield answers
    answers.set()


def saver_at_work() -> tuple[CheckpointSaver, list[ring_pb2.Saved]]:
    reports: list[ring_pb2.Saved] = []
    saver = CheckpointSaver(reports.append)
    saver.write_manifest(ring_pb2.Checkpoint(checkpoint="c", step=5), num_ests=1)
    return saver, reports


def test_a_write_that_hangs_is_left_behind(storage: threading.Event) -> None:
    saver, reports = saver_at_work()
    saver.close(wait_seconds=0.01)
    assert reports == []


def test_otherwise_everything_is_written_first(storage: threading.Event) -> None:
    saver, reports = saver_at_work()
    threading.Timer(0.05, storage.set).start()
    saver.close()
    [saved] = reports
    assert saved.complete and saved.step == 5

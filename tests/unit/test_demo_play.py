"""The demo's play tells of every event once, and its follower ends before the master does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from elastane_cli.demo import scenario
from elastane_common.errors import MasterUnreachableError
from elastane_proto.v1 import job_pb2, ring_pb2

EVENTS = [ring_pb2.Event(sequence=sequence) for sequence in range(4)]
#: Of these the follower hears while the play runs.
HEARD = 2


class Follower:
    """In the place of the client that follows the events."""

    breaks = False

    def __init__(self, address: str, *, timeout_seconds: float) -> None:
        self._closed = threading.Event()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()

    def events(self, job: str, *, follow: bool) -> Iterator[ring_pb2.Event]:
        yield from EVENTS[:HEARD]
        if self.breaks:
            raise MasterUnreachableError("the master is away")
        self._closed.wait()


class Cluster:
    """A job that is at its end as soon as the follower has been heard."""

    job = "demo"
    master = SimpleNamespace(address="127.0.0.1:1")

    def __init__(self, heard: threading.Event) -> None:
        self._heard = heard
        self.client = SimpleNamespace(events=lambda job, since: iter(EVENTS[since:]))

    def get_job(self) -> job_pb2.Job:
        return job_pb2.Job(step=7)

    def wait_for_step(self, step: int) -> job_pb2.Job:
        assert self._heard.wait(10)
        assert self.get_job().step >= step
        return self.get_job()

    def wait_for_success(self) -> None:
        self.succeeded = True


@pytest.mark.parametrize("breaks", [False, True])
def test_events_are_told_once_and_no_thread_is_left(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    told: list[int] = []
    failures: list[Any] = []
    heard = threading.Event()

    def on_event(event: ring_pb2.Event) -> None:
        told.append(event.sequence)
        if len(told) == HEARD:
            heard.set()

    monkeypatch.setattr(scenario, "MasterClient", Follower)
    monkeypatch.setattr(Follower, "breaks", breaks)
    monkeypatch.setattr(threading, "excepthook", failures.append)
    cluster: Any = Cluster(heard)
    play = scenario.Play(cluster, 7, on_event=on_event, on_fault=lambda fault, step: None, faults=[])
    before = set(threading.enumerate())
    play.run()
    assert cluster.succeeded
    assert told == [event.sequence for event in EVENTS]
    assert set(threading.enumerate()) <= before
    assert failures == []

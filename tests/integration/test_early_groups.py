"""Groups of planned changes, which two workers form before their Go, over gloo."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingBroken
from elastane.collective.shared_members import Kind, MemberLeft
from elastane.collective.transport import Forming, RingTransport
from elastane.runtime import worker_session
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.worker_session import WorkerSession
from elastane_proto.rendezvous import group_of, group_secret
from elastane_proto.v1 import ring_pb2
from integration.ring_threads import WAIT_SECONDS, in_threads

KEY = bytes(range(32))


class Begun(Forming):
    """Knows when it has formed, and whether it was given up."""

    made: list[Begun]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.is_given_up = False
        self.made.append(self)
        super().__init__(*args, **options)

    def wait(self) -> None:
        assert self._finished.wait(WAIT_SECONDS)

    def give_up(self) -> None:
        self.is_given_up = True
        super().give_up()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Begun]:
    Begun.made = []
    monkeypatch.setattr(worker_session, "Forming", Begun)
    return Begun.made


@pytest.fixture
def store() -> Iterator[RendezvousStore]:
    store = RendezvousStore("127.0.0.1", KEY)
    yield store
    store.close()


def sessions() -> list[WorkerSession]:
    """Workers "0" and "1", members of a ring of generation 1 without a group."""
    made = []
    for worker in ("0", "1"):
        session = WorkerSession(WorkerEnvironment(worker_id=worker), device=torch.device("cpu"))
        session.protocol.prepare(ring_pb2.Prepare(generation=1))
        session.protocol.entered(1, 0, [])
        made.append(session)
    return made


def change(store: RendezvousStore, generation: int, *workers: str) -> ring_pb2.Prepare:
    members = [ring_pb2.Member(worker_id=worker, store_address=store.address) for worker in workers]
    secret = group_secret(KEY, group_of(generation))
    return ring_pb2.Prepare(generation=generation, members=members, rendezvous_secret=secret)


def planned(prepare: ring_pb2.Prepare) -> ring_pb2.AttendResponse:
    """The Prepared after which a member, which has applied its step, is in the change at once."""
    prepared = ring_pb2.Prepared(generation=1, step=-1, then_prepare=prepare)
    return ring_pb2.AttendResponse(prepared=prepared)


def go_of(prepare: ring_pb2.Prepare) -> ring_pb2.Go:
    secret = prepare.rendezvous_secret
    return ring_pb2.Go(generation=prepare.generation, members=prepare.members, rendezvous_secret=secret)


def formed(workers: list[WorkerSession], go: ring_pb2.Go) -> list[RingTransport]:
    for session in workers:
        session._receive(ring_pb2.AttendResponse(go=go))
    return in_threads(len(workers), lambda place: workers[place].form(go, place))


def exchange(rings: list[RingTransport]) -> None:
    received = torch.zeros(3)
    arriving = rings[1].recv(received, 0, 5)
    rings[0].send(torch.arange(3.0), 1, 5).wait()
    arriving.wait()
    assert received.tolist() == [0.0, 1.0, 2.0]


def test_the_group_that_has_formed_before_go_is_the_rings(begun: list[Begun], store: RendezvousStore) -> None:
    workers, prepare = sessions(), change(store, 2, "0", "1")
    for session in workers:
        session._receive(planned(prepare))
    for forming in begun:
        forming.wait()
    rings = formed(workers, go_of(prepare))
    assert len(begun) == 2
    exchange(rings)
    for session in workers:
        session.close(None)
    assert not any(forming.is_given_up for forming in begun)


def test_a_change_that_is_superseded_gives_its_group_up(begun: list[Begun], store: RendezvousStore) -> None:
    """Another worker that had formed the group notices too, and does not wait."""
    workers, prepare = sessions(), change(store, 2, "0", "1")
    for session in workers:
        session._receive(planned(prepare))
    for forming in begun:
        forming.wait()
    kept = begun[1].result(threading.Event())
    later = change(store, 3, "0", "1")
    later.rendezvous_secret = b""
    for session in workers[:1]:
        session._receive(ring_pb2.AttendResponse(prepare=later))
    assert begun[0].is_given_up and kept.members is not None
    with pytest.raises(MemberLeft, match="has left the ring"):
        kept.members.hear(Kind.READY, 1)
    workers[1]._receive(ring_pb2.AttendResponse(prepare=later))
    exchange(formed(workers, go_of(change(store, 3, "0", "1"))))
    assert len(begun) == 4
    for session in workers:
        session.close(None)


def test_a_group_that_could_not_form_early_is_reported_at_its_go(store: RendezvousStore) -> None:
    session = sessions()[0]
    prepare = change(store, 2, "0", "1")
    store.close()
    session._receive(planned(prepare))
    session._receive(ring_pb2.AttendResponse(go=go_of(prepare)))
    with pytest.raises(RingBroken, match="did not form"):
        session.form(go_of(prepare), 0)
    session.close(None)


def test_a_process_that_ends_gives_the_group_up(begun: list[Begun], store: RendezvousStore) -> None:
    session = sessions()[0]
    session._receive(planned(change(store, 2, "0", "1")))
    session.close(None)
    assert begun[0].is_given_up

"""Bandwidth of links, measured in frames that come anyway."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch

from elastane.collective.rendezvous import RendezvousStore
from elastane.pipeline import ring_links
from elastane.pipeline.frames import FrameKey, Kind, frame_of
from elastane.pipeline.link_meter import BYTES_MIN, LINKS_MAX, SAMPLES, LinkMeter
from elastane.pipeline.ring_links import RingLinks
from integration.ring_threads import form_ring, in_threads


def meter(*workers: str) -> LinkMeter:
    found = LinkMeter()
    found.entered(workers)
    return found


def test_the_fastest_of_the_last_messages_counts() -> None:
    found = meter("a", "b")
    found.received(1, BYTES_MIN, 0.001)
    for _ in range(SAMPLES - 1):
        found.received(1, BYTES_MIN, 0.002)  # the host was busy
    assert found.bytes_per_second == {"b": BYTES_MIN / 0.001}
    for _ in range(SAMPLES):
        found.received(1, BYTES_MIN, 0.002)
    assert found.bytes_per_second == {"b": BYTES_MIN / 0.002}


@pytest.mark.parametrize(("nbytes", "seconds"), [(BYTES_MIN - 1, 0.1), (BYTES_MIN, 0.0), (BYTES_MIN, -1.0)])
def test_small_messages_and_impossible_times_say_nothing(nbytes: int, seconds: float) -> None:
    found = meter("a", "b")
    found.received(1, nbytes, seconds)
    assert found.bytes_per_second == {}


def test_of_workers_that_are_gone_nothing_is_told_and_of_others_all_is_kept() -> None:
    found = meter("a", "b", "c")
    for peer in (1, 2, 3):
        found.received(peer, BYTES_MIN, 0.001)
    found.entered(("c", "a", "d"))
    assert set(found.bytes_per_second) == {"c"}


def test_links_are_bounded() -> None:
    found = meter(*map(str, range(2 * LINKS_MAX)))
    for peer in range(2 * LINKS_MAX):
        found.received(peer, BYTES_MIN, 0.001)
    assert len(found.bytes_per_second) == LINKS_MAX


def test_a_long_first_frame_and_every_so_many_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the time in which the sender has not begun, nor frames that came while nobody waited."""
    clock, waits = itertools.count(), threading.Event()
    monkeypatch.setattr(ring_links, "perf_counter", lambda: next(clock) + (0 if sends.is_set() else -1000))
    sends = threading.Event()
    monkeypatch.setattr(ring_links, "MEASURED_EVERY", 4)
    store = RendezvousStore("127.0.0.1")
    ring = form_ring(store, "metered", 2)
    noted: list[tuple[int, int, float]] = []
    counting = LinkMeter()
    counting.received = lambda *message: noted.append(message)  # type: ignore[method-assign]
    links = [RingLinks(ring[0]), RingLinks(ring[1], meter=counting)]
    value = torch.arange(100_000, dtype=torch.float32)
    key = [FrameKey(Kind.FORWARD, 0, est, 0) for est in range(9)]

    def send() -> None:
        waits.wait(10)
        time.sleep(0.05)  # the receiver waits, if this machine lets it
        sends.set()
        for each in key:
            links[0].send(frame_of(each, 1, 2, value), 1)
        links[0].settle()

    def receive() -> None:
        for each in key:
            links[1].expect(each, 0)
        waits.set()
        for each in key:
            assert torch.equal(links[1].receive(each, 0).value, value)

    in_threads(2, lambda me: (send, receive)[me]())
    assert [(peer, nbytes > 380_000) for peer, nbytes, _ in noted] == [(0, True)] * 3, "frames 0, 4 and 8"
    assert [seconds for *_, seconds in noted] == [3] * 3, "the clock is read for waiting, too"
    for one, transport in zip(links, ring, strict=True):
        one.close()
        transport.close()
    store.close()

"""Frames over a real ring of this process's threads: sizes that change, early ends, two kinds at once."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.collective.ring_thread import RingThread
from elastane.pipeline.frames import FrameError, FrameKey, Kind, frame_of
from elastane.pipeline.local_links import LocalHub, run_together
from elastane.pipeline.ring_links import ROOM_BYTES_MIN, RingLinks, next_room
from elastane.pipeline.waits import FrameWait
from integration.ring_threads import form_ring, in_threads


@pytest.fixture
def pair():
    """Links of two members."""
    store = RendezvousStore("127.0.0.1")
    ring = form_ring(store, "links", 2)
    links = [RingLinks(transport) for transport in ring]
    yield links
    for one, transport in zip(links, ring, strict=True):
        one.close()
        transport.close()
    store.close()


def _frame(kind, est, value):
    return frame_of(FrameKey(kind, 0, est, 0), 1, 2, value)


def test_the_wait_for_a_frame_is_no_time_of_receiving(pair):
    def send():
        time.sleep(0.5)
        pair[0].send(_frame(Kind.FORWARD, 0, 1), 1)
        pair[0].settle()

    def receive():
        key = FrameKey(Kind.FORWARD, 0, 0, 0)
        pair[1].expect(key, 0)
        pair[1].receive(key, 0)

    in_threads(2, lambda me: (send, receive)[me]())
    assert 0 < pair[1].receiving_seconds < 0.3


def test_frames_of_any_size_arrive_in_any_order_of_asking(pair):
    sizes = [3, 0, 100_000, 100_000, 5, 300_000, 1]
    values = [torch.full((size,), float(size)) for size in sizes]

    def send():
        for est, value in enumerate(values):
            pair[0].send(_frame(Kind.FORWARD, est, value), 1)
            value.zero_()  # it has been copied
            pair[0].send(_frame(Kind.BACKWARD, est, est), 1)
        pair[0].settle()

    def receive():
        for est in range(len(sizes)):
            for kind in (Kind.FORWARD, Kind.BACKWARD):
                pair[1].expect(FrameKey(kind, 0, est, 0), 0)
        backward = [pair[1].receive(FrameKey(Kind.BACKWARD, 0, est, 0), 0).value for est in range(len(sizes))]
        order = [*range(3, len(sizes)), *range(3)]
        forward = {est: pair[1].receive(FrameKey(Kind.FORWARD, 0, est, 0), 0).value for est in order}
        return backward, forward

    _, (backward, forward) = in_threads(2, lambda me: (send, receive)[me]())
    assert backward == list(range(len(sizes)))
    for est, size in enumerate(sizes):
        assert torch.equal(forward[est], torch.full((size,), float(size)))


def test_both_ends_compute_the_same_room():
    assert next_room(ROOM_BYTES_MIN, 100) == ROOM_BYTES_MIN
    grown = next_room(ROOM_BYTES_MIN, 1_000_000)
    assert 1_000_000 <= grown < 1_004_096
    assert next_room(grown, 900_000) == grown, "a little less changes nothing"
    assert next_room(grown, 10) == ROOM_BYTES_MIN
    for room in (ROOM_BYTES_MIN, grown):
        assert next_room(next_room(room, 1_000_000), 1_000_000) == next_room(room, 1_000_000)


def test_rows_arrive_in_the_order_of_their_tag(pair):
    def send():
        for value in (1.0, 2.0):
            pair[0].send_rows(torch.full((4,), value), 1, 2000)
        pair[0].send_rows(torch.full((2,), 9.0), 1, 2001)
        pair[0].settle()

    def receive():
        rows = [torch.empty(2), torch.empty(4), torch.empty(4)]
        numbers = [pair[1].post_rows(row, 0, tag) for row, tag in zip(rows, (2001, 2000, 2000), strict=True)]
        for number in reversed(numbers):
            pair[1].wait_rows(number)
        return [float(row[0]) for row in rows]

    assert in_threads(2, lambda me: (send, receive)[me]())[1] == [9.0, 1.0, 2.0]


def test_a_member_sends_to_itself(pair):
    x = torch.ones(2)
    pair[0].send(_frame(Kind.INPUT, 0, x), 0)
    x.zero_()
    pair[0].expect(FrameKey(Kind.INPUT, 0, 0, 0), 0)
    assert torch.equal(pair[0].receive(FrameKey(Kind.INPUT, 0, 0, 0), 0).value, torch.ones(2))


def test_the_end_of_the_ring_ends_a_wait_at_once(pair):
    key = FrameKey(Kind.FORWARD, 0, 0, 0)
    pair[1].expect(key, 0)
    raised = []

    def wait():
        try:
            pair[1].receive(key, 0)
        except (RingAborted, RingBroken) as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    began = time.monotonic()
    pair[1]._transport.abort()
    thread.join(10)
    assert not thread.is_alive() and raised
    assert time.monotonic() - began < 5
    pair[1].abandon()
    with pytest.raises((RingAborted, RingBroken)):
        pair[1].send(_frame(Kind.FORWARD, 0, 1), 0)


def test_an_unexpected_frame_is_a_bug_and_no_wait_for_ever(pair):
    with pytest.raises(FrameError, match="no frame of kind END"):
        pair[0].receive(FrameKey(Kind.END, 0, 0, 0), 1)


def test_links_start_two_threads_and_end_them(pair):
    assert {type(thread) for thread in (pair[0]._in, pair[0]._out)} == {RingThread}
    pair[0].close()
    pair[0].close()
    assert not pair[0]._in._thread.is_alive()


def test_members_of_one_process_that_wait_for_one_another_are_noticed():
    hub = LocalHub()

    def waits(peer):
        yield FrameWait(FrameKey(Kind.END, 0, 0, 0), peer)

    with pytest.raises(RuntimeError, match="wait for one another"):
        run_together([(hub.links(0), waits(1)), (hub.links(1), waits(0))])

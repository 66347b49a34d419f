"""Frames between members over real sockets: bad peers, slow peers, dead peers, and how every wait ends.

All of it without and with TLS.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elastane.collective import socket_group
from elastane.collective.socket_group import BYE_TAG, MAGIC, SocketGroup, SocketGroupError
from elastane_common.process_tls import own_tls

WAIT_SECONDS = 30.0
#: More than the kernel's buffers of a connection hold.
LONG = 64 << 20


def _connected(is_encrypted: bool) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        end.settimeout(WAIT_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not is_encrypted:
        return one, other
    tls = own_tls()
    with ThreadPoolExecutor(1) as host:
        wrapped = host.submit(tls.host.wrap_socket, other, server_side=True)
        return tls.caller.wrap_socket(one), wrapped.result(WAIT_SECONDS)


def _frame(tag: int, body: bytes = b"", *, length: int | None = None, magic: int = MAGIC) -> bytes:
    return struct.pack("<IIQ", magic, tag, len(body) if length is None else length) + body


@pytest.fixture
def groups():
    made = []
    yield made
    for group in made:
        group.abort()


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def connected(request):
    return lambda: _connected(request.param)


@pytest.fixture
def bare(groups, connected):
    """A group of two of which this test is member 1: (group of member 0, the connection of member 1)."""

    def make(timeout_seconds=WAIT_SECONDS):
        one, other = connected()
        groups.append(SocketGroup({1: one}, timeout_seconds))
        return groups[-1], other

    return make


@pytest.fixture
def mesh(groups, connected):
    """Groups of `size` members, each with every other."""

    def make(size):
        ends = {(a, b): None for a in range(size) for b in range(size) if a != b}
        for a, b in ends:
            if a < b:
                ends[a, b], ends[b, a] = connected()
        made = [
            SocketGroup({b: ends[a, b] for b in range(size) if b != a}, WAIT_SECONDS) for a in range(size)
        ]
        groups.extend(made)
        return made

    return make


class _Thread(threading.Thread):
    """Runs something that may block; `result` is what it returned or raised."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self._run_it, self.result = run, None
        self.start()

    def run(self):
        try:
            self.result = self._run_it()
        except SocketGroupError as error:
            self.result = error

    def ended(self):
        self.join(WAIT_SECONDS)
        assert not self.is_alive(), "still blocked"
        return self.result


def _until(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_tensors_of_any_dtype_and_shape_arrive(mesh, dtype):
    one, other = mesh(2)
    for shape in ((), (0,), (1,), (3, 5), (100_003,)):
        sent = torch.randint(0, 2, shape).to(dtype)
        got = torch.zeros(shape, dtype=dtype)
        receive = other.recv(got, 0, 3)
        one.send(sent, 1, 3).wait()
        receive.wait()
        assert torch.equal(sent, got)


def test_long_messages_of_both_directions_do_not_wait_for_one_another(mesh):
    pair = mesh(2)
    sent = [torch.full((LONG,), rank + 1, dtype=torch.uint8) for rank in range(2)]
    got = [torch.zeros(LONG, dtype=torch.uint8) for _ in range(2)]

    def run(rank):
        messages = [pair[rank].send(sent[rank], 1 - rank, 1), pair[rank].recv(got[rank], 1 - rank, 1)]
        for message in messages:
            message.wait()
        return True

    assert all(thread.ended() for thread in [_Thread(lambda rank=rank: run(rank)) for rank in range(2)])
    assert torch.equal(got[0], sent[1])
    assert torch.equal(got[1], sent[0])


def test_threads_of_one_member_wait_at_the_same_time_for_different_messages(mesh):
    """As a pipeline does: one thread for what comes, one for what goes, whichever is done first."""
    one, other = mesh(2)
    outgoing = one.send(torch.ones(LONG, dtype=torch.uint8), 1, 1)
    late, soon = torch.zeros(4), torch.zeros(4)
    late_message, soon_message = one.recv(late, 1, 2), one.recv(soon, 1, 3)
    waits = [_Thread(message.wait) for message in (late_message, outgoing, soon_message)]
    _until(lambda: one._is_driven)
    other.send(torch.full((4,), 3.0), 0, 3).wait()
    waits[2].ended()
    assert soon.tolist() == [3.0] * 4
    assert waits[0].is_alive()
    got = torch.zeros(LONG, dtype=torch.uint8)
    other.recv(got, 0, 1).wait()
    waits[1].ended()
    # Posted while another thread does the I/O.
    posted = torch.zeros(4)
    posted_wait = _Thread(one.recv(posted, 1, 4).wait)
    other.send(torch.full((4,), 4.0), 0, 4).wait()
    posted_wait.ended()
    other.send(torch.full((4,), 2.0), 0, 2).wait()
    waits[0].ended()
    assert [wait.result for wait in (*waits, posted_wait)] == [None] * 4
    assert (late.tolist(), posted.tolist(), int(got.sum())) == ([2.0] * 4, [4.0] * 4, LONG)


def test_messages_of_a_tag_arrive_in_order_and_those_of_another_do_not_block_them(mesh):
    one, other = mesh(2)
    for value in (1.0, 2.0, 3.0):
        one.send(torch.full((2,), value), 1, 7).wait()
    one.send(torch.full((3,), 9.0), 1, 8).wait()
    nine = torch.zeros(3)
    other.recv(nine, 0, 8).wait()
    got = [torch.zeros(2) for _ in range(3)]
    for tensor in got:
        other.recv(tensor, 0, 7).wait()
    assert nine.tolist() == [9.0] * 3
    assert [float(tensor[0]) for tensor in got] == [1.0, 2.0, 3.0]


def test_a_message_that_came_with_another_one_is_not_waited_for_in_the_kernel(groups, connected):
    """With TLS it may be in the same record, and then nothing more arrives that would wake anybody."""
    (one, peer), (other, second_peer) = connected(), connected()
    group = SocketGroup({1: one, 2: other}, WAIT_SECONDS)
    groups.append(group)
    first, second = torch.zeros(1), torch.zeros(1)
    receive = group.recv(first, 1, 5)
    peer.sendall(_frame(5, struct.pack("<f", 5.0)) + _frame(6, struct.pack("<f", 6.0)))
    receive.wait()
    receive = group.recv(second, 1, 6)
    # One thread does the I/O for another peer's message; whoever waits for this one relies on it.
    driving = _Thread(group.recv(torch.zeros(1), 2, 7).wait)
    _until(lambda: group._is_driven)
    assert _Thread(receive.wait).ended() is None
    assert (float(first), float(second)) == (5.0, 6.0)
    second_peer.sendall(_frame(7, b"\0" * 4))
    assert driving.ended() is None


def test_a_receive_posted_while_its_message_is_read_early_gets_it(bare):
    group, peer = bare()
    awaited, early = torch.zeros(1), torch.zeros(1000)
    waiting = _Thread(group.recv(awaited, 1, 2).wait)
    body = torch.arange(1000.0).numpy().tobytes()
    frame = _frame(1, body)
    peer.sendall(frame[:500])
    _until(lambda: group._links[1].early)
    message = group.recv(early, 1, 1)
    peer.sendall(frame[500:] + _frame(2, struct.pack("<f", 5.0)))
    waiting.ended()
    message.wait()
    assert float(awaited) == 5.0
    assert early.numpy().tobytes() == body


def test_nothing_is_read_that_nobody_awaits(mesh):
    """A sender that is ahead waits in the kernel: it does not fill the receiver's memory."""
    one, other, third = mesh(3)
    ahead = _Thread(one.send(torch.zeros(LONG, dtype=torch.uint8), 1, 1).wait)
    waiting = _Thread(other.recv(torch.zeros(1), 2, 2).wait)
    _until(lambda: other._is_driven)
    ahead.join(0.3)  # time in which all of it could be read
    assert ahead.is_alive()
    third.send(torch.ones(1), 1, 2).wait()
    assert waiting.ended() is None
    assert other._unclaimed_bytes == 0
    other.recv(torch.zeros(LONG, dtype=torch.uint8), 0, 1).wait()
    assert ahead.ended() is None


def test_a_message_may_come_byte_by_byte(bare):
    group, peer = bare()
    got = torch.zeros(4)
    waiting = _Thread(group.recv(got, 1, 5).wait)
    for byte in _frame(5, torch.arange(4.0).numpy().tobytes()):
        peer.sendall(bytes([byte]))
    assert waiting.ended() is None
    assert got.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (_frame(5, b"\0" * 8), "sent 8 bytes with tag 5, where 16 were expected"),
        (_frame(5, length=1 << 32), "sent 4294967296 bytes with tag 5, where 16 were expected"),
        (_frame(5, length=(1 << 64) - 1), "where 16 were expected"),
        (_frame(6, length=1 << 32), "sent 4294967296 bytes that nobody here awaits"),
        (_frame(5, b"\0" * 16, magic=MAGIC + 1), "no message"),
        (b"GET / HTTP/1.1\r\n\r\n", "no message"),
    ],
    ids=["short", "4 GiB", "longest", "4 GiB, tag", "magic", "HTTP"],
)
def test_a_wrong_message_ends_the_group(bare, frame, said):
    group, peer = bare()
    receive = group.recv(torch.zeros(4), 1, 5)
    peer.sendall(frame)
    with pytest.raises(SocketGroupError, match=said):
        receive.wait()
    with pytest.raises(SocketGroupError, match=said):
        group.send(torch.zeros(1), 1, 1)


def test_an_early_message_of_the_wrong_length_ends_the_group(bare):
    group, peer = bare()
    peer.sendall(_frame(5, b"\0" * 8) + _frame(6, b"\0" * 4))
    group.recv(torch.zeros(1), 1, 6).wait()
    with pytest.raises(SocketGroupError, match="sent 8 bytes with tag 5, where 16 were expected"):
        group.recv(torch.zeros(4), 1, 5)


def test_a_length_alone_makes_nobody_allocate(bare):
    group, peer = bare(timeout_seconds=0.3)
    receive = group.recv(torch.zeros(4), 1, 5)
    peer.sendall(_frame(6, b"\0" * 100, length=socket_group.UNCLAIMED_BYTES_MAX))
    tracemalloc.start()
    try:
        with pytest.raises(SocketGroupError, match="Timed out"):
            receive.wait()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_early_messages_are_bounded_together(bare, monkeypatch):
    monkeypatch.setattr(socket_group, "UNCLAIMED_BYTES_MAX", 1000)
    group, peer = bare()
    receive = group.recv(torch.zeros(4), 1, 5)
    peer.sendall(_frame(6, b"\0" * 600) + _frame(7, b"\0" * 600))
    with pytest.raises(SocketGroupError, match="sent 600 bytes that nobody here awaits"):
        receive.wait()


@pytest.mark.parametrize("cut", [0, 7, 16, 24])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_peer_that_dies_in_the_middle_of_a_frame_ends_the_wait(bare, cut, is_reset):
    group, peer = bare()
    waiting = _Thread(group.recv(torch.zeros(4), 1, 5).wait)
    peer.sendall(_frame(5, b"\0" * 16)[:cut])
    _until(lambda: group._links[1].moved == cut)
    if is_reset:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    assert isinstance(waiting.ended(), SocketGroupError)


def test_a_peer_that_stops_reading_breaks_the_group_after_the_timeout(bare):
    group, _peer = bare(timeout_seconds=0.3)
    with pytest.raises(SocketGroupError, match=r"Timed out: member 1 was silent for 0\.3 s"):
        group.send(torch.zeros(LONG, dtype=torch.uint8), 1, 1).wait()


def test_messages_of_others_do_not_prolong_the_wait_for_a_silent_member(mesh):
    groups = mesh(3)
    groups[0]._timeout_seconds = 0.5
    stop = threading.Event()

    def chatter():
        while not stop.is_set():
            groups[2].send(torch.ones(1), 0, 1).wait()

    noisy = _Thread(chatter)
    keeps = [_Thread(lambda: groups[0].recv(torch.zeros(1), 2, 1).wait()) for _ in range(1)]
    waiting = _Thread(groups[0].recv(torch.zeros(1), 1, 1).wait)
    result = waiting.ended()
    stop.set()
    assert "member 1 was silent" in str(result)
    groups[2].abort()
    for thread in (noisy, *keeps):
        thread.ended()


def test_a_slow_link_is_not_a_silent_one(bare):
    """About 1 MB/s: the message takes several times the timeout."""
    group, peer = bare(timeout_seconds=0.5)
    size = 1_500_000
    got = torch.zeros(size, dtype=torch.uint8)
    waiting = _Thread(group.recv(got, 1, 5).wait)
    frame = _frame(5, b"\1" * size)
    for at in range(0, len(frame), 20_000):
        peer.sendall(frame[at : at + 20_000])
        time.sleep(0.02)
    assert waiting.ended() is None
    assert int(got.sum()) == size


@pytest.mark.parametrize("waits_for", ["first bytes", "more", "buffer", "nothing"])
def test_abort_ends_every_wait_at_once_and_the_peer_notices(mesh, waits_for):
    one, other = mesh(2)
    receive = one.recv(torch.zeros(1000), 1, 5)
    message = receive
    if waits_for == "more":
        other._links[0].connection.send(_frame(5, length=4000) + b"\0" * 100)
    elif waits_for == "buffer":
        message = one.send(torch.zeros(LONG, dtype=torch.uint8), 1, 1)
    waiting = [_Thread(message.wait) for _ in range(3 if waits_for != "nothing" else 0)]
    theirs = _Thread(other.recv(torch.zeros(4), 0, 9).wait)
    _until(lambda: waits_for == "nothing" or (one._is_driven and one._followers == 2))
    began = time.monotonic()
    for aborting in [_Thread(one.abort) for _ in range(4)]:
        aborting.ended()
    results = [thread.ended() for thread in waiting]
    assert time.monotonic() - began < 5
    assert all(isinstance(result, SocketGroupError) for result in results)
    assert isinstance(theirs.ended(), SocketGroupError)
    with pytest.raises(SocketGroupError):
        one.recv(torch.zeros(1), 1, 5)


def test_a_break_reaches_a_member_that_talks_to_another_one(mesh):
    groups = mesh(3)
    waiting = _Thread(groups[0].recv(torch.zeros(1), 1, 5).wait)
    _until(lambda: groups[0]._is_driven)
    # Unread messages before its end do not hide it.
    groups[2].send(torch.zeros(1000), 0, 6).wait()
    groups[2].abort()
    assert "member 2 closed its connection" in str(waiting.ended())


def test_who_leaves_in_order_disturbs_nobody_who_needs_nothing_of_it(mesh):
    groups = mesh(3)
    last = torch.zeros(2)
    waiting = _Thread(groups[0].recv(torch.zeros(1), 1, 5).wait)
    _until(lambda: groups[0]._is_driven)
    groups[2].send(torch.full((2,), 4.0), 0, 6).wait()
    groups[2].close()
    groups[2].close()
    _until(lambda: groups[0]._links[2].is_gone)
    groups[1].send(torch.zeros(1), 0, 5).wait()
    assert waiting.ended() is None
    # What it sent before it left is still there, and nothing else will come.
    groups[0].recv(last, 2, 6).wait()
    assert last.tolist() == [4.0, 4.0]
    with pytest.raises(SocketGroupError, match="member 2 has left the ring"):
        groups[0].recv(torch.zeros(1), 2, 7).wait()


def test_what_was_sent_before_an_orderly_end_arrives_although_much_is_unread(mesh):
    one, other = mesh(2)
    other.send(torch.zeros(1000), 0, 1).wait()  # `one` never reads it
    size = 1 << 20
    sent = torch.randint(0, 255, (size,), dtype=torch.uint8)
    one.send(sent, 1, 2).wait()
    one.close()
    got = torch.zeros(size, dtype=torch.uint8)
    other.recv(got, 0, 2).wait()
    assert torch.equal(got, sent)


def test_a_goodbye_in_the_middle_of_a_message_is_a_break(bare):
    group, peer = bare()
    receive = group.recv(torch.zeros(4), 1, 5)
    peer.sendall(_frame(BYE_TAG) + _frame(5, b"\0" * 16)[:20])
    peer.close()
    with pytest.raises(SocketGroupError, match="closed its connection"):
        receive.wait()

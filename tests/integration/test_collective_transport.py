"""Waits that another thread ends, peers that die, groups that form and do not form."""

from __future__ import annotations

import os
import signal
import ssl
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from elastane.collective.cpu_group import warm_up
from elastane.collective.gloo import GlooGroup, gloo_group
from elastane.collective.rendezvous import MemberStore, RendezvousStore
from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.collective.ring_thread import finish_in_thread
from elastane.collective.socket_group import SocketGroup
from elastane.collective.transport import RingTransport
from integration.ring_threads import canonical_allreduce, form_ring, in_threads
from slow import slow

#: Far more than an ended wait takes, far less than the transports' timeout.
ENDS_SECONDS = 10


@pytest.fixture
def store():
    store = RendezvousStore("127.0.0.1")
    yield store
    store.close()


class _Blocked(threading.Thread):
    """Runs something that blocks; `error` is what it raised."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_blocked, self.error = run, None
        self.entered = threading.Event()
        self.start()
        assert self.entered.wait(ENDS_SECONDS)

    def run(self):
        self.entered.set()
        try:
            self.run_blocked()
        except RuntimeError as error:  # a bare error of gloo: a bug
            self.error = error
        except (RingAborted, RingBroken) as error:
            self.error = error

    def ended(self):
        self.join(ENDS_SECONDS)
        assert not self.is_alive(), "still blocked"
        return self.error


@pytest.mark.parametrize("direction", ["send", "recv"])
@pytest.mark.parametrize("size", [2, 4])
def test_abort_ends_a_blocked_wait_and_the_peers_notice(store, direction, size):
    ring = form_ring(store, "ring", size)
    message = torch.zeros(3_000_000)  # more than the connection's buffers hold
    blocked = _Blocked(lambda: getattr(ring[0], direction)(message, 1, 5).wait())
    source, other = size - 1 if size > 2 else 0, torch.zeros(1)
    # A member that waits for another message of the sender takes this one into memory: the send would end.
    waits_before = [ring[1].recv(other, source, 6)] if direction == "recv" or size > 2 else []
    peers = [_Blocked(waited.wait) for waited in waits_before]
    time.sleep(0.1)  # lets the waits begin; if they have not, the test still must pass
    ring[0].abort()
    assert isinstance(blocked.ended(), RingAborted)
    peers = peers or [_Blocked(lambda: ring[1].recv(other, source, 6).wait())]
    if size == 2:
        assert isinstance(peers[0].ended(), RingBroken)
    with pytest.raises(RingAborted):
        ring[0].recv(torch.zeros(1), 1, 5)
    for transport in ring:
        transport.abort()
    peers[0].ended()
    for transport in ring:
        transport.close()
    again = form_ring(store, "ring again", size)
    sums = in_threads(size, lambda rank: _all_reduce(again, rank))
    assert all(torch.equal(out, torch.full((1000,), float(size))) for out in sums)


def _all_reduce(ring, rank):
    ranges = [(host, host + 1) for host in range(len(ring))]
    out = torch.empty(1000)
    canonical_allreduce([torch.ones(1000)], out, ranges, ring[rank], 1)
    return out


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("direction", ["send", "recv"])
@pytest.mark.parametrize("messages", ["sockets", "gloo"])
def test_a_wait_for_half_a_message_ends_or_is_left_behind(store, messages, direction, end):
    """gloo forgets such a wait, whatever becomes of the ring or the peer: the thread in it is given up."""
    # A message may be over before its sender or receiver is stopped: then a longer one is tried.
    sizes = [mebibytes << 20 for mebibytes in (32, 128, 512)]
    assert any(_leaves_half_a_message(store, messages, direction, end, size) for size in sizes)
    assert len(form_ring(store, "next", 2)) == 2


def _leaves_half_a_message(store, messages, direction, end, size):
    context = mp.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    arguments = (store.address, messages, direction, size, send)
    process = context.Process(target=_one_long_message, args=arguments, daemon=True)
    process.start()
    ring = _form(store.address, threading.Event(), prefix=f"half {size}", messages=messages)
    assert receive.poll(60)
    theirs = receive.recv()
    message = torch.full((size,), direction == "send", dtype=torch.uint8)
    watched = theirs if direction == "send" else message
    transfer = getattr(ring, direction)(message, 1, 5)
    waits = _Blocked(lambda: finish_in_thread("waits", ring, transfer.wait))
    while not watched[0] and waits.is_alive():
        pass  # the first bytes arrive
    os.kill(process.pid, end)
    _until_it_struck(process, end)
    # What is left must not fit into the sockets' buffers: those are read and filled without the peer.
    whole = bool(watched[size // 2])
    if not whole:
        ring.abort()
        # Only own connections notice by themselves that the peer is dead.
        noticed = messages == "sockets" and end == signal.SIGKILL
        assert isinstance(waits.ended(), (RingAborted, RingBroken) if noticed else RingAborted)
    ring.close()
    process.kill()
    process.join()
    return not whole


def _until_it_struck(process, end):
    """One thread takes the signal; until that one gets the CPU, gloo's thread goes on."""
    if end == signal.SIGKILL:
        process.join()
        return
    while any(_state(task) != "T" for task in Path(f"/proc/{process.pid}/task").iterdir()):
        pass


def _state(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _one_long_message(address, messages, direction, size, pipe):
    """The other side of a message that is cut off; what it receives can be watched from outside."""
    ring = _form(address, threading.Event(), rank=1, prefix=f"half {size}", messages=messages)
    message = torch.full((size,), direction == "recv", dtype=torch.uint8)
    if direction == "send":
        message.share_memory_()
        pipe.send(message)
        ring.recv(message, 0, 5).wait()
    else:
        pipe.send(None)
        ring.send(message, 0, 5).wait()
    threading.Event().wait()


def test_abort_from_many_threads_at_once(store):
    ring = form_ring(store, "ring", 2)
    blocked = _Blocked(lambda: ring[0].recv(torch.zeros(1), 1, 5).wait())
    in_threads(8, lambda _: ring[0].abort())
    assert isinstance(blocked.ended(), RingAborted)
    ring[0].close()
    ring[0].close()


def test_a_break_passes_on_to_members_that_do_not_talk_to_the_dead_one(store):
    ring = form_ring(store, "ring", 4)
    waits = [
        _Blocked(lambda rank=rank: ring[rank].recv(torch.zeros(1), (rank + 1) % 4, 5).wait())
        for rank in (0, 1, 2)
    ]
    ring[3].close()  # only member 2 waits for member 3
    assert all(isinstance(wait.ended(), RingBroken) for wait in waits)


def test_forming_ends_when_it_is_cancelled(store):
    cancel = threading.Event()
    forming = _Blocked(lambda: _form(store.address, cancel))
    time.sleep(0.05)
    cancel.set()
    assert isinstance(forming.ended(), RingAborted)
    assert len(form_ring(store, "next", 2)) == 2


def test_forming_ends_when_the_store_dies():
    receive, send = mp.get_context("forkserver").Pipe(duplex=False)
    process = mp.get_context("forkserver").Process(target=_host_store, args=(send,), daemon=True)
    process.start()
    assert receive.poll(60)
    address = receive.recv()
    forming = _Blocked(lambda: _form(address, threading.Event()))
    time.sleep(0.2)
    process.kill()
    assert isinstance(forming.ended(), RingBroken)
    process.join()


def test_a_cancelled_group_is_not_even_begun():
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(RingAborted):
        _form("127.0.0.1:1", cancel)


def test_a_silent_peer_breaks_the_ring_after_the_timeout(store):
    ring = in_threads(2, lambda rank: _form(store.address, threading.Event(), rank=rank, timeout_seconds=0.5))
    with pytest.raises(RingBroken, match="Timed out"):
        ring[0].recv(torch.zeros(1), 1, 5).wait()


def test_warm_up_leaves_nothing_behind():
    before = threading.active_count()
    warm_up()
    assert threading.active_count() == before


def _form(address, cancel, rank=0, timeout_seconds=60.0, prefix="group", **options):
    return RingTransport.form(
        store_address=address,
        prefix=prefix,
        rank=rank,
        size=2,
        cancel=cancel,
        timeout_seconds=timeout_seconds,
        **options,
    )


def _host_store(pipe):
    store = RendezvousStore("127.0.0.1")
    pipe.send(store.address)
    threading.Event().wait()


@pytest.mark.parametrize(
    ("victim", "carrier"),
    [
        (0, "memory"),
        (2, "memory"),
        (0, "sockets"),
        (2, "sockets"),
        (0, "TLS"),
        pytest.param(2, "TLS", marks=slow),
    ],
)
def test_a_killed_peer_breaks_an_all_reduce(store, victim, carrier):
    """Survivors that reduce on and on raise soon after a member was killed, and can form a ring again."""
    context = mp.get_context("forkserver")
    pipes = []
    processes = []
    for rank in range(3):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(
            target=_reduce_for_ever, args=(rank, victim, store.address, send, carrier), daemon=True
        )
        process.start()
        pipes.append(receive)
        processes.append(process)
    for pipe in pipes:
        assert pipe.poll(120)
        assert pipe.recv() == "reducing"
    killed = time.monotonic()
    os.kill(processes[victim].pid, signal.SIGKILL)
    for rank in {0, 1, 2} - {victim}:
        assert pipes[rank].poll(60)
        kind, when = pipes[rank].recv()
        assert kind == "RingBroken"
        assert when - killed < ENDS_SECONDS
        assert pipes[rank].poll(60)
        assert pipes[rank].recv() == 2.0
    for process in processes:
        process.join(60)


def _reduce_for_ever(rank, victim, address, pipe, carrier):
    torch.set_num_threads(1)
    ring = RingTransport.form(
        store_address=address,
        prefix="three",
        rank=rank,
        size=3,
        cancel=threading.Event(),
        shared_memory=carrier == "memory",
        tls="wanted" if carrier == "TLS" else "off",
    )
    assert (ring.members is not None) is (carrier == "memory")
    assert all(isinstance(link.connection, ssl.SSLSocket) for link in ring._group._links.values()) is (
        carrier == "TLS"
    )
    slots, out = [torch.ones(500_000)], torch.empty(500_000)
    rounds = 0
    try:
        while True:
            canonical_allreduce(slots, out, [(0, 1), (1, 2), (2, 3)], ring, 1)
            rounds += 1
            if rounds == 3:
                pipe.send("reducing")
    except RingBroken as error:
        pipe.send((type(error).__name__, time.monotonic()))
    ring.close()
    ring = RingTransport.form(
        store_address=address,
        prefix="two",
        rank=sorted({0, 1, 2} - {victim}).index(rank),
        size=2,
        cancel=threading.Event(),
    )
    canonical_allreduce(slots, out, [(0, 1), (1, 2)], ring, 1)
    pipe.send(float(out[0]))
    pipe.close()


def test_members_use_gloo_if_one_asks_for_it(store):
    wanted = ["sockets", "gloo", "sockets"]

    def form(rank):
        return RingTransport.form(
            store_address=store.address,
            prefix="mixed",
            rank=rank,
            size=3,
            cancel=threading.Event(),
            messages=wanted[rank],
        )

    ring = in_threads(3, form)
    assert all(isinstance(transport._group, GlooGroup) for transport in ring)
    sums = in_threads(3, lambda rank: _all_reduce(ring, rank))
    assert all(torch.equal(out, torch.full((1000,), 3.0)) for out in sums)
    for transport in ring:
        transport.close()


def test_members_use_gloo_with_a_member_of_a_release_without_sockets(store):
    """It announces nothing, and begins to build gloo's group at once."""
    host, _, port = store.address.rpartition(":")

    def form(rank):
        if rank == 0:
            member = MemberStore(host, int(port), "group", b"", 60.0)
            return gloo_group(member, 0, 2, timedelta(seconds=60), host)
        return _form(store.address, threading.Event(), rank=1, shared_memory=False)

    old, new = in_threads(2, form)
    assert isinstance(new._group, GlooGroup)
    got = torch.zeros(1)
    received = new.recv(got, 0, 5)
    old.send(torch.ones(1), 1, 5).wait()
    received.wait()
    assert float(got) == 1.0


def test_a_member_that_comes_late_does_not_turn_the_others_to_gloo(store):

    def form(rank):
        time.sleep(1.5 * rank)  # longer than members wait before they look for one of an older release
        return _form(store.address, threading.Event(), rank=rank)

    ring = in_threads(2, form)
    assert all(isinstance(transport._group, SocketGroup) for transport in ring)
    for transport in ring:
        transport.close()

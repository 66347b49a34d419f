"""Memory that members of a ring read from one another: who agrees to it, how waits end, what is left."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from elastane.collective import shared_members, shared_memory
from elastane.collective.allreduce import CanonicalAllreduce
from elastane.collective.rendezvous import MemberStore, RendezvousStore
from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.collective.shared_members import Kind, MemberLeft
from elastane.collective.shared_memory import Arena, PeerMemory, open_of_process, own_arena
from elastane.collective.shared_spread import SharedSpread
from elastane.collective.shared_sum import SharedSum, part
from elastane.collective.transport import Forming, RingTransport
from elastane_common.errors import RefusedError
from integration.ring_threads import form_ring, in_threads

#: Far more than an ended wait takes, far less than the transports' timeout.
ENDS_SECONDS = 10
RANGES = [(0, 1), (1, 2)]


@pytest.fixture
def store():
    store = RendezvousStore("127.0.0.1")
    yield store
    store.close()


def _open_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _plan(ring, me, elements=100_000, value=1.0):
    members = ring[me].members

    def memory(elements, *, shared=False):
        return members.own.empty(elements, torch.float32) if shared else torch.empty(elements)

    plan = CanonicalAllreduce(elements, torch.float32, RANGES, me, memory, members=members)
    assert plan.way == "shared"
    plan.slots[0].fill_(value)
    return plan


# ---------------------------------------------------------------- the file


def test_memory_that_nobody_uses_is_given_back_and_never_used_again():
    arena = Arena()

    def used_bytes():
        return os.fstat(arena._fd).st_blocks * 512

    first = arena.empty(5_000_000, torch.float32)
    first.fill_(1)
    offset, before = arena.offset_of(first), used_bytes()
    assert before >= first.nbytes
    view = first[10:20]
    del first
    gc.collect()
    assert used_bytes() == before, "a view still uses it"
    del view
    gc.collect()
    assert used_bytes() == 0
    assert arena.offset_of(arena.empty(5_000_000, torch.float32)) > offset


def test_a_fork_leaves_its_parent_s_memory_alone():
    arena = own_arena()
    held = [arena.empty(1000, torch.float32).fill_(3)]
    child = os.fork()
    if child == 0:
        other = own_arena() is not arena
        held.clear()
        gc.collect()
        os._exit(0 if other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(held[0], torch.full((1000,), 3.0))


def test_nothing_is_opened_that_has_another_name(tmp_path):
    arena = own_arena()
    pid, fd, nonce = arena.announcement.split(":")
    assert PeerMemory(arena.announcement).pid == os.getpid()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # to open it would wake whoever waits at the other end
    held = os.open(pipe, os.O_RDWR)
    with pytest.raises(ValueError, match="is not"):
        open_of_process(os.getpid(), held, f"/memfd:elastane-{nonce} (deleted)", os.O_RDWR)
    os.close(held)
    for wrong in (
        f"{pid}:{fd}:{'0' * 32}",
        f"{pid}:{fd}:../..",
        f"{pid}:999999:{nonce}",
        f"4194303:{fd}:{nonce}",
    ):
        with pytest.raises((OSError, ValueError)):
            PeerMemory(wrong)


def test_nobody_else_may_open_it_and_nobody_can_shorten_it():
    arena = Arena()
    assert os.fstat(arena._fd).st_mode & 0o777 == 0o600
    with pytest.raises(PermissionError):
        os.ftruncate(arena._fd, 0)


def test_memory_that_cannot_be_mapped_is_refused_with_a_way_out():
    with pytest.raises(RefusedError, match="cannot be mapped") as refused:
        Arena().empty(1 << 48, torch.uint8)  # more than there are addresses
    assert "ELASTANE_SHARED_MEMORY=0" in str(refused.value.hint)


@pytest.mark.parametrize("elements", [1, 63, 64, 129, 1000])
@pytest.mark.parametrize("hosts", [2, 3, 7])
def test_parts_cover_the_vector(elements, hosts):
    parts = [part(elements, hosts, host) for host in range(hosts)]
    assert [low for low, _ in parts] == [0, *(high for _, high in parts[:-1])]
    assert parts[-1][1] == elements


# ---------------------------------------------------------------- the agreement


def test_members_of_one_machine_share(store):
    ring = form_ring(store, "ring", 3)
    assert all(transport.members is not None for transport in ring)


def test_one_that_is_not_willing_decides_for_all(store):
    ring = in_threads(3, lambda rank: _form(store, "ring", rank, 3, shared_memory=rank != 1))
    assert [transport.members for transport in ring] == [None] * 3


def test_one_that_cannot_open_the_others_decides_for_all(store, monkeypatch):
    opened = PeerMemory.__init__

    def open_as_elsewhere(self, announcement):
        if threading.current_thread().name.startswith("elastane-form-ring") and failing.acquire(
            blocking=False
        ):
            raise FileNotFoundError("another PID namespace")
        opened(self, announcement)

    failing = threading.Semaphore(1)
    monkeypatch.setattr(PeerMemory, "__init__", open_as_elsewhere)
    assert [transport.members for transport in form_ring(store, "ring", 3)] == [None] * 3


def test_one_without_such_files_decides_for_all(store, monkeypatch):
    monkeypatch.setattr(os, "memfd_create", _refused)
    monkeypatch.setattr(shared_memory, "_arena", None)
    assert [transport.members for transport in form_ring(store, "ring", 2)] == [None] * 2


def _refused(*_):
    raise OSError(38, "Function not implemented")


def test_a_member_of_a_release_that_says_nothing_is_not_waited_for(store, monkeypatch):
    monkeypatch.setattr(shared_members, "AGREE_SECONDS", 0.2)
    agree = shared_members.agree
    monkeypatch.setattr(
        "elastane.collective.transport.agree",
        lambda store, rank, size, **options: None if rank == 0 else agree(store, rank, size, **options),
    )
    assert [transport.members for transport in form_ring(store, "ring", 3)] == [None] * 3


def test_a_ring_leaves_no_descriptors_behind(store):
    def descriptors():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    def once(prefix):
        ring = form_ring(store, prefix, 2)
        plans = [_plan(ring, me) for me in (0, 1)]
        in_threads(2, lambda me: _reduce(plans[me], ring[me]))
        for transport in ring:
            transport.close()

    once("first")
    time.sleep(0.1)
    before = descriptors()
    for number in range(3):
        once(f"next {number}")
    deadline = time.monotonic() + ENDS_SECONDS  # gloo closes its sockets in threads of its own
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert descriptors() <= before


def _form(store, prefix, rank, size, **options):
    return RingTransport.form(
        store_address=store if isinstance(store, str) else store.address,
        prefix=prefix,
        rank=rank,
        size=size,
        cancel=threading.Event(),
        timeout_seconds=options.pop("timeout_seconds", 60),
        **options,
    )


def _reduce(plan, transport):
    plan.run(transport, 1)
    plan.settle()
    return plan.out


# ---------------------------------------------------------------- waits, and memory that is over


def test_abort_ends_a_wait_for_a_silent_member_and_the_others_notice(store):
    ring = form_ring(store, "ring", 3)
    ranges = [(0, 1), (1, 2), (2, 3)]
    members = [transport.members for transport in ring]
    plans = [
        CanonicalAllreduce(
            100,
            torch.float32,
            ranges,
            me,
            lambda elements, *, shared=False, me=me: members[me].own.empty(elements, torch.float32),
            members=members[me],
        )
        for me in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:  # member 2 stays silent
        waits = [pool.submit(_reduce, plans[me], ring[me]) for me in range(2)]
        time.sleep(0.1)  # lets the waits begin; if they have not, the test still must pass
        ring[0].abort()
        assert isinstance(waits[0].exception(ENDS_SECONDS), RingAborted)
        assert isinstance(waits[1].exception(ENDS_SECONDS), RingBroken)
    with pytest.raises(RingAborted):
        _reduce(plans[0], ring[0])


def test_a_silent_member_breaks_the_ring_after_the_timeout(store):
    ring = in_threads(2, lambda rank: _form(store, "ring", rank, 2, timeout_seconds=0.3))
    with pytest.raises(RingBroken, match="said nothing"):
        _reduce(_plan(ring, 0), ring[0])


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_a_wait_for_a_stopped_or_killed_process_ends(store, end):
    before = set(Path("/dev/shm").iterdir())
    context = mp.get_context("forkserver")
    process = context.Process(target=_reduce_for_ever, args=(store.address,), daemon=True)
    process.start()
    ring = [_form(store, "ring", 0, 2)]
    plan = _plan(ring, 0)
    for _ in range(3):
        assert torch.equal(_reduce(plan, ring[0]), torch.full((100_000,), 3.0))
    with ThreadPoolExecutor(1) as pool:
        reducing = pool.submit(_for_ever, plan, ring[0])
        os.kill(process.pid, end)
        if end == signal.SIGSTOP:
            time.sleep(0.1)  # lets it wait for the stopped one
            assert not reducing.done()
            ring[0].abort()
        assert isinstance(
            reducing.exception(ENDS_SECONDS), RingAborted if end == signal.SIGSTOP else RingBroken
        )
    process.kill()
    process.join()
    assert set(Path("/dev/shm").iterdir()) <= before
    assert float(plan.slots[0][0]) == 1.0
    ring[0].close()


def _for_ever(plan, transport):
    while True:
        _reduce(plan, transport)


def _reduce_for_ever(address):
    torch.set_num_threads(1)
    transport = _form(address, "ring", 1, 2)
    plan = _plan([None, transport], 1, value=2.0)
    while True:
        _reduce(plan, transport)


@pytest.mark.parametrize("when", ["adding", "copying"])
def test_who_sleeps_while_the_others_go_on_never_takes_what_it_reads_then(store, monkeypatch, when):
    """SIGSTOP in the middle of a sum, in effect: the owner has left and uses its memory anew."""
    ring = form_ring(store, "ring", 2)
    plans = [_plan(ring, me) for me in (0, 1)]
    asleep, awake = threading.Event(), threading.Event()
    hear, check = shared_members.SharedMembers.hear, RingTransport.check
    kind = Kind.READY if when == "adding" else Kind.SUMMED

    def hear_and_sleep(self, kind_heard, tag):
        values = hear(self, kind_heard, tag)
        if self is ring[1].members and kind_heard is kind:
            asleep.set()
            assert awake.wait(ENDS_SECONDS)
        return values

    monkeypatch.setattr(shared_members.SharedMembers, "hear", hear_and_sleep)
    # What is to be shown holds without looking at the connections, whose news may come late.
    monkeypatch.setattr(RingTransport, "check", lambda self: None if self is ring[1] else check(self))
    with ThreadPoolExecutor(2) as pool:
        reducing = [pool.submit(plans[me].run, ring[me], 1) for me in (0, 1)]
        assert asleep.wait(ENDS_SECONDS)
        if when == "copying":
            assert reducing[0].exception(ENDS_SECONDS) is None
        else:
            ring[1].members._arrived[0, Kind.SUMMED, 1].append(0)  # the owner's last message is there already
        ring[0].abort()
        plans[0].slots[0].fill_(1000.0)
        for block in plans[0].blocks:
            block.fill_(1000.0)
        awake.set()
        assert isinstance(reducing[1].exception(ENDS_SECONDS), RingBroken)


def test_settle_waits_until_the_last_has_copied(store, monkeypatch):
    """Then the memory may be used for anything, in the same ring: the slow one has what it needs."""
    ring = form_ring(store, "ring", 2)
    plans = [_plan(ring, me, value=me + 1.0) for me in (0, 1)]
    slow, go_on = threading.Event(), threading.Event()
    hear = shared_members.SharedMembers.hear

    def hear_and_wait(self, kind, tag):
        values = hear(self, kind, tag)
        if self is ring[1].members and kind is Kind.SUMMED:
            slow.set()
            assert go_on.wait(ENDS_SECONDS)
        return values

    monkeypatch.setattr(shared_members.SharedMembers, "hear", hear_and_wait)
    with ThreadPoolExecutor(2) as pool:
        reducing = [pool.submit(_reduce, plans[me], ring[me]) for me in (0, 1)]
        assert slow.wait(ENDS_SECONDS)
        time.sleep(0.1)
        assert not reducing[0].done()
        assert torch.equal(plans[0].out, torch.full((100_000,), 3.0)), "its own sum is there"
        go_on.set()
        reducing[0].result(ENDS_SECONDS)
        for block in plans[0].blocks[:-1]:
            block.fill_(1000.0)
        assert torch.equal(reducing[1].result(ENDS_SECONDS), torch.full((100_000,), 3.0))


def test_a_member_that_left_is_heard_no_more(store):
    ring = form_ring(store, "ring", 2)
    ring[0].members.tell(Kind.READY, 7, 5)
    ring[0].close()
    members = ring[1].members
    assert members.hear(Kind.READY, 7) == {0: 5}, "what it said before it left counts"
    with pytest.raises(MemberLeft):
        members.hear(Kind.SUMMED, 7)
    assert not members.all_present()


def test_who_has_said_all_may_leave_while_others_are_waited_for(store):
    """At the end of a step the first who is through may go, by a drain or because the training is over."""
    ring = form_ring(store, "ring", 3)
    members = [transport.members for transport in ring]
    members[2].tell(Kind.COPIED, 1)
    ring[2].close()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(members[1].hear, Kind.COPIED, 1)
        time.sleep(0.05)  # lets it read that member 2 has left; if it has not, the test still must pass
        members[0].tell(Kind.COPIED, 1, hosts=[1])
        assert waiting.result(ENDS_SECONDS) == {0: 0, 2: 0}
    sent = torch.arange(100, dtype=torch.uint8)
    received = torch.zeros_like(sent)
    spreads = [SharedSpread(members[me], 100, me) for me in (0, 1)]
    members[0]._arrived[2, Kind.COPIED, 9].append(0)  # member 2 had it before it left
    in_threads(2, lambda me: spreads[me].run(ring[me], (sent, received)[me], 9))
    assert torch.equal(received, sent)
    with pytest.raises(MemberLeft, match=r"\[2\]"):
        members[0].hear(Kind.READY, 1)


def test_one_members_message_reaches_all(store):
    ring = form_ring(store, "ring", 3)
    spreads = [SharedSpread(transport.members, 5000, me) for me, transport in enumerate(ring)]
    for step in range(3):
        sent = torch.full((5000,), step + 1, dtype=torch.uint8)
        messages = [sent, torch.zeros_like(sent), torch.zeros_like(sent)]
        in_threads(3, lambda me, messages=messages: spreads[me].run(ring[me], messages[me], 0))
        assert all(torch.equal(message, sent) for message in messages)
    ring[0].abort()
    for me, error in ((0, RingAborted), (1, RingBroken), (2, RingBroken)):
        with pytest.raises(error):
            spreads[me].run(ring[me], messages[me], 0)


def test_messages_wait_for_those_who_ask(store):
    """Several vectors are under way; each hears its own tag."""
    ring = form_ring(store, "ring", 2)
    for tag in (1, 2):
        ring[0].members.tell(Kind.READY, tag, tag * 10)
    ring[0].members.tell(Kind.COPIED, 1)
    assert ring[1].members.hear(Kind.COPIED, 1) == {0: 0}
    assert ring[1].members.hear(Kind.READY, 2) == {0: 20}
    assert ring[1].members.hear(Kind.READY, 1) == {0: 10}


def test_the_plan_of_a_shared_ring_travels_by_memory(store):
    ring = form_ring(store, "ring", 2)
    assert isinstance(_plan(ring, 0)._travel, SharedSum)
    assert Path(f"/proc/self/fd/{own_arena()._fd}").readlink().name.startswith("memfd:elastane-")


# ---------------------------------------------------------------- many mappings, many threads


def test_mappings_take_no_descriptors():
    arena = own_arena()
    before = _open_descriptors()
    blocks = [arena.empty(10, torch.float32) for _ in range(100)]
    views = [
        PeerMemory(arena.announcement).view(arena.place_of(block), 10, torch.float32) for block in blocks[:3]
    ]
    assert _open_descriptors() - before <= 3  # of the three peers
    del blocks, views


def test_places_are_known_however_other_threads_give_memory_back():
    arena, over = own_arena(), threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def churn(_):
        rounds = 0
        while not over.is_set():
            block = arena.empty(1000 + rounds % 7 * 1000, torch.float32)
            place = arena.offset_of(block)
            block.fill_(rounds)
            if place is None or arena.offset_of(block) != place:
                over.set()
                return f"block {rounds} lost its place"
            rounds += 1
            if rounds == 3000:
                return ""
        return ""

    try:
        with ThreadPoolExecutor(4) as pool:
            assert "".join(pool.map(churn, range(4))) == ""
    finally:
        sys.setswitchinterval(interval)


def test_an_address_is_forgotten_before_it_is_free():
    arena = Arena()
    block = arena.empty(1000, torch.float32)
    address, seen = block.data_ptr(), []
    unmap = shared_memory._libc.munmap

    def munmap(at, size):
        if at == address:
            seen.append(address in arena._offsets)
        return unmap(at, size)

    shared_memory._libc.munmap = munmap
    try:
        del block
        gc.collect()
    finally:
        shared_memory._libc.munmap = unmap
    assert seen == [False]


# ---------------------------------------------------------------- leaving


def test_members_may_leave_in_order_one_after_the_other(store):
    ring = form_ring(store, "leaving", 4)
    members = [transport.members for transport in ring]
    for host in range(4):
        for other in range(4):
            if host != other and (host, other) != (3, 2):
                members[host].tell(Kind.COPIED, 1, hosts=[other])
    for host in (0, 1, 3):
        members[host].hear(Kind.COPIED, 1)
    ring[0].close()
    ring[0] = members[0] = None
    gc.collect()
    ring[1].close()  # its BYE to 0 goes nowhere, that to 2 must arrive all the same
    timer = threading.Timer(0.2, lambda: members[3].tell(Kind.COPIED, 1, hosts=[2]))
    timer.start()
    assert members[2].hear(Kind.COPIED, 1) == {0: 0, 1: 0, 3: 0}
    timer.join()
    for transport in ring[1:]:
        transport.close()


def _descriptors():
    gc.collect()
    return _open_descriptors()


def test_members_that_nobody_told_to_leave_keep_no_descriptors(store):
    for ring in (form_ring(store, "first", 2), form_ring(store, "second", 2)):
        for transport in ring:
            transport.members.leave()
    before = _descriptors()
    members = [transport.members for transport in form_ring(store, "dropped", 3)]
    assert _descriptors() > before
    del members
    # The store, a thread of this process, closes its ends of the members' connections when it hears of it.
    deadline = time.monotonic() + ENDS_SECONDS
    while _descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _descriptors() <= before


def test_a_store_that_goes_away_while_they_agree_leaves_nothing_open():
    own_arena()
    for attempt in range(2):  # the first pays for what stays
        before = _descriptors()
        gone = RendezvousStore("127.0.0.1")
        client = _client(gone)
        closing = threading.Timer(0.1, gone.close)
        closing.start()
        with pytest.raises(RuntimeError):
            shared_members.agree(client, 0, 4, share=True, timeout_seconds=30)
        closing.join()  # it has descriptors of its own, and closes them after the caller's connection
        del client
        if attempt:
            assert _descriptors() <= before


def _client(store):
    host, _, port = store.address.rpartition(":")
    return MemberStore(host, int(port), "agreeing", b"", 30.0)


def test_a_group_that_nobody_wants_any_more_ends_for_its_peers(store):
    cancel = threading.Event()
    real = Forming._build

    def build(self):
        group = real(self)
        if self._rank == 0:
            cancel.set()
        return group

    Forming._build = build
    try:
        with ThreadPoolExecutor(2) as pool:
            form = lambda rank, cancel: RingTransport.form(  # noqa: E731
                store_address=store.address, prefix="unwanted", rank=rank, size=2, cancel=cancel
            )
            unwanted, wanted = pool.submit(form, 0, cancel), pool.submit(form, 1, threading.Event())
            with pytest.raises(RingAborted):
                unwanted.result()
            peer = wanted.result()
    finally:
        Forming._build = real
    with pytest.raises(MemberLeft, match="has left the ring"):  # and not that nothing came in time
        peer.members.hear(Kind.READY, 1)
    peer.close()

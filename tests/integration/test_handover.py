"""Hand-over between real processes over gloo: bits, and a donor that dies in the middle."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any

import pytest
import torch
from torch import nn

import patience
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.collective.transport import HANDOVER_TAG, RingTransport
from elastane.state.handover import receive_state, send_state
from elastane.state.train_state import TrainState
from integration.dying_transport import DyingTransport
from unit.state.models import OPTIMIZERS, build, train

DONORS, RECEIVERS = [0, 1], [2, 3]
PIECE_BYTES = 4096
EXTRA_FLOATS = 250_000


def a_run(seed: int) -> TrainState:
    """The model of the unit tests, with a buffer that takes some hundred pieces to send."""
    state = build(OPTIMIZERS["adamw"], lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50), seed=seed)
    state.model.register_buffer("table", torch.randn(EXTRA_FLOATS))
    return state


def join(address: str, generation: int, rank: int, size: int) -> RingTransport:
    return RingTransport.form(
        store_address=address,
        prefix=f"g{generation}",
        rank=rank,
        size=size,
        cancel=threading.Event(),
        timeout_seconds=60,
    )


def give(
    transport: Any, state: TrainState, donor_index: int, donors: list[int], receivers: list[int]
) -> None:
    send_state(
        transport,
        state.export(),
        donor_index=donor_index,
        donors=donors,
        receivers=receivers,
        tag_base=HANDOVER_TAG,
        piece_bytes=PIECE_BYTES,
    )


def member_of_whole(rank: int, address: str, results: Queue[Any]) -> None:
    """Donors have trained three steps; afterwards everybody trains three more."""
    torch.set_num_threads(1)
    state = a_run(seed=0 if rank in DONORS else rank)
    transport = join(address, 1, rank, 4)
    if rank in DONORS:
        train(state, range(3))
        give(transport, state, rank, DONORS, RECEIVERS)
    else:
        state.load(receive_state(transport, donors=DONORS, tag_base=HANDOVER_TAG))
    loaded = state.fingerprint()
    losses = train(state, range(3, 6))
    results.put((rank, (loaded, losses, state.fingerprint())))
    transport.close()


def member_of_broken(rank: int, address: str, results: Queue[Any]) -> None:
    """Donor 1 dies in the middle; the others form a ring of three and hand over again."""
    torch.set_num_threads(1)
    state = a_run(seed=0 if rank in DONORS else rank)
    train(state, range(3 if rank in DONORS else rank))
    before = state.fingerprint()
    transport = join(address, 1, rank, 4)
    error = ""
    try:
        if rank == 1:
            give(DyingTransport(transport, 60), state, rank, DONORS, RECEIVERS)
        elif rank == 0:
            give(transport, state, rank, DONORS, RECEIVERS)
            transport.recv(torch.zeros(1), 1, 5).wait()  # the next message of the step
        else:
            state.load(receive_state(transport, donors=DONORS, tag_base=HANDOVER_TAG))
    except RingBroken as broken:
        error = type(broken).__name__
    transport.close()
    between = state.fingerprint()

    place = {0: 0, 2: 1, 3: 2}[rank]
    transport = join(address, 2, place, 3)
    if place == 0:
        give(transport, state, 0, [0], [1, 2])
    else:
        state.load(receive_state(transport, donors=[0], tag_base=HANDOVER_TAG))
    results.put((rank, (error, before, between, state.fingerprint())))
    transport.close()


def run_members(
    member: Callable[[int, str, Queue[Any]], None], count: int, answers: int
) -> tuple[dict[int, Any], list[int | None]]:
    """Starts the processes of a ring; returns what they put into the queue, and their exit codes."""
    context = multiprocessing.get_context("forkserver")
    store = RendezvousStore("127.0.0.1")
    results: Queue[Any] = context.Queue()
    members = [context.Process(target=member, args=(rank, store.address, results)) for rank in range(count)]
    try:
        for process in members:
            process.start()
        found = dict(patience.wait(lambda s: results.get(timeout=s), 120) for _ in range(answers))
        for process in members:
            process.join(timeout=60)
        return found, [process.exitcode for process in members]
    finally:
        for process in members:
            process.kill()
        store.close()


def test_two_donors_two_receivers_have_the_same_bits_and_go_on_identically() -> None:
    found, exit_codes = run_members(member_of_whole, 4, 4)
    assert exit_codes == [0, 0, 0, 0]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0] != found[0][2]


def test_a_donor_that_dies_in_the_middle_leaves_the_receivers_state_whole() -> None:
    found, exit_codes = run_members(member_of_broken, 4, 3)
    assert exit_codes == [0, -signal.SIGKILL, 0, 0]
    donor = found[0]
    for rank in RECEIVERS:
        error, before, between, after = found[rank]
        assert error == "RingBroken"
        assert between == before != donor[1]
        assert after == donor[3] == donor[1]
    assert donor[0] == "RingBroken"


def test_an_abort_ends_a_receiver_that_waits_for_a_silent_donor() -> None:
    store = RendezvousStore("127.0.0.1")
    silent = threading.Event()

    def donor() -> None:
        transport = join(store.address, 1, 0, 2)
        silent.wait(60)
        transport.close()

    thread = threading.Thread(target=donor)
    thread.start()
    state = TrainState(nn.Linear(2, 2))
    before = state.fingerprint()
    try:
        transport = join(store.address, 1, 1, 2)
        threading.Timer(0.1, transport.abort).start()
        with pytest.raises(RingAborted):
            state.load(receive_state(transport, donors=[0], tag_base=HANDOVER_TAG))
        assert state.fingerprint() == before
    finally:
        silent.set()
        thread.join()
        store.close()

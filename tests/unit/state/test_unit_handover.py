"""Hand-over by unit: all members at once, over a transport in memory that lets nobody run ahead."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from elastane.state.handover import TAGS, HandoverError
from elastane.state.unit_handover import HandedOver, hand_over
from elastane.state.unit_transfers import Transfer, transfers, units_of
from unit.state.pipelines import (
    COUNT,
    Stock,
    Worker,
    a_plan,
    assert_like_stock,
    begun,
    held_values,
    stages,
    stepped,
    train,
)

TAG_BASE = 1000
PIECE = 64  # so that even these small units are many pieces


class BrokenError(Exception):
    """What the transport raises in these tests."""


class Meeting:
    """A message: as with gloo, neither side's wait returns before the other has posted its part."""

    def __init__(self) -> None:
        self.sent: Any = None
        self.target: torch.Tensor | None = None
        self.done = threading.Event()


class Ring:
    """Messages by (source, destination, tag), matched in order of posting. broken: ends all waits."""

    def __init__(self, damage: Callable[[int, int, torch.Tensor], torch.Tensor] | None = None) -> None:
        self.lock = threading.Lock()
        self.sends: dict[Any, list[Meeting]] = defaultdict(list)
        self.receives: dict[Any, list[Meeting]] = defaultdict(list)
        self.damage = damage or (lambda _src, _tag, tensor: tensor)
        self.tags: set[int] = set()
        self.broken = threading.Event()

    def post(self, key: tuple[int, int, int], sent: Any, target: torch.Tensor | None) -> Meeting:
        with self.lock:
            self.tags.add(key[2])
            mine, theirs = (self.sends, self.receives) if target is None else (self.receives, self.sends)
            if theirs[key]:
                meeting = theirs[key].pop(0)
            else:
                meeting = Meeting()
                mine[key].append(meeting)
            if target is None:
                meeting.sent = sent
            else:
                meeting.target = target
            if meeting.sent is not None and meeting.target is not None:
                assert (
                    meeting.sent.shape == meeting.target.shape and meeting.sent.dtype == meeting.target.dtype
                )
                meeting.target.copy_(meeting.sent)
                meeting.done.set()
            return meeting


class Wait:
    def __init__(self, ring: Ring, meeting: Meeting) -> None:
        self._ring, self._meeting = ring, meeting

    def wait(self) -> None:
        for _ in range(2000):
            if self._meeting.done.wait(0.01):
                return
            if self._ring.broken.is_set():
                raise BrokenError("the ring is broken")
        raise AssertionError("members wait for each other")


class Place:
    def __init__(self, ring: Ring, rank: int) -> None:
        self.ring, self.rank = ring, rank

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Wait:
        if self.ring.broken.is_set():
            raise BrokenError("the ring is broken")
        sent = self.ring.damage(self.rank, tag - TAG_BASE, tensor.clone())
        return Wait(self.ring, self.ring.post((self.rank, peer, tag), sent, None))

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Wait:
        return Wait(self.ring, self.ring.post((peer, self.rank, tag), None, tensor))


def all_hand_over(
    workers: Sequence[Worker], moves: Sequence[Transfer], ring: Ring | None = None
) -> list[HandedOver]:
    """Every member's hand-over at the same time."""
    ring = ring or Ring()
    with ThreadPoolExecutor(len(workers)) as members:
        running = [
            members.submit(
                hand_over, Place(ring, me), worker.state, moves, me, tag_base=TAG_BASE, piece_bytes=PIECE
            )
            for me, worker in enumerate(workers)
        ]
        failures = [future.exception() for future in running]
    for failure in failures:
        if failure is not None:
            raise failure
    assert not any(ring.sends.values()) and not any(ring.receives.values())
    return [future.result() for future in running]


def replan(workers: Sequence[Worker], plan: Any, new: Sequence[int] = ()) -> list[HandedOver]:
    """A change of plan of a whole ring. new: members that have nothing yet."""
    old = [member for member in range(len(workers)) if member not in new]
    results = all_hand_over(workers, transfers(plan, old, new))
    for me, (worker, result) in enumerate(zip(workers, results, strict=True)):
        worker.state.adopt(units_of(plan, me), result.staged)
        worker.units.started()
    return results


def held(workers: Sequence[Worker]) -> list[frozenset[int]]:
    return [worker.state.active for worker in workers]


def test_plans_follow_each_other_and_the_bits_stay() -> None:
    stock, workers = Stock(), begun([3, 7])
    steps = 0
    plans: list[tuple[list[int], list[list[int]], list[list[int]]]] = [
        ([2, 6, 7], [[0], [1], [2]], [[], [], []]),  # a newcomer, and units that move both ways
        ([6, 7], [[2], [0]], [[], []]),  # everything changes places
        ([2, 7], [[0], [1, 3]], [[2], []]),  # replicas, a shadow, a newcomer
        ([7], [[3]], [[0]]),  # one stage; members without any unit
        ([1, 2, 6, 7], [[0], [1], [2], [3]], [[], [], [], []]),
    ]
    for cut, replicas, shadows in plans:
        stock.train(range(steps, steps + 2))
        train(workers, range(steps, steps + 2))
        steps += 2
        assert_like_stock(workers, stock)
        members = max(m for stage in replicas for m in stage) + 1
        new = list(range(len(workers), max(members, len(workers))))
        workers = [*workers, *(Worker(seed=9) for _ in new)]
        replan(workers, a_plan(cut, replicas, shadows=shadows, held=held(workers)), new)
        assert_like_stock(workers, stock)
    stock.train(range(steps, steps + 2))
    train(workers, range(steps, steps + 2))
    assert_like_stock(workers, stock)


def test_all_holders_send_their_part_and_only_what_is_lacking_moves() -> None:
    workers = [*begun([7]), *begun([7]), Worker()]
    train(workers[:2], range(1))
    plan = a_plan([7], [[0, 1, 2]], held=held(workers))
    results = replan(workers, plan, [2])
    total = results[2].received_bytes
    assert results[0].received_bytes == results[1].received_bytes == results[2].sent_bytes == 0
    assert results[0].sent_bytes + results[1].sent_bytes == total
    assert abs(results[0].sent_bytes - results[1].sent_bytes) <= 64
    # Nobody lacks anything: nothing is sent.
    assert all(
        r.sent_bytes == r.received_bytes == 0
        for r in replan(workers, a_plan([7], [[0, 1, 2]], held=held(workers)))
    )


def test_members_exchange_everything_at_once_without_waiting_for_each_other() -> None:
    workers = begun([1, 2, 3, 6, 7])
    train(workers, range(2))
    before = [(held_values(w), stepped(w)) for w in workers]
    plan = a_plan([1, 2, 3, 6, 7], [[4], [3], [2], [1], [0]], held=held(workers))
    ring = Ring()
    results = all_hand_over(workers, transfers(plan, range(5), []), ring)
    assert ring.tags <= set(range(TAG_BASE, TAG_BASE + TAGS))
    for me, (worker, result) in enumerate(zip(workers, results, strict=True)):
        worker.state.adopt(units_of(plan, me), result.staged)
        assert (held_values(worker), stepped(worker)) == before[4 - me]


def test_two_transfers_between_the_same_two_members_stay_apart() -> None:
    workers = [*begun([3, 7]), Worker(), Worker()]
    train(workers[:2], range(2))
    expected = [held_values(w) for w in workers[:2]]
    # Member 0 gives unit 0 to both others, and units 1 and 2 to member 2 alone.
    plan = a_plan([1, 3, 7], [[2, 3], [2], [1]], held=held(workers))
    results = all_hand_over(workers, transfers(plan, [0, 1], [2, 3]))
    workers[2].state.adopt(units_of(plan, 2), results[2].staged)
    workers[3].state.adopt(units_of(plan, 3), results[3].staged)
    assert held_values(workers[2]) == expected[0]
    assert held_values(workers[3]) == {n: v for n, v in expected[0].items() if n.startswith("0.")}


def test_a_donor_that_dies_in_the_middle_leaves_everybody_as_it_was() -> None:
    workers = [*begun([3, 7]), Worker()]
    train(workers[:2], range(2))
    before = [(held_values(w), stepped(w), w.units.held) for w in workers]
    pieces = 0

    def dies(source: int, tag: int, tensor: torch.Tensor) -> torch.Tensor:
        nonlocal pieces
        pieces += source == 0 and tag >= 3
        if pieces == 5:
            ring.broken.set()
            raise BrokenError("the donor is dead")
        return tensor

    ring = Ring(dies)
    plan = a_plan([2, 7], [[2], [0]], held=held(workers))
    with pytest.raises(BrokenError):
        all_hand_over(workers, transfers(plan, [0, 1], [2]), ring)
    assert [(held_values(w), stepped(w), w.units.held) for w in workers] == before


def test_a_damaged_piece_is_noticed() -> None:
    workers = [*begun([7]), Worker()]
    train(workers[:1], range(1))

    def damaged(source: int, tag: int, tensor: torch.Tensor) -> torch.Tensor:
        if tag == 4 and tensor.numel():
            tensor.view(-1)[0] ^= 1
        return tensor

    plan = a_plan([7], [[1]], held=held(workers))
    with pytest.raises(HandoverError, match="received from member 0 is damaged"):
        all_hand_over(workers, transfers(plan, [0], [1]), Ring(damaged))
    assert workers[1].units.held == frozenset() and len(stages(range(1, 8))) == COUNT


def test_donors_that_disagree_are_noticed() -> None:
    sgd = begun([7], lambda p: torch.optim.SGD(p, lr=0.1))
    workers = [*begun([7]), *sgd, Worker()]
    train(workers[:1], range(1))
    plan = a_plan([7], [[2]], held=held(workers))
    with pytest.raises(HandoverError, match="member 1 holds a different state than the first donor"):
        all_hand_over_until_broken(workers, transfers(plan, [0, 1], [2]))


def all_hand_over_until_broken(workers: Sequence[Worker], moves: Sequence[Transfer]) -> None:
    """As `all_hand_over`, but the first failure ends the others' waits, as the master would."""
    ring, first = Ring(), []
    with ThreadPoolExecutor(len(workers)) as members:

        def run(me: int, worker: Worker) -> None:
            try:
                hand_over(Place(ring, me), worker.state, moves, me, tag_base=TAG_BASE, piece_bytes=PIECE)
            except (HandoverError, BrokenError) as error:
                first.append(error)
                ring.broken.set()

        for me, worker in enumerate(workers):
            members.submit(run, me, worker)
    raise first[0]

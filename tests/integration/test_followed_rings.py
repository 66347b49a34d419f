"""A newcomer follows its source over gloo: state, optimizer steps, and the same bits at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.feed_book import FollowError
from elastane.runtime.protocol import Outcome
from elastane.runtime.ring_follower import RingFollower
from elastane.runtime.state_feed import StateFeed
from elastane.runtime.worker_session import WorkerSession
from elastane.state.train_state import TrainState
from elastane_proto.rendezvous import follow_group, group_secret
from elastane_proto.v1 import ring_pb2
from integration.ring_threads import WAIT_SECONDS

KEY = bytes(range(32))
FIRST_STEP = 3
Build = Callable[[nn.Module], torch.optim.Optimizer]


class Session(WorkerSession):
    """A worker without a master: it keeps what it would tell it."""

    def __init__(self, worker: str) -> None:
        super().__init__(WorkerEnvironment(worker_id=worker), device=torch.device("cpu"))
        self.told: list[ring_pb2.AttendRequest] = []
        self.tells = threading.Condition()

    def tell(self, change: Callable[[], Outcome]) -> None:
        def noted() -> Outcome:
            outcome = change()
            with self.tells:
                self.told += outcome.send
                self.tells.notify_all()
            return outcome

        super().tell(noted)

    def reports(self) -> list[ring_pb2.FollowReport]:
        return [one.follow_report for one in self.told if one.HasField("follow_report")]


class Training:
    """A worker's model and what it trains with; different in every process before it has the job's state."""

    def __init__(self, seed: int, build: Build) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), nn.Linear(50, 7))
        self.optimizer = build(self.model)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.state = TrainState(self.model, [self.optimizer], [self.scheduler])

    def step(self, number: int, before: Callable[[], object] = lambda: None) -> None:
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        self.model(inputs).square().sum().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        before()
        self.optimizer.step()
        self.scheduler.step()


class Pair:
    """A source in a ring, and a newcomer that is to follow it from `FIRST_STEP` on."""

    def __init__(self, build: Build) -> None:
        self.store = RendezvousStore("127.0.0.1", KEY)
        self.source, self.newcomer = Session("source"), Session("newcomer")
        self.trained, self.copy = Training(1, build), Training(2, build)
        for number in range(FIRST_STEP):
            self.trained.step(number)
        self.message = ring_pb2.Follow(
            generation=1,
            step=FIRST_STEP,
            newcomer="newcomer",
            source="source",
            store_address=self.store.address,
            rendezvous_secret=group_secret(KEY, follow_group(1, FIRST_STEP)),
        )
        protocol = self.source.protocol
        protocol.prepare(ring_pb2.Prepare(generation=1))
        protocol.entered(1, FIRST_STEP - 1, [])
        self.source._receive(
            ring_pb2.AttendResponse(
                prepared=ring_pb2.Prepared(generation=1, step=FIRST_STEP - 1, follow=self.message)
            )
        )
        self.newcomer._receive(ring_pb2.AttendResponse(follow=self.message))
        self.feed = StateFeed(self.source, self.trained.state)
        self.result: int | Exception | None = None
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def _follow(self) -> None:
        try:
            message = self.newcomer.begin_following()
            assert message is not None
            self.result = RingFollower(self.newcomer, self.copy.state).follow(message, lambda _: None)
        except (FollowError, RingAborted, RingBroken) as error:
            self.result = error

    def train(self, until: Callable[[], object], steps_min: int = 1) -> int:
        """Train until the condition holds; return the number of steps of the source."""
        step = FIRST_STEP
        while step < FIRST_STEP + steps_min or not until():
            assert step < 5000
            step = self.go_on(step)
        return step

    def go_on(self, step: int) -> int:
        """Train one step; return the number of the next one."""
        self.feed.at_boundary(step)
        self.trained.step(step, lambda: self.feed.before_step(step, self.trained.optimizer, ()))
        self.feed.after_step()
        self._wait_until_sent()
        return step + 1

    def _wait_until_sent(self) -> None:
        """These steps are faster than any that are followed."""
        feed = self.feed._feed
        if feed is not None:
            with feed._changed:
                assert feed._changed.wait_for(lambda: not feed._book.is_behind, WAIT_SECONDS)

    def change(self, step: int) -> None:
        """The ring changes: the source is in the middle of nothing."""
        self.source.protocol.prepare(ring_pb2.Prepare(generation=2))
        self.feed.at_boundary(step)
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()

    def compared(self) -> bool:
        return bool(self.newcomer.reports()) and bool(self.source.reports())

    def close(self) -> None:
        self.feed.close()
        for session in (self.source, self.newcomer):
            session.close(None)
        self.newcomer._session_failed(RingAborted("the test has ended"))
        self.thread.join(WAIT_SECONDS)
        self.store.close()


@pytest.fixture
def paired() -> Iterator[Callable[[Build], Pair]]:
    pairs: list[Pair] = []

    def pair(build: Build) -> Pair:
        pairs.append(Pair(build))
        return pairs[-1]

    yield pair
    for one in pairs:
        one.close()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("build", [adamw, sgd])
def test_the_copy_has_the_same_bits_when_the_ring_changes(
    paired: Callable[[Build], Pair], build: Build
) -> None:
    """Also buffers, the schedule and options, which optimizer steps do not change."""
    pair = paired(build)
    step = pair.train(pair.compared, steps_min=5)
    pair.change(step)
    assert pair.result == step
    assert pair.copy.state.fingerprint() == pair.trained.state.fingerprint()
    assert pair.copy.scheduler.state_dict() == pair.trained.scheduler.state_dict()
    (mine,), (its,) = pair.newcomer.reports(), pair.source.reports()
    assert (mine.step, mine.digest, mine.generation) == (its.step, its.digest, 1)
    pair.copy.step(step)
    pair.trained.step(step)
    assert pair.copy.state.fingerprint() == pair.trained.state.fingerprint()


def test_weights_changed_outside_of_the_optimizer_give_another_digest(
    paired: Callable[[Build], Pair],
) -> None:
    pair = paired(adamw)
    trained = pair.trained

    def step(number: int, before: Callable[[], object]) -> None:
        Training.step(trained, number, before)
        with torch.no_grad():
            trained.model[0].weight.mul_(0.5)

    trained.step = step  # type: ignore[method-assign]
    pair.train(pair.compared)
    (mine,), (its,) = pair.newcomer.reports(), pair.source.reports()
    assert mine.step == its.step and mine.digest != its.digest


def clamped(trained: Training) -> None:
    with torch.no_grad():
        trained.model[0].weight.clamp_(-0.01, 0.01)


def clamped_data(trained: Training) -> None:
    trained.model[0].weight.data.clamp_(-0.01, 0.01)


def momentum_reset(trained: Training) -> None:
    for entry in trained.optimizer.state.values():
        entry["exp_avg"].zero_()


def state_reset(trained: Training) -> None:
    trained.optimizer.state.clear()


@pytest.mark.parametrize("write", [clamped, clamped_data, momentum_reset, state_reset])
@pytest.mark.parametrize("steps_after", [0, 1])
def test_what_the_script_writes_after_the_comparison_is_not_believed_to_be_in_the_copy(
    paired: Callable[[Build], Pair], write: Callable[[Training], None], steps_after: int
) -> None:
    """As between two epochs. The newcomer then receives the state like any other."""
    pair = paired(adamw)
    step = pair.train(pair.compared)
    write(pair.trained)
    for _ in range(steps_after):
        step = pair.go_on(step)
    pair.change(step)
    assert isinstance(pair.result, FollowError | RingBroken)


def test_an_optimizer_of_an_unknown_kind_is_not_followed(paired: Callable[[Build], Pair]) -> None:
    class Own(torch.optim.SGD):
        """May do anything."""

    pair = paired(lambda model: Own(model.parameters(), lr=0.1))
    pair.train(pair.source.reports)
    assert "Own" in pair.source.reports()[0].error
    pair.newcomer._receive(ring_pb2.AttendResponse(prepare=ring_pb2.Prepare(generation=2)))
    pair.thread.join(WAIT_SECONDS)
    assert isinstance(pair.result, RingAborted)


def test_a_newcomer_stops_when_the_change_is_not_the_one_it_follows_to(
    paired: Callable[[Build], Pair],
) -> None:
    pair = paired(adamw)
    pair.train(pair.compared)
    pair.newcomer._receive(ring_pb2.AttendResponse(prepare=ring_pb2.Prepare(generation=2)))
    pair.thread.join(WAIT_SECONDS)
    assert isinstance(pair.result, RingAborted)


def test_a_source_that_goes_ends_the_following(paired: Callable[[Build], Pair]) -> None:
    pair = paired(adamw)
    pair.train(pair.compared)
    pair.feed.close()
    pair.thread.join(WAIT_SECONDS)
    assert isinstance(pair.result, FollowError | RingBroken)

"""Decisions at a step boundary, with actions that only record what they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from elastane.collective.ring_errors import RingAborted, RingBroken
from elastane.context import EstContext
from elastane.runtime.blocking import finish
from elastane.runtime.feed_book import FollowError
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.step_boundary import IntervalError, StepBoundary
from elastane.runtime.step_state import Stage, StepState
from elastane_common.errors import EXIT_START_ANEW
from elastane_proto.v1 import ring_pb2

MEMBERS = ("w0", "w1", "w2")


@dataclass
class Saved:
    name: str = "step-4"
    step: int = 4
    contexts: dict[int, dict[str, bytes]] = field(default_factory=lambda: {0: {"item/a": b"saved"}})
    ready_order: tuple[int, ...] = ()
    rejected: tuple[str, ...] = ("step-5: damaged",)


@dataclass
class Recorder:
    """Actions of a worker. restored: the checkpoint that `restore` finds. fails: raised by `form`.

    superseded: another change of the ring is announced while state is received. waits: how often the ring
    changes while others evaluate.
    """

    protocol: WorkerProtocol
    requests: list[ring_pb2.Load | ring_pb2.Go | ring_pb2.Follow] = field(default_factory=list)
    restored: Saved | None = None
    fails: Exception | None = None
    superseded: bool = False
    refusal: str = ""
    epochs_begin: bool = False
    changes: bool = False
    waits: int = 0
    done: list[str] = field(default_factory=list)
    sent: list[ring_pb2.AttendRequest] = field(default_factory=list)

    def take_back(self) -> bool:
        is_lost = self.protocol.take_back()
        if is_lost:
            self.done.append("undo")
        return is_lost

    def explain(self) -> None:
        self.done.append("explain")

    def tell(self, change: Callable[[], Outcome]) -> None:
        self.sent += change().send

    async def wait_for(self, condition: Callable[[], object]) -> None:
        if self.changes:
            self.protocol.prepare(ring_pb2.Prepare(generation=self.protocol.fenced + 1))
        step = self.protocol.applied_step
        self.protocol.interval = ring_pb2.IntervalDecided(step=step, refusal=self.refusal)
        assert condition()

    def begin_following(self) -> ring_pb2.Follow | None:
        return self.protocol.begin_following()

    async def follow(self, message: ring_pb2.Follow) -> int:
        self.done.append(f"follow {message.source}")
        if self.fails is not None:
            raise self.fails
        return message.step + 2

    def feed(self, step: int) -> None:
        pass

    async def next_request(self) -> ring_pb2.Load | ring_pb2.Go | ring_pb2.Follow | None:
        return self.requests.pop(0) if self.requests else None

    def set_between(self, between: bool) -> None:
        pass

    def begin_replace(self, generation: int) -> bool:
        return self.protocol.begin_replace(generation)

    def begins_epoch(self, step: int) -> bool:
        return self.epochs_begin

    async def all_wait(self) -> bool:
        self.waits -= 1
        return self.waits < 0

    def interval_report(self, generation: int, step: int) -> ring_pb2.IntervalReport:
        self.done.append("report the interval")
        return ring_pb2.IntervalReport(generation=generation, step=step)

    def start_anew(self, why: str) -> NoReturn:
        self.done.append(why)
        raise SystemExit(EXIT_START_ANEW)

    def take_checkpoint_request(self) -> ring_pb2.Checkpoint | None:
        message, self.protocol.checkpoint = self.protocol.checkpoint, None
        return message

    def save(self, message: ring_pb2.Checkpoint) -> None:
        self.done.append(f"save {message.checkpoint}")

    async def restore(self, message: ring_pb2.Load) -> Saved | None:
        return self.restored

    def loaded(self, loaded: ring_pb2.Loaded) -> None:
        self.done.append(f"loaded {loaded.step}")

    def drop_step(self) -> None:
        self.done.append("drop")

    async def form(self, go: ring_pb2.Go, me: int) -> None:
        self.done.append(f"form as {me}")
        if self.fails is not None:
            raise self.fails

    async def send_state(self, go: ring_pb2.Go, donor: int) -> None:
        self.done.append(f"send as {donor}")

    async def receive_state(self, go: ring_pb2.Go) -> None:
        self.done.append("receive")
        if self.superseded:
            self.protocol.prepare(ring_pb2.Prepare(generation=go.generation + 1))

    async def adopt_state(self, go: ring_pb2.Go) -> None:
        self.done.append("adopt")

    def enter(self, go: ring_pb2.Go, me: int) -> bool:
        self.protocol.entered(go.generation, go.resume_step, [])
        return True

    def start_ests(self, step: int, go: ring_pb2.Go | None) -> None:
        self.done.append(f"start at {step}")


def made(worker: str = "w0") -> tuple[Recorder, StepBoundary, HostedContexts]:
    protocol, contexts = WorkerProtocol(), HostedContexts()
    protocol.prepare(ring_pb2.Prepare(generation=2))
    actions = Recorder(protocol)
    initial = {0: EstContext(0, 0, {"item/a": b"initial"})}
    return actions, StepBoundary(worker, protocol, contexts, initial, actions), contexts


def go(*, donors: tuple[int, ...] = (0, 2), receivers: tuple[int, ...] = (1,)) -> ring_pb2.Go:
    message = ring_pb2.Go(generation=2, resume_step=7, donors=donors, receivers=receivers)
    for name in MEMBERS:
        message.members.add(worker_id=name)
    message.contexts.add(virtual_rank=0, step=7)
    return message


@pytest.mark.parametrize("failure", [None, RingAborted("over"), FollowError("no room")])
def test_a_newcomer_that_has_followed_holds_the_state_of_the_step_it_reached(
    failure: Exception | None,
) -> None:
    actions, boundary, _ = made()
    request = ring_pb2.Follow(generation=2, step=5, source="w2")
    actions.fails, actions.requests = failure, [request]
    actions.protocol.follow_requested(request)
    finish(boundary.settle())
    assert actions.done == ["follow w2"]
    assert not boundary.pristine
    (ready,) = (message.ready for message in actions.protocol.prepare(ring_pb2.Prepare(generation=3)).send)
    assert (ready.applied_step, ready.holds_state) == ((7, True) if failure is None else (0, False))


@pytest.mark.parametrize(
    "worker, receivers, moved",
    [
        ("w0", (1,), ["send as 0"]),
        ("w2", (1,), ["send as 1"]),
        ("w1", (1,), ["receive", "adopt"]),
        ("w0", (), []),
    ],
)
def test_who_sends_and_who_receives(worker: str, receivers: tuple[int, ...], moved: list[str]) -> None:
    actions, boundary, contexts = made(worker)
    actions.requests = [go(receivers=receivers)]
    finish(boundary.settle())
    assert actions.done == ["drop", f"form as {MEMBERS.index(worker)}", *moved, "start at 7"]
    assert boundary.pristine == ("adopt" not in moved)
    assert actions.protocol.generation == 2 and contexts.now[0].step == 7


def test_state_that_was_received_for_a_ring_that_is_over_is_not_adopted() -> None:
    actions, boundary, _ = made("w1")
    actions.requests, actions.superseded = [go()], True
    finish(boundary.settle())
    assert actions.done == ["drop", "form as 1", "receive"]
    assert boundary.pristine and actions.protocol.generation == 0


def test_a_group_that_does_not_form_is_reported() -> None:
    actions, boundary, _ = made()
    actions.requests, actions.fails = [go()], RingBroken("connection refused")
    finish(boundary.settle())
    assert actions.done == ["drop", "form as 0"]
    assert [message.ring_broken.error for message in actions.sent] == ["connection refused"]


@pytest.mark.parametrize("restored, step, part", [(None, 0, b"initial"), (Saved(), 4, b"saved")])
def test_what_is_loaded_is_reported_with_its_contexts(restored: Saved | None, step: int, part: bytes) -> None:
    actions, boundary, _ = made()
    actions.requests, actions.restored = [ring_pb2.Load(generation=2)], restored
    finish(boundary.settle())
    (message,) = actions.sent
    assert actions.done == [f"loaded {step}"] and message.loaded.step == step
    assert [context.items["a"] for context in message.loaded.contexts] == [part]
    assert list(message.loaded.rejected) == (["step-5: damaged"] if restored else [])
    assert boundary.pristine == (restored is None)


def test_a_process_that_has_trained_does_not_begin_anew_by_itself() -> None:
    actions, boundary, _ = made()
    boundary.pristine, actions.requests = False, [ring_pb2.Load(generation=2)]
    with pytest.raises(SystemExit) as ended:
        finish(boundary.settle())
    assert ended.value.code == EXIT_START_ANEW and not actions.sent
    assert actions.done == ["there is no checkpoint to go back to, and this process has trained"]


def test_checkpoints_are_saved_after_the_code_between_epochs_and_at_their_step_alone() -> None:
    actions, boundary, contexts = made()
    actions.protocol.entered(2, 0, [])
    contexts.now, actions.epochs_begin = {0: EstContext(0, 0)}, True
    for step in (0, 3):
        actions.protocol.checkpoint = ring_pb2.Checkpoint(checkpoint=f"of-{step}", step=step)
        finish(boundary.settle())
    assert actions.done == ["report the interval", "start at 0", "save of-0"]


def test_the_code_between_epochs_is_reported_when_nobody_evaluates_any_more() -> None:
    actions, boundary, contexts = made()
    actions.protocol.entered(2, 0, [])
    contexts.now, actions.epochs_begin, actions.waits = {0: EstContext(0, 0)}, True, 1
    finish(boundary.settle())
    assert actions.waits == -1 and actions.done == ["report the interval", "start at 0"]


def test_before_the_loop_the_code_between_epochs_has_not_ended() -> None:
    actions, boundary, contexts = made()
    contexts.now, actions.epochs_begin = {0: EstContext(0, 0)}, True
    finish(boundary.settle(in_loop=False))
    assert not actions.done


def test_draws_that_the_master_refuses_end_the_script() -> None:
    actions, boundary, contexts = made()
    contexts.now, actions.epochs_begin, actions.refusal = {0: EstContext(0, 0)}, True, "uneven draws"
    with pytest.raises(IntervalError, match="uneven draws"):
        finish(boundary.settle())


def test_an_action_that_does_not_block_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="suspended"):
        finish(asyncio.sleep(0))


def test_after_a_step_that_is_ahead_nothing_is_done_before_it_is_decided() -> None:
    actions, boundary, _ = made()
    protocol = actions.protocol
    protocol.entered(2, 7, [])
    protocol.attempts.ahead = StepState(7, Stage.AHEAD, body_ended=True)
    protocol.checkpoint = ring_pb2.Checkpoint(checkpoint="c", step=7)
    finish(boundary.settle())
    assert actions.done == [] and protocol.checkpoint is not None
    # The ring changes: it is undone before anything else.
    protocol.prepare(ring_pb2.Prepare(generation=3))
    message = go()
    message.generation = 3
    actions.requests = [message]
    finish(boundary.settle())
    assert actions.done[:2] == ["undo", "save c"] and protocol.attempts.ahead is None


def test_the_parts_of_the_state_are_told_after_it_is_undone() -> None:
    actions, boundary, _ = made()
    protocol = actions.protocol
    protocol.entered(2, 7, [])
    protocol.attempts.ahead = StepState(7, Stage.AHEAD, body_ended=True)
    protocol.explain_requested(ring_pb2.Explain(generation=2, step=7))
    message = go()
    message.generation = 3
    actions.requests, actions.changes = [message], True
    finish(boundary.settle())
    assert actions.done[:2] == ["undo", "explain"]

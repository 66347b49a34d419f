"""Decisions within a pipeline's step: reported once the sums are there, applied if it was prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from elastane.context import EstContext, Parts
from elastane.runtime.blocking import finish
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.pipeline_body import PipelineBody
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.step_state import Stage, StepState
from elastane.runtime.turn import Turn
from elastane_common.errors import StepError
from elastane_proto.v1 import ring_pb2

GENERATION, STEP = 2, 7


@dataclass(frozen=True)
class Samples:
    start: int
    end: int
    samples: tuple[int, ...]


@dataclass
class Recorder:
    """Actions of a worker. decision: the master's messages that end the wait at the optimizer's step."""

    protocol: WorkerProtocol
    failure: Exception | None = None
    drawn: bytes = b"after"
    decision: Callable[[], object] = lambda: None
    done: list[str] = field(default_factory=list)
    sent: list[ring_pb2.AttendRequest] = field(default_factory=list)

    def tell(self, change: Callable[[], Outcome]) -> None:
        self.sent += change().send

    async def wait_for(self, condition: Callable[[], object]) -> None:
        self.done.append("wait")
        self.protocol.prepare(ring_pb2.Prepare(generation=GENERATION + 1))
        assert condition()

    async def wait_for_decision(self, turn: Turn, is_decided: Callable[[], bool]) -> None:
        self.decision()
        assert is_decided()

    def means_to_go_ahead(self, turn: Turn) -> bool:
        return False

    def begin_ahead(self, turn: Turn) -> bool:
        return False

    def undo(self) -> bool:
        return False

    def at_late_boundary(self, turn: Turn) -> None:
        """Nothing is asked for."""

    def begin_step(self) -> StepState:
        return self.protocol.begin_step()

    def lose_step(self) -> None:
        self.tell(self.protocol.lose_step)

    def begin_apply(self, turn: Turn) -> bool:
        return self.protocol.begin_apply(turn.step)

    def states(self) -> Parts:
        return {"rng/python": self.drawn}

    def loader_parts(self, turn: Turn) -> Parts:
        return turn.loader_parts

    def logged(self, turn: Turn) -> dict[str, float]:
        return dict(turn.metrics)

    def batch_ended(self, turn: Turn, states: Parts) -> None: ...

    def check_backward(self, turn: Turn) -> None: ...

    def begin_exchange(self, turn: Turn) -> None:
        self.done.append("reported")

    def decides_layout(self, step: int) -> bool:
        return False

    def ready_order(self) -> tuple[int, ...]:
        return ()

    def digests(self) -> None: ...

    def drop(self) -> None:
        self.done.append("drop")
        self.failure = None

    def complete(self, turn: Turn) -> None:
        self.done.append("complete")

    def applied(self, step: int) -> None:
        self.done.append("applied")

    @property
    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("message") for message in self.sent]


class Worker:
    """A worker in a ring, at STEP, that is the home of two ESTs."""

    def __init__(self) -> None:
        self.protocol = WorkerProtocol()
        self.protocol.prepare(ring_pb2.Prepare(generation=GENERATION))
        self.protocol.entered(GENERATION, STEP, [])
        contexts = HostedContexts()
        contexts.take({rank: EstContext(rank, STEP, {"rng/python": b"0"}) for rank in (0, 1)}, STEP, None)
        self.contexts, self.actions = contexts, Recorder(self.protocol)
        self.body = PipelineBody(self.protocol, contexts, 5, self.actions)
        self.state = self.body.begin()
        self.turns = Turn.of_step(self.state, (0, 1))

    def compute(self) -> None:
        """All mini-batches went through, and the sums are complete."""
        for turn in self.turns:
            turn.taken = [Samples(turn.rank, turn.rank + 1, (turn.rank,))]
            turn.states, turn.metrics = {"rng/python": b"after"}, {"loss": 1.0 + turn.rank}
        self.body.computed(self.turns)

    def apply(self) -> bool:
        return finish(self.body.begin_apply(self.turns[-1]))

    def prepared(self) -> None:
        self.protocol.prepared(ring_pb2.Prepared(generation=GENERATION, step=STEP))

    def change(self, prepared_until: int) -> None:
        prepare = ring_pb2.Prepare(generation=GENERATION + 1, prepared_until=prepared_until)
        self.actions.sent += self.protocol.prepare(prepare).send


def test_a_step_is_reported_with_all_home_ests_when_the_optimizer_steps() -> None:
    worker = Worker()
    worker.compute()
    assert worker.actions.sent == [], "the script may still log values"
    worker.turns[0].metrics["norm"] = 2.0
    worker.actions.decision = worker.prepared
    assert worker.apply() and worker.apply()
    (report,) = [message.step_report for message in worker.actions.sent]
    assert [task.virtual_rank for task in report.tasks] == [0, 1]
    assert dict(report.tasks[0].metrics) == {"loss": 1.0, "norm": 2.0}
    assert finish(worker.body.end())
    assert worker.protocol.applied_step == STEP + 1
    assert worker.contexts.now[0].parts["rng/python"] == b"after"


def test_the_optimizer_comes_after_the_pipe() -> None:
    with pytest.raises(StepError, match=r"optimizer.step\(\) came before pipe\(batch\) in step 7"):
        Worker().apply()


def test_a_body_without_the_optimizer_is_an_error() -> None:
    worker = Worker()
    worker.compute()
    with pytest.raises(StepError, match="step 7 ended without") as raised:
        finish(worker.body.end())
    assert "pipe(batch)" in raised.value.hint and worker.actions.sent == []


def test_numbers_drawn_after_the_pipe_are_an_error() -> None:
    worker = Worker()
    worker.compute()
    worker.actions.decision, worker.actions.drawn = worker.prepared, b"more"
    assert worker.apply()
    with pytest.raises(StepError, match="random numbers were drawn"):
        finish(worker.body.end())


def test_a_reported_step_that_is_prepared_is_applied_before_ready() -> None:
    worker = Worker()
    worker.compute()
    worker.actions.decision = lambda: worker.change(STEP + 1)
    assert worker.apply() and worker.actions.kinds == ["step_report"]
    assert finish(worker.body.end())
    assert worker.actions.kinds == ["step_report", "ready"]
    assert worker.actions.sent[-1].ready.applied_step == STEP + 1


def test_a_reported_step_that_is_not_prepared_is_lost() -> None:
    worker = Worker()
    worker.compute()
    worker.actions.decision = lambda: worker.change(STEP)
    assert not worker.apply() and worker.actions.kinds == ["step_report", "ready"]
    assert not finish(worker.body.end())
    assert worker.protocol.applied_step == STEP and worker.contexts.now[0].parts["rng/python"] == b"0"


def test_a_step_that_is_not_reported_is_lost_though_others_are_prepared() -> None:
    worker = Worker()
    worker.compute()
    worker.change(STEP + 1)
    assert not worker.apply()
    assert worker.actions.kinds == ["ready"] and worker.actions.sent[0].ready.applied_step == STEP
    assert worker.state.stage is Stage.LOST


def test_a_broken_ring_is_told_and_the_step_begins_again() -> None:
    worker = Worker()
    worker.actions.failure = RuntimeError("connection closed by peer")
    finish(worker.body.give_up())
    assert worker.actions.kinds == ["ring_broken"] and worker.actions.done == ["drop", "wait"]
    assert not worker.apply(), "a lost step is not applied"

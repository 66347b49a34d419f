"""Decisions within a step, with actions that only record what they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from elastane.context import EstContext, Parts
from elastane.runtime.blocking import finish
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.step_body import DRAWN_IN_BACKWARD, StepBody
from elastane.runtime.step_state import Stage, StepState
from elastane.runtime.turn import Turn
from elastane_common.errors import StepError
from elastane_proto.v1 import ring_pb2

GENERATION, STEP, STEPS_PER_EPOCH = 2, 7, 5


@dataclass(frozen=True)
class Samples:
    start: int
    end: int
    samples: tuple[int, ...]


@dataclass
class Recorder:
    """Actions of a worker. drawn: number of random numbers drawn so far; decision: the master's messages that
    end the wait at the optimizer's step."""

    protocol: WorkerProtocol
    drawn: int = 0
    failure: Exception | None = None
    layout_step: int = 0
    goes_ahead: bool = True
    compared: tuple[int, int] | None = None
    decision: Callable[[], object] = lambda: None
    done: list[str] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    sent: list[ring_pb2.AttendRequest] = field(default_factory=list)

    def tell(self, change: Callable[[], Outcome]) -> None:
        self.sent += change().send

    async def wait_for(self, condition: Callable[[], object]) -> None:
        self.done.append("wait")
        self.protocol.prepare(ring_pb2.Prepare(generation=GENERATION + 1))
        assert condition()

    async def wait_for_decision(self, turn: Turn, is_decided: Callable[[], bool]) -> None:
        self.done.append("wait for the decision")
        if not is_decided():
            self.decision()
        assert is_decided()

    def begin_step(self) -> StepState:
        return self.protocol.begin_step()

    def lose_step(self) -> None:
        self.protocol.lose_step()

    def begin_apply(self, turn: Turn) -> bool:
        return self.protocol.begin_apply(turn.step)

    def means_to_go_ahead(self, turn: Turn) -> bool:
        return self.goes_ahead

    def begin_ahead(self, turn: Turn) -> bool:
        begins = self.protocol.begin_ahead(turn.step)
        if begins:
            self.done.append("ahead")
        return begins

    def undo(self) -> bool:
        is_lost = self.protocol.take_back()
        if is_lost:
            self.done.append("undo")
        return is_lost

    def at_late_boundary(self, turn: Turn) -> None:
        self.late.append(turn.step)

    def states(self) -> Parts:
        return {"rng/python": b"%d" % self.drawn}

    def loader_parts(self, turn: Turn) -> Parts:
        return {"item/@place": b"%d" % turn.taken[-1].end}

    def logged(self, turn: Turn) -> dict[str, float]:
        return {name: float(value) for name, value in turn.metrics.items()}

    def batch_ended(self, turn: Turn, states: Parts) -> None:
        self.done.append(f"end {turn.rank}.{turn.micro}")

    def check_backward(self, turn: Turn) -> None:
        self.done.append("check")

    def begin_exchange(self, turn: Turn) -> None:
        self.done.append("exchange")

    def decides_layout(self, step: int) -> bool:
        return step == self.layout_step

    def ready_order(self) -> tuple[int, ...]:
        return (1, 0)

    def digests(self) -> tuple[int, int] | None:
        return self.compared

    def drop(self) -> None:
        self.done.append("drop")

    def complete(self, turn: Turn) -> None:
        self.done.append("complete")

    def applied(self, step: int) -> None:
        self.done.append("applied")

    def prepare(self) -> None:
        self.protocol.prepared(ring_pb2.Prepared(generation=GENERATION, step=self.protocol.applied_step))

    def change(self) -> None:
        self.sent += self.protocol.prepare(ring_pb2.Prepare(generation=GENERATION + 1)).send

    @property
    def reports(self) -> list[ring_pb2.StepReport]:
        return [message.step_report for message in self.sent if message.HasField("step_report")]

    @property
    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("message") for message in self.sent]


@dataclass
class Worker:
    """A worker in a ring, at STEP, that hosts `ranks`."""

    ranks: tuple[int, ...] = (0, 1)
    batches: int = 1
    late: bool | None = False
    steps_per_epoch: int = STEPS_PER_EPOCH
    actions: Recorder = field(init=False)
    body: StepBody[Turn] = field(init=False)
    turns: list[Turn] = field(init=False)
    is_early: bool = field(init=False)

    def __post_init__(self) -> None:
        self.protocol = WorkerProtocol(changes_wait=True)
        self.protocol.prepare(ring_pb2.Prepare(generation=GENERATION))
        self.protocol.entered(GENERATION, STEP, [])
        self.contexts = HostedContexts()
        hosted = {rank: EstContext(rank, STEP, {"rng/python": b"0", "item/a": b"a"}) for rank in self.ranks}
        self.contexts.take(hosted, STEP, None)
        self.actions = Recorder(self.protocol)
        self.body = StepBody(
            self.protocol, self.contexts, self.steps_per_epoch, self.actions, reports_late=self.late
        )

    def begin(self) -> None:
        self.turns = Turn.of_step(self.body.begin(), self.contexts.now, self.batches)

    def run(self, *, in_backward: int = 0) -> str:
        """Run a step up to its last gradient; return why nobody may apply it.

        in_backward: number of random numbers drawn in the last backward.
        """
        self.begin()
        why, position = "", itertools.count()
        for turn in self.body.mini_batches(self.turns):
            start = next(position)
            turn.taken.append(Samples(start, start + 1, (start,)))
            self.actions.drawn += 1
            if not turn.last:
                self.body.end_batch(turn)
                continue
            self.is_early = self.body.first_gradient()
            self.actions.drawn += in_backward
            why = self.body.last_gradient()
        return why

    def apply(self) -> bool:
        return finish(self.body.begin_apply(self.turns[-1]))

    def end(self) -> bool:
        return finish(self.body.end())

    def train(self, *, in_backward: int = 0) -> str:
        """Run and apply a step; return why nobody may apply it."""
        self.actions.decision = self.actions.prepare
        why = self.run(in_backward=in_backward)
        assert why or (self.apply() and self.end())
        return why


# ---------------------------------------------------------------- what is reported


def test_a_report_has_what_the_step_did_to_each_est() -> None:
    worker = Worker(batches=2)
    worker.actions.compared = (11, 12)
    worker.run()
    (report,) = worker.actions.reports
    assert (report.generation, report.step, report.epoch) == (GENERATION, STEP, 1)
    assert [(task.virtual_rank, task.range.start, task.range.end) for task in report.tasks] == [
        (0, 0, 2),
        (1, 2, 4),
    ]
    assert [list(task.samples) for task in report.tasks] == [[0, 1], [2, 3]]
    found = [EstContext.from_proto(message) for message in report.contexts]
    assert [(one.step, one.parts) for one in found] == [
        (STEP + 1, {"rng/python": b"2", "item/@place": b"2"}),
        (STEP + 1, {"rng/python": b"4", "item/@place": b"4"}),
    ]
    assert (report.state_digest, report.settings_digest) == (11, 12)
    assert worker.actions.done[:3] == ["end 0.0", "end 0.1", "end 1.0"]


def test_logged_values_are_part_of_the_est_task() -> None:
    worker = Worker(ranks=(3,))
    worker.begin()
    (turn,) = worker.body.mini_batches(worker.turns)
    turn.taken.append(Samples(0, 1, (0,)))
    turn.metrics["loss"] = 0.5
    worker.body.first_gradient()
    assert dict(worker.actions.reports[0].tasks[0].metrics) == {"loss": 0.5}


def test_without_anybody_to_compare_with_a_report_has_no_digests() -> None:
    worker = Worker()
    worker.run()
    (report,) = worker.actions.reports
    assert not report.HasField("state_digest") and not report.HasField("settings_digest")


@pytest.mark.parametrize(
    ("ranks", "layout_step", "order"), [((0, 1), STEP, [1, 0]), ((1, 2), STEP, []), ((0, 1), STEP + 1, [])]
)
def test_the_host_of_est_0_reports_the_order_that_decides_the_layout(
    ranks: tuple[int, ...], layout_step: int, order: list[int]
) -> None:
    worker = Worker(ranks)
    worker.actions.layout_step = layout_step
    worker.run()
    assert list(worker.actions.reports[0].extra.ready_order) == order


def test_a_guest_leaves_no_trace() -> None:
    worker = Worker(ranks=(0,))
    worker.begin()
    guest = Turn(worker.turns[0].state, 5, 0, ends=False, guest=EstContext(5, STEP))
    for turn in worker.body.mini_batches([guest, *worker.turns]):
        turn.taken.append(Samples(0, 1, (0,)))
        if not turn.last:
            worker.body.end_batch(turn)
    worker.body.first_gradient()
    assert [task.virtual_rank for task in worker.actions.reports[0].tasks] == [0]


# ---------------------------------------------------------------- when it is reported


@pytest.mark.parametrize(
    ("late", "layout_step", "is_early"),
    [(False, 0, True), (None, 0, False), (True, 0, False), (False, STEP, False)],
    ids=["draws nothing", "not known", "on a GPU", "the order is not complete"],
)
def test_a_step_is_reported_at_the_first_gradient_if_its_outcome_is_known(
    late: bool | None, layout_step: int, is_early: bool
) -> None:
    worker = Worker(ranks=(0,), late=late)
    worker.actions.layout_step = layout_step
    worker.begin()
    for turn in worker.body.mini_batches(worker.turns):
        turn.taken.append(Samples(0, 1, (0,)))
    assert worker.body.first_gradient() is is_early
    assert len(worker.actions.reports) == is_early == worker.protocol.attempts.newest.delays_ready
    assert not worker.body.last_gradient()
    assert len(worker.actions.reports) == 1 and not worker.protocol.attempts.newest.delays_ready
    assert worker.actions.done == ["check", "end 0.0", "exchange"]


@pytest.mark.parametrize("drawn", [0, 1])
def test_the_first_backward_shows_whether_it_draws(drawn: int) -> None:
    worker, early = Worker(late=None), []
    for _ in range(3):
        assert not worker.train(in_backward=drawn)
        early.append(worker.is_early)
        assert worker.contexts.now[1].parts["rng/python"] == b"%d" % worker.actions.drawn
    assert early == ([False] * 3 if drawn else [False, True, True])


def test_an_early_report_that_turns_out_wrong_is_applied_by_nobody() -> None:
    worker = Worker()
    assert worker.run(in_backward=1) == DRAWN_IN_BACKWARD
    worker.actions.failure = RuntimeError(DRAWN_IN_BACKWARD)
    assert not worker.apply() and not worker.end()
    assert worker.actions.kinds == ["step_report", "ring_broken"]
    assert worker.contexts.now[1].parts["rng/python"] == b"0"
    # From then on steps are reported when their outcome is known.
    worker.protocol.entered(GENERATION + 1, STEP, [])
    worker.actions.drawn = 0
    worker.actions.failure = None
    assert not worker.run(in_backward=1)
    assert EstContext.from_proto(worker.actions.reports[-1].contexts[1]).parts["rng/python"] == b"3"


def test_a_change_during_the_last_backward_is_answered_at_its_end() -> None:
    worker = Worker(ranks=(0,))
    worker.begin()
    for turn in worker.body.mini_batches(worker.turns):
        turn.taken.append(Samples(0, 1, (0,)))
    worker.body.first_gradient()
    worker.actions.change()
    assert worker.actions.kinds == ["step_report"]
    worker.body.last_gradient()
    assert worker.actions.kinds == ["step_report", "ready"]


# ---------------------------------------------------------------- when it is applied, or dropped


def test_a_prepared_step_is_applied_with_the_contexts_after_it() -> None:
    worker = Worker()
    worker.run()
    worker.actions.decision = worker.actions.prepare
    assert not finish(worker.body.begin_apply(worker.turns[0]))  # not the worker's last turn
    assert "wait for the decision" not in worker.actions.done
    assert worker.apply() and worker.apply()  # of two optimizers
    assert worker.actions.done.count("wait for the decision") == 1
    assert worker.protocol.attempts.newest.stage is Stage.PREPARED
    assert worker.end() and worker.actions.done[-2:] == ["complete", "applied"]
    assert worker.protocol.applied_step == STEP + 1
    assert worker.contexts.now is worker.contexts.known
    assert [context.step for context in worker.contexts.now.values()] == [STEP + 1] * 2


def test_a_step_whose_ring_changes_is_lost_at_the_optimizer() -> None:
    worker = Worker()
    worker.run()
    worker.actions.decision = worker.actions.change
    assert not worker.apply() and not worker.apply()  # of two optimizers
    assert worker.protocol.attempts.newest.stage is Stage.LOST
    assert not worker.end() and worker.actions.done[-1] == "drop"
    assert worker.protocol.applied_step == STEP and worker.contexts.now[0].step == STEP


@pytest.mark.parametrize("after", [0, 1, 2])
def test_no_mini_batch_begins_in_a_ring_that_changes(after: int) -> None:
    worker = Worker(batches=2)
    worker.begin()
    if not after:
        worker.actions.change()
    ran = 0
    for ran, turn in enumerate(worker.body.mini_batches(worker.turns), 1):
        turn.taken.append(Samples(0, 1, (0,)))
        if ran == after:
            worker.actions.change()
    assert ran == after and worker.protocol.attempts.newest.stage is Stage.LOST
    assert not worker.end() and not worker.actions.reports
    assert worker.actions.done == ["drop"]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_ring_that_breaks_is_reported_unless_it_is_known_to_change(is_known: bool) -> None:
    worker = Worker()
    worker.run()
    worker.actions.failure = ConnectionError("connection closed by peer")
    if is_known:
        worker.actions.change()
    assert not worker.apply() and not worker.end()
    assert "wait for the decision" not in worker.actions.done
    assert worker.actions.done[-2:] == ["drop", "wait"]
    broken = [message.ring_broken for message in worker.actions.sent if message.HasField("ring_broken")]
    assert [(one.step, one.error) for one in broken] == (
        [] if is_known else [(STEP, "connection closed by peer")]
    )


def test_a_step_is_not_begun_while_another_is_in_flight() -> None:
    worker = Worker()
    worker.run()
    with pytest.raises(RuntimeError, match="step 7 cannot begin"):
        worker.begin()


# ---------------------------------------------------------------- mistakes of the script


def test_an_optimizer_that_steps_before_backward_is_refused() -> None:
    worker = Worker(ranks=(0,))
    worker.begin()
    for _ in worker.body.mini_batches(worker.turns):
        pass
    with pytest.raises(StepError, match=r"optimizer.step\(\) came before backward\(\) in step 7"):
        worker.apply()


def test_a_body_without_an_optimizer_step_is_refused_and_dropped() -> None:
    worker = Worker()
    worker.run()
    with pytest.raises(StepError, match=r"step 7 ended without optimizer.step\(\)"):
        worker.end()
    assert worker.actions.done[-1] == "drop" and worker.protocol.attempts.newest.stage is Stage.LOST


def test_numbers_drawn_after_backward_are_refused_before_anything_is_adopted() -> None:
    worker = Worker()
    worker.run()
    worker.actions.decision = worker.actions.prepare
    assert worker.apply()
    worker.actions.drawn += 1
    with pytest.raises(StepError, match=r"random numbers were drawn after backward\(\) in step 7"):
        worker.end()
    assert "complete" not in worker.actions.done and worker.contexts.now[0].step == STEP


def test_a_registered_object_that_changes_after_backward_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    worker.run()
    worker.actions.decision = worker.actions.prepare
    assert worker.apply()
    states = worker.actions.states() | {"item/seen": b"2", "item/@loader": b"3"}
    monkeypatch.setattr(worker.actions, "states", lambda: states)
    with pytest.raises(StepError, match=r"^seen, registered with the job, changed after backward\(\)"):
        worker.end()
    assert "complete" not in worker.actions.done


# ---------------------------------------------------------------- applied ahead of its Prepared


def ahead(**given: Any) -> Worker:
    """A worker that has applied the second step of its ring ahead, up to the end of the step's body."""
    worker = Worker(**given, steps_per_epoch=100)
    worker.train()
    worker.body.total_steps = STEP + 9
    worker.actions.decision = lambda: None
    worker.run()
    assert worker.apply() and worker.end()
    assert worker.protocol.attempts.ahead is not None and worker.protocol.attempts.ahead.step == STEP + 1
    return worker


def prepared(step: int, **more: Any) -> ring_pb2.Prepared:
    return ring_pb2.Prepared(generation=GENERATION, step=step, **more)


def test_a_step_is_applied_ahead_and_the_next_one_runs() -> None:
    worker = ahead()
    assert worker.actions.done[-3:] == ["ahead", "complete", "applied"]
    assert worker.protocol.applied_step == STEP + 1 and worker.contexts.now[0].step == STEP + 2
    worker.run()
    assert worker.turns[0].step == STEP + 2
    # Nothing of it leaves the process: neither its report, nor what it has applied.
    assert [report.step for report in worker.actions.reports] == [STEP, STEP + 1]
    assert worker.protocol.heartbeat().heartbeat.applied_step == STEP + 1
    assert worker.protocol.hello().applied_step == STEP + 1
    sent = worker.protocol.prepared(prepared(STEP + 1)).send
    assert [message.step_report.step for message in sent] == [STEP + 2]
    assert worker.protocol.applied_step == STEP + 2 and worker.protocol.attempts.ahead is None
    worker.actions.decision = worker.actions.prepare
    assert worker.apply() and worker.end()


@pytest.mark.parametrize("is_early", [False, True])
def test_a_report_that_was_held_back_keeps_ready_waiting_if_its_backward_runs(is_early: bool) -> None:
    worker = ahead(ranks=(0,))
    worker.begin()
    for turn in worker.body.mini_batches(worker.turns):
        turn.taken.append(Samples(0, 1, (0,)))
    assert worker.body.first_gradient()
    if not is_early:
        worker.body.last_gradient()
    assert [m.step_report.step for m in worker.protocol.prepared(prepared(STEP + 1)).send] == [STEP + 2]
    worker.actions.change()
    assert worker.protocol.attempts.newest.in_backward is is_early
    assert ("ready" in worker.actions.kinds) is not is_early


def test_no_second_step_is_applied_ahead_of_the_first() -> None:
    worker = ahead()
    worker.run()
    waited = worker.actions.done.count("wait for the decision")
    worker.actions.decision = lambda: worker.protocol.prepared(prepared(STEP + 1))
    assert worker.apply()
    assert worker.actions.done.count("wait for the decision") == waited + 1
    assert worker.protocol.applied_step == STEP + 2  # and the next one is ahead now
    assert worker.protocol.attempts.ahead is not None and worker.protocol.attempts.ahead.step == STEP + 2


@pytest.mark.parametrize("begun", [False, True])
def test_a_step_that_is_lost_is_undone_with_the_one_after_it(begun: bool) -> None:
    worker = ahead()
    before = worker.contexts._before[0]
    if begun:
        worker.run()
    sent = worker.protocol.prepare(ring_pb2.Prepare(generation=GENERATION + 1)).send
    assert [message.ready.applied_step for message in sent] == [STEP + 1]
    assert not worker.protocol.prepared(prepared(STEP + 1)).send  # too late
    if begun:
        assert not worker.apply() and not worker.end()
    assert worker.body.take_back() and not worker.body.take_back()
    assert worker.actions.done[-1] == "undo"
    assert worker.contexts.now is before and worker.contexts.now[0].step == STEP + 1
    assert worker.protocol.next_step == worker.protocol.applied_step == STEP + 1
    assert not worker.protocol.attempts.newest.in_flight
    assert [report.step for report in worker.actions.reports] == [STEP, STEP + 1]


@pytest.mark.parametrize("lost", [False, True])
def test_a_script_learns_its_step_when_the_one_before_is_decided(lost: bool) -> None:
    worker = ahead()
    worker.run()

    async def decided(condition: Callable[[], object]) -> None:
        if lost:
            worker.actions.change()
        else:
            worker.protocol.prepared(prepared(STEP + 1))
        assert condition()

    worker.actions.wait_for = decided  # type: ignore[method-assign]
    turn = worker.turns[-1]
    for _ in range(2):  # also when it asks again
        assert finish(worker.body.decided_step(turn)) == (STEP + 1 if lost else STEP + 2)


def test_prepared_that_comes_while_the_optimizer_runs_makes_the_step_an_ordinary_one() -> None:
    worker = Worker()
    worker.train()
    worker.body.total_steps = STEP + 9
    worker.run()
    assert worker.apply() and worker.protocol.attempts.newest.stage is Stage.AHEAD
    worker.protocol.prepared(prepared(STEP + 1))
    assert worker.protocol.attempts.newest.stage is Stage.PREPARED and worker.protocol.attempts.ahead is None
    worker.actions.change()
    assert "ready" not in worker.actions.kinds  # it waits for the optimizer
    assert worker.end()
    assert worker.actions.sent[-1].ready.applied_step == STEP + 2


def test_a_planned_change_that_comes_with_prepared_takes_effect_within_the_next_step() -> None:
    worker = ahead()
    worker.run()
    change = ring_pb2.Prepare(generation=GENERATION + 1)
    outcome = worker.protocol.prepared(prepared(STEP + 1, then_prepare=change))
    assert [message.ready.applied_step for message in outcome.send] == [STEP + 2]
    assert outcome.abort  # of the all-reduce that the other members do not take part in
    assert not worker.apply() and not worker.end() and not worker.body.take_back()
    assert worker.contexts.now[0].step == STEP + 2


@pytest.mark.parametrize(
    "reason",
    ["first", "last", "epoch", "asked", "feeds", "check", "total", "leaves", "an older master", "not meant"],
)
def test_what_is_not_applied_ahead(reason: str) -> None:
    worker = Worker(steps_per_epoch=STEP + 2 if reason == "epoch" else 100)
    if reason != "first":
        worker.train()
    worker.body.total_steps = STEP + 9
    if reason == "last":
        worker.body.total_steps = STEP + 2
    if reason == "total":
        worker.body.total_steps = 0
    if reason == "asked":
        worker.protocol.prepared(prepared(STEP, next_waits=True))
    if reason == "feeds":
        worker.protocol.following.feed = ring_pb2.Follow(generation=GENERATION)
    if reason == "check":
        worker.protocol.check_report(ring_pb2.CheckReport())
    if reason == "leaves":
        worker.protocol.leaving = ring_pb2.Leaving(reason="spot notice")
    if reason == "an older master":
        worker.protocol.welcome(ring_pb2.Welcome(resumed=True, version="1"))
    worker.actions.goes_ahead = reason != "not meant"
    worker.actions.decision = worker.actions.prepare
    worker.run()
    # A master that is told of it would put changes off for nothing.
    assert not worker.actions.reports[-1].goes_ahead
    assert worker.apply() and worker.protocol.attempts.ahead is None
    assert "ahead" not in worker.actions.done


def test_a_report_says_that_its_step_may_go_ahead_and_none_does_that_has_not_said_so() -> None:
    worker = ahead()
    assert [report.goes_ahead for report in worker.actions.reports] == [False, True]
    # The next report is held back, and is said once it is known whether its step must wait.
    worker.run()
    worker.protocol.prepared(prepared(STEP + 1, next_waits=True))
    assert not worker.protocol.attempts.newest.may_go_ahead
    worker.actions.decision = worker.actions.prepare
    assert worker.apply() and worker.end() and worker.protocol.attempts.ahead is None
    worker.actions.goes_ahead = False
    worker.run()
    assert worker.protocol.may_go_ahead(STEP + 3) and not worker.protocol.begin_ahead(STEP + 3)
    assert worker.apply() and worker.protocol.attempts.ahead is None


def test_a_planned_change_that_was_said_a_step_before_drops_nothing() -> None:
    worker = ahead()
    worker.run()
    worker.protocol.prepared(prepared(STEP + 1, next_waits=True))
    change = ring_pb2.Prepare(generation=GENERATION + 1)
    outcomes: list[Outcome] = []

    def decide() -> None:
        outcomes.append(worker.protocol.prepared(prepared(STEP + 2, then_prepare=change)))

    worker.actions.decision = decide
    assert worker.apply() and worker.end()
    assert not outcomes[0].abort and worker.actions.sent[-1].ready.applied_step == STEP + 3
    assert worker.protocol.attempts._begun_until == STEP + 3


def test_who_asks_whether_the_step_is_applied_waits_for_prepared() -> None:
    worker = Worker()
    worker.train()
    worker.body.total_steps = STEP + 9
    worker.run()
    assert worker.apply()
    turn = worker.turns[-1]
    assert not finish(worker.body.is_applied(turn))  # the ring changes meanwhile
    assert worker.actions.done[-2:] == ["wait", "undo"]
    assert worker.protocol.attempts.newest.stage is Stage.LOST and not worker.end()
    assert worker.contexts.now[0].step == STEP + 1


def test_what_prepared_asks_for_between_two_steps_is_done_within_the_second() -> None:
    worker = ahead()
    worker.run()
    asked = ring_pb2.Checkpoint(checkpoint="c", step=STEP + 2)
    worker.actions.decision = lambda: worker.protocol.prepared(prepared(STEP + 1, then_checkpoint=asked))
    assert worker.apply()
    assert worker.actions.late == [STEP, STEP + 1, STEP + 2]
    assert worker.actions.done.index("ahead") < len(worker.actions.done) - 1


def test_parts_of_the_state_are_told_once_what_was_applied_ahead_is_undone() -> None:
    worker = ahead()
    worker.run()
    explain = ring_pb2.Explain(generation=GENERATION, step=STEP + 1)
    outcome = worker.protocol.receive(ring_pb2.AttendResponse(compare=ring_pb2.Compare(explain=explain)))
    assert outcome.explain is None and worker.protocol.is_ahead_lost
    assert outcome.abort  # of an all-reduce that waits for members which are not ahead
    assert not worker.protocol.prepared(prepared(STEP + 1)).send
    assert not worker.apply() and not worker.end() and worker.body.take_back()
    assert worker.protocol.attempts.explain_later == explain
    # Without a step ahead it is answered at once, and none is applied ahead any more.
    other = Worker()
    other.train()
    outcome = other.protocol.receive(ring_pb2.AttendResponse(compare=ring_pb2.Compare(explain=explain)))
    assert outcome.explain == explain
    other.body.total_steps = STEP + 9
    other.run()
    assert not other.protocol.may_go_ahead(STEP + 1)


def test_an_all_reduce_that_is_aborted_to_tell_the_parts_does_not_break_the_ring() -> None:
    worker = ahead()
    worker.run()
    worker.protocol.explain_requested(ring_pb2.Explain(generation=GENERATION, step=STEP + 1))
    worker.actions.failure = RuntimeError("aborted")
    assert not worker.apply() and not worker.end()
    assert "ring_broken" not in worker.actions.kinds and "wait" not in worker.actions.done
    assert worker.body.take_back()


def test_a_report_is_repeated_only_once_it_may_be_sent() -> None:
    worker = ahead()
    worker.run()
    again = worker.protocol.welcome(ring_pb2.Welcome(resumed=True)).send
    assert [message.step_report.step for message in again] == [STEP + 1]
    worker.protocol.prepared(prepared(STEP + 1))
    again = worker.protocol.welcome(ring_pb2.Welcome(resumed=True)).send
    assert [message.step_report.step for message in again] == [STEP + 2]

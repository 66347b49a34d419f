"""Rounds of evaluation between epochs: members in threads, with messages in memory."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from elastane.collective.ring_errors import RingBroken
from elastane.runtime.pipelines.errors import EvaluationError
from elastane.runtime.pipelines.evaluation import Evaluation
from elastane_common.errors import EXIT_START_ANEW


class Ring:
    """Messages of one generation. breaks_at: by member, the collective in which it finds the ring broken."""

    def __init__(self, members: int, breaks_at: dict[int, int] | None = None) -> None:
        self._barrier = threading.Barrier(members, timeout=10)
        self._told: list[Any] = [None] * members
        self._breaks_at = breaks_at or {}
        self._count = [0] * members

    def meet(self, me: int, value: Any) -> list[Any]:
        self._count[me] += 1
        try:
            self._told[me] = value
            self._barrier.wait()
            told = list(self._told)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RingBroken("a member is gone") from None
        if self._breaks_at.get(me) == self._count[me]:
            self.lose()
            raise RingBroken("connection closed")
        return told

    def lose(self) -> None:
        """A connection is lost."""
        self._barrier.abort()


def start_anew(why: str) -> NoReturn:
    assert why == "the job went from step 7 to 3 while the script evaluated"
    raise SystemExit(EXIT_START_ANEW)


class Member:
    """A worker between two epochs. rings: one after the other; after: the step of each."""

    def __init__(self, me: int, rings: Sequence[Ring], after: Sequence[int] = (7,)) -> None:
        self.me, self.rings, self.after, self.at = me, list(rings), list(after), 0
        self.asked = 0
        self.protocol = SimpleNamespace(is_running=True, applied_step=after[0], broken=lambda *_: None)
        exits = SimpleNamespace(start_anew=start_anew)
        session = SimpleNamespace(
            protocol=self.protocol, tell=self._tell, wait_for=lambda _: None, exits=exits
        )
        model = torch.nn.Linear(1, 1)
        parts: Any = SimpleNamespace(
            worker_session=session,
            executor=self,
            state=SimpleNamespace(units=SimpleNamespace(as_model=lambda: model)),
            prepared=SimpleNamespace(options=SimpleNamespace(split=lambda batch: (batch, None))),
            states=dict,
            put=lambda states: None,
        )
        self.refusal = ""
        self.complete = False
        self.evaluation = Evaluation(parts, 2, self._settle, lambda: self.refusal, lambda: self.complete)

    def tell_all(self, value: Any) -> list[Any]:
        return self.rings[self.at].meet(self.me, value)

    def forward_only(self, inputs: Sequence[int]) -> list[int]:
        given = self.rings[self.at].meet(self.me, list(inputs))
        self.asked += len(inputs)
        assert sum(map(bool, given)) == 1, "one member's mini-batches"
        return [10 * value for value in inputs]

    leader = 0

    def gather_weights(self, askers: Sequence[int], take: Callable[[dict[str, Any]], object]) -> None:
        given = self.rings[self.at].meet(self.me, list(askers))
        assert given == [given[0]] * len(given), "all members know who asks"
        if self.me in askers:
            for unit in range(2):
                self.before_taking(unit)
                take({f"{unit}.weight": torch.tensor([float(unit)])})

    def before_taking(self, unit: int) -> None:
        """The unit's weights are on their way."""

    def flush(self) -> None: ...

    def _tell(self, change: Callable[[], object]) -> None:
        self.protocol.is_running = False

    def _settle(self) -> None:
        self.at += 1
        self.protocol.applied_step = self.after[min(self.at, len(self.after) - 1)]
        self.protocol.is_running = True

    def serve(self, ended: bool = False) -> None:
        """Wait for the next step, as the step boundary does."""
        while not self.evaluation.serve(ended=ended):
            self._settle()

    def end(self) -> None:
        """Wait after the last epoch."""
        self.serve(ended=True)
        self.refusal = "after the last epoch"

    def evaluate(self, values: Sequence[int], then_wait: bool = True) -> list[int]:
        found = self.evaluation.run(values, lambda output, batch: output + batch)
        if then_wait:
            self.serve()
        return found


def together(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(20) for future in [threads.submit(call) for call in calls]]


def members(count: int, *rings: Ring, after: Sequence[int] = (7,)) -> list[Member]:
    return [Member(me, rings, after) for me in range(count)]


def test_all_get_the_answers_of_one() -> None:
    workers = members(3, Ring(3))
    answers = together(*(lambda w=worker: w.evaluate([1, 2, 3, 4, 5]) for worker in workers))
    assert answers == [[11, 22, 33, 44, 55]] * 3
    assert [worker.asked for worker in workers] == [5, 0, 0]


@pytest.mark.parametrize("who", [0, 1, 2])
def test_those_who_wait_serve(who: int) -> None:
    workers = members(3, Ring(3))
    calls = [worker.serve for worker in workers]
    calls[who] = lambda: workers[who].evaluate([1, 2, 3])  # type: ignore[assignment, return-value]
    assert together(*calls)[who] == [11, 22, 33]


def test_members_that_evaluate_unequally_often() -> None:
    first, second = members(2, Ring(2))

    def twice() -> list[int]:
        return first.evaluate([1, 2, 3], then_wait=False) + first.evaluate([4])

    assert together(twice, lambda: second.evaluate([1, 2, 3])) == [[11, 22, 33, 44], [11, 22, 33]]


@pytest.mark.parametrize("helper", [False, True])
def test_what_one_evaluates_alone_before_all_do_is_no_other_place_of_theirs(helper: bool) -> None:
    """`if job.is_leader: pipe.evaluate(one)`, then `pipe.evaluate(other)`; also by a function of theirs."""
    workers = members(3, Ring(3))

    def evaluate(worker: Member, values: list[int]) -> list[int]:
        return worker.evaluation.run(values, lambda output, batch: output + batch)

    def script(worker: Member) -> list[int]:
        found = []
        if worker.me == 0:
            found += evaluate(worker, [1, 2, 3]) if helper else worker.evaluate([1, 2, 3], then_wait=False)
        found += evaluate(worker, [4, 5])
        worker.serve()
        return found

    answers = together(*(lambda w=worker: script(w) for worker in workers))
    assert answers == [[11, 22, 33, 44, 55], [44, 55], [44, 55]]
    assert [worker.asked for worker in workers] == [5, 0, 0], "nothing is computed twice"


def test_a_round_that_is_cut_off_is_begun_again_in_the_new_ring() -> None:
    for meeting in range(1, 7):  # three for each group of two; then all wait
        for who in range(2):
            workers = members(2, Ring(2, {who: meeting}), Ring(2))
            answers = together(*(lambda w=worker: w.evaluate([1, 2, 3]) for worker in workers))
            assert answers == [[11, 22, 33]] * 2, (meeting, who)


def test_after_a_rewind_a_new_process_takes_over() -> None:
    workers = members(2, Ring(2, {0: 2}), Ring(2), after=(7, 3))

    def ended(worker: Member) -> object:
        with pytest.raises(SystemExit) as raised:
            worker.evaluate([1, 2, 3])
        return raised.value.code

    assert together(*(lambda w=worker: ended(w) for worker in workers)) == [EXIT_START_ANEW] * 2


def test_different_mini_batches_are_refused_everywhere() -> None:
    workers = members(2, Ring(2))

    def refused(worker: Member, values: list[int]) -> None:
        with pytest.raises(EvaluationError, match="different mini-batches"):
            worker.evaluate(values)

    together(lambda: refused(workers[0], [1, 2]), lambda: refused(workers[1], [2, 1]))


def test_where_it_cannot_be_called() -> None:
    worker = Member(0, [Ring(1)])
    worker.refusal = "in the loader loop, in step 4"
    with pytest.raises(EvaluationError, match=r"was called in the loader loop, in step 4"):
        worker.evaluate([1])


WEIGHTS = {"0.weight": 0.0, "1.weight": 1.0}


def values(weights: dict[str, Any]) -> dict[str, float]:
    return {name: value.item() for name, value in weights.items()}


@pytest.mark.parametrize("askers", [{1}, {0, 2}, {0, 1, 2}])
def test_who_asks_gets_the_whole_models_weights(askers: set[int]) -> None:
    workers = members(3, Ring(3))

    def ask(worker: Member) -> dict[str, float]:
        found = values(worker.evaluation.weights()) if worker.me in askers else {}
        worker.serve()
        return found

    answers = together(*(lambda w=worker: ask(w) for worker in workers))
    assert answers == [WEIGHTS if me in askers else {} for me in range(3)]


def test_weights_for_one_come_before_what_all_evaluate() -> None:
    first, second = members(2, Ring(2))

    def both() -> tuple[dict[str, float], list[int]]:
        return values(first.evaluation.weights()), first.evaluate([1, 2, 3])

    assert together(both, lambda: second.evaluate([1, 2, 3])) == [(WEIGHTS, [11, 22, 33]), [11, 22, 33]]


def test_weights_are_asked_for_again_in_a_new_ring() -> None:
    for meeting in (1, 2):
        first, second = members(2, Ring(2, {0: meeting}), Ring(2))

        def ask(worker: Member) -> dict[str, float]:
            found = values(worker.evaluation.weights())
            worker.serve()
            return found

        assert together(lambda w=first: ask(w), second.serve)[0] == WEIGHTS, meeting


def test_after_the_last_epoch_the_leader_has_the_weights() -> None:
    for rings in ([Ring(2)], [Ring(2, {1: 1}), Ring(2)]):
        leader, other = members(2, *rings)
        together(leader.end, other.end)
        assert values(leader.evaluation.weights()) == WEIGHTS
        with pytest.raises(EvaluationError, match=r"pipe\.state_dict was called after the last epoch"):
            other.evaluation.weights()


@pytest.mark.parametrize("meeting", [1, 2])
def test_a_death_after_the_last_step_keeps_nobody_waiting(meeting: int) -> None:
    """All is committed: no ring follows in which weights could be asked for again."""
    leader, other = members(2, Ring(2, {0: meeting}))
    leader.complete = other.complete = True
    leader.protocol.changing = other.protocol.changing = False
    together(leader.end, other.end)
    with pytest.raises(EvaluationError, match="could not be kept: connection closed"):
        leader.evaluation.weights()


def test_nobody_leaves_before_the_leader_has_its_units() -> None:
    leader, other = members(2, Ring(2))
    other_left, seen = threading.Event(), []
    leader.before_taking = lambda unit: seen.append(other_left.wait(0.1))  # type: ignore[method-assign]

    def leave() -> None:
        other.end()
        other_left.set()

    together(leader.end, leave)
    assert seen == [False, False]


@pytest.mark.parametrize("complete", [False, True])
def test_a_connection_that_is_lost_between_two_units(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came of the model does not count as the model, and does not stay on the disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    leader, other = members(2, Ring(2), Ring(2))
    leader.complete = other.complete = complete
    leader.protocol.changing = other.protocol.changing = False

    def lost(unit: int) -> None:
        if unit == 1 and leader.at == 0:
            leader.rings[0].lose()
            raise RingBroken("connection closed")

    leader.before_taking = lost  # type: ignore[method-assign]
    together(leader.end, other.end)
    if complete:
        with pytest.raises(EvaluationError, match="could not be kept: connection closed"):
            leader.evaluation.weights()
    else:
        assert values(leader.evaluation.weights()) == WEIGHTS
    assert len([*tmp_path.glob("elastane-weights-*/*")]) == (0 if complete else 2)


def test_weights_that_all_came_stay_though_the_ring_breaks_then() -> None:
    leader, other = members(2, Ring(2, {1: 3}))
    leader.complete = other.complete = True
    leader.protocol.changing = other.protocol.changing = False
    together(leader.end, other.end)
    assert values(leader.evaluation.weights()) == WEIGHTS


def test_who_ends_early_beside_one_that_goes_on_gathers_nothing() -> None:
    first, second = members(2, Ring(2))
    together(first.end, second.serve)
    with pytest.raises(EvaluationError):
        first.evaluation.weights()


def test_a_full_disk_is_told_to_who_asks_and_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    leader, other = members(2, Ring(2))
    together(leader.end, other.end)
    with pytest.raises(EvaluationError, match="No space left on device"):
        leader.evaluation.weights()

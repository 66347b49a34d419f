"""The code between two epochs as one worker runs it, beside what each rank alone would draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.random import randint as np_randint  # by name, as scripts do
from torch import manual_seed as torch_seed

from elastane.context import EstContext
from elastane.registry import Registry
from elastane.rng import Generators, seed_all
from elastane.runtime.hosted_contexts import HostedContexts, closed, reported_against
from elastane.runtime.interval import Interval
from elastane_proto.contexts import NUMPY, PYTHON, TORCH_CPU
from elastane_proto.v1 import ring_pb2

RANKS = 3


class Worker:
    """Hosts all ranks, each with a seed of its own; step 4 begins an epoch."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.own = random.Random(3)
        self.registry.register("own", self.own)
        self.registry.freeze()
        self.generators = Generators()
        self.interval = Interval(self.generators, self.registry)
        self.contexts = {}
        for rank in range(RANKS):
            seed_all(100 + rank)
            parts = self.generators.capture() | self.registry.capture()
            self.contexts[rank] = EstContext(rank, 4, parts)

    def begin(self, *, leads: bool = True) -> None:
        self.interval.begin(4, self.contexts, leads=leads)

    def report(self) -> ring_pb2.IntervalReport:
        self.interval.end()
        return self.interval.report(1, 4)

    def behind(self) -> dict[int, EstContext]:
        """The contexts that the epoch starts from, as a master without other workers decides."""
        report = self.report()
        assert not report.fault and not report.uncertain
        decided = ring_pb2.IntervalDecided(step=4, changes=report.changes)
        known = dict(self.contexts)
        for message in report.contexts:
            delta = EstContext.from_proto(message)
            known[delta.virtual_rank] = known[delta.virtual_rank].merge(delta)
        assert HostedContexts(self.contexts).is_open(4)
        result = closed(known, decided)
        assert not HostedContexts(result).is_open(4)
        return result


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.interval.end()


def alone(rank: int, code: Callable[[], object]) -> dict[str, bytes]:
    """What a stock rank's generators are behind the code."""
    seed_all(100 + rank)
    code()
    return Generators().capture()


def evaluate() -> None:
    """Draws an even number of normal values: nothing is kept."""
    torch.rand(1_000)
    np.random.rand(700)
    [random.random() for _ in range(5)]


def test_every_rank_draws_as_many_values_from_its_own_state(worker: Worker) -> None:
    worker.begin()
    evaluate()
    behind = worker.behind()
    for rank in range(RANKS):
        assert behind[rank].rng == alone(rank, evaluate)


def test_the_first_ranks_generators_are_those_of_the_code(worker: Worker) -> None:
    worker.begin()
    here = torch.rand(3)
    seed_all(100)
    assert torch.equal(here, torch.rand(3))


def test_what_the_leader_does_in_its_block_is_rank_0s_alone(worker: Worker) -> None:
    worker.begin()
    evaluate()
    ask(worker.interval, evaluate)
    torch.rand(2)
    behind = worker.behind()

    def leader() -> None:
        evaluate()
        evaluate()
        torch.rand(2)

    def other() -> None:
        evaluate()
        torch.rand(2)

    assert behind[0].rng == alone(0, leader)
    assert behind[1].rng == alone(1, other)


def ask(interval: Interval, code: Callable[[], object]) -> None:
    class Job:
        @property
        def is_leader(self) -> bool:
            import sys

            interval.asked("is_leader", sys._getframe(1))
            return True

    import sys

    before, job = sys.gettrace(), Job()
    sys.settrace(None)
    try:
        if job.is_leader:
            code()
    finally:
        sys.settrace(before)


def test_each_rank_may_draw_whatever_it_wants(worker: Worker) -> None:
    def uneven() -> None:
        random.shuffle(list(range(50)))
        np.random.randn(3)
        torch.randn(1)

    worker.begin()
    evaluate()
    owned = []
    for rank in worker.interval.each_rank():
        assert worker.interval.rank == rank
        uneven()
        if rank == 1:
            owned.append(worker.own.random())
    evaluate()
    behind = worker.behind()

    def stock() -> None:
        evaluate()
        uneven()
        evaluate()

    for rank in range(RANKS):
        assert behind[rank].rng == alone(rank, stock)
    assert behind[0].parts["item/own"] == worker.contexts[0].parts["item/own"] != behind[1].parts["item/own"]
    assert owned


def test_the_same_seed_for_all_is_the_same_state_for_all(worker: Worker) -> None:
    def seeded() -> None:
        torch.manual_seed(100)  # the one that rank 0 has anyway
        torch.rand(4)

    def by_name() -> None:
        torch_seed(100)

    for code in (seeded, by_name):
        worker.begin()
        code()
        behind = worker.behind()
        for rank in range(RANKS):
            assert behind[rank].rng == alone(rank, code)


def test_isolated_draws_count_for_nobody(worker: Worker) -> None:
    worker.begin()
    generators = Generators()
    with worker.interval.isolated():
        before = generators.capture()
        random.shuffle([1, 2, 3])
        torch.manual_seed(5)
        generators.restore(before)
    behind = worker.behind()
    assert behind[2].rng == worker.contexts[2].rng


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (lambda: random.shuffle([1, 2, 3]), "depends on the generator's state in test_interval.py"),
        (lambda: random.normalvariate(0, 1), "depends on the generator's state"),
        (lambda: np.random.randint(5), "depends on the generator's state"),
        (lambda: np_randint(5), "depends on the generator's state in test_interval.py"),
        (lambda: torch_seed(int(torch.randint(9, ()))), "may have been drawn"),
        (lambda: torch.poisson(torch.ones(2)), "depends on the generator's state"),
        (lambda: random.gauss(0, 1), "python's generator"),
        (lambda: torch.randn(1), "torch_cpu's generator"),
        (lambda: torch.set_rng_state(torch.Generator().manual_seed(9).get_state()), "had its state set"),
        (lambda: torch.manual_seed(int(torch.randint(9, ()))), "may have been drawn"),
    ],
)
def test_what_one_state_does_not_tell_of_another_is_a_fault(
    worker: Worker, code: Callable[[], object], words: str
) -> None:
    worker.begin()
    code()
    assert words in worker.report().fault


def test_an_item_that_differs_from_rank_to_rank_is_not_to_be_changed_for_all(worker: Worker) -> None:
    worker.begin()
    worker.own.random()
    assert not worker.report().fault  # all ranks have the same
    worker.own.seed(8)
    parts = dict(worker.contexts[1].parts) | worker.registry.capture()
    worker.contexts[1] = EstContext(1, 4, parts)
    worker.begin()
    worker.own.random()
    assert "registered item 'own'" in worker.report().fault


def test_an_answer_that_is_kept_leaves_what_follows_in_doubt(worker: Worker) -> None:
    import sys

    worker.begin()
    worker.interval.asked("is_leader", sys._getframe())  # no attribute is read in this line
    assert not worker.report().uncertain
    worker.begin()
    torch.rand(1)
    report = worker.report()
    assert "depends on the answer" in report.uncertain and not report.fault


def test_who_entered_behind_the_code_says_nothing_of_it(worker: Worker) -> None:
    worker.begin()
    evaluate()
    worker.interval.end()
    report = worker.interval.report(1, 8)
    assert not report.passed and not report.changes and not report.contexts


def test_functions_are_as_they_were_when_the_code_is_over(worker: Worker) -> None:
    before = random.seed, np.random.randint, torch.manual_seed, torch.random.manual_seed
    by_name = np_randint, torch_seed
    worker.begin()
    assert torch.manual_seed is not before[2]
    worker.interval.end()
    assert (random.seed, np.random.randint, torch.manual_seed, torch.random.manual_seed) == before
    assert (np_randint, torch_seed) == by_name
    assert not {"_randbelow", "random"} & set(vars(random._inst))


def test_states_are_named_alike() -> None:
    assert set(Generators().capture()) == {PYTHON, NUMPY, TORCH_CPU}


def test_after_the_code_a_context_that_the_master_has_whole_is_reported_whole(worker: Worker) -> None:
    """What the code drew and the step did not is in the report: the store may lose what it was."""
    worker.begin()
    torch.rand(3)
    behind = worker.behind()
    before = worker.contexts[1]
    known = {0: behind[0], 1: before}
    base = reported_against(known, 4)
    after = behind[0].next({}, {})
    assert after.delta(base[0]) == after.parts
    assert base[1] is before
    assert reported_against(known, 5) == known

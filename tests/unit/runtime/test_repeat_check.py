"""The turn that is run twice: what it compares, and that nothing of the first run is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from elastane.collective.gradient_digest import GradientDigest
from elastane.context import EstContext
from elastane.data import BatchSource
from elastane.rng import Generators
from elastane.runtime import repeat_check
from elastane.runtime.est_step import EstStep
from elastane.runtime.repeat_check import RepeatCheck, RepeatDiffersError
from elastane.runtime.step_state import StepState
from unit.data.loader_runs import initial_contexts

ACCUMULATED = 2


class Drawing(Dataset[torch.Tensor]):
    """A sample with noise. counts: and with the number of samples that were read. keeps: those once made."""

    def __init__(self, counts: bool, keeps: bool = False) -> None:
        self.counts, self.read = counts, 0
        self.keeps, self.kept = keeps, dict[int, torch.Tensor]()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read += self.counts
        if index not in self.kept:
            sample = index + self.read + torch.rand(2)
            self.kept = {**self.kept, index: sample} if self.keeps else {}
            return sample
        return self.kept[index]


class Run:
    """Steps as the trainer makes them, of two ESTs. gradient: of a mini-batch."""

    def __init__(
        self,
        gradient: Callable[[Any], torch.Tensor],
        *,
        counts: bool = False,
        keeps: bool = False,
        enabled: bool = True,
    ) -> None:
        self.source = BatchSource(DataLoader(Drawing(counts, keeps), 2), 2, accumulation_steps=ACCUMULATED)
        self.source.start()
        self.generators = Generators()
        self.contexts: dict[int, EstContext] = initial_contexts(2)
        self.source.position(self.contexts, 0)
        self.check = RepeatCheck(self.source, self.generators, self.source.registry, enabled=enabled)
        self.gradient = gradient
        self.given: list[list[torch.Tensor]] = []
        self.twice: list[int] = []

    def epoch(self, first: int, steps: int) -> None:
        self.check.begin_loop()
        for step in range(first, first + steps):
            self.step(step)

    def step(self, step: int) -> None:
        state = StepState(step)
        own = [EstStep(state, rank, rank, ends=rank == 1, batches=ACCUMULATED) for rank in (0, 1)]
        turns = self.check.turns(own, self.contexts)
        if len(turns) > len(own):
            self.twice.append(step)
        after = {}
        for est_step in turns:
            self.generators.restore((est_step.guest or self.contexts[est_step.rank]).parts)
            seen = []
            for est_step.micro in range(ACCUMULATED):
                batch, _ = self.check.begin(est_step)
                gradient = self.gradient(batch)
                if est_step.digest is not None:
                    est_step.digest.add(est_step.micro, gradient)
                seen.append(batch.clone())
                batch.zero_()  # the body may do so
                if est_step.sync:
                    self.check.compare(est_step)
                est_step.loader_parts |= self.check.finish(est_step)
            if est_step.guest is None:
                self.given.append(seen)
                after[est_step.rank] = self.contexts[est_step.rank].next(
                    self.generators.capture(), est_step.loader_parts
                )
        self.contexts = after


def drawn(batch: torch.Tensor) -> torch.Tensor:
    return batch * torch.rand(2)


def test_two_steps_are_run_twice_and_leave_the_batches_and_states_of_steps_run_once() -> None:
    plain, checked = (Run(drawn, counts=False, enabled=enabled) for enabled in (False, True))
    for run in (plain, checked):
        run.epoch(0, 5)
        run.epoch(5, 5)
        run.source.close()
    assert (plain.twice, checked.twice) == ([], [2, 5])
    assert all(
        torch.equal(one, other)
        for mine, theirs in zip(plain.given, checked.given, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    )
    assert {rank: context.parts for rank, context in plain.contexts.items()} == {
        rank: context.parts for rank, context in checked.contexts.items()
    }


def test_a_long_run_is_looked_at_again_after_each_doubling_of_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeat_check, "LATER_STEPS", 4)
    run = Run(drawn, counts=False, enabled=True)
    for epoch in range(7):
        run.epoch(5 * epoch, 5)
    assert run.twice == [2, 3, 5, 7, 15, 31]
    plain = Run(drawn, counts=False, enabled=False)
    for epoch in range(7):
        plain.epoch(5 * epoch, 5)
    assert plain.twice == []
    assert {rank: context.parts for rank, context in plain.contexts.items()} == {
        rank: context.parts for rank, context in run.contexts.items()
    }


def test_what_first_changes_late_is_refused_then() -> None:
    calls: list[int] = []

    def warmed_up(batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return batch / max(1, len(calls) - 150)

    run = Run(warmed_up, counts=False, enabled=True)
    with pytest.raises(RepeatDiffersError, match=r"EST 0 in step 63 was run twice"):
        for epoch in range(20):
            run.epoch(5 * epoch, 5)


def test_a_turn_that_the_sentinel_checks_is_left_to_it() -> None:
    run = Run(drawn, counts=False, enabled=True)
    run.epoch(0, 2)
    est_step = EstStep(StepState(2), 0, 0, ends=False, batches=ACCUMULATED, digest=GradientDigest())
    assert run.check.turns([est_step], run.contexts) == [est_step] and not est_step.repeated
    run.epoch(2, 3)
    assert run.twice == [2]
    run.source.close()


def test_gradients_that_something_outside_the_state_decides_are_refused() -> None:
    calls: list[int] = []

    def counted(batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return batch / len(calls)

    run = Run(counted, counts=False, enabled=True)
    with pytest.raises(RepeatDiffersError, match=r"EST 0 in step 2 was run twice .* its gradients differ"):
        run.epoch(0, 5)
    run.source.close()


def test_a_mini_batch_that_is_not_the_same_again_is_refused() -> None:
    run = Run(drawn, counts=True, enabled=True)
    with pytest.raises(
        RepeatDiffersError, match=r"a mini-batch of EST 0 in step 2 was loaded twice .*collate_fn"
    ):
        run.epoch(0, 5)
    run.source.close()


def test_samples_that_are_kept_as_they_were_drawn_are_refused() -> None:
    run = Run(drawn, keeps=True)
    with pytest.raises(
        RepeatDiffersError, match=r"loaded twice .* drew other random numbers: the dataset caches"
    ):
        run.epoch(0, 5)
    run.source.close()

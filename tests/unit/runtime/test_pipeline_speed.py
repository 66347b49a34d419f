"""What a pipeline's worker tells of its links and of the blocks of a step."""

from __future__ import annotations

import pytest
import torch

from elastane.runtime.pipelines import speed
from elastane.runtime.pipelines.speed import (
    BLOCKS_SECONDS,
    UNIT_STEPS_MIN,
    PipelineSpeed,
    StepBlocks,
    is_told,
)
from elastane_common.observe.figures import WorkerFigures
from elastane_planner.last_step import BLOCKS_TOLD_MAX
from elastane_proto.v1 import ring_pb2


@pytest.mark.parametrize("seconds", [0.001, 0.013, 0.4, 1.9, 2.1, 60.0])
def test_a_step_is_told_every_few_seconds(seconds: float) -> None:
    told = [step for step in range(5000) if is_told(step, seconds)]
    apart = (told[1] - told[0]) * seconds
    assert max(seconds, BLOCKS_SECONDS) <= apart < max(2 * BLOCKS_SECONDS, 1.01 * seconds)
    # Who takes steps to be a little shorter tells half as often, of the same steps.
    assert set(told) >= {step for step in range(5000) if is_told(step, seconds / 1.5)}
    assert not is_told(0, 0.0), "nothing is known yet"


def stepped(monkeypatch: pytest.MonkeyPatch, blocks: int, steps: int = UNIT_STEPS_MIN) -> WorkerFigures:
    monkeypatch.setattr(speed, "UPDATE_SECONDS", 0.0)
    figures = WorkerFigures()
    found = PipelineSpeed(torch.device("cpu"), figures, 0)
    for step in range(steps):
        found.applied(
            10.0,
            lambda: {3: (0.1, 0.2)},
            lambda: (0.01, 0.02),
            lambda: {"b": 1e9, "a": 2e9},
            StepBlocks(step, 100.0 + step, tuple((float(at), at + 0.5) for at in range(blocks))),
            workers=2,
            generation=1,
            is_replay=False,
        )
    return figures


def test_blocks_and_links_are_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = stepped(monkeypatch, 2)
    assert (figures.link_workers, figures.link_bytes_per_second) == (["b", "a"], [1e9, 2e9])
    assert (figures.blocks_step, figures.blocks_began) == (UNIT_STEPS_MIN - 1, 99.0 + UNIT_STEPS_MIN)
    assert figures.block_seconds == [0.0, 0.5, 1.0, 1.5]
    ring_pb2.WorkerFigures(**vars(figures))  # as it is sent


def test_units_are_told_once_most_steps_are_none_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of two slow steps and a usual one is a slow one: plans would be made of it."""
    assert stepped(monkeypatch, 2, UNIT_STEPS_MIN - 1).unit_forward_seconds == []
    told = stepped(monkeypatch, 2)
    assert told.unit_forward_seconds == [0.1]
    assert (told.forward_overhead_seconds, told.backward_overhead_seconds) == (0.01, 0.02)


def test_of_a_step_with_too_many_blocks_none_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(stepped(monkeypatch, BLOCKS_TOLD_MAX).block_seconds) == 2 * BLOCKS_TOLD_MAX
    assert stepped(monkeypatch, BLOCKS_TOLD_MAX + 1).block_seconds == []
    assert ring_pb2.WorkerFigures(**vars(stepped(monkeypatch, BLOCKS_TOLD_MAX))).ByteSize() < 1500


def test_blocks_of_another_plan_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = stepped(monkeypatch, 2)
    PipelineSpeed(torch.device("cpu"), figures, 0).entered()
    assert figures.block_seconds == [] and figures.blocks_step == 0

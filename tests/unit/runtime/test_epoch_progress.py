"""Progress of the epochs: what is said, where, and that replays do not count."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from elastane.runtime.epoch_progress import EpochProgress, LastValues, ProgressLine, last_values
from elastane_proto.v1 import ring_pb2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Epochs:
    """Drives a line by a clock in hand: two steps a second."""

    def __init__(self, stream: io.StringIO, *, steps: int = 100, epochs: int = 3, columns: int = 80) -> None:
        self.now = 100.0
        self.stream = stream
        self.line = ProgressLine(
            EpochProgress(steps, steps * epochs, epochs), stream, lambda: self.now, lambda: columns
        )

    def run(self, epoch: int, first: int, end: int, values: Callable[[int], dict[str, float]]) -> None:
        self.line.begin(epoch, first)
        for step in range(first + 1, end + 1):
            self.now += 0.5
            self.line.reach(step, lambda step=step: LastValues(values(step)))  # type: ignore[misc]
        self.line.end(LastValues(values(end)))


def test_not_on_a_terminal_an_epoch_is_a_line() -> None:
    epochs = Epochs(io.StringIO())
    epochs.run(0, 0, 100, lambda step: {"loss": 1 / step})
    epochs.run(1, 140, 200, lambda step: {})  # taken over in the middle of the epoch
    assert epochs.stream.getvalue().splitlines() == [
        "epoch 1/3: 100 steps in 50 s, 2 steps/s, loss 0.01, left of all 1:40",
        "epoch 2/3: 60 steps in 30 s, 2 steps/s, loss 0.01, left of all 0:50",
    ]


def test_on_a_terminal_a_line_is_drawn_over_and_fits() -> None:
    for columns in (40, 80, 132):
        epochs = Epochs(Terminal(), columns=columns)
        epochs.run(0, 0, 50, lambda step: {"loss": 0.5, "accuracy": 0.25, "third": 1.0, "fourth": 1.0})
        *drawn, last = epochs.stream.getvalue().replace("\x1b[K", "").split("\r")
        assert len(drawn) == 51 and all(len(line) < columns for line in drawn)
        assert "epoch 1/3" in drawn[20] and "20/100 steps" in drawn[20]
        assert (
            last
            == "epoch 1/3: 50 steps in 25 s, 2 steps/s, loss 0.5, accuracy 0.25, third 1, left of all 2:05\n"
        )
    assert "20/100 steps  2 steps/s  loss 0.5" in drawn[20] and "left 0:40, of all 2:20" in drawn[20]
    assert "████" in drawn[20]


def test_a_leader_with_some_of_the_ests_does_not_call_their_loss_the_jobs() -> None:
    tasks = [ring_pb2.StepTask(virtual_rank=rank, metrics={"loss": rank + 1.0}) for rank in range(4)]
    assert last_values(tasks, 4) == LastValues({"loss": 2.5})
    assert last_values(tasks[:2], 4) == LastValues({"loss": 1.5}, "ESTs 0-1 of 4")
    assert last_values(tasks[:1], 4) == LastValues({"loss": 1.0}, "EST 0 of 4")
    assert last_values([], 4) == LastValues()
    progress = EpochProgress(100, 100, 1)
    progress.begin(0, 0, 0.0)
    progress.reach(50, last_values(tasks[:2], 4))
    assert "loss 1.5 (ESTs 0-1 of 4)" in progress.line(10.0, 100)
    assert "loss 1.5 (ESTs 0-1 of 4)" in progress.summary(10.0)


def test_values_are_asked_for_only_where_something_is_drawn() -> None:
    asked: list[int] = []
    epochs = Epochs(Terminal())
    epochs.line.begin(0, 0)
    for step in range(1, 101):
        epochs.now += 0.01
        epochs.line.reach(step, lambda step=step: asked.append(step) or LastValues())  # type: ignore[misc, func-returns-value]
    assert 9 <= len(asked) <= 11


def test_of_short_epochs_one_a_second_and_the_last_are_told_of() -> None:
    epochs = Epochs(io.StringIO(), steps=1, epochs=20)
    for epoch in range(20):
        epochs.now += 0.1
        epochs.run(epoch, epoch, epoch + 1, lambda step: {})
    lines = epochs.stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines][-1] == "epoch 20/20" and 10 <= len(lines) <= 13


def test_history_that_goes_back_makes_no_negative_speed() -> None:
    progress = EpochProgress(100, 100, 1)
    progress.begin(0, 50, 0.0)
    progress.reach(60)
    progress.reach(30)
    assert progress.steps_per_second(10.0) == 0.0
    progress.reach(40)
    assert progress.steps_per_second(10.0) == 1.0


@pytest.mark.parametrize("closed", [True, False])
def test_a_stream_that_nobody_reads_does_not_end_the_training(closed: bool) -> None:
    stream = io.StringIO()
    epochs = Epochs(stream)
    if closed:
        stream.close()
        epochs.run(0, 0, 3, lambda step: {})
    else:
        epochs.run(0, 0, 3, lambda step: {})
        assert stream.getvalue()

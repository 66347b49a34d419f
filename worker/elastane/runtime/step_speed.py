"""Speed of this worker's device: what each EST adds to a step, for plans (`elastane plan`) and ranges.

    each turn: mini_batch_began ─ computing ─▶ backward_ended ─ the script's code ─▶ mini_batch_began
    the last:  mini_batch_began ─ computing ─▶ backward_ended ─ the ring's sums ─▶ optimizer_stepped
                                               optimizer_stepped ─ the script's code ─▶ turns_ended

An EST's computing is the time from the begin of its mini-batch to the end of its backward. What the script
does from there to the next mini-batch is a figure of its own: a worker with one EST has none of it, and would
seem faster than any other. Such a worker measures its last turn instead, from optimizer.step() until the
script asks `job.stepped`, because what follows may be done once a step.

Beside it, what tells a straggler and its cause: the sum of the computing rates of all measured steps, and a
usual step's waits. Per mini-batch that is a few additions; medians are taken ten times a second.

On a GPU the device's own clock counts, and a step is measured when its events have passed, without waiting
for them; until then no other step is.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

import torch

from elastane_common.device_types import cpu_type
from elastane_common.observe.figures import WorkerFigures
from elastane_common.observe.running_median import WINDOW, RunningMedian

SETTLING_STEPS: Final = 2
"""Steps of a new ring that are not measured: they fill caches and build memory."""
UPDATE_SECONDS: Final = 0.1
"""Minimum time between two updates of the figures, which cost 30 us; heartbeats read them once a second."""

Mark = float | torch.cuda.Event


@dataclass
class _Step:
    """Moments of a step of this worker.

    began, ended: of each mini-batch, until the end of its backward. stepped: the optimizer has; once: after
    that the script has asked whether it has; done: the last turn is over. ests: that it hosts.
    """

    began: list[Mark] = field(default_factory=list)
    ended: list[Mark] = field(default_factory=list)
    stepped: Mark | None = None
    once: Mark | None = None
    done: Mark | None = None
    ests: int = 0

    @property
    def is_whole(self) -> bool:
        """True if each mini-batch has ended."""
        return len(self.began) == len(self.ended) > 0

    @property
    def has_passed(self) -> bool:
        """True if the device has passed all moments; they may be in several streams."""
        marks = (*self.began, *self.ended, self.stepped, self.once, self.done)
        return all(mark.query() for mark in marks if isinstance(mark, torch.cuda.Event))

    @property
    def computing_seconds(self) -> float:
        """Time of all mini-batches, each to the end of its backward."""
        return sum(map(_elapsed, self.began, self.ended))

    @property
    def between_turns_seconds(self) -> float:
        """Time between the backward of each mini-batch but the last and the next mini-batch."""
        return sum(map(_elapsed, self.ended, self.began[1:]))

    @property
    def last_seconds(self) -> float:
        """Time from the optimizer's step to the end of the last turn."""
        return 0.0 if self.stepped is None or self.done is None else _elapsed(self.stepped, self.done)

    @property
    def after_est_seconds(self) -> float:
        """Time that each EST adds to a step after its backward."""
        turns = len(self.began)
        if turns > 1:
            return self.between_turns_seconds / (turns - 1) * turns / self.ests
        if self.stepped is not None and self.once is not None:
            return _elapsed(self.stepped, self.once)
        return self.last_seconds


class _UsualStep:
    """Seconds of the last steps of one ring, by part."""

    def __init__(self) -> None:
        self.ests: deque[float] = deque(maxlen=WINDOW)
        self.after: deque[float] = deque(maxlen=WINDOW)
        self.data_wait: deque[float] = deque(maxlen=WINDOW)
        self.all_reduce_wait: deque[float] = deque(maxlen=WINDOW)
        self.between: deque[float] = deque(maxlen=WINDOW)

    def write(self, figures: WorkerFigures) -> None:
        """Write the medians."""
        figures.usual_ests_seconds = _median(self.ests)
        figures.usual_after_seconds = _median(self.after)
        figures.usual_data_wait_seconds = _median(self.data_wait)
        figures.usual_all_reduce_wait_seconds = _median(self.all_reduce_wait)
        figures.usual_between_seconds = _median(self.between)
        figures.usual_steps = len(self.ests)


class StepSpeed:
    """Measures the steps of one worker, and writes the results to `figures`. Used by the script's thread."""

    def __init__(self, device: torch.device, figures: WorkerFigures) -> None:
        self._device = device
        self._figures = figures
        self._est, self._after_est, self._whole = RunningMedian(), RunningMedian(), RunningMedian()
        self._usual = _UsualStep()
        self._begins_at = self._ends_at = perf_counter()
        self._data_wait = self._all_reduce_wait = 0.0
        self._generation = 0
        self._steps_in_ring = 0
        self._rates, self._rate_steps = 0.0, 0
        self._updated_at = 0.0
        #: The present step; None while another one waits for the GPU.
        self._step: _Step | None = None
        #: A step whose events on the GPU have not passed yet.
        self._waiting: _Step | None = None
        #: Events of the step that is measured, to be used again for the next one.
        self._events: list[torch.cuda.Event] = []
        self._events_used = 0
        figures.device_type = device_type(device)

    def begin(self) -> None:
        """Begin a step."""
        self._begins_at = perf_counter()
        self._step = None
        if self._waiting is None:
            self._step, self._events_used = _Step(), 0

    def mini_batch_began(self) -> None:
        """Note that the worker asks for a mini-batch, with the context of its EST."""
        if self._step is not None:
            self._step.began.append(self._mark())

    def backward_ended(self) -> None:
        """Note that the backward of a mini-batch is over."""
        if self._step is not None:
            self._step.ended.append(self._mark())

    def optimizer_stepped(self) -> None:
        """Note that an optimizer has stepped in the worker's last turn; the last one of several counts."""
        if self._step is not None:
            self._step.stepped, self._step.once = self._mark(), None

    def once_began(self) -> None:
        """Note that the script knows that the step is applied: what follows may be done once a step."""
        if self._step is not None and self._step.stepped is not None and self._step.once is None:
            self._step.once = self._mark()

    def turns_ended(self) -> None:
        """Note that the script's code in the last turn is over."""
        if self._step is not None:
            self._step.done = self._mark()

    def applied(self, seconds: float, *, ests: int, workers: int, generation: int, counts: bool) -> None:
        """Note that the step is applied.

        seconds: of the whole step. ests: hosted by this worker. workers: of the ring of `generation`. counts:
        it was an ordinary step, neither run again nor with turns of other ESTs.
        """
        if generation != self._generation:
            self._generation, self._steps_in_ring, self._whole = generation, 0, RunningMedian()
            self._usual = _UsualStep()
        self._steps_in_ring += 1
        figures = self._figures
        figures.ring_workers = workers
        data_wait, self._data_wait = figures.data_wait_seconds - self._data_wait, figures.data_wait_seconds
        waited, self._all_reduce_wait = self._all_reduce_wait, figures.all_reduce_wait_seconds
        between, self._ends_at = self._begins_at - self._ends_at, perf_counter()
        step, self._step = self._step, None
        if counts and (step is None or step.is_whole) and self._steps_in_ring > SETTLING_STEPS:
            if step is not None:
                step.ests, self._waiting = ests, step
            self._whole.add(seconds)
            self._usual.data_wait.append(data_wait)
            self._usual.all_reduce_wait.append(self._all_reduce_wait - waited)
            self._usual.between.append(between)
        self._take()
        if self._ends_at >= self._updated_at + UPDATE_SECONDS:
            self._updated_at = self._ends_at
            self._update()

    def _take(self) -> None:
        """Add the waiting step, if its times are known."""
        step = self._waiting
        if step is None or not step.has_passed:
            return
        self._waiting = None
        computing = step.computing_seconds
        self._est.add(computing / step.ests)
        self._after_est.add(step.after_est_seconds)
        if computing > 0:
            self._usual.ests.append(computing)
            self._usual.after.append(step.between_turns_seconds + step.last_seconds)
            self._rates += step.ests / computing
            self._rate_steps += 1

    def _update(self) -> None:
        figures = self._figures
        figures.est_seconds, figures.est_seconds_spread = self._est.value, self._est.spread
        figures.after_est_seconds = self._after_est.value
        figures.est_steps, figures.ring_steps = self._est.count, self._whole.count
        figures.ring_step_seconds = self._whole.value
        # A heartbeat between the two counts one step too few, and the next one counts it.
        figures.est_rates, figures.est_rate_steps = self._rates, self._rate_steps
        self._usual.write(figures)

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return perf_counter()
        if self._events_used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[self._events_used]
        self._events_used += 1
        event.record(torch.cuda.current_stream(self._device))
        return event


def device_type(device: torch.device) -> str:
    """Return the model of a device: of the GPU, or of this machine's CPU as the kernel names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_type()


def _median(seconds: deque[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0


def _elapsed(began: Mark, ended: Mark) -> float:
    """Return the seconds between two marks, which the GPU has passed."""
    if isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event):
        return began.elapsed_time(ended) / 1000
    assert isinstance(began, float) and isinstance(ended, float)
    return ended - began

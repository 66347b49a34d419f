"""Times each unit, and the overhead of its block, in one micro-batch of every step.

A block's overhead consists of frames, generators and bookkeeping. It is not measured on a GPU, where the host
does most of this work while kernels run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from elastane.pipeline.frames import leaves

#: Number of last steps whose median (overheads: minimum) is reported.
STEPS: Final = 20


class UnitClock:
    """Times one worker's units. On a GPU with events in its stream, which are read after the step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._seconds: dict[int, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=STEPS))
        self._forward: dict[int, tuple[Any, Any]] = {}
        self._reached: dict[int, Any] = {}
        self._ended: Any = None
        self._blocks: dict[str, float] = {}
        self._overheads: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=STEPS))

    def forget(self) -> None:
        """Discard all times, because the plan has changed."""
        self._seconds.clear()
        self._forward.clear()
        self._blocks.clear()
        self._overheads.clear()

    def forward(self, unit: int, call: Callable[[Any], Any], value: Any) -> Any:
        """Run a unit and record its time; its backward is timed from the gradient of its output on."""
        began = self._now()
        output = call(value)
        self._forward[unit] = began, self._now()
        for tensor in leaves(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _, unit=unit: self._reach(unit))
                break
        return output

    def end_loss(self, unit: int) -> None:
        """Record the end of the loss, which counts as part of the last unit's forward."""
        self._forward[unit] = self._forward[unit][0], self._now()

    def begin_backward(self, unit: int) -> None:
        """Record the start of the loss's backward, which counts as part of the last unit's."""
        self._reach(unit)

    def block(self, kind: str, seconds: float) -> None:
        """Record the duration of the whole block ("F" or "B") of the measured micro-batch."""
        self._blocks[kind] = seconds

    def end_backward(self) -> None:
        """Record the end of the measured micro-batch's backward."""
        self._ended = self._now()

    def end_step(self) -> None:
        """Add the step's times to the medians."""
        later, ended, blocks = self._reached, self._ended, self._blocks
        self._reached, self._ended, self._blocks = {}, None, {}
        if ended is None or not self._forward:
            return
        units = sorted(self._forward)
        for unit in units:
            began = later.get(unit)
            before = next((later[one] for one in reversed(units) if one < unit and one in later), ended)
            backward = 0.0 if began is None else max(0.0, self._between(began, before))
            self._seconds[unit].append((self._between(*self._forward[unit]), backward))
        if self._device is None and later and len(blocks) == 2:
            within = {
                "F": sum(self._between(*times) for times in self._forward.values()),
                "B": self._between(min(later.values()), ended),
            }
            for kind, seconds in blocks.items():
                self._overheads[kind].append(max(0.0, seconds - within[kind]))
        self._forward = {}

    @property
    def medians(self) -> dict[int, tuple[float, float]]:
        """(forward, backward) seconds by unit."""
        return {
            unit: (median(f for f, _ in times), median(b for _, b in times))
            for unit, times in self._seconds.items()
        }

    @property
    def overheads(self) -> tuple[float, float]:
        """(forward, backward) overhead of a block in seconds, without its units; zero where it is unknown.

        The minimum of the last steps, because the variation comes only from waiting for a processor.
        """
        forward, backward = (min(self._overheads.get(kind, (0.0,))) for kind in "FB")
        return forward, backward

    def _reach(self, unit: int) -> None:
        self._reached.setdefault(unit, self._now())

    def _now(self) -> Any:
        if self._device is None:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _between(self, began: Any, ended: Any) -> float:
        if self._device is None:
            return float(ended - began)
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1000.0

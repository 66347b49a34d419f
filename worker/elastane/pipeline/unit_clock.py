"""How long each unit takes, measured in one micro-batch of every step."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from elastane.pipeline.frames import leaves

#: Steps of which the median is taken.
STEPS: Final = 20


class UnitClock:
    """Times of one worker's units. On a GPU, events in its stream are read when the step is over."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._seconds: dict[int, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=STEPS))
        self._forward: dict[int, tuple[Any, Any]] = {}
        self._reached: dict[int, Any] = {}
        self._ended: Any = None

    def forget(self) -> None:
        """Forget all: the plan has changed."""
        self._seconds.clear()
        self._forward.clear()

    def forward(self, unit: int, call: Callable[[Any], Any], value: Any) -> Any:
        """Run a unit and note its time; its backward's begins with the gradient of its output."""
        began = self._now()
        output = call(value)
        self._forward[unit] = began, self._now()
        for tensor in leaves(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _, unit=unit: self._reach(unit))
                break
        return output

    def end_backward(self) -> None:
        """The backward of the micro-batch that was measured is over."""
        self._ended = self._now()

    def end_step(self) -> None:
        """Take the step's times into the medians."""
        later, ended = self._reached, self._ended
        self._reached, self._ended = {}, None
        if ended is None or not self._forward:
            return
        units = sorted(self._forward)
        for unit in units:
            began = later.get(unit)
            before = next((later[one] for one in reversed(units) if one < unit and one in later), ended)
            backward = 0.0 if began is None else max(0.0, self._between(began, before))
            self._seconds[unit].append((self._between(*self._forward[unit]), backward))
        self._forward = {}

    @property
    def medians(self) -> dict[int, tuple[float, float]]:
        """(forward, backward) seconds by unit."""
        return {
            unit: (median(f for f, _ in times), median(b for _, b in times))
            for unit, times in self._seconds.items()
        }

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

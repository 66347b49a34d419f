"""Records of a pipeline worker's steps, as of other processes (`step_trace`), for the local units only.

turn, end   of the ESTs whose home this worker is; without gradients
backward    {"kind", "step", "rank", "micro", "gradients"}   of its units, of each EST that it runs
applied     of its units: "partial" is true
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastane.registry import Registry
from elastane.runtime.pipelines.prepared import PreparedPipeline
from elastane.runtime.step_trace import VARIABLE, StepTrace, traced_of
from elastane.state.unit_state import UnitState
from elastane.state.value_digests import digest_any, digest_tensor


class UnitTrace(StepTrace):
    """The trace of one worker. Called by the script's thread."""

    def __init__(
        self, directory: str, name: str, prepared: PreparedPipeline, state: UnitState, registry: Registry
    ) -> None:
        objects = prepared.objects
        super().__init__(directory, name, objects.model, objects.optimizers, **traced_of(objects, registry))
        self._state = state
        self._places = {name: place for place, name in enumerate(state.optimizer.names())}

    def mini_batch_began(
        self, step: int, rank: int, micro: int, batch: Any, parts: Mapping[str, bytes]
    ) -> None:
        super().mini_batch_began(step, rank, micro, batch, parts)
        self._est_step = None  # its backward runs where its stages are

    def mini_batch_ended(
        self, step: int, rank: int, micro: int, parts: Mapping[str, bytes], values: Mapping[str, Any]
    ) -> None:
        self._ended(step, rank, micro, parts, values, None)

    @contextmanager
    def backward(self, step: int, rank: int, micro: int) -> Iterator[None]:
        """Context manager around the backward of an EST on this worker's stage."""
        self._est_step, self._gradients = (step, rank, micro), []
        try:
            yield
        finally:
            self._est_step = None
        self._write(kind="backward", step=step, rank=rank, micro=micro, gradients=self._gradients)

    def step_applied(self, step: int) -> None:
        state, units = self._state, self._state.units
        weights, optimizer, buffers = dict[str, str](), dict[str, str](), dict[str, str]()
        for unit in sorted(state.active):
            prefix = units.prefix(unit)
            for name, parameter in units.owned_parameters(unit).items():
                weights[prefix + name] = digest_tensor(parameter)
            for name, module, key in units.owned_buffers(unit):
                if (buffer := module._buffers[key]) is not None:
                    buffers[prefix + name] = digest_tensor(buffer)
            for name, entry in state.optimizer.export_unit(unit).items():
                place = self._places[prefix + name]
                optimizer |= {f"0/state/{place}/{key}": digest_any(value) for key, value in entry.items()}
        for index, group in enumerate(state.optimizer.export_groups()["param_groups"]):
            optimizer[f"0/group/{index}"] = digest_any(group)
        self._applied(step, weights, optimizer, buffers, partial=True)


def open_unit_trace(
    worker: str, prepared: PreparedPipeline, state: UnitState, registry: Registry
) -> UnitTrace | None:
    """Open the trace of a pipeline worker; None unless tracing is enabled.

    Must be called before the executor is built, so that the trace's hooks run first.
    """
    directory = os.environ.get(VARIABLE)
    return UnitTrace(directory, f"elastic-{worker}", prepared, state, registry) if directory else None

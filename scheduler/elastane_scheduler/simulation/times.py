"""Measured seconds of an EST's part of a step, by application, batch and device type. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elastane_scheduler.errors import InvalidSettings, InvalidTrace
from elastane_scheduler.simulation.traces import rows

#: Names in EasyScale's trace that its table of times spells otherwise.
_SPELT = {"neumf": "ncf"}


@dataclass
class StepTimes:
    """Seconds by (application, device type) and batch, for determinism D1 and for D2.

    Between two measured batches times are interpolated; beyond, and for one batch, they are in proportion to
    it.
    """

    d1: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    d2: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)

    def has(self, application: str, device_type: str) -> bool:
        """Return whether the application was measured on that type."""
        return (application, device_type) in self.d2

    def est_seconds(self, application: str, batch: int, device_type: str, mixes: bool) -> float:
        """Return seconds of one EST with that batch. Raises InvalidSettings for what was not measured."""
        measured = (self.d2 if mixes else self.d1).get((application, device_type))
        if not measured:
            raise InvalidSettings(
                f"no times of {application} on {device_type}", hint="Give a table of times with --times."
            )
        below = max((b for b in measured if b <= batch), default=None)
        above = min((b for b in measured if b >= batch), default=None)
        if below is None or above is None or below == above:
            nearest = below if below is not None else above
            assert nearest is not None
            return measured[nearest] * batch / nearest
        part = (batch - below) / (above - below)
        return measured[below] + part * (measured[above] - measured[below])

    def add_easyscale(self, lines: Iterable[str]) -> None:
        """Read EasyScale's table: model, bs, gpu, ddp_determinism, ddp_hetero. Raises InvalidTrace."""
        for row in rows(lines, ("model", "bs", "gpu", "ddp_determinism", "ddp_hetero")):
            model = row.text("model").lower()
            key = (_SPELT.get(model, model), row.text("gpu"))
            batch = row.whole("bs")
            self.d1.setdefault(key, {})[batch] = row.above_zero("ddp_determinism")
            self.d2.setdefault(key, {})[batch] = row.above_zero("ddp_hetero")

    def add_sia(self, lines: Iterable[str], application: str, device_type: str) -> None:
        """Read a table of Sia's simulator: num_replicas, local_bsz, step_time, sync_time.

        The rows with the fewest replicas count, without the exchange. Raises InvalidTrace.
        """
        found = [
            (
                row.whole("num_replicas"),
                row.whole("local_bsz"),
                row.above_zero("step_time"),
                row.number("sync_time"),
            )
            for row in rows(lines, ("num_replicas", "local_bsz", "step_time", "sync_time"))
        ]
        if not found:
            raise InvalidTrace("no measurement", line=1)
        fewest = min(replicas for replicas, *_ in found)
        for replicas, batch, step, exchange in found:
            if replicas == fewest and step > exchange:
                for table in (self.d1, self.d2):
                    table.setdefault((application, device_type), {})[batch] = step - exchange

"""Findings of `elastane doctor` about a pipeline's units: what makes stages large or serial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from elastane.diagnose.findings import Severity
from elastane.pipeline.units import Units
from elastane_planner.amounts import bytes_text

KIND: Final = "pipeline"
LARGE_FRACTION: Final = 0.5
"""A unit with so much of the model's parameters is named."""


class Said(NamedTuple):
    """A finding about units, and what to do."""

    severity: Severity
    what: str
    todo: str


def findings(units: Units, ests: int) -> Iterator[Said]:
    """Yield what there is to say of a script's units. ests: N."""
    if units.count == 1:
        yield Said(
            Severity.COSTS,
            "the model is one unit, which is never divided: every worker holds all of it",
            "give the layers as a list: prepare_pipeline([lambda: Embed(), *[lambda: Block()] * 12, ...])",
        )
        return
    if ests == 1:
        yield Said(
            Severity.COSTS,
            "with one logical worker a step has one micro-batch: all stages but one wait at any time",
            "train with more logical workers than stages (--ests)",
        )
    sizes = [units.parameter_bytes(unit) for unit in range(units.count)]
    largest = max(range(units.count), key=lambda unit: sizes[unit])
    if sizes[largest] > LARGE_FRACTION * sum(sizes):
        yield Said(
            Severity.NOTE,
            f"{_name(units, largest)} has {bytes_text(sizes[largest])} of parameters, "
            f"{sizes[largest] / sum(sizes):.0%} of the model: no worker with it needs less, however many "
            "there are",
            "divide it into several units, if it is too large for one device",
        )
    if tied := _undivided(units.ties):
        pairs = ", ".join(f"{_name(units, first)} and {_name(units, last)}" for first, last in tied)
        yield Said(
            Severity.COSTS,
            f"units that share parameters are on one stage, with all units between them: {pairs}; the model "
            "cannot be divided",
            "give them weights of their own",
        )
    if any(not units.is_built_by_function(unit) for unit in range(units.count)):
        yield Said(
            Severity.NOTE,
            "units are given as modules: each worker has the whole model in memory when it starts",
            "give functions that build them (lambda: Block(...)), if the model does not fit one worker",
        )


def _undivided(ties: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last units of ties that leave no place to cut a model; empty: there is one.

    ties: by unit; units with the same number above 0 are tied.
    """
    spans = {tie: (ties.index(tie), max(unit for unit, one in enumerate(ties) if one == tie)) for tie in ties}
    tied = [(first, last) for tie, (first, last) in spans.items() if tie and first < last]
    is_whole = all(any(first < cut <= last for first, last in tied) for cut in range(1, len(ties)))
    return tied if is_whole else []


def _name(units: Units, unit: int) -> str:
    name = units.names[unit]
    return f"unit {unit}" if name == str(unit) else f"unit {unit} ({name})"

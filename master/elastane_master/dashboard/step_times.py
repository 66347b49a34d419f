"""The distribution of a job's step times as rows of a table with bars. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elastane_master.metrics.measures import Distribution

BAR_WIDTH: Final = 160
_QUANTILES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The rows from the first to the last range with steps. count, mean_seconds: over all steps.

    quantiles: percentages of the steps, each with a time that these did not exceed ("0.1 s").
    """

    count: int
    mean_seconds: float
    rows: tuple[StepTimesRow, ...]
    quantiles: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class StepTimesRow:
    """Steps of a range, "0.05 to 0.1 s". bar: length in pixels, at least 1 for any step."""

    words: str
    count: int
    share: float
    bar: int


def step_times(found: Distribution) -> StepTimes | None:
    """Return the table for a histogram of seconds; None without observations."""
    ends = [end for end, _ in found.buckets]
    upto = [int(count) for _, count in found.buckets]
    counts = [count - before for count, before in zip(upto, [0, *upto], strict=False)]
    total = upto[-1]
    if not total:
        return None
    filled = [number for number, count in enumerate(counts) if count]
    most = max(counts)
    rows = tuple(
        StepTimesRow(
            _range(ends, number),
            counts[number],
            counts[number] / total,
            max(1, round(BAR_WIDTH * counts[number] / most)) if counts[number] else 0,
        )
        for number in range(filled[0], filled[-1] + 1)
    )
    quantiles = tuple(
        (round(100 * share), _bound(ends, next(n for n, count in enumerate(upto) if count >= share * total)))
        for share in _QUANTILES
    )
    return StepTimes(total, found.sum / total, rows, quantiles)


def _bound(ends: list[str], number: int) -> str:
    return f"at most {_short(ends[number])}" if ends[number] != "+Inf" else f"over {_short(ends[number - 1])}"


def _range(ends: list[str], number: int) -> str:
    if not number or ends[number] == "+Inf":
        return _bound(ends, number)
    return f"{_short(ends[number - 1]).removesuffix(' s')} to {_short(ends[number])}"


def _short(end: str) -> str:
    return f"{float(end):g} s"

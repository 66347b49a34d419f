"""Model of the seconds of a step by number of workers, fitted to measurements. Pure and exact.

    t(k) = ceil(N / k) c  +  al [k > 1]  +  be (k - 1)

c: one EST's part of a step; al: what any exchange adds; be: what each further worker adds to it. None is
negative. With one number of workers measured c alone is fitted, with two also al, with three or more be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

#: Below this, relative to the largest, a pivot is zero: the terms cannot be told apart by what was measured.
_PIVOT_MIN = 1e-12


class SpeedModel(msgspec.Struct, frozen=True):
    """See the module. Times in seconds."""

    ests: int
    compute_seconds: float
    exchange_seconds: float = 0.0
    exchange_per_worker_seconds: float = 0.0

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of a step with this many workers."""
        ests_most, exchange, peers = _terms(self.ests, workers)
        return (
            ests_most * self.compute_seconds
            + exchange * self.exchange_seconds
            + peers * self.exchange_per_worker_seconds
        )


class Sample(msgspec.Struct, frozen=True):
    """A number of workers, the seconds of a step measured with it, and the number of steps they rest on."""

    workers: int
    step_seconds: float
    steps: int = 1


COMPUTE_FRACTION_MIN = 0.1
_ORDERS = ((1, 2), (2, 1))


def possible(ests: int, samples: Sequence[Sample]) -> tuple[SpeedModel, ...]:
    """Return all models that fit the samples best, by relative errors; empty without samples.

    With two rungs there are two: al or be may be the reason. Non-negative least squares: with three terms
    every set of active ones can be tried, which is exact. c is at least COMPUTE_FRACTION_MIN of the shortest
    time for an EST: computing takes time.
    """
    orders = _ORDERS if len({sample.workers for sample in samples}) == 2 else _ORDERS[:1]
    return tuple(dict.fromkeys(_fitted(ests, samples, order) for order in orders)) if samples else ()


def _fitted(ests: int, samples: Sequence[Sample], order: tuple[int, ...]) -> SpeedModel:
    rungs = len({sample.workers for sample in samples})
    terms_known = (0, *order[: max(0, rungs - 1)])
    ests_most = {sample.workers: _terms(ests, sample.workers)[0] for sample in samples}
    least = COMPUTE_FRACTION_MIN * min(one.step_seconds / ests_most[one.workers] for one in samples)
    rows = [
        (
            _terms(ests, one.workers),
            one.step_seconds - least * ests_most[one.workers],
            one.steps / one.step_seconds**2,
        )
        for one in samples
    ]
    best: tuple[float, tuple[float, float, float]] | None = None
    for size in range(1, len(terms_known) + 1):
        for active in combinations(terms_known, size):
            found = _least_squares(rows, active)
            if found is None or min(found) < 0:
                continue
            error = sum(w * (t - sum(map(_product, terms, found))) ** 2 for terms, t, w in rows)
            # A further term must explain something: rounding alone does not.
            if best is None or error < best[0] * (1 - 1e-9) - 1e-15:
                best = (error, found)
    assert best is not None, "c alone fits any samples"
    compute, exchange, peers = best[1]
    return SpeedModel(ests, least + compute, exchange, peers)


_Row = tuple[tuple[float, float, float], float, float]


def _least_squares(rows: Sequence[_Row], active: tuple[int, ...]) -> tuple[float, float, float] | None:
    """Solve the normal equations for the active terms, others 0; None if the samples do not decide them."""
    size = len(active)
    matrix = [
        [sum(w * terms[i] * terms[j] for terms, _, w in rows) for j in active]
        + [sum(w * terms[i] * t for terms, t, w in rows)]
        for i in active
    ]
    scale = max(abs(matrix[i][i]) for i in range(size))
    if not scale:
        return None
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) <= _PIVOT_MIN * scale:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [
                    value - factor * other for value, other in zip(matrix[row], matrix[column], strict=True)
                ]
    found = [0.0, 0.0, 0.0]
    for place, term in enumerate(active):
        found[term] = matrix[place][size] / matrix[place][place]
    return found[0], found[1], found[2]


def _terms(ests: int, workers: int) -> tuple[float, float, float]:
    return -(-ests // workers), float(workers > 1), workers - 1


def _product(one: float, other: float) -> float:
    return one * other

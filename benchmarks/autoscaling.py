"""Study of the autoscaler: how near its final number of workers comes to the best, and what finding it costs.

Pure, seeded simulation. Each run is a job with N ESTs that starts with some number of workers; its step times
follow a scaling law, with noise. The best number is found by evaluating the law at all rungs. Regret is
strict: it compares the whole run, including first steps with the wrong number, measurements and changes, with
a run that uses the best number from its first step on.

    python benchmarks/autoscaling.py             900 runs for each noise, and the staircases
    python benchmarks/autoscaling.py --every 10  about a tenth of them
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elastane_scheduler.autoscaling.autoscaler import MEASURE_STEPS, AutoscalerState, Measurement, decide
from elastane_scheduler.autoscaling.modes import MICROS, Mode, Utility
from elastane_scheduler.autoscaling.objectives import Bounds
from elastane_scheduler.plan import ladder

Law = Callable[[int, int], float]

#: Scaling laws: seconds of a step with N ESTs on k workers, c = 1. The fitted model does not cover the last.
LAWS: dict[str, Law] = {
    "computing alone": lambda n, k: -(-n // k),
    "constant exchange": lambda n, k: -(-n // k) + 1.0 * (k > 1),
    "exchange by workers": lambda n, k: -(-n // k) + 0.05 * (k - 1),
    "both": lambda n, k: -(-n // k) + 0.5 * (k > 1) + 0.02 * (k - 1),
    "ring all-reduce": lambda n, k: -(-n // k) + 2.0 * (k - 1) / k + 0.01 * (k - 1),
}
ESTS = (8, 16, 24, 32, 64)
STARTS = (0.0, 0.5, 1.0)
#: Price of a worker per second, as a fraction of what a second is worth in the linear utility.
PRICES = (0.0, 0.01, 0.05, 0.2)
UTILITIES = ("linear", "linear, half as long", "points")
STEPS = (300, 10_000)
WORTH = 100.0
LOOK_STEPS = 10
WINDOW = 40
#: On warm hosts: seconds until a new worker joins, and the stall of a change.
START_SECONDS, STALL_SECONDS = 2.0, 0.5


@dataclass(frozen=True)
class Case:
    """One run. start: initial number of workers. price: of a worker, in currency units per second."""

    ests: int
    start: int
    law: str
    price_level: float
    utility: str
    steps: int
    seed: int

    def step_seconds(self, workers: int) -> float:
        return LAWS[self.law](self.ests, workers)

    @property
    def mode(self) -> Utility:
        longest = self.steps * self.step_seconds(1)
        shortest = self.steps * min(map(self.step_seconds, ladder(self.ests)))
        if self.utility == "linear":
            return Utility(((0.0, WORTH), (2 * longest, 0.0)), linear=True)
        if self.utility == "linear, half as long":
            return Utility(((0.0, WORTH), (longest, 0.0)), linear=True)
        points = ((0.0, WORTH), (shortest + longest / 4, 0.6 * WORTH), (2 * longest, 0.0))
        return Utility(points)

    @property
    def price(self) -> float:
        return self.price_level * WORTH / (2 * self.steps * self.step_seconds(1))

    def worth(self, seconds: float, cost: float) -> float:
        """Return utility less cost of a run of this duration."""
        return self.mode.at(seconds) - cost

    def fixed(self, workers: int) -> float:
        seconds = self.steps * self.step_seconds(workers)
        return self.worth(seconds, seconds * workers * self.price)

    def best(self) -> int:
        return max(ladder(self.ests), key=lambda workers: (self.fixed(workers), -workers))


@dataclass(frozen=True)
class Outcome:
    """Result of a run. worth: utility less cost of the whole run, including changes and measurements."""

    workers: int
    changes: int
    worth: float
    trail: tuple[str, ...]


def play(case: Case, noise: float, mode: Mode | None = None) -> Outcome:
    """Run a case under the autoscaler."""
    rng = random.Random(case.seed)
    state, workers = AutoscalerState(), case.start
    bounds = Bounds(case.ests, 1, case.ests)
    now = cost = 0.0
    changes, trail = 0, []
    taken: list[float] = []
    due: tuple[float, int] | None = None
    for step in range(case.steps):
        if due is not None and now >= due[0]:
            now, workers, taken, due = now + STALL_SECONDS, due[1], [], None
            cost += STALL_SECONDS * workers * case.price
        seconds = case.step_seconds(workers) * max(0.2, rng.gauss(1.0, noise))
        now += seconds
        cost += seconds * (max(workers, due[1]) if due else workers) * case.price
        if state.before > workers:  # those of before stand by while new ones would start
            stood_by = min(seconds, max(0.0, state.asked_at + START_SECONDS - (now - seconds)))
            cost += stood_by * (state.before - workers) * case.price
        taken.append(seconds)
        if due is None and len(taken) % LOOK_STEPS == MEASURE_STEPS:
            window = taken[-WINDOW:]
            seen = Measurement(
                now, now, workers, statistics.median(window), len(window), case.steps - step - 1,
                change_seconds=STALL_SECONDS,
                worker_hour_micros=case.price * 3600 * MICROS,
                spent_micros=round(cost * MICROS),
            )  # fmt: skip
            decision = decide(state, mode or case.mode, bounds, seen)
            state = decision.state
            if decision.target != workers:
                changes += 1
                trail.append(
                    f"{step + 1}: {workers} -> {decision.target} ({decision.action}: {decision.reason})"
                )
                due = (now + (START_SECONDS if decision.target > workers else 0.0), decision.target)
    return Outcome(workers, changes, case.worth(now, cost), tuple(trail))


def cases() -> Iterator[Case]:
    """Yield the 900 cases."""
    grid = itertools.product(LAWS, PRICES, UTILITIES, ESTS, STARTS)
    for law, price, utility, ests, start in grid:
        rungs = ladder(ests)
        # The same for all prices of a case, so that these can be compared.
        seed = hash_of(law, utility, ests, start)
        low, high = map(math.log, STEPS)
        steps = round(math.exp(random.Random(seed).uniform(low, high)))
        yield Case(ests, rungs[round(start * (len(rungs) - 1))], law, price, utility, steps, seed)


def hash_of(*parts: object) -> int:
    return int.from_bytes(repr(parts).encode(), "big") % (2**61 - 1)


@dataclass(frozen=True)
class Summary:
    """Results of a study.

    near: fraction of runs that end within one rung of the best. regret: loss in time and money beyond that of
    the best number, relative to it; worth_regret: the same relative to utility less cost. by_price: mean
    rung. monotone: True if no higher price has a higher mean rung. rising: number of cases in which a higher
    price ends more than one rung higher.
    """

    runs: int
    near: float
    regret: float
    regret_worst: float
    worth_regret: float
    changes: float
    changes_worst: int
    by_price: tuple[float, ...]
    monotone: bool
    rising: int


def study(noise: float, every: int = 1, show: bool = False) -> Summary:
    """Simulate the cases. every: 10 selects one in ten groups of cases that differ only in price."""
    near, regrets, worth_regrets, changes = 0, [], [], []
    finals: dict[tuple[object, ...], dict[float, int]] = {}
    for case in cases():
        if case.seed % every:
            continue
        outcome = play(case, noise)
        rungs = ladder(case.ests)
        best = case.best()
        apart = abs(rungs.index(best) - rungs.index(outcome.workers))
        near += apart <= 1
        lost_at_best = WORTH - case.fixed(best)
        regret = (case.fixed(best) - outcome.worth) / lost_at_best
        regrets.append(regret)
        worth_regrets.append((case.fixed(best) - outcome.worth) / abs(case.fixed(best)))
        changes.append(outcome.changes)
        key = (case.law, case.utility, case.ests, case.start)
        finals.setdefault(key, {})[case.price_level] = rungs.index(outcome.workers)
        if show and (apart > 1 or regret > 0.2):
            print(f"{case} best {best} got {outcome.workers} regret {regret:.1%}")
            for line in outcome.trail:
                print("   ", line)
    by_price = tuple(statistics.mean(of[price] for of in finals.values()) for price in PRICES)
    rising = sum(
        later > earlier + 1
        for of in finals.values()
        for earlier, later in itertools.pairwise(of[price] for price in PRICES)
    )
    monotone = all(later <= earlier for earlier, later in itertools.pairwise(by_price))
    return Summary(
        len(regrets), near / len(regrets), statistics.mean(regrets), max(regrets),
        statistics.mean(worth_regrets), statistics.mean(changes), max(changes), by_price, monotone, rising,
    )  # fmt: skip


def step_one_rule(case: Case, theta: float = 0.1) -> int:
    """Return the final number of the rule of Or et al., which tries one more worker at a time."""
    workers = case.start
    while workers < case.ests:
        old, new = case.step_seconds(workers), case.step_seconds(workers + 1)
        if (old / new - 1) * workers <= theta:
            break
        workers += 1
    return workers


def staircases() -> list[tuple[int, int, int, int, float]]:
    """Return ESTs, start, final number of the step-1 rule and of ours, and our regret; no exchange cost."""
    found = []
    for ests, start in ((16, 8), (16, 4), (16, 1), (32, 8), (64, 16)):
        case = Case(ests, start, "computing alone", 0.0, "linear", 2000, seed=ests + start)
        outcome = play(case, 0.02)
        lost = WORTH - case.fixed(case.best())
        regret = (case.fixed(case.best()) - outcome.worth) / lost
        found.append((ests, start, step_one_rule(case), outcome.workers, regret))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="Only about one in so many groups of cases.")
    parser.add_argument("--show", action="store_true", help="Print cases that end far off, and their trail.")
    options = parser.parse_args()
    print(
        "| noise | runs | within a rung | regret | worst | of utility | changes | most | monotone in price |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for noise in (0.02, 0.05, 0.3):
        of = study(noise, options.every, options.show)
        print(
            f"| {noise:.0%} | {of.runs} | {of.near:.1%} | {of.regret:.2%} | {of.regret_worst:.0%} "
            f"| {of.worth_regret:.2%} | {of.changes:.2f} | {of.changes_worst} "
            f"| {'yes' if of.monotone else 'no'}, {of.rising} beyond a rung |",
            flush=True,
        )
    print("\n| ESTs | from | step-1 rule | ladder | regret |\n|---|---|---|---|---|")
    for ests, start, rule, ours, regret in staircases():
        print(f"| {ests} | {start} | {rule} | {ours} | {regret:.1%} |")


if __name__ == "__main__":
    main()

"""Stragglers: workers of a ring that are slower than others on the same type of device, and why. Pure.

A sample is one step of one worker: its rate in ESTs per second over the rate of the middle worker of its
device type. The rate is of computing alone: between its turns a worker with a single EST runs none of the
script's code, so that no other could be as fast. Samples are averaged exponentially, from the first one on:

    ratio = sample                                  of the first
    ratio = ratio + 0.1 (sample - ratio)            of each later one; n equal ones weigh 1 - 0.9^n

Below 0.8 a worker is a straggler, once that has lasted for sixteen samples, or for fewer if the last five
are all below 0.6: noise of 5 % takes a worker at 0.83 below 0.8 for a moment, and then not for long. Until a
worker has ten samples, only a ratio below 0.6 counts: its first steps fill caches. From 0.9 on, for as long,
it is one no more.

Workers report many steps at once and at different times, so that a change of all of them looks for a moment
like one of the first that reports it. So reports are compared in rounds, in which everybody reports once, and
three of them must say the same.

Rates are averaged and not seconds, so that a pause of a thousand steps' length counts as one step. A worker
that is alone with its device type has no like, and of two the faster is the measure. Where most workers of a
type are slow, they are the usual ones.

Source: the average with alpha 0.1 and the threshold of 0.8 are those of "Resource Elasticity in Distributed
Deep Learning" (MLSys 2020), which exempts rank 0; the rules against noise are ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

ALPHA: Final = 0.1
SLOW_RATIO: Final = 0.8
VERY_SLOW_RATIO: Final = 0.6
USUAL_RATIO: Final = 0.9
RATIO_MAX: Final = 2.0
"""A sample counts as no more: one wrong one would hide a slow worker for long."""
FIRST_SAMPLES: Final = 10
LASTING_SAMPLES: Final = 16
USUAL_STEPS_MIN: Final = 10
"""Steps that the usual times of a ring's steps must be taken of."""
ROUNDS_MIN: Final = 3
ROUND_REPORTS_MAX: Final = 5
"""A round ends after this many reports of one worker, because another may have paused."""
VERY_SLOW_SAMPLES: Final = 5
LATE_FRACTION: Final = 1 / SLOW_RATIO - 1
"""Fraction of a step from which the others' unexplained wait for a worker counts."""
NEW_SAMPLES_MAX: Final = 100
"""The first report of a worker that has more behind it, as after a restart of the master, is no sample."""
SECONDS_MIN, SECONDS_MAX = 1e-6, 1e6
"""Other times of an EST are not believed."""

Cause = Literal["compute", "data", "network"]


class RateRatio(msgspec.Struct):
    """Running average of one worker's ratio, and the resulting judgement.

    value: 0.0: no sample yet. samples: so far. slow, very_slow, usual: so many samples in a row with an
    average below SLOW_RATIO (after the first ones), with a sample below VERY_SLOW_RATIO, with an average from
    USUAL_RATIO on. rounds: in which samples came together and were below SLOW_RATIO, since any from
    USUAL_RATIO on.
    """

    value: float = 0.0
    samples: int = 0
    slow: int = 0
    very_slow: int = 0
    usual: int = 0
    rounds: int = 0
    is_straggler: bool = False

    def add(self, ratio: float, samples: int = 1) -> None:
        """Add this many samples with a mean of `ratio`. A ratio that is not a number above 0 is ignored."""
        if samples < 1 or not (math.isfinite(ratio) and ratio > 0):
            return
        ratio, before = min(ratio, RATIO_MAX), self.value
        if not self.samples:
            before = ratio
        self.value = ratio + (before - ratio) * (1 - ALPHA) ** samples
        later = min(samples, max(0, self.samples + samples - FIRST_SAMPLES))
        slow = _in_a_row(self.slow, samples, SLOW_RATIO - before, SLOW_RATIO - self.value)
        self.slow = min(slow, self.slow + later)
        self.usual = _in_a_row(self.usual, samples, before - USUAL_RATIO, self.value - USUAL_RATIO)
        self.very_slow = self.very_slow + samples if ratio < VERY_SLOW_RATIO else 0
        if ratio < SLOW_RATIO:
            self.rounds += 1
        elif ratio >= USUAL_RATIO:
            self.rounds = 0
        is_first = not self.samples or self.samples + samples <= FIRST_SAMPLES
        self.samples += samples
        self._judge(is_first=is_first)

    def _judge(self, *, is_first: bool) -> None:
        """Decide whether the worker is a straggler now. is_first: these are its first samples."""
        if self.is_straggler:
            self.is_straggler = self.usual < LASTING_SAMPLES
        elif is_first:
            self.is_straggler = self.value < VERY_SLOW_RATIO
        elif self.value < SLOW_RATIO and self.rounds >= ROUNDS_MIN:
            self.is_straggler = self.slow >= LASTING_SAMPLES or self.very_slow >= VERY_SLOW_SAMPLES

    @property
    def is_usual(self) -> bool:
        """True if the worker is known not to be a straggler; before, it may be unknown."""
        return not self.is_straggler and self.samples > FIRST_SAMPLES


def _in_a_row(before: int, samples: int, margin_before: float, margin: float) -> int:
    """Return for how many samples in a row the average has been beyond a threshold, now that it moved.

    margin: by how much it is beyond. Between the two it moved as over `samples` equal ones; the first of them
    beyond the threshold is found on the straight line, which the curve crosses sooner: no sample too many is
    counted.
    """
    if margin <= 0:
        return 0
    if margin_before > 0:
        return before + samples
    crossed = math.ceil(samples * -margin_before / (margin - margin_before))
    return max(1, samples - max(0, crossed - 1))


class Usual(msgspec.Struct, frozen=True):
    """A worker's usual step (medians) in the ring of `generation`. steps: it is taken of; 0: not known yet.

    est_seconds: its ESTs, with waiting for their batches: data_seconds. all_reduce_seconds: waiting for the
    sums of all workers. between_seconds: its own code between two steps. after_seconds: its own code after
    backward.
    """

    generation: int = 0
    steps: int = 0
    est_seconds: float = 0.0
    data_seconds: float = 0.0
    all_reduce_seconds: float = 0.0
    between_seconds: float = 0.0
    after_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Time of a step whose parts are known."""
        return self.est_seconds + self.after_seconds + self.all_reduce_seconds + self.between_seconds


class Report(msgspec.Struct, frozen=True):
    """A worker's report about its steps, sent with each heartbeat. ests: number that it hosts.

    est_rates: sum, over the steps measured since its process began, of ESTs per second; est_samples: their
    number.
    """

    device_type: str
    ests: int
    est_rates: float
    est_samples: int
    usual: Usual = Usual()


class Verdict(msgspec.Struct, frozen=True):
    """Judgement of a worker. cause: None: no straggler. ratio: its rate over that of others of its type."""

    cause: Cause | None
    ratio: float


class _Known(msgspec.Struct):
    """Last known state of a worker.

    samples, rates: of the steps that it has reported in this round, and the sum of their rates; reports: in
    this round.
    """

    session: str
    report: Report
    samples: int = 0
    rates: float = 0.0
    reports: int = 0
    ratio: RateRatio = msgspec.field(default_factory=RateRatio)
    cause: Cause = "compute"

    @property
    def est_seconds(self) -> float:
        """Mean of the round."""
        return self.samples / self.rates

    @property
    def data_seconds(self) -> float:
        """Seconds that an EST waits for its batch."""
        return self.report.usual.data_seconds / self.report.ests


class _UsualStep(msgspec.Struct, frozen=True):
    """The usual step of a ring's middle worker; of two, the one that waits."""

    seconds: float
    all_reduce_seconds: float


class StragglerWatch:
    """Watches the workers of one job by their reports. Used by the master's server of the job.

    Kept in memory: after a restart the first samples count as those of a new worker.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._generation = 0
        self._members: dict[str, None] = {}
        #: Members that have reported no step in this round.
        self._missing: set[str] = set()

    def heard(
        self, worker: str, session: str, report: Report, ring: Callable[[], Sequence[str]], generation: int
    ) -> Verdict | None:
        """Process a report and return the judgement of the worker; None: too little is known.

        session: of the worker's stream; in another one its counters begin anew. ring: returns the members of
        the ring of `generation`; called once a round. A report with times that cannot be, of a worker outside
        the ring, or without a new step, is no sample.
        """
        if not _is_sound(report):
            return self._verdict(worker)
        known = self._known.get(worker)
        if known is None or known.session != session or report.est_samples < known.report.est_samples:
            is_new = report.est_samples <= NEW_SAMPLES_MAX
            nothing = Report(report.device_type, report.ests, 0.0, 0)
            self._known[worker] = known = _Known(session, nothing if is_new else report)
        samples = report.est_samples - known.report.est_samples
        rates = report.est_rates - known.report.est_rates
        known.report = report
        if generation != self._generation:
            self._begin(ring(), generation)
        if worker in self._members and samples and SECONDS_MIN * rates <= samples <= SECONDS_MAX * rates:
            known.samples, known.rates, known.reports = (
                known.samples + samples,
                known.rates + rates,
                known.reports + 1,
            )
            self._missing.discard(worker)
            if not self._missing or known.reports >= ROUND_REPORTS_MAX:
                self._compare()
                self._begin(ring(), generation)
        return self._verdict(worker)

    def forget(self, worker: str, session: str) -> None:
        """Forget a worker whose session has ended."""
        known = self._known.get(worker)
        if known is not None and known.session == session:
            del self._known[worker]

    def _begin(self, members: Sequence[str], generation: int) -> None:
        """Begin a round."""
        self._generation, self._members = generation, dict.fromkeys(members)
        self._missing = set(members)
        for known in self._known.values():
            known.samples, known.rates, known.reports = 0, 0.0, 0

    def _compare(self) -> None:
        """Compare the workers that have reported in this round with the middle one of their device type.

        Of two, the faster one is the measure.
        """
        there = [known for name in self._members if (known := self._known.get(name)) and known.samples]
        middle = self._usual_step(there) if len(there) == len(self._members) else None
        by_type: dict[str, list[_Known]] = {}
        for known in there:
            by_type.setdefault(known.report.device_type, []).append(known)
        for like in by_type.values():
            if len(like) < 2:
                continue
            est_seconds = statistics.median_low(known.est_seconds for known in like)
            data_seconds = statistics.median_low(known.data_seconds for known in like)
            for known in like:
                _add(known, est_seconds, data_seconds, middle)

    def _usual_step(self, there: Sequence[_Known]) -> _UsualStep | None:
        """Return the usual step of the ring's middle worker; None: not known of all in this ring."""
        usual = [known.report.usual for known in there]
        if any(one.generation != self._generation or one.steps < USUAL_STEPS_MIN for one in usual):
            return None
        return _UsualStep(
            statistics.median_high(one.step_seconds for one in usual),
            statistics.median_high(one.all_reduce_seconds for one in usual),
        )

    def _verdict(self, worker: str) -> Verdict | None:
        known = self._known.get(worker)
        if known is None:
            return None
        if known.ratio.is_straggler:
            return Verdict(known.cause, known.ratio.value)
        return Verdict(None, known.ratio.value) if known.ratio.is_usual else None


def _add(known: _Known, est_seconds: float, data_seconds: float, middle: _UsualStep | None) -> None:
    """Add a round's samples of a worker.

    est_seconds, data_seconds: of an EST of the middle worker of its type.
    """
    report, network = known.report, 0.0
    if middle is not None:
        usual = report.usual
        unexplained = middle.seconds - usual.step_seconds
        late = min(unexplained, middle.all_reduce_seconds - usual.all_reduce_seconds)
        network = late / report.ests if late > LATE_FRACTION * middle.seconds else 0.0
    own = known.est_seconds + network
    data = known.data_seconds - data_seconds
    parts: dict[Cause, float] = {"compute": own - est_seconds - data - network, "data": data}
    parts["network"] = network
    known.cause = max(parts, key=lambda cause: parts[cause])
    known.ratio.add(est_seconds / own, known.samples)


def _is_sound(report: Report) -> bool:
    usual = report.usual
    times = msgspec.structs.astuple(usual)[2:]
    return (
        report.ests > 0
        and report.est_samples >= 0
        and math.isfinite(report.est_rates)
        and report.est_rates >= 0
        and all(math.isfinite(seconds) and 0 <= seconds <= SECONDS_MAX for seconds in times)
    )

"""Pure: the order of faults, from a seed; and the results of all of them.

Faults are dealt like cards: every one that the machine allows once, in random order, then all again. So a
long run has injected each equally often, and a short one repeats none.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from elastane_common.errors import ElastaneError


class FaultsError(ElastaneError):
    """Unknown fault, or none that this machine allows."""

    code = "ELA414"


def choose(text: str, known: Sequence[str]) -> list[str]:
    """Parse the faults named in "a,b"; all for an empty text. Raises FaultsError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FaultsError(f"unknown fault {unknown[0]!r}", hint=f"known: {', '.join(known)}")
    return list(dict.fromkeys(names)) or list(known)


class Deck:
    """The order of faults. Equal seeds and names give equal orders."""

    def __init__(self, seed: str, names: Sequence[str]) -> None:
        if not names:
            raise FaultsError("this machine allows none of the faults", hint="see `elastane chaos --list`")
        self._rng = random.Random(seed)
        self._names = list(names)
        self._cards = self._deal()
        self._back: list[str] = []

    @property
    def size(self) -> int:
        """Number of faults dealt before the first is repeated."""
        return len(self._names)

    def draw(self) -> str:
        """Return the next fault."""
        return self._back.pop() if self._back else next(self._cards)

    def put_back(self, name: str) -> None:
        """Return a fault that was not injected because the run ended; it is the next one."""
        self._back.append(name)

    def _deal(self) -> Iterator[str]:
        while True:
            cards = self._names.copy()
            self._rng.shuffle(cards)
            yield from cards


@dataclass(frozen=True, slots=True)
class Injection:
    """One injected fault.

    run: number of its run; step: the job's step at that time. kept_seconds: its duration. recovery_seconds:
    from the injection to the next step committed after it, of the next ring if the fault costs the ring a
    member; None if there was none. problems: broken promises; empty if all hold.
    """

    fault: str
    run: int
    step: int
    detail: str
    kept_seconds: float
    recovery_seconds: float | None
    problems: tuple[str, ...] = ()

    def in_words(self, unit: str = "step", unrecovered: str = "no step after it") -> str:
        """Return one line: step, fault, recovery, and what was broken. unit: what `step` counts."""
        seconds = self.recovery_seconds
        after = unrecovered if seconds is None else f"next {unit} after {seconds:.2f} s"
        return f"{unit} {self.step}: {self.detail}: {after}: {'; '.join(self.problems) or 'held'}"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run from its first step to its last.

    differing: parts of the result that differ from the fixed run's.
    """

    run: int
    steps: int
    entries: int
    lost: int
    repeated: int
    differing: tuple[str, ...]
    violations: tuple[str, ...]
    traced_steps: int
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.differing and not self.violations and self.lost == 0 and self.repeated == 0


@dataclass(frozen=True, slots=True)
class FaultSummary:
    """All injections of one fault. seconds: of those that recovered, ascending."""

    fault: str
    times: int
    seconds: tuple[float, ...]
    kept_seconds: float
    problems: tuple[str, ...]
    last: str

    @property
    def median_seconds(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """Everything found. left_out: faults that this machine does not allow, each with the reason.

    ps: parameter servers. With them, steps are tasks, `lost` and `repeated` of a run are those that a slot
    lacks or has too many, summed over slots, and `differing` are weights that are not of each task once.
    """

    seed: str
    ests: int
    steps: int
    seconds: float
    injections: tuple[Injection, ...]
    runs: tuple[RunSummary, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    ps: int = 0

    @property
    def ok(self) -> bool:
        return all(run.ok for run in self.runs) and not any(one.problems for one in self.injections)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    def by_fault(self) -> list[FaultSummary]:
        """Summarize each injected fault, in the order of first injections."""
        names = dict.fromkeys(one.fault for one in self.injections)
        return [self._summary(name) for name in names]

    def as_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "exit_code": self.exit_code,
            "seed": self.seed,
            "ests": self.ests,
            "parameter_servers": self.ps,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "sha256": dict(self.fingerprint),
            "lost": sum(run.lost for run in self.runs),
            "repeated": sum(run.repeated for run in self.runs),
            "faults": [
                {
                    "fault": one.fault,
                    "times": one.times,
                    "kept_seconds": round(one.kept_seconds, 2),
                    "median_seconds": None if one.median_seconds is None else round(one.median_seconds, 3),
                    "range_seconds": [round(s, 3) for s in (one.seconds[:1] + one.seconds[-1:])],
                    "recovery_seconds": [round(s, 3) for s in one.seconds],
                    "last": one.last,
                    "problems": list(one.problems),
                }
                for one in self.by_fault()
            ],
            "runs": [
                {
                    "run": run.run,
                    "steps": run.steps,
                    "entries": run.entries,
                    "lost": run.lost,
                    "repeated": run.repeated,
                    "differing": list(run.differing),
                    "violations": list(run.violations),
                    "traced_steps": run.traced_steps,
                    "seconds": round(run.seconds, 1),
                }
                for run in self.runs
            ],
            "left_out": dict(self.left_out),
        }

    def _summary(self, name: str) -> FaultSummary:
        found = [one for one in self.injections if one.fault == name]
        return FaultSummary(
            name,
            len(found),
            tuple(sorted(one.recovery_seconds for one in found if one.recovery_seconds is not None)),
            statistics.median(one.kept_seconds for one in found),
            tuple(problem for one in found for problem in one.problems),
            found[-1].detail,
        )

"""Both sides of a proof: the script under stock DDP, the script under random churn, the comparison.

    reference ─▶ run 1 ─▶ ... ─▶ run R          all equal: done
                  │ one differs
                  ▼
    the reference again, traced ── differs from the first ─▶ the script is not deterministic by itself
                  │ equal
                  ▼
    the run again with the same churn, traced ─▶ the first difference between the traces

An elastic run that equals the reference shows that the script repeats itself, so a second reference is
needed only after a difference. Tracing is left for then, too: it reads every gradient and weight.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elastane.agent.process import ChildProcess
from elastane.agent.reference import StockRunError, run_stock_ddp
from elastane.determinism import DEFAULT_LEVEL, Level
from elastane.verify.causes import Cause, audit_cause, likely_cause, place_in_words, steps_cause
from elastane.verify.compare import Difference, first_difference, read_traces
from elastane.verify.elastic_run import ElasticRun, RunFailed
from elastane.verify.plan import ChurnPlan, make_plan
from elastane.verify.results import Comparison, Outcome, compare_outcomes, read_stock

TRACE_VARIABLE: Final = "ELASTANE_TRACE_DIR"
STEPS_VARIABLE: Final = "ELASTANE_STEPS_MAX"


class Verdict(enum.StrEnum):
    """What a proof found."""

    EQUAL = "equal"
    DIFFERS = "differs"
    NOT_DETERMINISTIC = "not deterministic by itself"

    @property
    def exit_code(self) -> int:
        return {Verdict.EQUAL: 0, Verdict.DIFFERS: 1, Verdict.NOT_DETERMINISTIC: 3}[self]


@dataclass(frozen=True, slots=True)
class RunResult:
    """One elastic run beside the reference."""

    plan: ChurnPlan
    comparison: Comparison
    seconds: float


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Everything found. search: what was compared to find the difference, in words."""

    verdict: Verdict
    seed: str
    ests: int
    steps: int
    values: int
    reference_seconds: float
    runs: tuple[RunResult, ...]
    difference: Difference | None = None
    cause: Cause | None = None
    search: str = ""
    fingerprint: dict[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.verdict is Verdict.EQUAL

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    def as_json(self) -> dict[str, object]:
        return {
            "verdict": self.verdict.value,
            "exit_code": self.exit_code,
            "seed": self.seed,
            "ests": self.ests,
            "steps": self.steps,
            "values_compared": self.values,
            "sha256": self.fingerprint,
            "reference_seconds": round(self.reference_seconds, 2),
            "runs": [
                {
                    "path": list(run.plan.path),
                    "churn": run.plan.lines(),
                    "kills": len(run.plan.deaths),
                    "equal": run.comparison.equal,
                    "differing": run.comparison.differing,
                    "violations": list(run.comparison.violations),
                    "seconds": round(run.seconds, 2),
                }
                for run in self.runs
            ],
            "difference": self.difference.as_json() if self.difference is not None else None,
            "where": place_in_words(self.difference) if self.difference is not None else None,
            "cause": (
                {
                    "kind": self.cause.kind,
                    "text": self.cause.text,
                    "hint": self.cause.hint,
                    "ours": self.cause.ours,
                }
                if self.cause is not None
                else None
            ),
            "search": self.search,
        }


class Watcher:
    """Hears of a proof as it goes on; this one says nothing. Called from the proof's thread."""

    def stage(self, text: str, steps: int | None = None) -> None:
        """Something begins; steps: how many global steps it has, if known."""

    def step(self, step: int) -> None:
        """Steps committed in this stage."""

    def note(self, text: str) -> None:
        """A line to keep."""


@dataclass(frozen=True, slots=True)
class _Reference:
    outcome: Outcome
    trace: Path | None


def run_verify(
    folder: Path,
    script: Sequence[str],
    *,
    ests: int,
    runs: int = 1,
    kills: int = 1,
    paths: Sequence[Sequence[int]] = (),
    steps: int | None = None,
    seed: str | int | None = None,
    determinism: Level = DEFAULT_LEVEL,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
    trace: bool = False,
    timeout_seconds: float = 3600.0,
    launch: Callable[..., ChildProcess] = ChildProcess,
    watcher: Watcher | None = None,
) -> VerifyResult:
    """Run `script` (without the interpreter) under stock DDP and under churn in `folder`, and compare.

    runs: elastic runs, each with churn of its own; paths: their numbers of workers in turn, else drawn.
    kills: workers killed in each. steps: stop both sides after so many global steps. seed: of the churn;
    printed by the caller, for another run with the same one. trace: trace every run, not only after a
    difference. timeout_seconds: for each run. launch: how processes are made.
    Raises RunFailed when either side cannot be run, PlanError when no such churn fits.
    """
    proof = Proof(
        folder=folder.absolute(),
        script=script,
        ests=ests,
        kills=kills,
        seed=str(secrets.randbelow(2**32) if seed is None else seed),
        determinism=determinism,
        threads=threads,
        environment={**(environment or {}), **({STEPS_VARIABLE: str(steps)} if steps else {})},
        trace=trace,
        timeout_seconds=timeout_seconds,
        launch=launch,
        watcher=watcher or Watcher(),
    )
    return proof.run(runs, paths)


@dataclass(frozen=True)
class Proof:
    """One call of `run_verify`; see there for the fields."""

    folder: Path
    script: Sequence[str]
    ests: int
    kills: int
    seed: str
    determinism: Level
    threads: int
    environment: Mapping[str, str]
    trace: bool
    timeout_seconds: float
    launch: Callable[..., ChildProcess]
    watcher: Watcher

    def run(self, runs: int, paths: Sequence[Sequence[int]]) -> VerifyResult:
        started = time.monotonic()
        reference = self._reference("reference", traced=self.trace)
        reference_seconds = time.monotonic() - started
        outcome = reference.outcome
        plans = [
            make_plan(
                f"{self.seed}/{number}",
                ests=self.ests,
                steps=outcome.steps,
                kills=self.kills,
                path=paths[number % len(paths)] if paths else None,
            )
            for number in range(runs)
        ]
        done: list[RunResult] = []
        verdict, difference, cause, search = Verdict.EQUAL, None, None, ""
        for number, plan in enumerate(plans, 1):
            started = time.monotonic()
            found = self._elastic(f"run-{number}", plan, traced=self.trace)
            comparison = compare_outcomes(outcome, found)
            done.append(RunResult(plan, comparison, time.monotonic() - started))
            if not comparison.equal:
                verdict, difference, cause, search = self._search(reference, number, plan, comparison)
                break
        return VerifyResult(
            verdict,
            self.seed,
            self.ests,
            outcome.steps,
            len(outcome.values),
            reference_seconds,
            tuple(done),
            difference,
            cause,
            search,
            outcome.fingerprint,
        )

    def _search(
        self, reference: _Reference, number: int, plan: ChurnPlan, comparison: Comparison
    ) -> tuple[Verdict, Difference | None, Cause, str]:
        """Run `number` differs from the reference: whose fault, and where does it begin?"""
        if comparison.differing == ["audit"]:
            return Verdict.DIFFERS, None, audit_cause(comparison.violations), f"the audit of run {number}"
        again = self._reference("reference-again", traced=True)
        assert again.trace is not None
        if not compare_outcomes(reference.outcome, again.outcome).equal:
            first = reference.trace or self._reference("reference-third", traced=True).trace
            assert first is not None
            difference = first_difference(read_traces(first), read_traces(again.trace))
            cause = likely_cause(difference, by_itself=True)
            return Verdict.NOT_DETERMINISTIC, difference, cause, "two runs of the reference"
        name = f"run-{number}"
        if not self.trace:
            name = f"run-{number}-traced"
            self._elastic(name, plan, traced=True)
        difference = first_difference(read_traces(again.trace), read_traces(self.folder / name / "trace"))
        cause = likely_cause(difference)
        if difference is None and "steps" in comparison.differing:
            row = comparison.rows[0]
            cause = steps_cause(row.reference, row.found)
        return Verdict.DIFFERS, difference, cause, f"the reference and run {number}"

    def _reference(self, name: str, *, traced: bool) -> _Reference:
        self.watcher.stage(f"stock DDP with {self.ests} processes{' (traced)' if traced else ''}")
        folder = self.folder / name
        environment = self._environment(folder, traced=traced) | {"ELASTANE_MODE": "ddp"}
        try:
            reports = run_stock_ddp(
                folder,
                self.script,
                processes=self.ests,
                environment=environment,
                timeout_seconds=self.timeout_seconds,
                launch=self.launch,
            )
        except StockRunError as error:
            raise RunFailed(f"the reference failed: {error.args[0]}", hint=error.hint) from error
        return _Reference(read_stock(reports, self.ests), folder / "trace" if traced else None)

    def _elastic(self, name: str, plan: ChurnPlan, *, traced: bool) -> Outcome:
        path = " -> ".join(map(str, plan.path))
        self.watcher.stage(f"{name}: {path} workers{' (traced)' if traced else ''}", plan.steps)
        for line in plan.lines():
            self.watcher.note(f"  {line}")
        folder = self.folder / name
        elastic = ElasticRun(
            self.script,
            self.determinism,
            self.threads,
            self._environment(folder, traced=traced),
            self.timeout_seconds,
            self.launch,
        )
        return elastic.run(folder, plan, on_step=self.watcher.step)

    def _environment(self, folder: Path, *, traced: bool) -> dict[str, str]:
        return {
            **self.environment,
            "ELASTANE_DETERMINISM": self.determinism.value,
            "ELASTANE_TORCH_THREADS": str(self.threads),
            TRACE_VARIABLE: str((folder / "trace").absolute()) if traced else "",
        }

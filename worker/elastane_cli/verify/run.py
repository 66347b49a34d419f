"""Proof of a script: its run under stock DDP, its runs under random churn, the comparison.

    reference ─▶ run 1 ─▶ ... ─▶ run R    all equal: done
                   │ one differs
                   ▼
    the reference again, traced ── differs from the first ─▶ the script is not deterministic by itself
                   │ equal
                   ▼
    the run again with the same churn, traced ─▶ the first difference between the traces

An elastic run that equals the reference shows that the script is repeatable, so a second reference is
needed only after a difference. So is tracing, which reads every gradient and weight.

The reference is the script itself in stock mode, or, with `original`, a command of the user's: the DDP
script as it was before it was converted. Then one more question arises after a difference:

    the original again, traced ── differs ─▶ not deterministic by itself
                   │ equal
    the converted script under stock DDP, traced by the same hook ── differs ─▶ the conversion is the cause
                   │ equal
    its steps traced by Elastane, the elastic run's too ─▶ the first difference between these

Every run starts in a separate folder (`workplace`).
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from elastane.diagnose.findings import Finding
from elastane.diagnose.source import examine_script, trains_pipeline
from elastane_cli.rehearse.results import Comparison, Outcome, Taken, compare_outcomes, read_stock, shown
from elastane_cli.rehearse.stock_run import run_stock_ddp, stock_failures_as
from elastane_cli.rehearse.watcher import Watcher
from elastane_cli.verify.causes import (
    Cause,
    audit_cause,
    conversion_cause,
    event_in_words,
    held_cause,
    likely_cause,
    place_in_words,
    steps_cause,
)
from elastane_cli.verify.compare import Difference, first_difference, read_traces
from elastane_cli.verify.elastic_run import ElasticRun, RunFailed
from elastane_cli.verify.original import EventDifference, compare_taken, first_event_difference, unlike
from elastane_cli.verify.plan import ChurnPlan, PlanError, make_plan
from elastane_cli.verify.reference import (
    HOOK,
    Original,
    OriginalRanksError,
    OtherArchitectureError,
    OtherStepsError,
    hook_variables,
    read_reports,
    run_original,
)
from elastane_cli.verify.workplace import Workplace, absolute_command, workplace
from elastane_common.determinism import DEFAULT_LEVEL, Level
from elastane_common.processes.child import ChildProcess

TRACE_VARIABLE: Final = "ELASTANE_TRACE_DIR"
STEPS_VARIABLE: Final = "ELASTANE_STEPS_MAX"
#: Off by default: a difference from stock DDP is more informative than a turn that is not repeatable.
REPEAT_CHECK_VARIABLE: Final = "ELASTANE_REPEAT_CHECK"


class Verdict(enum.StrEnum):
    """Result of a proof."""

    EQUAL = "equal"
    DIFFERS = "differs"
    NOT_DETERMINISTIC = "not deterministic by itself"

    @property
    def exit_code(self) -> int:
        return {Verdict.EQUAL: 0, Verdict.DIFFERS: 1, Verdict.NOT_DETERMINISTIC: 3}[self]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Comparison of one elastic run with the reference."""

    plan: ChurnPlan
    comparison: Comparison
    seconds: float


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Everything found. search: the runs compared to find the difference, as text.

    event: where the converted script diverges from the original. findings: in the script's source, by line.
    original: True if the reference was the user's own command.
    """

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
    event: EventDifference | None = None
    findings: tuple[Finding, ...] = ()
    original: bool = False

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
            "sha256": {name: shown(digest) for name, digest in self.fingerprint.items()},
            "reference": "original" if self.original else "stock mode",
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
            "where": self.where,
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
            "findings": msgspec.to_builtins(self.findings),
        }

    @property
    def where(self) -> str | None:
        """The place of the first difference as text."""
        if self.event is not None:
            return event_in_words(self.event)
        return place_in_words(self.difference) if self.difference is not None else None


@dataclass(frozen=True, slots=True)
class _Reference:
    """One run of the reference. trace: of Elastane's own steps; original: of the user's command."""

    outcome: Outcome
    trace: Path | None = None
    original: Original | None = None


class _Found(NamedTuple):
    verdict: Verdict
    difference: Difference | None
    cause: Cause
    search: str
    event: EventDifference | None = None


def run_verify(
    folder: Path,
    script: Sequence[str],
    *,
    ests: int | None = None,
    original: Sequence[str] = (),
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
    stages: tuple[int, int] = (1, 0),
    shadows: int = 0,
) -> VerifyResult:
    """Run `script` (without the interpreter) under stock DDP and under churn in `folder`, and compare.

    original: the user's own DDP command to compare with (`reference.parse_reference`); empty: the script in
    stock mode. ests: N; None with `original`: its number of ranks. runs: elastic runs, each with different
    churn; paths: their numbers of workers in turn, else drawn. kills: workers killed in each. steps: stop
    both sides after this many global steps. seed: of the churn; printed by the caller, so that a run can be
    repeated. trace: trace every run, not only after a difference. timeout_seconds: for each run. launch:
    creates processes. stages: minimum and maximum of a pipeline, 0: as many as are worthwhile; shadows: of
    each stage. Raises RunFailed if either side cannot be run, PlanError if the churn does not fit,
    OriginalError if the original cannot be compared with.
    """
    if steps and original:
        raise PlanError(
            "the reference is run untouched, to its end", hint="leave --steps out; give both fewer epochs"
        )
    if original and trains_pipeline(script):
        raise _pipeline_with_original()
    if ests is None and not original:
        raise PlanError("the number of logical workers is missing", hint="give --ests N")
    origin = Path.cwd()
    proof = Proof(
        folder=folder.absolute(),
        script=absolute_command(script, origin),
        original=absolute_command(original, origin),
        origin=origin,
        findings=tuple(examine_script(script)),
        asked_ests=ests,
        kills=kills,
        seed=str(secrets.randbelow(2**32) if seed is None else seed),
        determinism=determinism,
        threads=threads,
        environment={
            REPEAT_CHECK_VARIABLE: os.environ.get(REPEAT_CHECK_VARIABLE, "0"),
            **(environment or {}),
            **({STEPS_VARIABLE: str(steps)} if steps else {}),
        },
        trace=trace,
        timeout_seconds=timeout_seconds,
        launch=launch,
        watcher=watcher or Watcher(),
        stages=stages,
        shadows=shadows,
    )
    return proof.run(runs, paths)


@dataclass(frozen=True)
class Proof:
    """One call of `run_verify`; see there for the fields."""

    folder: Path
    script: Sequence[str]
    original: Sequence[str]
    origin: Path
    findings: tuple[Finding, ...]
    asked_ests: int | None
    kills: int
    seed: str
    determinism: Level
    threads: int
    environment: Mapping[str, str]
    trace: bool
    timeout_seconds: float
    launch: Callable[..., ChildProcess]
    watcher: Watcher
    stages: tuple[int, int] = (1, 0)
    shadows: int = 0

    def run(self, runs: int, paths: Sequence[Sequence[int]]) -> VerifyResult:
        started = time.monotonic()
        reference = self._reference("reference", traced=self.trace)
        reference_seconds = time.monotonic() - started
        outcome = reference.outcome
        ests = self._ests(reference)
        plans = [
            make_plan(
                f"{self.seed}/{number}",
                ests=ests,
                steps=outcome.steps,
                kills=self.kills,
                path=paths[number % len(paths)] if paths else None,
            )
            for number in range(runs)
        ]
        done: list[RunResult] = []
        found: _Found | None = None
        fingerprint = outcome.fingerprint
        for number, plan in enumerate(plans, 1):
            started = time.monotonic()
            elastic = self._elastic(f"run-{number}", plan, traced=self.trace, pipeline=outcome.is_pipeline)
            comparison = self._compare(outcome, elastic)
            fingerprint = fingerprint or elastic.fingerprint
            done.append(RunResult(plan, comparison, time.monotonic() - started))
            if not comparison.equal:
                search = self._search_original if reference.original is not None else self._search
                found = search(reference, number, plan, comparison)
                break
        return VerifyResult(
            found.verdict if found is not None else Verdict.EQUAL,
            self.seed,
            ests,
            outcome.steps,
            len(outcome.values),
            reference_seconds,
            tuple(done),
            found.difference if found is not None else None,
            found.cause if found is not None else None,
            found.search if found is not None else "",
            fingerprint,
            found.event if found is not None else None,
            self.findings,
            bool(self.original),
        )

    def _ests(self, reference: _Reference) -> int:
        """Return N: as requested, or the original's number of ranks."""
        ranks = reference.original.ranks if reference.original is not None else self.asked_ests
        assert ranks is not None
        if self.asked_ests not in (None, ranks):
            raise OriginalRanksError(
                f"the reference ran with {ranks} ranks, --ests is {self.asked_ests}",
                hint=f"give --ests {ranks}, or --nproc-per-node {self.asked_ests}: N decides the result",
            )
        return ranks

    def _compare(self, reference: Outcome, found: Outcome) -> Comparison:
        """Compare two outcomes.

        Raises OtherArchitectureError and OtherStepsError if they are not comparable.
        """
        if reference.taken is None:
            return compare_outcomes(reference, found)
        if found.taken is None:
            raise _pipeline_with_original()
        words = unlike(reference.taken, found.taken)
        if words:
            raise OtherArchitectureError(
                f"the converted script trains another model than the reference: {words}",
                hint="give both the same arguments",
            )
        if reference.steps != found.steps:
            raise _other_steps(reference.steps, found.steps)
        return Comparison(compare_taken(reference.taken, found.taken), 0, found.audit)

    def _search(self, reference: _Reference, number: int, plan: ChurnPlan, comparison: Comparison) -> _Found:
        """Find the cause and the first place of the difference between run `number` and the reference."""
        if comparison.differing == ["audit"]:
            cause = audit_cause(comparison.violations)
            return _Found(Verdict.DIFFERS, None, cause, f"the audit of run {number}")
        again = self._stock("reference-again", plan.ests, traced=True)
        assert again.trace is not None
        if not compare_outcomes(reference.outcome, again.outcome).equal:
            first = reference.trace or self._stock("reference-third", plan.ests, traced=True).trace
            assert first is not None
            difference = first_difference(read_traces(first), read_traces(again.trace))
            cause = likely_cause(difference, by_itself=True)
            return _Found(Verdict.NOT_DETERMINISTIC, difference, cause, "two runs of the reference")
        pipeline = reference.outcome.is_pipeline
        return self._between_modes(again.trace, number, plan, comparison, "the reference", pipeline=pipeline)

    def _search_original(
        self, reference: _Reference, number: int, plan: ChurnPlan, comparison: Comparison
    ) -> _Found:
        """The same for the user's own script: is it repeatable, and is it converted correctly?"""
        first = reference.original
        assert first is not None
        if comparison.differing == ["audit"]:
            cause = audit_cause(comparison.violations)
            return _Found(Verdict.DIFFERS, None, cause, f"the audit of run {number}")
        again = self._original("reference-again", traced=True)
        if not _same_end(first.taken, again.taken):
            third = first if self.trace else self._original("reference-third", traced=True)
            event = first_event_difference(third.events, again.events)
            cause = likely_cause(None, by_itself=True)
            return _Found(Verdict.NOT_DETERMINISTIC, None, cause, "two runs of the reference", event)
        converted = self._converted(plan.ests)
        if converted is not None and not _same_end(again.taken, converted.taken):
            event = first_event_difference(again.events, converted.events)
            parts = [row for row in compare_taken(again.taken, converted.taken) if not row.equal]
            held = [row.name for row in parts if row.name in again.taken.held]
            cause = conversion_cause(event, self.findings, again.unlike(converted))
            if event is None and held and len(held) == len(parts):
                cause = held_cause(held, self.findings)
            search = "the reference and the converted script, both under stock DDP"
            return _Found(Verdict.DIFFERS, None, cause, search, event)
        held = [name for name in comparison.differing if name in again.taken.held]
        if held and len(held) == len(comparison.differing):
            cause = held_cause(held, self.findings)
            return _Found(Verdict.DIFFERS, None, cause, f"the reference and run {number}")
        stock = self._stock("converted-traced", plan.ests, traced=True)
        assert stock.trace is not None
        return self._between_modes(
            stock.trace, number, plan, comparison, "the converted script under stock DDP"
        )

    def _between_modes(
        self,
        stock: Path,
        number: int,
        plan: ChurnPlan,
        comparison: Comparison,
        named: str,
        *,
        pipeline: bool = False,
    ) -> _Found:
        """Find where run `number` diverges from the traced stock run of the same script."""
        name = f"run-{number}"
        if not self.trace:
            name = f"run-{number}-traced"
            self._elastic(name, plan, traced=True, pipeline=pipeline)
        difference = first_difference(read_traces(stock), read_traces(self.folder / name / "trace"))
        cause = likely_cause(difference, findings=self.findings)
        if difference is None and "steps" in comparison.differing:
            row = comparison.rows[0]
            cause = steps_cause(row.reference, row.found)
        return _Found(Verdict.DIFFERS, difference, cause, f"{named} and run {number}")

    def _reference(self, name: str, *, traced: bool) -> _Reference:
        if not self.original:
            assert self.asked_ests is not None
            return self._stock(name, self.asked_ests, traced=traced)
        original = self._original(name, traced=traced)
        return _Reference(Outcome(original.taken.steps, {}, {}, taken=original.taken), original=original)

    def _stock(self, name: str, ests: int, *, traced: bool) -> _Reference:
        """Run the script in stock mode."""
        self.watcher.stage(f"stock DDP with {ests} processes{' (traced)' if traced else ''}")
        folder = self.folder / name
        with self._workplace(folder) as place:
            environment = self._environment(folder, place, traced=traced) | {"ELASTANE_MODE": "ddp"}
            reports = self._run_stock(folder, ests, environment, place, self.launch)
        return _Reference(read_stock(reports, ests), folder / "trace" if traced else None)

    def _original(self, name: str, *, traced: bool) -> Original:
        """Run the user's own command."""
        self.watcher.stage(f"the reference{' again (traced)' if traced else ''}: {shlex.join(self.original)}")
        folder = self.folder / name
        with self._workplace(folder) as place:
            return run_original(
                folder,
                self.original,
                directory=place.directory,
                environment={**self.environment, **place.environment},
                determinism=self.determinism,
                threads=self.threads,
                traced=traced,
                timeout_seconds=self.timeout_seconds,
            )

    def _converted(self, ests: int) -> Original | None:
        """Run the converted script under stock DDP with the original's hook; None if that fails."""
        self.watcher.stage(f"the converted script under stock DDP with {ests} processes (traced)")
        folder = self.folder / "converted"
        reports = folder / "taken"
        reports.mkdir(parents=True)
        with self._workplace(folder) as place:
            environment = self._environment(folder, place, traced=False) | {"ELASTANE_MODE": "ddp"}
            environment |= hook_variables(
                reports, determinism=self.determinism, threads=self.threads, traced=True
            )
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")])
            )
            try:
                self._run_stock(folder, ests, environment, place, ChildProcess)
            except RunFailed as error:
                self.watcher.note(f"  it cannot be run so: {str(error.args[0]).splitlines()[0]}")
                return None
        found = read_reports(reports)
        if 0 not in found:
            return None
        return Original.of(found)

    def _run_stock(
        self,
        folder: Path,
        ests: int,
        environment: Mapping[str, str],
        place: Workplace,
        launch: Callable[..., ChildProcess],
    ) -> Path:
        with stock_failures_as(RunFailed, "the reference"):
            return run_stock_ddp(
                folder,
                self.script,
                processes=ests,
                environment=environment,
                timeout_seconds=self.timeout_seconds,
                directory=place.directory,
                launch=launch,
            )

    def _elastic(self, name: str, plan: ChurnPlan, *, traced: bool, pipeline: bool = False) -> Outcome:
        path = " -> ".join(map(str, plan.path))
        self.watcher.stage(f"{name}: {path} workers{' (traced)' if traced else ''}", plan.steps)
        for line in plan.lines():
            self.watcher.note(f"  {line}")
        folder = self.folder / name
        with self._workplace(folder) as place:
            elastic = ElasticRun(
                self.script,
                self.determinism,
                self.threads,
                self._environment(folder, place, traced=traced),
                self.timeout_seconds,
                self.launch,
                place.directory,
                self.stages,
                self.shadows,
                has_checkpoints=pipeline,
            )
            try:
                return elastic.run(folder, plan, on_step=self.watcher.step)
            except RunFailed as error:
                if self.original and error.steps is not None and error.steps != plan.steps:
                    raise _other_steps(plan.steps, error.steps) from error
                raise

    @contextlib.contextmanager
    def _workplace(self, folder: Path) -> Iterator[Workplace]:
        """Create the workplace of one run; reports files that the run wrote outside of it."""
        with workplace(folder, self.origin) as place:
            yield place
            written = place.written_through()
            if written:
                several = f" and {len(written) - 1} more" if len(written) > 1 else ""
                self.watcher.note(
                    f"  written outside of the run's own folder: {written[0]}{several}; the next run finds it"
                )

    def _environment(self, folder: Path, place: Workplace, *, traced: bool) -> dict[str, str]:
        return {
            **self.environment,
            **place.environment,
            "ELASTANE_DETERMINISM": self.determinism.value,
            "ELASTANE_TORCH_THREADS": str(self.threads),
            "ELASTANE_REPORT_STATE": "1" if self.original else "0",
            TRACE_VARIABLE: str((folder / "trace").absolute()) if traced else "",
        }


def _same_end(one: Taken, other: Taken) -> bool:
    return not unlike(one, other) and all(row.equal for row in compare_taken(one, other))


def _pipeline_with_original() -> PlanError:
    return PlanError(
        "a pipeline cannot be compared with a command of your own",
        hint="leave --reference out: the reference is then the script itself under stock DDP",
    )


def _other_steps(reference: int, found: int) -> OtherStepsError:
    return OtherStepsError(
        f"the reference made {reference} steps, the converted script {found}",
        hint="give both the same number of epochs, batch size for each rank, drop_last and accumulation; "
        "of a step that a GradScaler skips the reference counts the scaler's update",
    )

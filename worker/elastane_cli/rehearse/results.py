"""Results of a run, and the comparison of two: fingerprints, logged values, the audit.

The stock side is read from the reports of its ranks, the elastic side from the leader's report and the
committed history, which is also audited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from elastane_cli.audit import AuditResult, audit
from elastane_common.errors import ElastaneError
from elastane_proto.v1 import shard_pb2

#: (step, virtual rank, name of the value) -> its float.hex().
Values = dict[tuple[int, int, str], str]
#: Parts of a fingerprint (`state.train_state.fingerprint`).
PARTS: Final = ("weights", "optimizer", "buffers", "extras")
Described = Sequence[Any]  # [digest, dtype, shape] of a tensor
#: Shown instead of the digest of an empty part.
NOTHING: Final = "(none)"


class ResultError(ElastaneError):
    """A run ended successfully but left no report, or an inconsistent one."""

    code = "ELA410"


@dataclass(frozen=True, slots=True)
class Taken:
    """A run's final state, tensor by tensor, as recorded by `hook.elastane_reference.taken`.

    models: for each "weights" and "buffers" by name. optimizers: the parameters they train, and their
    entries. held: other modules that the script's variables hold.
    """

    steps: int
    models: Sequence[Mapping[str, Mapping[str, Described]]]
    optimizers: Sequence[Mapping[str, Any]]
    held: Mapping[str, Mapping[str, Described]] = field(default_factory=dict)

    @staticmethod
    def of(report: Mapping[str, Any]) -> Taken:
        """Build it from a report's JSON."""
        held = report.get("held") or {}
        return Taken(int(report["steps"]), report["models"], report["optimizers"], held)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run. steps: global steps done; fingerprint: sha256 by part of the state.

    taken: tensor by tensor, if requested. is_pipeline: its workers hold units of the model.
    """

    steps: int
    fingerprint: dict[str, str]
    values: Values
    audit: AuditResult | None = None
    taken: Taken | None = None
    is_pipeline: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One item compared; equal if the two texts are."""

    name: str
    reference: str
    found: str

    @property
    def equal(self) -> bool:
        return self.reference == self.found


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two outcomes. values: number of logged values compared; audit: of an elastic run."""

    rows: tuple[Row, ...]
    values: int
    audit: AuditResult | None = None

    @property
    def violations(self) -> tuple[str, ...]:
        """Problems found by the audit."""
        return self.audit.violations if self.audit is not None else ()

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows) and not self.violations

    @property
    def differing(self) -> list[str]:
        """Names of the items that differ."""
        return [row.name for row in self.rows if not row.equal] + (["audit"] if self.violations else [])


def read_stock(reports: Path, ests: int) -> Outcome:
    """Read the result of `run_stock_ddp`. Raises ResultError if a rank's report is missing."""
    values: Values = {}
    steps = set()
    first: dict[str, str] = {}
    is_pipeline = False
    for rank in range(ests):
        path = reports / f"ddp-{rank}.json"
        if not path.exists():
            raise ResultError(
                f"rank {rank} of the reference left no result",
                hint="the script must go through `for epoch in job.epochs(n):` to its end",
            )
        report = json.loads(path.read_text())
        steps.add(int(report["step"]))
        for step, logged in enumerate(report["logged"]):
            values |= {(step, rank, name): float(value).hex() for name, value in logged.items()}
        first = first or fingerprint_of([report])
        is_pipeline = "pieces" in report
    if len(steps) != 1:
        raise ResultError(
            f"the ranks of the reference made {', '.join(map(str, sorted(steps)))} steps",
            hint="every rank must call optimizer.step() equally often",
        )
    return Outcome(steps.pop(), first, values, is_pipeline=is_pipeline)


def read_elastic(
    reports: Path,
    history: Sequence[shard_pb2.AuditEntry],
    ests: int,
    *,
    steps_per_epoch: int | None = None,
    dataset_size: int | None = None,
) -> Outcome:
    """Read the result of an elastic run. history: its whole audit log.

    steps_per_epoch, dataset_size: for the audit, if known. Raises ResultError without a leader's report.
    """
    leader = leader_report(reports)
    last = [report for report in _elastic_reports(reports) if report["step"] == leader["step"]]
    values = {
        (entry.step, entry.virtual_rank, name): float(value).hex()
        for entry in history
        for name, value in entry.metrics.items()
    }
    steps = int(leader["step"])
    taken = Taken.of({**leader["taken"], "steps": steps}) if leader.get("taken") else None
    audited = audit_history(history, ests, steps_per_epoch, dataset_size)
    is_pipeline = "pieces" in leader
    fingerprint = fingerprint_of([leader, *last]) if is_pipeline else leader["fingerprint"]
    return Outcome(steps, fingerprint, values, audited, taken, is_pipeline)


def fingerprint_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a run's fingerprint by part of the state, put together from its workers' reports.

    In a pipeline each report has digests of its worker's units, piece by piece: the fingerprint of a part is
    the sha256 of all of them. Raises ResultError if two workers have different bits for the same piece.
    """
    if "pieces" not in reports[0]:
        whole: dict[str, str] = reports[0]["fingerprint"]
        return whole
    result = {}
    for part in PARTS:
        found: dict[str, str] = {}
        for report in reports:
            for name, digest in report["pieces"][part].items():
                if found.setdefault(name, digest) != digest:
                    raise ResultError(
                        f"workers of the pipeline that hold the same {part}, {name}, have other bits in it",
                        hint="this is a bug: report it with the job's events",
                    )
        digests = hashlib.sha256()
        for name, digest in sorted(found.items()):
            digests.update(f"{name} {digest}\n".encode())
        result[part] = digests.hexdigest()
    return result


def leader_report(reports: Path) -> dict[str, Any]:
    """Return the report of the worker that hosted EST 0 at the end. Raises ResultError if there is none."""
    leaders = [report for report in _elastic_reports(reports) if report["leader"]]
    if not leaders:
        raise ResultError(
            "no worker left a result",
            hint="the script must go through `for epoch in job.epochs(n):` to its end",
        )
    last: dict[str, Any] = max(leaders, key=lambda report: int(report["step"]))
    return last


def _elastic_reports(reports: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(reports.glob("elastic-*.json"))]


def audit_history(
    history: Sequence[shard_pb2.AuditEntry],
    ests: int,
    steps_per_epoch: int | None = None,
    dataset_size: int | None = None,
) -> AuditResult:
    """Audit a whole run, whose last epoch may have been cut short by a limit of steps."""
    if steps_per_epoch is None:
        steps: dict[int, set[int]] = {}
        for entry in history:
            steps.setdefault(entry.epoch, set()).add(entry.step)
        before_last = [len(found) for epoch, found in steps.items() if epoch != max(steps)]
        steps_per_epoch = max(before_last, default=None)
    sizes = {entry.dataset: dataset_size for entry in history} if dataset_size else None
    return audit(history, ests=ests, steps_per_epoch=steps_per_epoch, dataset_sizes=sizes)


def compare_outcomes(reference: Outcome, found: Outcome) -> Comparison:
    """Compare steps, every part of the fingerprint, and every logged value; adds the audit of `found`."""
    rows = [Row("steps", str(reference.steps), str(found.steps))]
    for part in [*reference.fingerprint, *(p for p in found.fingerprint if p not in reference.fingerprint)]:
        rows.append(Row(part, reference.fingerprint.get(part, ""), found.fingerprint.get(part, "")))
    rows.append(Row("logged values", _sha256(reference.values), _sha256(found.values)))
    return Comparison(tuple(rows), len(reference.values), found.audit)


def shown(digest: str) -> str:
    """Return a part's sha256 for display; the digest of no bytes means that the part is empty."""
    return NOTHING if digest == hashlib.sha256().hexdigest() else digest


def _sha256(values: Values) -> str:
    digest = hashlib.sha256()
    for (step, rank, name), value in sorted(values.items()):
        digest.update(f"{step} {rank} {name} {value}\n".encode())
    return digest.hexdigest()

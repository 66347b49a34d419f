"""Results of the training service's demo, and the lines of its table. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from elastane_common.run_record import RunRecord

ELASTIC, STOCK, TENSORFLOW = "digits, elastic", "digits, stock DDP", "TF_CONFIG"
LAST_LINES: Mapping[str, str] = {
    ELASTIC: r"job succeeded|(?s:SIGTERM: .* left )\([^)\n]*\)$",
    STOCK: "the training is over",
    TENSORFLOW: "know the same cluster",
}
"""Regular expression for the last three lines of each rank's log, by run.

In an elastic run the agent writes them: that the job succeeded, or, if the service stops the agent before it
knows that, that it was stopped and its worker left.
"""


class FoundRun(msgspec.Struct, kw_only=True):
    """One run at its end.

    attempts: of the service. model_fault: why its model is incomplete; "": it is complete. record: None if
    missing. logs: of each rank, as read from the service. log_digests: their sha256, by the record's names.
    """

    name: str
    run_id: int
    state: str
    reason: str = ""
    attempts: int
    seconds: float
    model_fault: str = ""
    record: RunRecord | None = None
    logs: Mapping[int, str] = {}
    log_digests: Mapping[str, str] = {}


class Kill(msgspec.Struct, kw_only=True):
    """A kill of the service's master or runner.

    seconds: until it served again. ranks: number that ran before. restarted: those that had a different
    process afterwards.
    """

    seconds: float
    ranks: int
    restarted: int


class RankKill(msgspec.Struct, kw_only=True):
    """A kill of a rank of the elastic run.

    step: reached by the job. seconds: until the rank was back and the others had trained on.
    others_restarted: ranks of any run that had a different process afterwards.
    """

    rank: int
    step: int
    seconds: float
    others_restarted: int


class Found(msgspec.Struct, kw_only=True):
    """All results of the demo. seconds: of the whole demo."""

    runs: Mapping[str, FoundRun]
    master: Kill
    runner: Kill
    rank: RankKill
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": all(line.ok for line in lines(self)),
            "lines": [line._asdict() for line in lines(self)],
            "seconds": round(self.seconds, 1),
            "runs": {
                run.name: {
                    "run_id": run.run_id,
                    "state": run.state,
                    "attempts": run.attempts,
                    "weights_sha256": run.record.weights_sha256 if run.record is not None else "",
                    "model_url": run.record.model_url if run.record is not None else "",
                    "metrics": dict(run.record.metrics) if run.record is not None else {},
                }
                for run in self.runs.values()
            },
        }


class Line(NamedTuple):
    """A line of the table. text: the promise. detail: the result."""

    text: str
    ok: bool
    detail: str


def lines(found: Found) -> list[Line]:
    """Return the table: each promise, and whether it was kept."""
    return [
        *(_ended(run) for run in found.runs.values()),
        _kill("the master is killed: it is back, and no rank was started again", found.master),
        _kill("the runner is killed: the next one adopts all ranks", found.runner),
        _rank_killed(found.rank, found.runs[ELASTIC]),
        _same_bits(found.runs[ELASTIC], found.runs[STOCK]),
        _same_clusters(found.runs[TENSORFLOW]),
        *_of_all(found.runs),
    ]


def _ended(run: FoundRun) -> Line:
    attempts = "1 attempt" if run.attempts == 1 else f"{run.attempts} attempts"
    why = f": {run.reason}" if run.state != "succeeded" else ""
    detail = f"run {run.run_id} has {run.state} after {run.seconds:.0f} s, {attempts}{why}"
    return Line(f"{run.name}: submitted, run, succeeded", run.state == "succeeded", detail)


def _kill(text: str, kill: Kill) -> Line:
    detail = f"{kill.seconds:.1f} s; {kill.ranks - kill.restarted} of {kill.ranks} ranks are the same process"
    return Line(text, kill.ranks > 0 and not kill.restarted, detail)


def _rank_killed(kill: RankKill, run: FoundRun) -> Line:
    detail = (
        f"rank {kill.rank}, after step {kill.step}: {kill.seconds:.1f} s; others started again: "
        f"{kill.others_restarted}; attempt {run.attempts}"
    )
    ok = not kill.others_restarted and run.attempts == 1
    return Line("a rank of the elastic run is killed: the others train on, it is started again", ok, detail)


def _same_bits(elastic: FoundRun, stock: FoundRun) -> Line:
    """Compare the models' files in the records."""
    one, other = (run.record.weights_sha256 if run.record is not None else "" for run in (elastic, stock))
    detail = f"sha256 {one[:16] or 'unknown'} and {other[:16] or 'unknown'}"
    return Line("the elastic run's weights are those of stock DDP", bool(one) and one == other, detail)


def _same_clusters(run: FoundRun) -> Line:
    configs = [config for log in run.logs.values() if (config := _tf_config(log)) is not None]
    clusters = {json.dumps(config.get("cluster"), sort_keys=True) for config in configs}
    tasks = {json.dumps(config.get("task"), sort_keys=True) for config in configs}
    ok = len(configs) == len(run.logs) > 0 and len(clusters) == 1 and len(tasks) == len(configs)
    detail = (
        f"{len(configs)} of {len(run.logs)} ranks printed it: {len(clusters)} cluster, {len(tasks)} tasks"
    )
    return Line("TF_CONFIG is equal on all ranks but for the task", ok, detail)


def _tf_config(log: str) -> dict[str, Any] | None:
    for line in log.splitlines():
        if line.startswith("TF_CONFIG "):
            return dict(json.loads(line.removeprefix("TF_CONFIG ")))
    return None


def _of_all(runs: Mapping[str, FoundRun]) -> Iterator[Line]:
    yield _all("each model is whole: every file has the sha256 of its manifest", runs, _model_fault)
    yield _all("each run's record names model, weights_sha256, versions and code", runs, _record_fault)
    yield _all("each rank's log is complete, and as the record has it", runs, _log_fault)


def _all(text: str, runs: Mapping[str, FoundRun], fault_of: Any) -> Line:
    faults = [f"{run.name}: {fault}" for run in runs.values() if (fault := fault_of(run))]
    return Line(text, not faults, "; ".join(faults) or f"{len(runs)} runs")


def _model_fault(run: FoundRun) -> str:
    return run.model_fault


def _record_fault(run: FoundRun) -> str:
    record = run.record
    if record is None:
        return "there is none"
    wanted = {
        "state": record.state == "succeeded",
        "model_url": bool(record.model_url),
        "weights_sha256": bool(record.weights_sha256),
        "versions": "python" in record.versions,
        "code": bool(record.code.archive_sha256),
        "seed": run.name != ELASTIC or record.seed is not None,
        "metrics": run.name != ELASTIC or bool(record.metrics),
    }
    missing = [name for name, is_there in wanted.items() if not is_there]
    return f"without {', '.join(missing)}" if missing else ""


def _log_fault(run: FoundRun) -> str:
    ends = {rank: "\n".join(log.splitlines()[-3:]) for rank, log in run.logs.items()}
    cut = [str(rank) for rank, end in ends.items() if not re.search(LAST_LINES[run.name], end)]
    if cut or not run.logs:
        return f"the end of rank {', '.join(cut)} is missing" if cut else "there are none"
    recorded = {one.path: one.sha256 for one in run.record.artifacts} if run.record is not None else {}
    other = [name for name, digest in run.log_digests.items() if recorded.get(name) != digest]
    return f"{', '.join(other)} is not as recorded" if other else ""

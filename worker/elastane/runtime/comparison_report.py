"""Fingerprints of a finished run, written for comparisons (tests, `elastane demo`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elastane.reference_hook.elastane_reference import held, script_frames, script_globals, taken
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.state.train_state import TrainState, fingerprint
from elastane.state.unit_fingerprint import Pieces
from elastane_common.atomic_writes import write_atomically


def write_elastic_report(
    environment: WorkerEnvironment, state: TrainState, *, step: int, is_leader: bool
) -> None:
    """Write `<report_dir>/elastic-<worker>.json`: sha256 of weights, optimizer and buffers at `step`.

    With ELASTANE_REPORT_STATE the leader's report also lists the digests tensor by tensor, and those of other
    modules that the script's variables hold: input of `elastane verify --reference`.
    """
    report = {
        "worker": environment.worker_id,
        "leader": is_leader,
        "step": step,
        "fingerprint": state.fingerprint(),
    }
    if environment.report_state and is_leader:
        models = [state.model]
        others = held(models, script_frames(), script_globals())
        report["taken"] = {**taken(models, state.optimizers), "held": others}
    _write(Path(environment.report_dir) / f"elastic-{environment.worker_id}.json", report)


def write_stock_report(
    directory: str, prepared: PreparedObjects, *, rank: int, logged: list[dict[str, float]]
) -> None:
    """Write `<directory>/ddp-<rank>.json`: the same fingerprint, and what the script logged per step."""
    _write(
        Path(directory) / f"ddp-{rank}.json",
        {
            "rank": rank,
            "step": len(logged),
            "fingerprint": fingerprint(
                prepared.model, prepared.optimizers, [*prepared.schedulers, *prepared.extras.values()]
            ),
            "logged": logged,
        },
    )


def write_pipeline_report(directory: str, name: str, found: Pieces, **facts: Any) -> None:
    """Write `<directory>/<name>.json` of a pipeline: digests of the units held here, piece by piece.

    facts: as in the reports of other jobs.
    """
    _write(Path(directory) / f"{name}.json", {**facts, "pieces": found})


def write_slots_report(directory: str, digests: list[str], *, tasks: int) -> None:
    """Write `<directory>/plain-slots.json` of a script with prepare_ps alone: sha256 of each slot."""
    _write(Path(directory) / "plain-slots.json", {"slots": digests, "tasks": tasks})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1))

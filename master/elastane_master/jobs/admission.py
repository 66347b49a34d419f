"""Admission control: events beyond the master's resource limits are refused before they are decided.

Called before an event is decided on, with the state in which it would be decided; raises Rejection and
changes nothing. Events replayed from the store bypass these checks.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastane_master.decisions.events import (
    AnyEvent,
    ContextDelta,
    DatasetCreated,
    IntervalReported,
    LoadedReported,
    Signature,
    StepReported,
    StepTask,
    TasksRequested,
    WorkerJoined,
)
from elastane_master.decisions.machine import JobMachine
from elastane_master.jobs.limits import Limits, require_within


def require_admissible(limits: Limits, machine: JobMachine, event: AnyEvent) -> None:
    """Raise Rejection("limit_exceeded") for an event that exceeds a limit."""
    match event:
        case TasksRequested():
            _check_lease(limits, event)
        case StepReported():
            _check_contexts(limits, machine, event.contexts, event.step)
            _check_metrics(limits, event.tasks)
        case IntervalReported():
            _check_contexts(limits, machine, event.contexts, event.step)
            require_within("context_parts_max", len(event.changes), limits.context_parts_max, "changes")
            size = sum(len(change) for change in event.changes.values() if isinstance(change, bytes))
            require_within("context_bytes_max", size, limits.context_bytes_max, "bytes of changes")
        case LoadedReported():
            _check_contexts(limits, machine, event.contexts, event.step)
        case DatasetCreated():
            _check_dataset(limits, machine, event)
        case WorkerJoined():
            _check_signature(limits, event.signature)


def _check_contexts(
    limits: Limits, machine: JobMachine, contexts: tuple[ContextDelta, ...], step: int
) -> None:
    """Check contexts at the size they will be stored with: parts that a delta omits are still stored."""
    state = machine.state
    ests = state.settings.ests
    require_within("ests_per_job_max", len(contexts), max(limits.ests_per_job_max, ests), "contexts")
    # Bounds the sum as well: the contexts of all ESTs may be sent to one worker in a single message.
    bytes_max = min(limits.context_bytes_max, limits.contexts_bytes_max // ests)
    limit = "context_bytes_max" if bytes_max == limits.context_bytes_max else "contexts_bytes_max"
    known = state.contexts.steps.get(step, [])
    for delta in contexts:
        rank, parts = delta.virtual_rank, delta.parts
        if delta.delta and rank < len(known):
            parts = {**known[rank], **parts}
        require_within(
            "context_parts_max", len(parts), limits.context_parts_max, f"parts in EST {rank}'s context"
        )
        size = sum(map(len, parts.values()))
        require_within(limit, size, bytes_max, f"bytes in EST {rank}'s context", virtual_rank=rank)
        _check_names(limits, delta.parts, f"a part of EST {rank}'s context")


def _check_metrics(limits: Limits, tasks: tuple[StepTask, ...]) -> None:
    for task in tasks:
        what = f"values logged for EST {task.virtual_rank} in one step"
        require_within("metrics_per_task_max", len(task.metrics), limits.metrics_per_task_max, what)
        _check_names(limits, task.metrics, "a logged value")


def _check_lease(limits: Limits, event: TasksRequested) -> None:
    require_within("tasks_per_lease_max", event.max_tasks, limits.tasks_per_lease_max, "tasks in one call")
    reports = sum([report.count for report in event.completed])
    require_within("reports_per_lease_max", reports, limits.reports_per_lease_max, "reports in one call")
    if event.rng:
        size = sum(map(len, event.rng.values()))
        require_within("context_bytes_max", size, limits.context_bytes_max, "bytes of RNG states")


def _check_dataset(limits: Limits, machine: JobMachine, event: DatasetCreated) -> None:
    entries = len(event.settings.entries or ())
    require_within("dataset_entries_max", entries, limits.dataset_entries_max, "entries of a dataset")
    datasets = machine.queues.dynamic
    if event.dataset not in datasets:
        require_within(
            "datasets_per_job_max", len(datasets) + 1, limits.datasets_per_job_max, "datasets in the job"
        )


def _check_signature(limits: Limits, signature: Signature) -> None:
    tensors, facts = len(signature.tensors), len(signature.environment)
    require_within("tensors_max", tensors, limits.tensors_max, "parameters and buffers")
    require_within("facts_max", facts, limits.facts_max, "facts of the environment")
    _check_names(limits, signature.environment, "a fact")


def _check_names(limits: Limits, names: Iterable[str], what: str) -> None:
    for name in names:
        require_within(
            "name_characters_max",
            len(name),
            limits.name_characters_max,
            f"characters in the name of {what} ({name[:40]}...)",
        )

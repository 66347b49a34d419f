"""A decision that is refused or fails half-way leaves nothing behind."""

from __future__ import annotations

import pytest

from elastane_master.decisions import operators
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import (
    AnyEvent,
    DatasetCreated,
    RefusedLate,
    Rejection,
    ScaleRequested,
    TaskReport,
    TasksRequested,
)
from elastane_master.decisions.machine import JobMachine
from elastane_master.errors import MachineBroken
from elastane_master.jobs import records
from elastane_master.jobs.records import StoredEvent
from elastane_master.jobs.transactions import Transactions
from elastane_proto.job_settings import JobSettings
from elastane_shards.settings import QueueSettings

SCALE = ScaleRequested("r", 1, 1)


def begun() -> Transactions[JobMachine]:
    """A job with events before and after its last snapshot, one of them too large to be kept as a record."""
    job = Transactions(JobMachine.create("job", JobSettings(ests=4), 0.0), records.decode_event)
    rng = {"rng/python": bytes(2000)}
    decide(job, DatasetCreated("", "d", QueueSettings(task_size=1, size=100)), 1.0)
    job.snapshot()
    decide(job, TasksRequested("a", "d", "w", (), 10, rng), 2.0)
    decide(job, TasksRequested("b", "d", "w", (TaskReport(0, 3, 1),), 1), 3.0)
    return job


def decide(job: Transactions[JobMachine], event: AnyEvent, now: float) -> None:
    stored = StoredEvent(now, event)
    if job.decide(stored).durable:
        job.keep(stored, records.encode(stored))


def plant(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def half_way(ctx: DecisionContext, event: ScaleRequested) -> None:
        ctx.touch()
        ctx.state.reason = "half of a decision"
        ctx.queues.dynamic.clear()
        raise error

    monkeypatch.setattr(operators, "request", half_way)


def test_a_refusal_after_a_change_is_answered_and_the_change_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    job = begun()
    before = job.machine.snapshot()
    plant(monkeypatch, Rejection("wrong_phase", "too late", phase="waiting"))
    with pytest.raises(Rejection, match="too late") as refused:
        job.decide(StoredEvent(4.0, SCALE))
    assert (refused.value.reason, refused.value.facts) == ("wrong_phase", {"phase": "waiting"})
    assert job.machine.snapshot() == before
    monkeypatch.undo()
    decide(job, SCALE, 5.0)
    assert job.machine.state.settings.workers_max == 1


def test_an_error_after_a_change_is_not_taken_for_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    job = begun()
    before = job.machine.snapshot()
    plant(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(MachineBroken, match="a bug"):
        job.decide(StoredEvent(4.0, SCALE))
    assert job.machine.snapshot() == before


def test_a_refusal_before_any_change_keeps_the_machine() -> None:
    job = begun()
    machine, before = job.machine, job.machine.snapshot()
    with pytest.raises(Rejection):
        job.decide(StoredEvent(4.0, ScaleRequested("r", 9, 1)))
    assert job.machine is machine and machine.snapshot() == before


def test_a_machine_by_itself_does_not_pass_a_late_refusal_for_a_clean_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, Rejection("wrong_phase", "too late"))
    with pytest.raises(RefusedLate, match="too late"):
        begun().machine.handle(SCALE, 4.0)

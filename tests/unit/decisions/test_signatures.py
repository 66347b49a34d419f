"""The first ring worker fixes what all have in common; the others are told what differs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import events
from elastane_master.decisions.events import Rejection, Signature, TensorSpec

JOB = Signature(
    (TensorSpec("w", (2, 3), "float32"), TensorSpec("b", (3,), "float32")), 64, 2, 10, 2, {"torch": "2.13"}
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensors": (TensorSpec("w", (2, 4), "float32"), JOB.tensors[1])}, ["w", "[2, 3]", "[2, 4]"]),
        ({"tensors": (JOB.tensors[0], TensorSpec("b", (3,), "bfloat16"))}, ["b", "float32", "bfloat16"]),
        ({"tensors": JOB.tensors[:1]}, ["b", "(absent)"]),
        ({"tensors": (*JOB.tensors, TensorSpec("c", (), "int64"))}, ["c", "(absent)"]),
        ({"dataset_size": 65}, ["dataset_size", "64", "65"]),
        ({"batch_size": 4}, ["batch_size", "2", "4"]),
        ({"steps_per_epoch": 11}, ["steps_per_epoch", "10", "11"]),
        ({"epochs": 3}, ["epochs", "2", "3"]),
        ({"environment": {"torch": "2.12"}}, ["torch", "2.13", "2.12"]),
        ({"environment": {"torch": "2.13", "threads": "4"}}, ["threads", "(absent)", "4"]),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], words: list[str]) -> None:
    job = JobDriver(settings(), JOB)
    job.join("a")
    before = job.machine.snapshot()
    with pytest.raises(Rejection) as refused:
        job.join("b", signature=msgspec.structs.replace(JOB, **changes))
    assert refused.value.reason == "mismatch" and refused.value.hint
    for word in words:
        assert word in str(refused.value)
    assert job.machine.snapshot() == before


def test_an_equal_one_is_welcome() -> None:
    job = JobDriver(settings(), JOB)
    job.join("a")
    job.join("b")
    assert set(job.state.workers) == {"a", "b"}


def test_a_first_worker_that_left_before_any_ring_fixes_nothing() -> None:
    job = JobDriver(settings(workers_min=2), JOB)
    job.join("a")
    job.lose("a")
    job.join("b", signature=msgspec.structs.replace(JOB, epochs=9))
    assert job.state.signature.epochs == 9


def test_a_tasks_worker_has_none() -> None:
    job = JobDriver(settings(), JOB)
    job.join("a")
    job.do(events.WorkerJoined("t", "t-1", "tasks", Signature()))
    assert "t" in job.state.workers

"""The first ring worker fixes what all have in common; the others are told what differs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import events
from elastane_master.decisions.events import Rejection, Signature, TensorSpec
from elastane_master.decisions.machine import JobMachine
from elastane_proto.job_settings import Determinism

LEVELS: tuple[Determinism, ...] = ("d0", "d1", "d2")
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


HARDWARE = {
    "threads": "1",
    "instruction_set": "AVX512",
    "onednn": "no limit",
    "mkl": "any",
    "numpy_loops": "x",
    "caches": "L2 1",
}


def at_level(level: Determinism, **facts: str) -> Signature:
    """JOB as a worker at that level says it, with `facts` of its own."""
    environment = {"torch": "2.13", "determinism": level, "deterministic_kernels": "on"}
    return msgspec.structs.replace(JOB, environment=environment | HARDWARE | facts)


@pytest.mark.parametrize("fact", [*HARDWARE, "device_model"])
@pytest.mark.parametrize("level", LEVELS)
def test_unlike_hardware_is_for_d0_alone(level: Determinism, fact: str) -> None:
    job = JobDriver(settings(determinism=level), at_level(level, device_model="H200"))
    job.join("a")
    unlike = msgspec.structs.replace(
        job.signature, environment=job.signature.environment | {fact: "of another kind"}
    )
    if level == "d0":
        job.join("b", signature=unlike)
        assert set(job.state.workers) == {"a", "b"}
        return
    with pytest.raises(Rejection, match=f"environment {fact} differs: the job has .*, b has of") as refused:
        job.join("b", signature=unlike)
    assert refused.value.reason == "mismatch" and refused.value.facts["worker"] == "b"
    if fact in ("threads", "device_model"):
        words = "elastane run" if fact == "threads" else "no level makes GPUs"
    else:
        words = {"d1": "--determinism d2", "d2": "start the worker with `elastane run`"}[level]
    assert words in refused.value.hint


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fact", ["torch", "numpy", "device", "dtype"])
def test_unlike_software_is_for_no_level(level: Determinism, fact: str) -> None:
    job = JobDriver(settings(determinism=level), at_level(level, **{fact: "one"}))
    job.join("a")
    with pytest.raises(Rejection, match=f"environment {fact} differs: the job has one, b has two"):
        job.join("b", signature=at_level(level, **{fact: "two"}))


@pytest.mark.parametrize(
    ("level", "facts", "words"),
    [
        ("d2", {"determinism": "d1"}, ["determinism", "d2", "d1", "ELASTANE_DETERMINISM=d2"]),
        ("d1", {"determinism": "d0"}, ["determinism", "d1", "d0"]),
        ("d0", {"determinism": "d2"}, ["determinism", "d0", "d2"]),
        ("d0", {"deterministic_kernels": "off"}, ["torch.use_deterministic_algorithms(False)"]),
        ("d1", {"cudnn": "autotuning"}, ["autotuning", "torch.backends.cudnn.benchmark"]),
        ("d2", {"float32_precision": "highest, convolutions tf32"}, ["tf32", "full float32"]),
        ("d2", {"float32_precision": "high"}, ["high", "full float32"]),
    ],
)
def test_the_first_worker_must_be_at_the_level_of_its_job(
    level: Determinism, facts: dict[str, str], words: list[str]
) -> None:
    job = JobDriver(settings(determinism=level), at_level(level, **facts))
    before = job.machine.snapshot()
    with pytest.raises(Rejection) as refused:
        job.join("a")
    for word in words:
        assert word in f"{refused.value} {refused.value.hint}"
    assert refused.value.reason == "mismatch" and job.machine.snapshot() == before


def test_full_precision_and_kernels_with_warnings_are_welcome() -> None:
    facts = {"float32_precision": "highest, convolutions float32", "deterministic_kernels": "warn"}
    job = JobDriver(settings(determinism="d2"), at_level("d2", **facts))
    job.join("a")
    assert set(job.state.workers) == {"a"}


@pytest.mark.parametrize("level", ["d0", "d1"])
def test_reduced_precision_is_for_d2_alone_to_refuse(level: Determinism) -> None:
    facts = {"float32_precision": "medium, convolutions tf32"}
    job = JobDriver(settings(determinism=level), at_level(level, **facts))
    job.join("a")
    job.join("b")
    assert set(job.state.workers) == {"a", "b"}


def test_a_worker_older_than_the_levels() -> None:
    job = JobDriver(settings(determinism="d1"), JOB)
    job.join("a")
    assert set(job.state.workers) == {"a"}
    with pytest.raises(Rejection, match="determinism differs: the job has d2, a has \\(absent\\)"):
        JobDriver(settings(determinism="d2"), JOB).join("a")


def test_a_job_stored_before_there_were_levels() -> None:
    """It is at d1; its signature takes over what the first newer worker says; the next is compared."""
    job = JobDriver(settings(), JOB)
    job.join("a")
    stored = msgspec.msgpack.decode(job.machine.snapshot())
    for name in ("original", "settings"):
        assert "determinism" not in stored[1][name]
    job.machine = JobMachine.restore(msgspec.msgpack.encode(stored))
    assert job.state.settings.determinism == "d1"
    job.join("b", signature=at_level("d1"))
    with pytest.raises(Rejection, match="instruction_set differs: the job has AVX512, c has AVX2"):
        job.join("c", signature=at_level("d1", instruction_set="AVX2"))
    with pytest.raises(Rejection, match="torch differs"):
        job.join("d", signature=at_level("d1", torch="2.14"))

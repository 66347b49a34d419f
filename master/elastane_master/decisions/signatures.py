"""What must be equal in all workers of a job, and how to say what is not.

Two scripts that differ would train two models at once without anybody noticing; so a worker whose model,
data or environment differs is refused, and the refusal names the first difference.
"""

from __future__ import annotations

from elastane_master.decisions.events import Rejection, Signature, TensorSpec

_NUMBERS = {
    "dataset_size": "the workers must see the same data set",
    "batch_size": "the batch size belongs to an EST, never to the number of workers",
    "steps_per_epoch": "the loaders must be cut alike (drop_last, sampler, batch size)",
    "epochs": "start every worker with the same number of epochs",
}


def require_equal(job: Signature, worker: Signature, name: str) -> None:
    """Raises Rejection("mismatch") that names the first difference between a worker and its job."""
    if job == worker:
        return
    _compare_tensors(job.tensors, worker.tensors, name)
    for field, hint in _NUMBERS.items():
        if getattr(job, field) != getattr(worker, field):
            raise _mismatch(name, field, getattr(job, field), getattr(worker, field), hint)
    for key in sorted({*job.environment, *worker.environment}):
        expected, found = job.environment.get(key, "(absent)"), worker.environment.get(key, "(absent)")
        if expected != found:
            hint = "install the same versions and set the same options on every worker"
            raise _mismatch(name, f"environment {key}", expected, found, hint)


def _compare_tensors(job: tuple[TensorSpec, ...], worker: tuple[TensorSpec, ...], name: str) -> None:
    hint = (
        "the model or its order of parameters differs: start every worker with the same script and arguments"
    )
    for expected, found in zip(job, worker, strict=False):
        if expected != found:
            raise _mismatch(name, f"tensor {expected.name}", _describe(expected), _describe(found), hint)
    if len(job) != len(worker):
        longer = job if len(job) > len(worker) else worker
        extra = longer[min(len(job), len(worker))]
        sides = (_describe(extra), "(absent)") if longer is job else ("(absent)", _describe(extra))
        raise _mismatch(name, f"tensor {extra.name}", *sides, hint)


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name} {list(spec.shape)} {spec.dtype}"


def _mismatch(worker: str, what: str, expected: object, found: object, hint: str) -> Rejection:
    return Rejection(
        "mismatch",
        f"{what} differs: the job has {expected}, {worker} has {found}",
        hint=hint,
        field=what,
        expected=expected,
        found=found,
        worker=worker,
    )

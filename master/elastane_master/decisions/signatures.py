"""Comparison of workers' signatures: what must be equal in all workers of a job.

Two different scripts would silently train two models at once; so a worker whose model, data or environment
differs is refused, and the refusal names the first difference.
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions.events import PipelineModel, Rejection, Signature, TensorSpec
from elastane_proto.job_settings import Determinism

_NUMBERS = {
    "dataset_size": "the workers must see the same data set",
    "batch_size": "the batch size belongs to an EST, never to the number of workers",
    "steps_per_epoch": "the loaders must divide the data in the same way (drop_last, sampler, batch size)",
    "epochs": "start every worker with the same number of epochs",
}

_OF_A_UNIT = ("name", "parameter_bytes", "buffer_bytes", "tie")


#: Facts of a worker's machine, with advice if two differ.
_PINNED = {
    "instruction_set": "",
    "onednn": "",
    "mkl": "; MKL shares code only between CPUs of one vendor",
    "numpy_loops": "",
    "caches": "",
}
_MODELS = "no level makes GPUs of different models give the same bits: use one model"
_MIXTURE = "a job created with --determinism d0 takes both, and their mixture decides the bits"
_HARDWARE = {*_PINNED, "threads", "device_model"}
_REDUCED = ("tf32", "bf16", "high,", "medium")


def require_level(level: Determinism, worker: Signature, name: str) -> None:
    """Raise Rejection("mismatch") if a worker does not run at its job's determinism level.

    A worker that reports no level is accepted, except at d2: it is older than the levels.
    """
    facts = worker.environment
    found = facts.get("determinism", "(absent)")
    if found != level and not (found == "(absent)" and level != "d2"):
        hint = f"start it with `elastane run`, which passes the level, or with ELASTANE_DETERMINISM={level}"
        hint += " and the variables the level pins" if level == "d2" else ""
        raise _mismatch(name, "environment determinism", level, found, hint)
    if facts.get("deterministic_kernels") == "off":
        hint = "remove torch.use_deterministic_algorithms(False) from the script"
        raise _mismatch(name, "environment deterministic_kernels", "on", "off", hint)
    if (cudnn := facts.get("cudnn", "deterministic")) != "deterministic":
        hint = "leave torch.backends.cudnn.benchmark and .deterministic as elastane.init sets them"
        raise _mismatch(name, "environment cudnn", "deterministic", cudnn, hint)
    precision = facts.get("float32_precision", "")
    if level == "d2" and any(word in f"{precision}," for word in _REDUCED):
        hint = "level d2 computes in full float32: remove the script's settings of TF32 or bfloat16 products"
        raise _mismatch(name, "environment float32_precision", "highest", precision, hint)


def require_equal(job: Signature, worker: Signature, name: str, level: Determinism) -> None:
    """Raise Rejection("mismatch") naming the first difference between a worker and its job.

    At level d0 different hardware is allowed.
    """
    if job == worker:
        return
    _compare_tensors(job.tensors, worker.tensors, name)
    for field, hint in _NUMBERS.items():
        if getattr(job, field) != getattr(worker, field):
            raise _mismatch(name, field, getattr(job, field), getattr(worker, field), hint)
    _compare_units(job.pipeline, worker.pipeline, name)
    for key in sorted({*job.environment, *worker.environment}):
        expected, found = job.environment.get(key, "(absent)"), worker.environment.get(key, "(absent)")
        if expected == found or (level == "d0" and key in _HARDWARE):
            continue
        # The job was created before workers reported this fact.
        if expected == "(absent)" and _is_older(job, worker):
            continue
        raise _mismatch(name, f"environment {key}", expected, found, _hint(key, level))


def completed(job: Signature, worker: Signature) -> Signature:
    """Return the job's signature; one stored before workers reported facts gets those of `worker`."""
    if not _is_older(job, worker):
        return job
    return msgspec.structs.replace(job, environment=worker.environment | job.environment)


def _is_older(job: Signature, worker: Signature) -> bool:
    """True if the job's signature predates the levels, and the worker's does not."""
    return "determinism" not in job.environment and "determinism" in worker.environment


def _hint(key: str, level: Determinism) -> str:
    """Advice for a differing fact of the environment."""
    if key == "threads":
        return f"threads belong to the job: start workers with `elastane run`, which passes them; {_MIXTURE}"
    if key == "device":
        return "the workers of a job compute on one kind of device: all on CPUs or all on GPUs"
    if key == "device_model":
        return f"{_MODELS}; {_MIXTURE}"
    if key in _PINNED and level == "d2":
        return (
            "level d2 pins it: start the worker with `elastane run`, which sets the variables before Python"
            f" starts{_PINNED[key]}"
        )
    if key in _PINNED:
        return (
            f"level {level} needs workers that compute alike; a job created with --determinism d2 pins what"
            f" CPUs have in common; {_MIXTURE}"
        )
    return "install the same versions and set the same options on every worker"


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


def _compare_units(job: PipelineModel | None, worker: PipelineModel | None, name: str) -> None:
    """Compare names and sizes of units, which must be equal in all workers, but not measurements."""
    hint = "divide the model in the same way in every worker: use the same script with the same arguments"
    if job is None or worker is None:
        if job is not worker:
            raise _mismatch(name, "pipeline", _units_text(job), _units_text(worker), hint)
        return
    for expected, found in zip(job.units, worker.units, strict=False):
        for field in _OF_A_UNIT:
            wanted, given = getattr(expected, field), getattr(found, field)
            if wanted != given:
                raise _mismatch(name, f"unit {expected.name} {field}", wanted, given, hint)
    for what, wanted, given in (
        ("number of units", len(job.units), len(worker.units)),
        ("micro-batches of an EST in a step", job.waves, worker.waves),
    ):
        if wanted != given:
            raise _mismatch(name, what, wanted, given, hint)


def _units_text(model: PipelineModel | None) -> str:
    return f"one of {len(model.units)} units" if model else "none"


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

"""Runs in the API of the training-service chapter: five states, int32 job ids.

Its clients do not know waiting for data, suspension and cancellation: these are mapped to states that they
know, with details in the message.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.run import RUN_ID_MAX, RunState
from elastane_master.decisions.runs.spec import DatasetRef, RunSpec
from elastane_master.decisions.runs.views import RunView

Status = Literal["queuing", "launch", "running", "succeed", "failure"]

STATUS: dict[RunState, Status] = {
    "waiting_data": "queuing",
    "queued": "queuing",
    "launching": "launch",
    "running": "running",
    "suspended": "queuing",
    "succeeded": "succeed",
    "failed": "failure",
    "cancelled": "failure",
}
"""The chapter's status of each state."""


class Metadata(msgspec.Struct, frozen=True):
    """The chapter's TrainingJobMetadata, by its field names."""

    algorithm: str = ""
    dataset_id: str = ""
    name: str = ""
    train_data_version_hash: str = ""
    parameters: dict[str, str] = {}
    output_model_name: str = ""


class TrainingStatus(msgspec.Struct, frozen=True):
    """The chapter's GetTrainingStatusResponse. position_in_queue: from 1; 0 for a job that does not wait."""

    status: Status
    job_id: int
    message: str
    metadata: Metadata
    position_in_queue: int


def spec_of(metadata: Metadata) -> RunSpec:
    """Return the spec of the chapter's request: its training code is a black box with PyTorch's environment.

    Raises Rejection("invalid_argument") for a field that the chapter requires.
    """
    for field in ("algorithm", "dataset_id", "train_data_version_hash", "output_model_name"):
        if not getattr(metadata, field):
            raise Rejection(
                "invalid_argument",
                f"{field} is empty",
                hint="algorithm, dataset_id, train_data_version_hash and output_model_name are required",
                field=f"metadata.{field}",
            )
    return RunSpec(
        algorithm=metadata.algorithm,
        name=metadata.name,
        output_model_name=metadata.output_model_name,
        dataset=DatasetRef(metadata.dataset_id, metadata.train_data_version_hash),
        parameters=metadata.parameters,
        framework="pytorch",
    )


def status_of(run: RunView) -> TrainingStatus:
    """Project a run onto the chapter's status."""
    spec = run.spec
    dataset = spec.dataset or DatasetRef()
    return TrainingStatus(
        status=STATUS[run.state],
        job_id=job_id(run.run_id),
        message=f"{run.state}: {run.reason}",
        metadata=Metadata(
            spec.algorithm,
            dataset.id,
            spec.name,
            dataset.version_hash,
            spec.parameters,
            spec.output_model_name,
        ),
        position_in_queue=run.position,
    )


def job_id(run_id: int) -> int:
    """Return a run's id as int32. Raises ValueError if it does not fit, which no id of the service does."""
    if not 1 <= run_id <= RUN_ID_MAX:
        raise ValueError(f"run id {run_id} is not from 1 to {RUN_ID_MAX}")
    return run_id

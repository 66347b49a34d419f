"""Builds a spec that reproduces a run, from its record, which has everything that affects the bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from elastane_common.run_record import RunRecord
    from elastane_common.training_client import TrainingClient
    from elastane_proto.v1 import training_pb2


def spec_like(training: TrainingClient, run_id: int) -> training_pb2.RunSpec:
    """Return a spec that reproduces the bits of a run, without owner and priority.

    The record also works for a run that the master no longer keeps. Without a record (the run is not over, or
    its folder cannot be read here) the submitted spec is used, with a message on stderr. Raises
    RequestRefusedError.
    """
    from elastane_common import layout
    from elastane_common.client_errors import RequestRefusedError

    try:
        run = training.get(run_id)
    except RequestRefusedError as error:
        url = training.get_service().artifact_url if error.reason == "not_found" else ""
        record = _record(layout.join(url, layout.run_folder(run_id))) if url else None
        if record is None:
            raise
        return _recorded_spec(record)
    record = _record(run.artifact_url) if run.artifact_url else None
    # An emptied store numbers runs from the beginning, so their folders may have records of earlier runs.
    if record is not None and record.created_at == run.created.ToNanoseconds() / 1e9:
        return _recorded_spec(record)
    typer.echo(f"run {run_id} has no record: it is taken as it was submitted", err=True)
    run.spec.ClearField("owner")
    run.spec.ClearField("priority")
    return run.spec


def _record(url: str) -> RunRecord | None:
    """Return the record in the folder of a run; None if there is none or it cannot be read."""
    from elastane_common.artifacts import ArtifactError, read_record
    from elastane_common.run_record import RunRecordError

    try:
        return read_record(url)
    except (ArtifactError, RunRecordError) as error:
        typer.echo(f"the record of the run cannot be read: {error.args[0]}", err=True)
        return None


def _recorded_spec(record: RunRecord) -> training_pb2.RunSpec:
    from google.protobuf import json_format

    from elastane_common.run_record import spec_of
    from elastane_proto.v1 import training_pb2

    return json_format.ParseDict(spec_of(record), training_pb2.RunSpec(), ignore_unknown_fields=True)

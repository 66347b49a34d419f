"""Builds the record of a finished run from the master's knowledge and the run's folder.

Written by the runner of rank 0, which has stored the last logs, or by the master for runs that end without
a runner. Both may write it: the later record replaces the earlier one.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import Message

from elastane_common import layout
from elastane_common.artifacts import ArtifactError, list_run, settle
from elastane_common.file_manifest import FileEntry
from elastane_common.run_record import CodeRecord, CostRecord, DatasetRecord, RankImage, RunRecord
from elastane_common.storage import Folder
from elastane_proto.v1 import job_pb2, training_pb2

FINAL: Final = {
    training_pb2.RUN_STATE_SUCCEEDED: "succeeded",
    training_pb2.RUN_STATE_FAILED: "failed",
    training_pb2.RUN_STATE_CANCELLED: "cancelled",
}
#: Packages whose versions are recorded, if installed in the Python that starts the ranks.
PACKAGES: Final = ("elastane", "torch", "numpy")
_RECORDED_KINDS: Final = ("model", "log")


class RunFacts(NamedTuple):
    """The master's knowledge of a run. job: of an elastic run, if it is known, and its last logged values."""

    run: training_pb2.Run
    job: job_pb2.Job | None = None
    metrics: Mapping[str, float] = {}


class StoredModel(NamedTuple):
    """The model of a run. url: of its files. sha256: content hash of its files (`file_manifest`)."""

    url: str = ""
    sha256: str = ""


def record_of(
    facts: RunFacts,
    *,
    data_url: str,
    model: StoredModel,
    artifacts: Iterable[FileEntry],
    versions: Mapping[str, str],
    image: RankImage | None = None,
) -> RunRecord:
    """Return the record of a run that is over. Pure.

    data_url: of its dataset, as it was resolved. versions: of packages where the ranks ran; empty if that is
    not known. image: of containers.
    """
    run, job = facts.run, facts.job
    spec = run.spec
    settings = job.settings if job is not None else spec.job
    has_settings = job is not None or spec.HasField("job")
    return RunRecord(
        run_id=run.run_id,
        owner=spec.owner,
        state=FINAL[run.state],
        reason=run.reason,
        attempts=run.attempt,
        created_at=_seconds(run, "created") or 0.0,
        started_at=_seconds(run, "started"),
        ended_at=_seconds(run, "ended"),
        spec=_json(spec),
        parameters=dict(spec.parameters),
        seed=settings.seed if has_settings and settings.HasField("seed") else None,
        logical_workers=spec.instances or 1,
        settings=_json(settings) if has_settings else {},
        environment=dict(job.environment) if job is not None else {},
        versions=dict(versions),
        code=CodeRecord(
            archive_sha256=spec.code.archive_sha256,
            git_url=spec.code.git.url,
            git_commit=spec.code.git.commit,
            image=spec.code.image if image is None else image.name,
            image_digest="" if image is None else image.digest,
        ),
        dataset=DatasetRecord(
            id=spec.dataset.id, version_hash=spec.dataset.version_hash, url=data_url or spec.dataset.url
        )
        if spec.HasField("dataset")
        else None,
        metrics={
            name: value if math.isfinite(value) else None for name, value in sorted(facts.metrics.items())
        },
        cost=CostRecord(slot_seconds=run.slot_seconds),
        weights_sha256=model.sha256,
        model_url=model.url,
        artifacts=tuple(artifacts),
    )


def stored_model(run_url: str) -> StoredModel:
    """Return the model of a run that is over; without URL if it has none. Raises ArtifactError."""
    url = layout.model_url(run_url)
    manifest = settle(url)
    if manifest is None:
        return StoredModel()
    return StoredModel(layout.join(url, manifest.folder), manifest.content_hash)


def stored_artifacts(run_url: str) -> list[FileEntry]:
    """Return the model and the logs of a run, with their sha256. Raises ArtifactError, RunRecordError."""
    folder = Folder(run_url, ArtifactError)
    found = []
    for entry in list_run(run_url):
        if entry.kind not in _RECORDED_KINDS:
            continue
        if not entry.sha256 and (digest := folder.sha256(entry.path)) is not None:
            entry = FileEntry(entry.path, *digest, entry.kind)
        found.append(entry)
    return found


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, and of packages that are installed beside it."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _json(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _seconds(run: training_pb2.Run, name: str) -> float | None:
    return getattr(run, name).ToNanoseconds() / 1e9 if run.HasField(name) else None

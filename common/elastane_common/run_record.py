"""The record of a finished run: enough to reproduce the same bits. Pure.

It is written once, as `record.json` in the run's folder (see `layout`), and never changed: it outlives the
master's memory of the run. Readers ignore fields that they do not know, so that releases may add some; a
record of a higher `version` is refused, because its known fields mean something else.
"""

from __future__ import annotations

import copy
from typing import Any, Final, NamedTuple

import msgspec

from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_common.file_manifest import FileEntry

#: Grows when readers of the previous version would misunderstand a record.
VERSION: Final = 1
#: Settings of an elastic job that decide its result, beside the number of logical workers.
RESULT_SETTINGS: Final = ("seed", "determinism", "torch_threads")
#: Settings that the service turns on by default, but that a message without them means as off.
_FLAGS: Final = ("audit_samples",)
#: Fields that a later submission does not copy: owner and priority.
_CALLERS_OWN: Final = ("owner", "priority")


class RunRecordError(ElastaneError):
    """A run's record cannot be read: it is damaged, or was written by a newer release."""

    code = "ELA462"
    exit_code = EXIT_REFUSED


class RankImage(NamedTuple):
    """Image of the containers. digest: "sha256:..." by which engines know it; "": there is none."""

    name: str
    digest: str = ""


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Code that the run executed. image_digest: "sha256:..." of the image, as the engine resolved it."""

    archive_sha256: str = ""
    git_url: str = ""
    git_commit: str = ""
    image: str = ""
    image_digest: str = ""


class DatasetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Data that the run read. version_hash: of the manifest that was found. url: as it was resolved."""

    id: str
    version_hash: str
    url: str = ""


class CostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that the run used, all attempts together.

    amount_micros: in millionths of the currency's unit; None: unknown.
    """

    slot_seconds: float = 0.0
    amount_micros: int | None = None
    currency: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run that is over.

    state: succeeded, failed or cancelled. Times are seconds since the Unix epoch; None: not reached.
    spec: the RunSpec as submitted, in protobuf's JSON with the field names of the .proto. logical_workers: N
    of an elastic run, otherwise the number of instances. settings: of the elastic job (JobSettings), in the
    same JSON. environment: what else decides the bits, as the workers reported it (Job.environment).
    versions: of packages and Python. metrics: the last value of each that an elastic run has logged; None:
    not a finite number. weights_sha256: content hash of the model's files (`file_manifest`), equal if and
    only if they are, byte for byte; "" without a model. artifacts: the files of the model and the logs,
    relative to the run's folder.
    """

    version: int = VERSION
    run_id: int
    owner: str = ""
    state: str
    reason: str = ""
    attempts: int = 0
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    spec: dict[str, Any]
    parameters: dict[str, str] = {}
    seed: int | None = None
    logical_workers: int = 1
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    code: CodeRecord = CodeRecord()
    dataset: DatasetRecord | None = None
    metrics: dict[str, float | None] = {}
    cost: CostRecord = CostRecord()
    weights_sha256: str = ""
    model_url: str = ""
    artifacts: tuple[FileEntry, ...] = ()


class _Versioned(msgspec.Struct):
    version: int


_version: Final = msgspec.json.Decoder(_Versioned)
_decoder: Final = msgspec.json.Decoder(RunRecord)


def encode(record: RunRecord) -> bytes:
    """Return the record as JSON; equal records give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=1) + b"\n"


def decode(data: bytes) -> RunRecord:
    """Read a record. Raises RunRecordError."""
    try:
        version = _version.decode(data).version
        if version > VERSION:
            raise RunRecordError(
                f"the record has version {version}; this release reads up to {VERSION}",
                hint="use the release that wrote it, or a newer one",
            )
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunRecordError(
            f"the record is damaged: {error}", hint="it was changed after it was written"
        ) from error


def spec_of(record: RunRecord) -> dict[str, Any]:
    """Return a spec that reproduces a run's bits, in protobuf's JSON of RunSpec.

    Values that the service chose are fixed: parameters, number of instances, seed, threads and determinism
    level, version of the dataset, code and image by digest. Owner and priority are the caller's.
    """
    spec = copy.deepcopy(record.spec)
    for name in _CALLERS_OWN:
        spec.pop(name, None)
    spec["parameters"] = dict(record.parameters)
    spec["instances"] = record.logical_workers
    if record.dataset is not None:
        dataset = {
            "id": record.dataset.id,
            "version_hash": record.dataset.version_hash,
            "url": record.dataset.url,
        }
        spec["dataset"] = {**spec.get("dataset", {}), **dataset}
    spec["code"] = _code(record.code, spec.get("code", {}))
    fixed = {name: record.settings[name] for name in (*RESULT_SETTINGS, *_FLAGS) if name in record.settings}
    if record.seed is not None:
        fixed["seed"] = record.seed
    if fixed:
        spec["job"] = {**spec.get("job", {}), **fixed}
    return spec


def _code(code: CodeRecord, submitted: dict[str, Any]) -> dict[str, Any]:
    """Return CodeRef in JSON. Without archive and commit it is what was submitted, with its image fixed."""
    found = dict(submitted)
    if code.archive_sha256 or code.git_commit:
        found = {name: value for name, value in found.items() if name == "image"}
    if code.archive_sha256:
        found["archive_sha256"] = code.archive_sha256
    elif code.git_commit:
        found["git"] = {"url": code.git_url, "commit": code.git_commit}
    if image := code.image or found.get("image", ""):
        found["image"] = f"{image.partition('@')[0]}@{code.image_digest}" if code.image_digest else image
    return found

"""Runs of the training service in MLflow: a run, a registered model with a version, and its alias.

MLflow is only a display; the artifact URL and the master's store are authoritative. Entries wait in an
`Outbox` until MLflow accepts them, and nothing else waits for MLflow. An entry may be sent any number of
times: the run is found by a tag, the version by its run.

MLflow does not accept a local folder as the source of a version; such models are copied to MLflow's own
artifacts. The library is imported when the first entry is sent (extra `mlflow`).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from elastane_common.outbox import RefusedEntryError
from elastane_common.run_record import RunRecord

#: Alias of the newest version. MLflow reserves the name "latest".
ALIAS_DEFAULT: Final = "newest"
EXPERIMENT_DEFAULT: Final = "elastane"

# MLflow's limits.
_PARAMS_MAX: Final = 100
_METRICS_MAX: Final = 1000
_VALUE_CHARACTERS_MAX: Final = 6000
_TAG_CHARACTERS_MAX: Final = 5000

_RUN_TAG: Final = "elastane.run"
_STATUS: Final[dict[str, Literal["FINISHED", "FAILED", "KILLED"]]] = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
}
#: Status codes after which the same request would be refused again.
_PERMANENT: Final = (400,)


class RegistryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of one run for MLflow. Unknown fields are ignored.

    key: names the run among all runs of all services. Times are seconds since the Unix epoch. model_name: of
    the registered model; "": none is registered. source: URL of the model's files.
    """

    key: str
    experiment: str = EXPERIMENT_DEFAULT
    name: str
    status: Literal["FINISHED", "FAILED", "KILLED"]
    started_at: float
    ended_at: float
    params: dict[str, str] = {}
    metrics: dict[str, float] = {}
    tags: dict[str, str] = {}
    model_name: str = ""
    source: str = ""
    alias: str = ALIAS_DEFAULT

    def to_outbox(self) -> dict[str, Any]:
        """Return the entry in JSON's types, for `Outbox.put`."""
        return msgspec.to_builtins(self)


def entry_of(
    record: RunRecord, run_url: str, *, experiment: str = EXPERIMENT_DEFAULT, alias: str = ALIAS_DEFAULT
) -> RegistryEntry:
    """Return the entry of a run. run_url: URL of the run's folder, which no other run has."""
    model_name = str(record.spec.get("output_model_name", ""))
    registers = record.state == "succeeded" and record.model_url and model_name
    tags = {
        "elastane.run_id": str(record.run_id),
        "elastane.url": run_url,
        "elastane.owner": record.owner,
        "elastane.state": record.state,
        "elastane.reason": record.reason,
        "elastane.model_url": record.model_url,
        "elastane.weights_sha256": record.weights_sha256,
        "elastane.code_sha256": record.code.archive_sha256,
        "elastane.image_digest": record.code.image_digest,
        "elastane.dataset_id": record.dataset.id if record.dataset else "",
        "elastane.dataset_version": record.dataset.version_hash if record.dataset else "",
        "elastane.logical_workers": str(record.logical_workers),
        "elastane.seed": "" if record.seed is None else str(record.seed),
        "mlflow.source.git.commit": record.code.git_commit,
    }
    return RegistryEntry(
        key=hashlib.sha256(run_url.encode()).hexdigest()[:32],
        experiment=experiment,
        name=f"{record.spec.get('name') or record.spec.get('algorithm') or 'run'}-{record.run_id}",
        status=_STATUS[record.state],
        started_at=record.created_at if record.started_at is None else record.started_at,
        ended_at=record.created_at if record.ended_at is None else record.ended_at,
        params=record.parameters,
        metrics={name: value for name, value in record.metrics.items() if value is not None},
        tags={name: value for name, value in tags.items() if value},
        model_name=model_name if registers else "",
        source=record.model_url if registers else "",
        alias=alias,
    )


class MlflowRegistry:
    """Sends entries to the MLflow server of MLFLOW_TRACKING_URI: the `send` of an `OutboxSender`."""

    def __init__(self) -> None:
        # The outbox repeats what fails, and knows when it has to stop.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        self._client: Any = None

    def send(self, entry: dict[str, Any]) -> None:
        """Create or update a run in MLflow.

        Raises RefusedEntryError if it will never take the entry, else what its library raises.
        """
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            wanted = msgspec.convert(entry, RegistryEntry)
        except msgspec.ValidationError as error:
            raise RefusedEntryError(f"the entry is damaged: {error}") from error
        self._client = self._client or MlflowClient()
        try:
            run = self._run(wanted)
            self._log(wanted, run)
            self._client.set_terminated(run.info.run_id, wanted.status, int(wanted.ended_at * 1000))
            if wanted.model_name:
                self._register(wanted, run)
        except MlflowException as error:
            if error.get_http_status_code() in _PERMANENT:
                raise RefusedEntryError(f"MLflow refuses it: {error.message}") from error
            raise

    def _run(self, wanted: RegistryEntry) -> Any:
        """Return the run of an entry; it is created if there is none."""
        client = self._client
        known = client.get_experiment_by_name(wanted.experiment)
        experiment = known.experiment_id if known else client.create_experiment(wanted.experiment)
        found = client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{wanted.key}'", max_results=1)
        if found:
            return found[0]
        return client.create_run(
            experiment,
            start_time=int(wanted.started_at * 1000),
            tags={_RUN_TAG: wanted.key},
            run_name=wanted.name,
        )

    def _log(self, wanted: RegistryEntry, run: Any) -> None:
        from mlflow.entities import Metric, Param, RunTag

        run_id, at = run.info.run_id, int(wanted.ended_at * 1000)
        params = [Param(name, value[:_VALUE_CHARACTERS_MAX]) for name, value in wanted.params.items()]
        for begin in range(0, len(params), _PARAMS_MAX):
            self._client.log_batch(run_id, params=params[begin : begin + _PARAMS_MAX])
        # A metric has a history, to which a repeated value would be added.
        known = run.data.metrics
        metrics = [
            Metric(name, value, at, 0) for name, value in wanted.metrics.items() if known.get(name) != value
        ]
        for begin in range(0, len(metrics), _METRICS_MAX):
            self._client.log_batch(run_id, metrics=metrics[begin : begin + _METRICS_MAX])
        tags = [RunTag(name, value[:_TAG_CHARACTERS_MAX]) for name, value in wanted.tags.items()]
        self._client.log_batch(run_id, tags=tags)

    def _register(self, wanted: RegistryEntry, run: Any) -> None:
        from mlflow.exceptions import MlflowException

        client, run_id = self._client, run.info.run_id
        try:
            client.create_registered_model(wanted.model_name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = self._source(wanted, run)
        versions = client.search_model_versions(f"run_id='{run_id}'")
        same = [one for one in versions if (one.name, one.source) == (wanted.model_name, source)]
        version = (
            same[0]
            if same
            else client.create_model_version(
                wanted.model_name,
                source,
                run_id,
                tags={name: value[:_TAG_CHARACTERS_MAX] for name, value in wanted.tags.items()},
                await_creation_for=0,
            )
        )
        client.set_registered_model_alias(wanted.model_name, wanted.alias, version.version)

    def _source(self, wanted: RegistryEntry, run: Any) -> str:
        """Return the source of the version: the model's URL, or that of its copy for a local folder."""
        path = wanted.source.removeprefix("file://")
        if "://" in path:
            return wanted.source
        folder = f"model/{path.rstrip('/').rpartition('/')[2]}"
        if not Path(path).is_dir():
            raise RefusedEntryError(f"the model {path} is not on this machine any more")
        self._client.log_artifacts(run.info.run_id, path, folder)
        return f"{run.info.artifact_uri}/{folder}"

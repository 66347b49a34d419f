"""Values as metrics of an MLflow run, found by a tag, so that all leaders of a job write into one run."""

from __future__ import annotations

from typing import Any

from elastane.tracking.tracker import Cursor, TrackedRun
from elastane_common.logged import LoggedStep

#: MLflow's limit of metrics in one call.
BATCH_MAX = 1000
_RUN, _STEP, _TOKEN = "elastane.run", "elastane.next_step", "elastane.token"


class MlflowRun:
    """One run of an experiment.

    Values written by an earlier leader after its last cursor are not written again.
    """

    replaces = False

    def __init__(self, experiment: str, run: TrackedRun) -> None:
        import mlflow
        from mlflow.entities import Metric

        self._client: Any = mlflow.MlflowClient()
        self._metric: Any = Metric
        self._experiment = experiment
        self._run = run
        self._id = ""
        self._batch: list[Any] = []
        #: By name: steps from the cursor on that the run already had when it was opened.
        self._written: dict[str, set[int]] = {}
        self._opened_at = 0

    def open(self) -> Cursor:
        client = self._client
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([experiment], f"tags.`{_RUN}` = '{self._run.name}'", max_results=1)
        run = found[0] if found else None
        if run is None:
            tags = {_RUN: self._run.name, "elastane.job": self._run.job}
            run = client.create_run(experiment, run_name=self._run.name, tags=tags)
        self._id = run.info.run_id
        client.update_run(self._id, status="RUNNING")
        tags = run.data.tags
        self._opened_at = int(tags.get(_STEP, 0))
        return Cursor(self._opened_at, tags.get(_TOKEN, ""))

    def write(self, step: LoggedStep) -> None:
        for name, value in step.values.items():
            if step.step not in self._steps_of(name):
                self._batch.append(self._metric(name, value, int(step.committed * 1000), step.step))
        if len(self._batch) >= BATCH_MAX:
            self._send()

    def rewind(self, step: int) -> None:
        raise AssertionError("MLflow keeps what it has")

    def flush(self, cursor: Cursor) -> None:
        self._send()
        self._client.set_tag(self._id, _STEP, str(cursor.next_step))
        self._client.set_tag(self._id, _TOKEN, cursor.token)

    def close(self, *, finished: bool) -> None:
        self._send()
        if finished:
            self._client.set_terminated(self._id)

    def _steps_of(self, name: str) -> set[int]:
        if name not in self._written:
            history = self._client.get_metric_history(self._id, name)
            self._written[name] = {point.step for point in history if point.step >= self._opened_at}
        return self._written[name]

    def _send(self) -> None:
        while self._batch:
            self._client.log_batch(self._id, metrics=self._batch[:BATCH_MAX])
            del self._batch[:BATCH_MAX]

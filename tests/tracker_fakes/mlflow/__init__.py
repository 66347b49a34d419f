"""Fake of the part of MLflow's client that Elastane uses; writes to $FAKE_TRACKERS/mlflow.json."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException


class MlflowClient:
    def __init__(self) -> None:
        self._file = Path(os.environ["FAKE_TRACKERS"]) / "mlflow.json"

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            return {"experiments": {}, "runs": {}}
        return json.loads(self._file.read_text())

    def _write(self, kept: dict[str, Any]) -> None:
        self._file.with_suffix(".new").write_text(json.dumps(kept))
        self._file.with_suffix(".new").replace(self._file)

    def get_experiment_by_name(self, name: str) -> Any:
        number = self._read()["experiments"].get(name)
        return SimpleNamespace(experiment_id=number) if number else None

    def create_experiment(self, name: str) -> str:
        kept = self._read()
        kept["experiments"][name] = number = str(len(kept["experiments"]) + 1)
        self._write(kept)
        return number

    def search_runs(self, experiment_ids: list[str], filter_string: str = "", max_results: int = 1000) -> Any:
        key, value = re.fullmatch(r"tags\.`([\w.]+)` = '([^']*)'", filter_string).groups()  # type: ignore
        return [
            self._run(name, run)
            for name, run in self._read()["runs"].items()
            if run["experiment"] in experiment_ids and run["tags"].get(key) == value
        ][:max_results]

    def create_run(
        self, experiment_id: str, start_time: int | None = None, tags: Any = None, run_name: str = ""
    ) -> Any:
        kept = self._read()
        name = f"run{len(kept['runs'])}"
        kept["runs"][name] = {
            "experiment": experiment_id, "tags": dict(tags or {}), "metrics": [], "status": "RUNNING"
        }  # fmt: skip
        self._write(kept)
        return self._run(name, kept["runs"][name])

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
        kept = self._read()
        kept["runs"][run_id]["status"] = status
        self._write(kept)

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self.update_run(run_id, status or "FINISHED")

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        kept = self._read()
        kept["runs"][run_id]["tags"][key] = value
        self._write(kept)

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(metrics) <= 1000, "MLflow refuses more than 1000 metrics in a batch"
        assert len(params) <= 100 and len(tags) <= 100, (
            "MLflow refuses more than 100 params or tags in a batch"
        )
        kept = self._read()
        kept["runs"][run_id].setdefault("params", {}).update({param.key: param.value for param in params})
        kept["runs"][run_id]["tags"] |= {tag.key: tag.value for tag in tags}
        kept["runs"][run_id]["metrics"] += [[m.key, m.value, m.timestamp, m.step] for m in metrics]
        self._write(kept)

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        return [Metric(*row) for row in self._read()["runs"][run_id]["metrics"] if row[0] == key]

    def create_registered_model(self, name: str) -> None:
        kept = self._read()
        if "/" in name:
            raise MlflowException(f"Invalid model name: {name!r}", "INVALID_PARAMETER_VALUE")
        if name in kept.setdefault("models", {}):
            raise MlflowException("it exists", "RESOURCE_ALREADY_EXISTS")
        kept["models"][name] = {"versions": [], "aliases": {}}
        self._write(kept)

    def search_model_versions(self, filter_string: str) -> list[Any]:
        (run_id,) = re.fullmatch(r"run_id='(\w+)'", filter_string).groups()  # type: ignore[union-attr]
        models = self._read().get("models", {})
        versions = (SimpleNamespace(**one) for model in models.values() for one in model["versions"])
        return [one for one in versions if one.run_id == run_id]

    def create_model_version(
        self, name: str, source: str, run_id: str, tags: Any = None, await_creation_for: int = 300
    ) -> Any:
        if "://" not in source and not source.startswith("mlflow-artifacts:"):
            raise MlflowException("Invalid model version source", "INVALID_PARAMETER_VALUE")
        kept = self._read()
        versions = kept["models"][name]["versions"]
        version = {"name": name, "version": str(len(versions) + 1), "source": source, "run_id": run_id}
        versions.append({**version, "tags": tags})
        self._write(kept)
        return SimpleNamespace(**version)

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        assert alias != "latest", "MLflow reserves it"
        kept = self._read()
        kept["models"][name]["aliases"][alias] = version
        self._write(kept)

    def log_artifacts(self, run_id: str, local_dir: str, artifact_path: str) -> None:
        kept = self._read()
        files = {path.name: path.read_text() for path in Path(local_dir).iterdir()}
        kept["runs"][run_id].setdefault("artifacts", {})[artifact_path] = files
        self._write(kept)

    @staticmethod
    def _run(name: str, run: dict[str, Any]) -> Any:
        metrics = {row[0]: row[1] for row in run["metrics"]}
        return SimpleNamespace(
            info=SimpleNamespace(run_id=name, artifact_uri=f"mlflow-artifacts:/{name}"),
            data=SimpleNamespace(tags=run["tags"], metrics=metrics),
        )

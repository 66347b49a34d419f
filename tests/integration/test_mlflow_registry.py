"""The outbox and a real MLflow server, if one is installed, that is killed between entries."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from elastane_common.model_registry import ALIAS_DEFAULT, MlflowRegistry, RegistryEntry
from elastane_common.outbox import Outbox, OutboxSender
from elastane_common.ports import unused_port
from patience import Patience

pytest.importorskip("mlflow.server")

WAIT_SECONDS = 120.0


class Server:
    """`mlflow server` on a fixed port, with its database in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = unused_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = f"sqlite:///{self._folder / 'mlflow.db'}"
        command = (
            *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--workers", "1"),
            *("--artifacts-destination", str(self._folder / "artifacts"), "--port", str(self._port)),
        )
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )
        limit = Patience(WAIT_SECONDS)
        while limit.left():
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()
                threading.Event().wait(0.2)  # it tells nobody that it listens
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", made.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    yield made
    made.kill()


def entry(number: int, source: str) -> dict[str, Any]:
    return RegistryEntry(
        key=f"run{number}",
        name=f"digits-{number}",
        status="FINISHED",
        started_at=1000.0,
        ended_at=2000.0 + number,
        params={"LR": "0.1"},
        metrics={"loss": 0.5 / number},
        tags={"elastane.run_id": str(number)},
        model_name="digits",
        source=source,
    ).to_outbox()


def test_entries_outlive_the_server_and_are_there_once(server: Server, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"weights")
    sources = ["s3://bucket/runs/1/model/0123", str(model), "s3://bucket/runs/3/model/0123"]
    entries = [entry(number, source) for number, source in enumerate(sources, 1)]
    outbox, registry = Outbox(tmp_path / "outbox"), MlflowRegistry()
    killed = threading.Event()
    failed: queue.SimpleQueue[int] = queue.SimpleQueue()
    sent: queue.SimpleQueue[str] = queue.SimpleQueue()

    def send(one: dict[str, Any]) -> None:
        registry.send(one)
        if not killed.is_set():
            server.kill()
            killed.set()
        sent.put(one["key"])

    def wait_seconds(failures: int) -> float:
        failed.put(failures)
        return 0.1

    server.start()
    for one in entries[:2]:
        outbox.put(one)
    sender = OutboxSender(outbox, send, wait_seconds=wait_seconds)
    sender.start()
    assert patience.wait(lambda seconds: failed.get(timeout=seconds), WAIT_SECONDS) == 1
    outbox.put(entries[2])
    assert len(outbox.waiting()) == 2
    server.start()
    order = [patience.wait(lambda seconds: sent.get(timeout=seconds), WAIT_SECONDS) for _ in entries]
    assert order == ["run1", "run2", "run3"]
    sender.stop(WAIT_SECONDS)
    assert outbox.waiting() == outbox.refused() == []
    check(model)
    for one in entries:
        registry.send(one)  # as a sender does that died before it could remove them
    check(model)


def check(model: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("elastane")
    runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name)
    assert [run.info.run_name for run in runs] == ["digits-1", "digits-2", "digits-3"]
    for number, run in enumerate(runs, 1):
        assert (run.info.status, run.info.start_time, run.info.end_time) == (
            "FINISHED",
            1_000_000,
            2_000_000 + 1000 * number,
        )
        assert run.data.params == {"LR": "0.1"} and run.data.tags["elastane.run_id"] == str(number)
        assert len(client.get_metric_history(run.info.run_id, "loss")) == 1
    versions = sorted(client.search_model_versions("name='digits'"), key=lambda one: int(one.version))
    assert [one.run_id for one in versions] == [run.info.run_id for run in runs]
    assert [one.source for one in versions][::2] == [
        "s3://bucket/runs/1/model/0123",
        "s3://bucket/runs/3/model/0123",
    ]
    copy = Path(client.download_artifacts(runs[1].info.run_id, f"model/{model.name}/weights.bin"))
    assert copy.read_bytes() == b"weights"
    assert client.get_model_version_by_alias("digits", ALIAS_DEFAULT).version == "3"

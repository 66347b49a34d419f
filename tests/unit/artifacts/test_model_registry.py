"""Runs in MLflow (a fake of its client): complete, and once however often they are sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastane_common.model_registry import ALIAS_DEFAULT, MlflowRegistry, RegistryEntry, entry_of
from elastane_common.outbox import RefusedEntryError
from unit.artifacts.test_run_record import a_record

FAKES = Path(__file__).parents[2] / "tracker_fakes"
URL = "s3://bucket/runs/12"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns what MLflow knows."""
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("FAKE_TRACKERS", str(tmp_path))
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "0")  # so that what is set here goes with the test
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "mlflow"}
    yield lambda: json.loads((tmp_path / "mlflow.json").read_text())
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        del sys.modules[name]
    sys.modules.update(loaded)


def send(*entries: RegistryEntry) -> None:
    registry = MlflowRegistry()
    for entry in entries:
        registry.send(json.loads(json.dumps(entry.to_outbox())))


def dying_after(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, whose sender is gone before it has the answer."""

    def dies(*arguments: Any, **more: Any) -> None:
        call(*arguments, **more)
        raise ConnectionError("killed")

    return dies


def test_a_run_becomes_a_run_a_version_and_an_alias(kept: Any) -> None:
    send(entry_of(a_record(), URL))
    (run,) = kept()["runs"].values()
    assert run["status"] == "FINISHED"
    assert run["params"] == {"PARALLEL_INSTANCES": "4", "LR": "0.1"}
    assert run["metrics"] == [["loss", 0.125, 3500, 0]]
    assert run["tags"]["elastane.weights_sha256"] == "12" * 32
    assert "mlflow.source.git.commit" not in run["tags"]  # the code was no commit
    model = kept()["models"]["digits"]
    assert [one["source"] for one in model["versions"]] == ["s3://b/runs/12/model/0123"]
    assert model["aliases"] == {ALIAS_DEFAULT: "1"}


def test_an_entry_that_is_sent_again_changes_nothing(kept: Any) -> None:
    entry = entry_of(a_record(), URL)
    send(entry)
    before = kept()
    send(entry, entry)
    assert kept() == before


def test_an_entry_is_completed_wherever_its_sender_died(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(a_record(), URL)
    send(msgspec.structs.replace(entry, key="whole"))
    import mlflow

    calls = ("create_run", "log_batch", "set_terminated", "create_registered_model", "create_model_version",
             "set_registered_model_alias")  # fmt: skip
    for name in calls:
        this = msgspec.structs.replace(entry, key=f"dies in {name}", model_name=name)
        with monkeypatch.context() as patched, pytest.raises(ConnectionError):
            patched.setattr(mlflow.MlflowClient, name, dying_after(getattr(mlflow.MlflowClient, name)))
            send(this)
        send(this)
    runs, models = kept()["runs"], kept()["models"]
    assert len(runs) == 1 + len(calls)
    whole, *others = ({**run, "tags": {**run["tags"], "elastane.run": ""}} for run in runs.values())
    assert all(other == whole for other in others)
    assert all(len(models[name]["versions"]) == 1 for name in calls)
    assert all(models[name]["aliases"] == {ALIAS_DEFAULT: "1"} for name in calls)


def test_the_alias_moves_to_the_newest_version(kept: Any) -> None:
    send(entry_of(a_record(), URL), entry_of(a_record(run_id=13), "s3://bucket/runs/13"))
    assert len(kept()["runs"]) == 2
    assert kept()["models"]["digits"]["aliases"] == {ALIAS_DEFAULT: "2"}


@pytest.mark.parametrize(("state", "status"), [("failed", "FAILED"), ("cancelled", "KILLED")])
def test_a_run_without_success_registers_no_model(kept: Any, state: str, status: str) -> None:
    send(entry_of(a_record(state=state), URL))
    assert [run["status"] for run in kept()["runs"].values()] == [status]
    assert "models" not in kept()


def test_a_retried_run_stays_one_run(kept: Any) -> None:
    send(entry_of(a_record(state="failed"), URL), entry_of(a_record(metrics={"loss": 0.0625}), URL))
    (run,) = kept()["runs"].values()
    assert run["status"] == "FINISHED" and [row[1] for row in run["metrics"]] == [0.125, 0.0625]


def test_what_mlflow_will_never_take_is_refused_and_the_run_is_there(kept: Any) -> None:
    spec = {"output_model_name": "a/b", "algorithm": "digits"}
    with pytest.raises(RefusedEntryError, match="Invalid model name"):
        send(entry_of(a_record(spec=spec), URL))
    assert [run["status"] for run in kept()["runs"].values()] == ["FINISHED"]
    with pytest.raises(RefusedEntryError, match="is damaged"):
        MlflowRegistry().send({"key": 1})


def test_a_model_on_a_disk_is_copied(kept: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "12" / "model" / "0123"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_text("weights")
    for number, url in enumerate((str(folder), f"file://{folder}")):
        send(entry_of(a_record(model_url=url), f"{URL}/{number}"))
    runs, versions = kept()["runs"], kept()["models"]["digits"]["versions"]
    assert [run["artifacts"] for run in runs.values()] == [{"model/0123": {"weights.bin": "weights"}}] * 2
    assert [one["source"] for one in versions] == [f"mlflow-artifacts:/{run}/model/0123" for run in runs]
    with pytest.raises(RefusedEntryError, match="not on this machine"):
        send(entry_of(a_record(model_url=str(tmp_path / "gone")), URL))


def test_mlflows_limits_are_kept(kept: Any) -> None:
    parameters = {f"P{number}": "x" * 7000 for number in range(150)}
    metrics = {f"m{number}": float(number) for number in range(1200)} | {"none": None}
    send(entry_of(a_record(parameters=parameters, metrics=metrics), URL))
    (run,) = kept()["runs"].values()
    assert len(run["params"]) == 150 and {len(value) for value in run["params"].values()} == {6000}
    assert len(run["metrics"]) == 1200

"""Trackers: each step that stands is in them once, whoever writes and however often."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastane.tracking.follow import tracker_of, write_steps
from elastane.tracking.process import TrackerProcesses
from elastane.tracking.tracker import Cursor, Feed, TrackedRun, TrackerSpec, parse_specs
from elastane_common.errors import RefusedError
from elastane_common.logged import LoggedStep
from tensorboard_files import shown

RUN = TrackedRun("train", 1_700_000_000.0)
NAME = "train-20231114T221320"
FAKES = Path(__file__).parents[2] / "tracker_fakes"


@pytest.fixture(autouse=True)
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FAKES))
    monkeypatch.setenv("FAKE_TRACKERS", str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("mlflow", "wandb")]:
        del sys.modules[name]


def step(number: int, value: float | None = None, generation: int = 1) -> LoggedStep:
    values = {"loss": float(number) if value is None else value}
    return LoggedStep(number, 0, generation, 1_700_000_100.0 + number, values)


def spec_of(kind: str, folder: Path) -> TrackerSpec:
    return TrackerSpec(kind, str(folder) if kind == "tensorboard" else "project")


def session(
    spec: TrackerSpec, steps: list[LoggedStep], *, flushes: bool = True, finished: bool = False
) -> Cursor:
    """One leader writes; without `flushes` it dies before it notes how far it is."""
    tracker = tracker_of(spec, RUN)
    cursor = tracker.open()
    feed = Feed(tracker, cursor)
    for one in steps:
        feed.take(one)
    if flushes:
        tracker.flush(Cursor(feed.next_step, "17-0"))
    tracker.close(finished=finished)
    return cursor


def kept(kind: str, folder: Path) -> list[tuple[int, float]]:
    """What a user of the tracker sees."""
    if kind == "tensorboard":
        return shown(folder / NAME)["loss"]
    if kind == "wandb":
        rows = json.loads((folder / f"wandb-{NAME}.json").read_text())["rows"]
        return [(row["_step"], row["loss"]) for row in rows]
    runs = json.loads((folder / "mlflow.json").read_text())["runs"]
    assert len(runs) == 1
    return [(at, value) for run in runs.values() for _, value, _, at in run["metrics"]]


KINDS = ("tensorboard", "mlflow", "wandb")


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_leader_goes_on_where_the_first_was(kind: str, tmp_path: Path) -> None:
    spec = spec_of(kind, tmp_path)
    assert session(spec, [step(n) for n in range(4)]).next_step == 0
    cursor = session(spec, [step(n) for n in range(4, 7)], finished=True)
    assert cursor.next_step == 4 and (kind == "wandb" or cursor.token == "17-0")
    assert kept(kind, tmp_path) == [(n, float(n)) for n in range(7)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_leader_wrote_and_did_not_note_is_there_once(kind: str, tmp_path: Path) -> None:
    spec = spec_of(kind, tmp_path)
    session(spec, [step(n) for n in range(3)])
    session(spec, [step(n) for n in range(3, 6)], flushes=False)
    session(spec, [step(n) for n in range(3, 8)])
    assert kept(kind, tmp_path) == [(n, float(n)) for n in range(8)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_step_counts_once(kind: str, tmp_path: Path) -> None:
    """Where a tracker can forget, the replay replaces; else the first run stays: its values are the same."""
    spec = spec_of(kind, tmp_path)
    again = [step(n, -1.0, 2) for n in range(2, 6)]
    session(spec, [*(step(n) for n in range(5)), *again])
    replayed = kind == "tensorboard"
    expected = [(n, -1.0 if (n >= 2 and replayed) or n == 5 else float(n)) for n in range(6)]
    assert kept(kind, tmp_path) == expected


def test_a_tensorboard_folder_without_its_cursor_is_written_anew(tmp_path: Path) -> None:
    spec = spec_of("tensorboard", tmp_path)
    session(spec, [step(n, 9.0) for n in range(5)])
    (tmp_path / NAME / "elastane.json").write_text("{")
    session(spec, [step(n) for n in range(3)])
    assert kept("tensorboard", tmp_path) == [(n, float(n)) for n in range(3)]


def test_values_that_are_no_numbers_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session(spec_of("tensorboard", tmp_path), [step(n, float("nan")) for n in range(3)])
    assert caplog.records == []


def test_mlflow_gets_batches_that_it_takes_and_the_runs_end(tmp_path: Path) -> None:
    spec = TrackerSpec("mlflow", "project")
    session(spec, [step(n) for n in range(2500)], finished=True)
    (run,) = json.loads((tmp_path / "mlflow.json").read_text())["runs"].values()
    assert len(run["metrics"]) == 2500 and run["status"] == "FINISHED"
    assert run["tags"]["elastane.job"] == "train" and run["tags"]["elastane.next_step"] == "2500"


def test_another_job_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    assert TrackedRun("train", 1_700_000_001.0).name != RUN.name == NAME


def test_specs() -> None:
    found = parse_specs("tensorboard:runs/a, mlflow ,wandb:proj")
    assert found == [
        TrackerSpec("tensorboard", "runs/a"),
        TrackerSpec("mlflow"),
        TrackerSpec("wandb", "proj"),
    ]
    assert parse_specs("") == []
    with pytest.raises(RefusedError, match=r"'neptune:x' is not a tracker.*tensorboard, mlflow, wandb"):
        parse_specs("neptune:x")


def test_a_trackers_process_ends_though_a_forked_data_worker_holds_its_pipe(tmp_path: Path) -> None:
    trackers: Any = TrackerProcesses([spec_of("tensorboard", tmp_path)], job="train", created=RUN.created)
    trackers.lead(True)
    (process,) = trackers._processes
    held = os.dup(process.stdin.fileno())
    try:
        trackers.write({"step": 0, "values": {"loss": 0.0}})
        trackers.close()
    finally:
        os.close(held)
    assert process.returncode == 0  # it was not killed after a while
    assert kept("tensorboard", tmp_path) == [(0, 0.0)]


def test_a_tracker_that_is_not_installed_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RefusedError, match=r"wandb, which is not installed here.*pip install wandb"):
        parse_specs("wandb")


def test_a_url_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="not a folder"):
        tracker_of(TrackerSpec("tensorboard", "s3://bucket"), RUN)


def test_steps_of_a_process_without_a_master(tmp_path: Path) -> None:
    lines = [json.dumps({"step": n, "values": {"loss": n}}) for n in range(3)]
    assert write_steps([*lines, '{"finish": 3}', "never read"], "train", 1_700_000_000.0,
                       spec_of("tensorboard", tmp_path)) == 3  # fmt: skip
    assert kept("tensorboard", tmp_path) == [(n, float(n)) for n in range(3)]


def test_the_trackers_process_ends_with_its_worker_and_writes_what_it_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "file"
    bad.touch()
    # torch would take seconds of a core that trains; tensorboardX asks for it.
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    specs = [spec_of("tensorboard", tmp_path), TrackerSpec("tensorboard", str(bad))]
    trackers: Any = TrackerProcesses(specs, job="train", created=RUN.created)
    trackers.lead(True)
    trackers.lead(True)  # once
    good, failing = trackers._processes
    for n in range(3):
        trackers.write({"step": n, "values": {"loss": float(n)}})
    failing.wait(60)
    trackers._tell({"finish": 3})  # as when another worker leads for a while
    good.wait(60)
    trackers.lead(True)
    again, still = trackers._processes
    assert again.poll() is None and still is failing  # one that failed is left alone
    good = again
    trackers.write({"step": 3, "values": {"loss": 3.0}})  # one that has ended disturbs nobody
    trackers.finish(4)
    assert (good.returncode, failing.returncode) == (0, 1)
    assert f"values do not go to tensorboard:{bad} any more" in capfd.readouterr().err
    assert kept("tensorboard", tmp_path) == [(n, float(n)) for n in range(4)]

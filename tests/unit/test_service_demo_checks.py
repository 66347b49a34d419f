"""The table of `elastane demo service`: a line says no when what it is about was not kept, and it exits 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_cli.demo import service_run
from elastane_cli.demo.service_checks import (
    ELASTIC,
    STOCK,
    TENSORFLOW,
    Found,
    FoundRun,
    Kill,
    RankKill,
    lines,
)
from elastane_common.errors import RefusedError
from elastane_common.file_manifest import FileEntry
from elastane_common.run_record import CodeRecord, RunRecord

ROOT = Path(__file__).resolve().parents[2]
LOG = "attempts/1/rank-{rank}.log"


def a_run(name: str, run_id: int, logs: dict[int, str]) -> FoundRun:
    digests = {LOG.format(rank=rank): f"{run_id}{rank}" * 32 for rank in logs}
    record = RunRecord(
        run_id=run_id,
        state="succeeded",
        created_at=1.0,
        spec={},
        seed=7 if name == ELASTIC else None,
        metrics={"loss": 0.5} if name == ELASTIC else {},
        versions={"python": "3.11"},
        code=CodeRecord(archive_sha256="a" * 64),
        weights_sha256="c" * 64 if name == TENSORFLOW else "b" * 64,
        model_url=f"/runs/{run_id}/model/0",
        artifacts=tuple(FileEntry(path, 1, digest, "log") for path, digest in digests.items()),
    )
    return FoundRun(
        name=name,
        run_id=run_id,
        state="succeeded",
        attempts=1,
        seconds=20.0,
        record=record,
        logs=logs,
        log_digests=digests,
    )


def config(rank: int, cluster: str = "a:1") -> str:
    words = {"cluster": {"worker": [cluster, "a:2"]}, "task": {"type": "worker", "index": rank}}
    return f"TF_CONFIG {json.dumps(words)}\nall 2 tasks know the same cluster\n"


def found() -> Found:
    trained = dict.fromkeys(range(3), "epoch 0\nthe training is over\n")
    agents = dict.fromkeys(
        range(3), "[w0] epoch 0\n[elastane] job succeeded: as it was\n[elastane] w0 left\n"
    )
    return Found(
        runs={
            ELASTIC: a_run(ELASTIC, 1, agents),
            STOCK: a_run(STOCK, 2, trained),
            TENSORFLOW: a_run(TENSORFLOW, 3, {0: config(0), 1: config(1)}),
        },
        master=Kill(seconds=1.0, ranks=8, restarted=0),
        runner=Kill(seconds=1.0, ranks=8, restarted=0),
        rank=RankKill(rank=2, step=3, seconds=1.0, others_restarted=0),
        seconds=40.0,
    )


def with_run(name: str, **changed: Any) -> Callable[[Found], Found]:
    def change(whole: Found) -> Found:
        run = msgspec.structs.replace(whole.runs[name], **changed)
        return msgspec.structs.replace(whole, runs={**whole.runs, name: run})

    return change


def with_record(name: str, **changed: Any) -> Callable[[Found], Found]:
    record = found().runs[name].record
    assert record is not None
    return with_run(name, record=msgspec.structs.replace(record, **changed))


def replaced(**changed: Any) -> Callable[[Found], Found]:
    return lambda whole: msgspec.structs.replace(whole, **changed)


def test_every_line_says_yes_when_all_was_kept() -> None:
    assert all(line.ok for line in lines(found())), lines(found())


def test_an_agent_that_is_stopped_before_it_knows_of_the_success_has_the_last_word_too() -> None:
    log = "[w0] the training is over\n[elastane] SIGTERM: workers drain\n[elastane] w0 left (exit code 143)\n"
    whole = with_run(ELASTIC, logs=dict.fromkeys(range(3), log))(found())
    assert all(line.ok for line in lines(whole)), lines(whole)
    killed = "[elastane] w0 left (ended by SIGKILL)\n[elastane] w1 started\n"
    for cut in (log[: log.rindex("[elastane]")], killed):
        whole = with_run(ELASTIC, logs=dict.fromkeys(range(3), cut))(found())
        assert [line.text for line in lines(whole) if not line.ok] == [
            "each rank's log is complete, and as the record has it"
        ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            with_run(STOCK, state="failed", reason="rank 1 ended with 1"),
            "stock DDP: submitted, run, succeeded",
        ),
        (replaced(master=Kill(seconds=1, ranks=8, restarted=1)), "the master is killed"),
        (replaced(master=Kill(seconds=1, ranks=0, restarted=0)), "the master is killed"),
        (replaced(runner=Kill(seconds=1, ranks=8, restarted=8)), "the runner is killed"),
        (replaced(rank=RankKill(rank=2, step=3, seconds=1, others_restarted=1)), "a rank of the elastic run"),
        (with_run(ELASTIC, attempts=2), "a rank of the elastic run"),
        (with_record(ELASTIC, weights_sha256="d" * 64), "those of stock DDP"),
        (with_run(TENSORFLOW, logs={0: config(0), 1: config(1, "b:1")}), "TF_CONFIG is equal"),
        (with_run(TENSORFLOW, logs={0: config(0), 1: config(0)}), "TF_CONFIG is equal"),
        (with_run(STOCK, model_fault="w.pt is missing"), "each model is whole"),
        (with_run(TENSORFLOW, record=None), "each run's record"),
        (with_record(ELASTIC, metrics={}), "each run's record"),
        (with_record(ELASTIC, seed=None), "each run's record"),
        (with_record(STOCK, model_url=""), "each run's record"),
        (with_run(STOCK, logs={0: "epoch 0\n"}), "each rank's log"),
        (with_run(STOCK, logs={}), "each rank's log"),
        (with_run(STOCK, log_digests={LOG.format(rank=0): "e" * 64}), "each rank's log"),
    ],
)
def test_a_line_says_no_when_its_promise_was_broken(change: Callable[[Found], Found], words: str) -> None:
    wrong = [line for line in lines(change(found())) if not line.ok]
    assert words in " ".join(line.text for line in wrong)
    assert not change(found()).as_json()["ok"]


def show(monkeypatch: pytest.MonkeyPatch, file: Path, whole: Found) -> tuple[int, str]:
    monkeypatch.setattr(service_run, "run_service_demo", lambda *_, **__: whole)
    result = CliRunner().invoke(build_app(), ["demo", "service", "--json", str(file)])
    return result.exit_code, result.stdout


def test_the_exit_code_is_0_only_if_every_line_says_yes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, said = show(monkeypatch, tmp_path / "result.json", found())
    assert code == 0 and "every line says yes" in said and "NO" not in said
    assert json.loads((tmp_path / "result.json").read_text())["ok"] is True
    broken = with_record(ELASTIC, weights_sha256="d" * 64)(found())
    code, said = show(monkeypatch, tmp_path / "result.json", broken)
    assert code == 1 and "not every line says yes" in said and said.count("NO") == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert [line["ok"] for line in result["lines"]].count(False) == 1
    assert result["runs"][STOCK]["weights_sha256"] == "b" * 64


@pytest.mark.parametrize("options", [["--epochs", "3"], ["--data-workers", "1"], ["--ests", "2"], ["what"]])
def test_bad_options_are_refused_before_anything_starts(options: list[str]) -> None:
    arguments = options if options == ["what"] else ["service", *options]
    assert CliRunner().invoke(build_app(), ["demo", *arguments]).exit_code == 2


def test_the_scripts_are_those_of_the_clone_and_need_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert service_run.service_scripts() == ROOT / "examples" / "service"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RefusedError, match="scikit-learn"):
        service_run.service_scripts()

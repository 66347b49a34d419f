"""`elastane chaos`: usage, the list of faults, the table at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from elastane_cli.chaos.plan import ChaosResult, Injection, RunSummary
from elastane_cli.chaos.ps_faults import PS_FAULTS
from elastane_cli.chaos.run import FAULTS
from elastane_cli.commands.chaos import print_result
from elastane_cli.commands.main import build_app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["chaos", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "kill-worker,nonsense"], "nonsense"),
        (["nowhere.py"], "nowhere.py is not a file"),
        (["--workers", "5", "--ests", "4"], "5 workers for 4 logical workers"),
        (["--keep", "."], ". exists already"),
        (["-m"], "-m needs the name of a module"),
        (["--minutes", "0"], "--minutes"),
        (["--ests", "1"], "--ests"),
        (["--pipeline", "3:2"], "'3:2': MIN is at least 1 and at most MAX"),
        (["--shadow", "9"], "it must be at most 8"),
        (["--kills", "3"], "--kills: only with --ps"),
        (["--ps-replicas", "1"], "--ps-replicas: only with --ps"),
        (["--ps", "2", "--shadow", "1"], "a pipeline has no parameter servers"),
        (["--ps", "2", "--faults", "kill-both"], "unknown fault 'kill-both'"),
    ],
)
def test_bad_usage_is_named(arguments: list[str], said: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert said in " ".join(output.replace("│", " ").split())


def test_list_names_every_fault() -> None:
    code, output = run("--list")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == list(FAULTS)
    code, output = run("--list", "--json")
    assert json.loads(output) == {fault.name: fault.text for fault in FAULTS.values()}


def test_list_names_the_faults_of_parameter_servers() -> None:
    code, output = run("--list", "--ps", "2", "--json")
    assert code == 0 and json.loads(output) == {fault.name: fault.text for fault in PS_FAULTS.values()}


def shown(result: ChaosResult, folder: Path | None = None) -> str:
    out = Console(width=200, record=True, quiet=False, file=Path("/dev/null").open("w"))  # noqa: SIM115
    print_result(out, result, "elastane chaos --seed 7", folder)
    return out.export_text()


def result(*problems: str, differing: tuple[str, ...] = ()) -> ChaosResult:
    injected = Injection("kill-worker", 1, 5, "kill -9 w1", 0.0, 0.25, problems)
    once_more = Injection("kill-worker", 1, 9, "kill -9 w2", 0.0, 0.75)
    one = RunSummary(1, 9, 27, 0, 0, differing, (), 9, 3.0)
    return ChaosResult("7", 3, 9, 12.0, (injected, once_more), (one,), {"oom-worker": "no cgroup"})


def test_table_says_what_held() -> None:
    text = shown(result())
    assert "kill-worker" in text and "0.50" in text and "0.25 to 0.75" in text and "held" in text
    assert "27 committed tasks, lost 0, repeated 0; hashes equal to the fixed run in 1 of 1 runs: yes" in text
    assert "left out: oom-worker: no cgroup" in text
    assert "again:" not in text


def test_table_says_what_did_not_hold_and_how_to_see_it_again(tmp_path: Path) -> None:
    text = shown(result("the step went back", differing=("weights",)), tmp_path)
    assert "run 1, step 5, kill-worker (kill -9 w1): the step went back" in text
    assert "run 1: weights" in text and "0 of 1 runs: NO" in text
    assert f"everything is kept in {tmp_path}" in text
    assert "again: elastane chaos --seed 7" in text


def test_table_of_parameter_servers_counts_tasks() -> None:
    injected = Injection("kill-ps", 1, 5, "kill -9 ps-1", 0.0, None)
    lost = RunSummary(
        1, 9, 9, 2, 0, (), ("slot 3: task 1 of epoch 0 of clicks is DONE, and not applied here",), 0, 3.0
    )
    text = shown(ChaosResult("7", 1, 9, 12.0, (injected,), (lost,), ps=3))
    assert "3 parameter servers, 9 tasks" in text and "to the next task" in text
    assert "lost 2, repeated 0; each applied once in every slot in 0 of 1 runs: NO" in text
    assert "run 1: slot 3: task 1 of epoch 0" in text
    assert injected.in_words("task", "the next fault at once") == (
        "task 5: kill -9 ps-1: the next fault at once: held"
    )

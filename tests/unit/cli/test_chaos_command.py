"""`elastane chaos`: usage, the list of faults, the table at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from elastane_cli.chaos.plan import ChaosResult, Injection, RunSummary
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

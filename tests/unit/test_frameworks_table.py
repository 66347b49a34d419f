"""The table of scripts of other libraries beside their own DDP runs, without the libraries and the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastane_cli.rehearse.results import Comparison, Row
from elastane_cli.verify.plan import ChurnPlan, Death
from elastane_cli.verify.run import RunResult, Verdict, VerifyResult
from frameworks import table
from frameworks.beside import SCRIPTS, converted
from frameworks.table import CASES, Case

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "hugging-face.md").read_text()


DEATHS = (Death(2, "backward", "w1"), Death(5, "backward", "w0"))
PLAN = ChurnPlan("5", 3, 9, path=(2, 1, 2, 1), start=("w0", "w1"), acts=(), deaths=DEATHS)


def result(verdict: Verdict, *rows: Row) -> VerifyResult:
    run = RunResult(PLAN, Comparison(rows, values=9), seconds=1.0)
    return VerifyResult(verdict, "5", ests=3, steps=9, values=9, reference_seconds=1.0, runs=(run,))


EQUAL = result(
    Verdict.EQUAL,
    Row("losses", "9 equal", "9 equal"),
    Row("buffers", "(none)", "(none)"),
    Row("weights", "2 equal, sha256 ab", "2 equal, sha256 ab"),
)


def test_a_script_has_a_row_for_each_part_of_its_state() -> None:
    assert table.rows(Case("A script", "a.py", {"x": "y", "z": ""}), EQUAL) == [
        "| A script | 2 | 9 | 2 | weights | 2 equal, sha256 ab | 2 equal, sha256 ab |",
        "| | | | | buffers | (none) | (none) |",
    ]


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.EQUAL, 0), (Verdict.DIFFERS, 1)])
def test_each_script_is_run_and_one_that_differs_fails_the_table(
    verdict: Verdict, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[Any, ...]] = []

    def run(script: str, changes: Any, folder: Path, *arguments: str) -> VerifyResult:
        ran.append((script, changes, arguments))
        return result(verdict, *EQUAL.runs[0].comparison.rows) if script == "cv_example.py" else EQUAL

    monkeypatch.setattr(table, "run_beside", run)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    assert table.main([]) == code
    assert ran == [(case.script, case.changes, case.arguments) for case in CASES]
    out, err = capsys.readouterr()
    assert out.count("| weights |") == len(CASES)
    assert ("cv_example.py differs" in err) == bool(code)
    ran.clear()
    assert table.main(["--only", "example"]) == code
    assert [script for script, *_ in ran] == ["nlp_example.py", "cv_example.py"]


def test_a_name_that_no_script_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        table.main(["--only", "keras"])
    assert ended.value.code == 2 and "trainer.py" in capsys.readouterr().err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_the_page_has_each_script_with_the_number_of_lines_that_change(case: Case, tmp_path: Path) -> None:
    assert f"| {case.words} | {len(case.changes)} | " in PAGE
    before = (SCRIPTS / case.script).read_text().splitlines()
    after = converted(case.script, case.changes, tmp_path).read_text().splitlines()
    assert len(before) == len(after)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == len(case.changes)

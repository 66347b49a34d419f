"""`elastane chaos --ps`: workers, parameter servers and master are killed, and every slot has each task once.

The controls break one rule each; the audit at the end must say so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from elastane_cli.chaos.plan import ChaosResult
from elastane_cli.chaos.ps_faults import PS_FAULTS
from elastane_cli.chaos.ps_run import PS_SCRIPT, PsChaos
from elastane_cli.rehearse.ps_cluster import PS_COMMAND
from integration.test_agent import PATH
from slow import further

pytestmark = further  # minutes each; test_ps_training.py kills workers and parameter servers in `make test`

SCRIPTS = Path(__file__).parent / "scripts"
ODD_PUSHES = [str(SCRIPTS / "odd_pushes.py")]


@pytest.fixture(autouse=True)
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)


def chaos(
    folder: Path,
    *faults: str,
    kills: int,
    replicas: int = 0,
    script: Sequence[str] = PS_SCRIPT,
    ps_command: Sequence[str] = PS_COMMAND,
) -> ChaosResult:
    return PsChaos(
        folder=folder,
        script=[*script, "--tasks", "60"],
        checks_weights=True,
        faults=faults,
        ps=2,
        workers=2,
        replicas=replicas,
        seed="1",
        kills=kills,
        pace_seconds=0.1,
        ps_command=ps_command,
    ).run()


def said(result: ChaosResult) -> str:
    return "\n".join([one.in_words("task") for one in result.injections] + [str(run) for run in result.runs])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [0, 1])
def test_every_slot_has_each_done_task_once(tmp_path: Path, replicas: int) -> None:
    faults = list(PS_FAULTS)
    result = chaos(tmp_path, *faults, kills=len(faults), replicas=replicas)
    assert result.ok and result.exit_code == 0, said(result)
    assert {one.fault for one in result.injections} == set(faults)
    for run in result.runs:
        assert run.steps == run.entries == 120
        assert (run.differing, run.violations, run.lost, run.repeated) == ((), (), 0, 0)


@pytest.mark.timeout(600)
def test_gradients_that_are_applied_twice_are_found(tmp_path: Path) -> None:
    forgetful = (sys.executable, str(SCRIPTS / "forgetful_ps.py"))
    result = chaos(tmp_path, "kill-worker", kills=8, script=[*ODD_PUSHES, "late"], ps_command=forgetful)
    assert result.exit_code == 1, said(result)
    assert any(run.differing for run in result.runs)
    # The names alone cannot tell.
    assert not any(run.violations or run.lost or run.repeated for run in result.runs)


@pytest.mark.timeout(600)
def test_gradients_that_are_lost_are_found(tmp_path: Path) -> None:
    result = chaos(tmp_path, "kill-worker", kills=4, script=[*ODD_PUSHES, "hasty"])
    assert result.exit_code == 1, said(result)
    assert any(run.lost and run.violations for run in result.runs)

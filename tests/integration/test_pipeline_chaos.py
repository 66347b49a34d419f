"""`elastane chaos` with a model in stages: real faults, and the bits of the fixed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane_cli.chaos.run import PIPELINE_SCRIPT, Chaos
from slow import further, slow

ONE_WORKER = ["kill-worker", "spot-notice"]
OTHERS = [
    "stop-worker",
    "slow-worker",
    "kill-all",
    "kill-master",
    "upgrade-master",
    "kill-store",
    "term-storm",
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("shadows", "faults"),
    [
        pytest.param(1, ONE_WORKER, marks=slow),
        pytest.param(0, ONE_WORKER, marks=further),
        pytest.param(1, OTHERS, marks=further),
    ],
)
def test_faults_of_a_pipeline_change_no_bit(tmp_path: Path, shadows: int, faults: list[str]) -> None:
    """With shadows one worker's death may not even cost a committed step."""
    result = Chaos(
        folder=tmp_path,
        script=[*PIPELINE_SCRIPT, "--epochs", "6", "--size", "300"],
        faults=faults,
        ests=3,
        workers=3,
        minutes=10.0,
        seed="1",
        pace_seconds=0.1,
        deals_max=1,
        stages=(2, 3),
        shadows=shadows,
        with_namespace=False,
    ).run()
    assert result.ok, "\n".join(one.in_words() for one in result.injections)
    assert {one.fault for one in result.injections} == set(faults)
    assert len(result.fingerprint) == 4
    for run in result.runs:
        assert (run.differing, run.violations, run.lost, run.repeated) == ((), (), 0, 0)
        assert run.traced_steps >= run.steps, "of the units of each worker"

"""Every fault of `elastane chaos`, injected once by its engine; one test for each row of docs/reliability.md.

All faults share one job (two, if its steps run out): each test looks at what came of its own. What must hold
after every fault (bits, history, audit, events) is in `elastane_cli.chaos.promises`.
"""

from __future__ import annotations

import pytest

from elastane_cli.chaos.plan import ChaosResult, Injection
from elastane_cli.chaos.run import BUILT_IN_SCRIPT, FAULTS, Chaos
from slow import further

pytestmark = further  # `make chaos`; each kind of process is killed in test_matrix and test_master_kills


@pytest.fixture(scope="module")
def injected(tmp_path_factory: pytest.TempPathFactory) -> ChaosResult:
    return Chaos(
        folder=tmp_path_factory.mktemp("c"),
        script=[*BUILT_IN_SCRIPT, "--epochs", "14"],
        faults=list(FAULTS),
        ests=3,
        workers=3,
        minutes=15.0,
        seed="1",
        pace_seconds=0.1,
        deals_max=1,
    ).run()


def injection_of(result: ChaosResult, name: str) -> Injection:
    """What came of a fault; skips where the machine does not allow it."""
    if name in result.left_out:
        pytest.skip(result.left_out[name])
    (injection,) = [one for one in result.injections if one.fault == name]
    assert injection.problems == ()
    assert injection.recovery_seconds is not None
    return injection


@pytest.mark.timeout(900)
def test_result_is_that_of_the_fixed_run(injected: ChaosResult) -> None:
    assert injected.ok, injected.as_json()
    assert {one.fault for one in injected.injections} | set(injected.left_out) == set(FAULTS)
    for run in injected.runs:
        assert (run.differing, run.violations, run.lost, run.repeated) == ((), (), 0, 0)
        assert run.traced_steps >= run.steps
    assert len(injected.fingerprint) >= 4


def test_worker_killed(injected: ChaosResult) -> None:
    injection_of(injected, "kill-worker")


def test_worker_killed_for_its_memory(injected: ChaosResult) -> None:
    injection_of(injected, "oom-worker")


@pytest.mark.parametrize("name", ["stop-worker", "half-open"])
def test_silent_node(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)


def test_stuck_trainer(injected: ChaosResult) -> None:
    injection_of(injected, "stuck-trainer")


@pytest.mark.parametrize("name", ["spot-notice", "term-storm"])
def test_spot_notice(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)


@pytest.mark.parametrize("name", ["kill-all", "damaged-checkpoint"])
def test_all_workers_gone(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)


@pytest.mark.parametrize("name", ["kill-master", "upgrade-master", "stolen-port", "stop-master"])
def test_master_killed(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)


@pytest.mark.parametrize(
    "name", ["kill-store", "stop-store", "full-store-disk", "cut-store-file", "cut-store-file-kill-master"]
)
def test_store_killed(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)


def test_master_and_store_killed(injected: ChaosResult) -> None:
    injection_of(injected, "kill-both")


@pytest.mark.parametrize(
    "name", ["partition", "one-way-out", "one-way-in", "reset-connection", "slow-network"]
)
def test_partition(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)


def test_poison_task(injected: ChaosResult) -> None:
    injection_of(injected, "poison-task")


@pytest.mark.parametrize(
    "name", ["slow-worker", "flapping-worker", "full-checkpoint-disk", "descriptors-used-up", "clock-jump"]
)
def test_surroundings(injected: ChaosResult, name: str) -> None:
    injection_of(injected, name)

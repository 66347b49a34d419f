"""Which preloaded worker may become which worker, and when one is started."""

from __future__ import annotations

import pytest

from elastane_agent.supervisor.job_view import JobView, Phase
from elastane_agent.supervisor.warm_pool import changes, is_settled
from elastane_common.gpus import VISIBLE

OWN = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "ELASTANE_JOB": "j"}


def test_it_is_told_what_differs() -> None:
    worker = OWN | {"ELASTANE_WORKER_ID": "w1", VISIBLE: "3"}
    del worker["ELASTANE_JOB"]
    told = {"set": {"ELASTANE_WORKER_ID": "w1", VISIBLE: "3"}, "unset": ["ELASTANE_JOB"]}
    assert changes(OWN, worker) == told


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "PATH"])
def test_what_has_had_its_effect_cannot_be_changed(name: str) -> None:
    assert changes(OWN, OWN | {name: "other"}) is None
    assert changes(OWN | {name: "other"}, {other: OWN[other] for other in OWN if other != name}) is None


@pytest.mark.parametrize(
    ("phase", "joined", "running", "settled"),
    [
        ("running", {"w0", "w1", "v0"}, ["w0", "w1"], True),
        ("running", {"w0"}, ["w0", "w1"], False),
        ("waiting", {"w0"}, ["w0"], False),
        ("running", {"v0"}, [], False),
    ],
)
def test_none_is_started_beside_a_worker_that_joins(
    phase: Phase, joined: set[str], running: list[str], settled: bool
) -> None:
    assert is_settled(JobView(phase, joined=frozenset(joined)), running) is settled

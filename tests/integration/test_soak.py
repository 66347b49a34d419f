"""Some virtual minutes of the soak, and the proof that it would notice a leak."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

import patience
from elastane_master.jobs.sessions import Session
from integration.soak import Sample, growth, soak
from slow import slow


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The masters' log lines are thousands."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


@slow
def test_nothing_grows_while_workers_and_watchers_come_and_go() -> None:
    # A process of its own: descriptors that other tests left here come and go.
    done = patience.run(
        [sys.executable, "-m", "integration.soak", "--minutes", "6", "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["samples"][-1]["leases"] > 1000
    # Memory needs the hour of `make soak` to say anything.
    assert [fault for fault in found["faults"] if not fault.startswith("memory")] == []


@slow
async def test_a_leak_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Session] = []
    end = Session.end

    def leaky_end(session: Session, *arguments: object) -> None:
        kept.append(session)
        end(session, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "end", leaky_end)
    faults = growth(await soak(tmp_path, minutes=3))
    assert any("Session" in fault for fault in faults)


def test_growth_is_told_from_noise() -> None:
    def samples(*descriptors: int) -> list[Sample]:
        return [Sample(n, 100.0, count, 5, 0, 0, 0, 1000, 0) for n, count in enumerate(descriptors)]

    assert growth(samples(20, 21, 20, 24, 20, 26)) == []
    assert growth(samples(20, 22, 24, 26, 34, 36)) == ["descriptors: 26 -> 34"]
    busy = [replace(one, store_connections=60) for one in samples(20, 20, 20)]
    assert growth(busy) == ["store connections: 60"]

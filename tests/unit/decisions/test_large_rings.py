"""What is asked at every message must not cost more with every worker."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import membership
from elastane_master.decisions.assignment import Candidate, Choice, choose_members
from elastane_master.decisions.effects import Member
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_proto.job_settings import JobSettings

MEMBERS = 300


def large_ring() -> JobState:
    state = JobState("job", JobSettings(MEMBERS), JobSettings(MEMBERS), 0.0)
    state.ring.members = tuple(Member(f"w{n}", n, n + 1, "") for n in range(MEMBERS))
    state.workers = {f"w{n}": WorkerRecord(f"w{n}", "s", "ring", 0.0, n) for n in range(MEMBERS)}
    return state


def test_who_lags_is_found_by_passing_each_member_a_few_times_and_not_n_times() -> None:
    for seed in range(5):
        state, asked = large_ring(), Counter[str]()

        def lags(record: WorkerRecord, asked: Counter[str] = asked) -> bool:
            asked[record.worker] += 1
            return record.applied_step == 0

        order = list(state.workers)
        random.Random(seed).shuffle(order)
        for number, worker in enumerate(order, 1):
            state.workers[worker].applied_step = 1
            assert state.lagging(lags) == (number < MEMBERS)
        assert sum(asked.values()) <= 4 * MEMBERS


def test_who_is_gone_does_not_lag_and_a_smaller_ring_is_searched_from_its_start() -> None:
    state = large_ring()
    assert state.lagging(lambda record: record.worker == "w299")
    state.ring.gone = ("w299",)
    assert not state.lagging(lambda record: record.worker == "w299")
    state.ring.members = state.ring.members[:2]
    assert state.lagging(lambda record: record.worker == "w0")
    assert not state.lagging(lambda record: False)


def test_the_place_of_a_member_follows_the_ring() -> None:
    state = large_ring()
    assert state.ring.member("w7") == state.ring.members[7]
    state.ring.members = (Member("w7", 0, MEMBERS, ""),)
    assert state.ring.member("w7") == state.ring.members[0]
    assert state.ring.member("w8") is None


def test_joins_that_are_gathered_do_not_choose_a_ring_each(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []

    def choose(candidates: list[Candidate], **rest: Any) -> Choice:
        chosen.append(len(candidates))
        return choose_members(candidates, **rest)

    monkeypatch.setattr(membership, "choose_members", choose)
    for fewest in (1, 50, MEMBERS):
        chosen.clear()
        job = JobDriver(settings(MEMBERS, workers_min=fewest, join_window_seconds=1000.0))
        for number in range(MEMBERS):
            assert not job.state.ring.members
            job.join(f"w{number}")
        assert len(job.state.ring.members) == MEMBERS
        assert len(chosen) < 10


def test_a_step_in_any_order_of_reports_commits_once_all_have_applied_it() -> None:
    workers = [f"w{n:02}" for n in range(20)]
    job = JobDriver(settings(20, workers_min=20))
    job.form(*workers)
    order = random.Random(1)
    for step in range(4):
        order.shuffle(workers)
        for worker in workers:
            assert len(job.commits) == max(0, step - 1)
            assert not job.sent
            job.report(worker, step)
            if worker != workers[-1]:
                # A master that starts again in the middle knows the same.
                job.machine = JobMachine.restore(job.machine.snapshot())
        assert len(job.commits) == step
        assert len(job.take()) == 20

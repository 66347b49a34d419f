"""What the code between two epochs drew: decided from the members' reports."""

from __future__ import annotations

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import ContextDelta
from elastane_master.decisions.intervals import PartLost, Unattributable, attribute
from elastane_master.decisions.steps import IntervalReport

TORCH = "rng/torch_cpu"
EST0 = {0: {TORCH: b"leader"}}


def test_ranks_that_are_not_the_leader_agree_and_the_leader_says_what_it_is() -> None:
    reports = {
        "a": IntervalReport({TORCH: 2}, EST0, as_leader=True, asked=True, uncertain="a flag in line 3"),
        "b": IntervalReport({TORCH: 2}, asked=True),
        "c": IntervalReport({TORCH: 2}, asked=True),
    }
    found = attribute(reports, 4)
    assert (found.changes, found.contexts) == ({TORCH: 2}, EST0)


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        (
            {"a": IntervalReport({TORCH: 2}), "b": IntervalReport({TORCH: 3})},
            "2 raw draws in a, 3 raw draws in b",
        ),
        ({"a": IntervalReport({TORCH: 2}), "b": IntervalReport()}, "2 raw draws in a, 0 raw draws in b"),
        ({"a": IntervalReport({TORCH: b"x"}), "b": IntervalReport({TORCH: b"y"})}, "another state"),
        ({"a": IntervalReport(uncertain="line 7", as_leader=True, contexts=EST0)}, "line 7"),
        ({"a": IntervalReport(fault="random.shuffle"), "b": IntervalReport()}, "random.shuffle"),
    ],
)
def test_what_cannot_be_told_is_refused(reports: dict[str, IntervalReport], words: str) -> None:
    with pytest.raises(Unattributable, match=words):
        attribute(reports, 2)


@pytest.mark.parametrize(
    "reports",
    [
        {},
        {"b": IntervalReport({TORCH: 2}, asked=True)},
        {
            "a": IntervalReport(contexts={0: {}, 1: {}}, as_leader=True, each_rank=True),
            "c": IntervalReport(contexts={3: {}}, each_rank=True),
        },
        {"a": IntervalReport(contexts={0: {}}, as_leader=True, each_rank=True)},
    ],
    ids=["nobody", "leader", "each rank", "each rank, the leader is left"],
)
def test_a_part_that_went_with_its_worker_is_lost(reports: dict[str, IntervalReport]) -> None:
    with pytest.raises(PartLost):
        attribute(reports, 4)


def test_a_leader_that_is_gone_drew_what_all_did_where_nobody_asked_for_it() -> None:
    assert attribute({"b": IntervalReport({TORCH: 2})}, 4).contexts == {}


def report(job: JobDriver, worker: str, **changes: object) -> None:
    member = job.state.ring.member(worker)
    leads = member is not None and member.start == 0
    contexts = (ContextDelta(0, {TORCH: b"leader"}),) if leads else ()
    known = {"passed": True, "as_leader": leads, "changes": {TORCH: 2}, "contexts": contexts, **changes}
    step = job.state.steps.current
    job.do(events.IntervalReported(worker, job.session(worker), job.generation, step, **known))  # type: ignore[arg-type]


def running() -> JobDriver:
    job = JobDriver(settings())
    job.form("a", "b")
    job.sent.clear()
    return job


def decided(job: JobDriver) -> dict[str, effects.IntervalDecided]:
    found = {worker: one for worker, one in job.sent if isinstance(one, effects.IntervalDecided)}
    job.sent.clear()
    return found


def test_the_epoch_begins_when_all_have_reported_and_a_lost_answer_is_repeated() -> None:
    job = running()
    report(job, "a")
    report(job, "a")
    assert not decided(job)
    report(job, "b")
    told = decided(job)
    assert told["b"] == effects.IntervalDecided(job.generation, 0, {TORCH: 2})
    assert [rank for rank, _ in told["a"].contexts] == [0]
    assert told["a"].contexts[0][1][TORCH] == b"leader"
    report(job, "b")
    assert set(decided(job)) == {"b"}


def test_who_waits_for_others_is_not_evicted_and_who_does_not_come_out_is() -> None:
    job = running()
    report(job, "b")
    job.do(events.AppliedReported("a", job.session("a"), job.generation, 0, True))
    job.tick(after=job.state.settings.idle_max_seconds - 1)
    assert not job.closed
    job.tick(after=2)
    assert job.closed == ["a"]


def test_a_ring_that_changes_before_the_decision_keeps_what_was_reported() -> None:
    job = running()
    report(job, "a")
    job.lose("a")
    job.ready("b", 0, holds=True)
    report(job, "b")
    # EST 0's own part was told before its leader went.
    assert [rank for rank, _ in decided(job)["b"].contexts] == [0]
    assert job.state.contexts.steps[0][0][TORCH] == b"leader"


def test_a_decision_comes_with_the_next_go() -> None:
    job = running()
    report(job, "a")
    report(job, "b")
    job.sent.clear()
    job.lose("a")
    job.ready("b", 0, holds=True)
    go = next(message for _, message in job.sent if isinstance(message, effects.Go))
    assert go.interval == effects.IntervalDecided(job.generation, 0, {TORCH: 2})
    assert go.contexts[0][1][TORCH] == b"leader"


def test_history_goes_back_where_the_leaders_own_part_is_lost() -> None:
    job = running()
    job.lose("a")
    job.ready("b", 0, holds=True)
    report(job, "b", as_leader=False, asked=True, contexts=())
    assert [note.kind for note in job.notes].count("interval_lost") == 1
    job.ready("b", 0, holds=True)
    assert any(isinstance(message, effects.Load) for _, message in job.sent)


def test_who_is_before_the_last_step_of_an_epoch_carries_on_where_the_leaders_own_part_is_lost() -> None:
    job = JobDriver(settings())
    job.form("a", "b", "c")
    formed, last = job.generation, job.state.signature.steps_per_epoch - 1
    job.steps(0, last + 1)
    for worker in "ab":
        job.applied(worker, last + 1, between=True)
    job.join("d")
    job.lose("c")
    for worker in "ab":
        job.ready(worker, last + 1, holds=True)
    job.ready("d")
    report(job, "b", as_leader=False, asked=True, contexts=())
    job.lose("a")
    job.ready("b", last + 1, holds=True)
    job.ready("d")
    assert job.state.ring.receivers, "d gets the state, and the step is not committed before it has it"
    job.rejoin("c", formed, last, session="c-2")
    report(job, "d", passed=False)
    report(job, "b", passed=False)
    assert len(job.noted("interval_lost")) == 1
    assert not job.state.steps.intervals, "everybody runs that code again"

    for worker in "bd":
        job.ready(worker, last + 1, holds=True)
    job.sent.clear()
    job.ready("c", last, holds=True)
    went = job.take(effects.Go)
    assert {worker: go.resume_step for worker, go in went.items()} == dict.fromkeys("bcd", last)
    assert all(go.members[go.donors[0]].worker == "c" for go in went.values())
    job.step(last)
    for worker in "bcd":
        report(job, worker)
    assert set(decided(job)) == set("bcd")


def test_a_refusal_reaches_every_member_and_ends_the_job() -> None:
    job = running()
    report(job, "a")
    report(job, "b", fault="how many values are drawn depends on the state in train.py, line 9")
    told = decided(job)
    assert set(told) == {"a", "b"}
    assert "line 9" in told["a"].refusal and "job.each_rank()" in told["a"].refusal
    assert job.state.phase == "failed"


def test_who_drains_at_the_end_of_an_epoch_leaves_behind_the_first_step_of_the_next() -> None:
    job = running()
    last = job.state.signature.steps_per_epoch - 1
    job.steps(0, last)
    job.do(events.LeavingReported("a", job.session("a"), "spot notice"))
    job.step(last)
    assert job.members == ("a", "b"), "what its code between the epochs draws would go with it"
    job.step(last + 1)
    assert job.members == ("b",)

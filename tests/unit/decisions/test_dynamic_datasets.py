"""Dynamic datasets: retries, waiting, lost workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection, TaskReport
from elastane_master.decisions.lease_answers import REMEMBERED_BYTES_MAX, UNANSWERED_MAX, LeaseResult
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.views import TaskCounts, job_view, list_tasks, progress_views
from elastane_master.servers.translate_job import job_message
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome, TaskState


def with_dataset(**changes: Any) -> JobDriver:
    job = JobDriver(settings())
    dataset = QueueSettings(**{"task_size": 4, "size": 10, "lease_seconds": 10.0, **changes})
    assert job.do(events.DatasetCreated("c", "eval", dataset)).result is True
    return job


def ask(
    job: JobDriver,
    request_id: str,
    *,
    worker: str = "t",
    done: tuple[TaskReport, ...] = (),
    most: int = 1,
    **fields: Any,
) -> LeaseResult:
    rng = {"rng/python": request_id.encode()}
    event = events.TasksRequested(request_id, "eval", worker, done, most, rng, **fields)
    result = job.do(event).result
    assert isinstance(result, LeaseResult)
    return result


def reports(result: LeaseResult, error: str = "") -> tuple[TaskReport, ...]:
    return tuple(TaskReport(task.epoch, task.index, task.attempt, error) for task in result.tasks)


def task_commits(job: JobDriver) -> list[tuple[int, int, int]]:
    return [(e.index, e.start, e.end) for e in job.effects if isinstance(e, effects.TaskCommit)]


def test_lease_report_complete() -> None:
    job = with_dataset()
    first = ask(job, "1", most=2)
    assert [(task.start, task.end) for task in first.tasks] == [(0, 4), (4, 8)]
    second = ask(job, "2", done=reports(first), most=2)
    assert task_commits(job) == [(0, 0, 4), (1, 4, 8)]
    assert [(task.start, task.end) for task in second.tasks] == [(8, 10)]
    last = ask(job, "3", done=reports(second))
    assert task_commits(job) == [(2, 8, 10)]
    assert last.complete and not last.wait and last.tasks == ()


def test_a_job_of_tasks_alone_tells_how_many_are_done() -> None:
    job = with_dataset(epochs=2)
    assert job_view(job.machine).tasks == TaskCounts(0, 6, False)
    held = ask(job, "1", most=6)
    ask(job, "2", done=reports(held)[:2])
    message = job_message(job_view(job.machine), Liveness()).tasks
    assert (message.done, message.total, message.over) == (2, 6, False)
    for number in range(3, 9):
        held = ask(job, str(number), done=reports(held), most=6)
    assert job_view(job.machine).tasks == TaskCounts(6, 6, True)
    assert job_view(JobDriver(settings()).machine).tasks is None, "it has no data set"
    job.join("a")
    assert job_view(job.machine).tasks is None, "it trains, too"


def test_a_retried_request_gives_the_same_leases_and_counts_once() -> None:
    job = with_dataset()
    first = ask(job, "1")
    second = ask(job, "2", done=reports(first))
    job.machine = JobMachine.restore(job.machine.snapshot())
    assert ask(job, "2", done=reports(first)) == second
    assert task_commits(job) == []


def test_a_worker_that_leaves_gives_back_what_it_has_not_reported_and_nothing_is_counted() -> None:
    job = with_dataset(max_attempts=1)
    first = ask(job, "1", most=2)
    for _ in range(2):  # repeated: the second changes nothing
        left = ask(job, "2", done=reports(first)[:1], most=0, leaves=True)
        assert [one.outcome for one in left.outcomes] == [Outcome.ACCEPTED] and not left.tasks
    others = ask(job, "3", worker="u", most=2)
    assert [(task.index, task.attempt) for task in others.tasks] == [(1, 2), (2, 1)]
    assert ask(job, "2", done=reports(first)[:1], most=0, leaves=True) == left
    assert [one.outcome for one in ask(job, "4", worker="u", done=reports(others)).outcomes] == [
        Outcome.ACCEPTED
    ] * 2


def test_a_lost_worker_that_repeats_its_request_has_the_same_outcomes_and_other_leases() -> None:
    job = with_dataset()
    job.join("t")
    first = ask(job, "1")
    second = ask(job, "2", done=reports(first))
    assert {one.outcome for one in second.outcomes} == {Outcome.ACCEPTED}
    job.lose("t")
    again = ask(job, "2", done=reports(first))
    assert again.outcomes == second.outcomes and task_commits(job) == []
    assert [(one.index, one.attempt) for one in again.tasks] == [(one.index, 2) for one in second.tasks]
    assert ask(job, "2", done=reports(first)) == again


def test_requests_in_flight_are_repeated_with_the_same_answers() -> None:
    job = with_dataset(size=40)
    first = ask(job, "1", most=2)
    second = ask(job, "2", done=reports(first)[:1], unanswered=1)
    third = ask(job, "3", done=reports(first)[1:], unanswered=2)
    job.machine = JobMachine.restore(job.machine.snapshot())
    for number, answer, done in (
        ("1", first, ()),
        ("2", second, reports(first)[:1]),
        ("3", third, reports(first)[1:]),
    ):
        assert (
            ask(job, number, done=done, most=2 if number == "1" else 1, unanswered=int(number) - 1) == answer
        )
        assert task_commits(job) == []
    fourth = ask(job, "4", unanswered=1)
    assert ask(job, "3", done=reports(first)[1:], unanswered=2) == third
    assert ask(job, "4", unanswered=1) == fourth
    again = ask(job, "2")
    assert again != second, "only as many are remembered as may be repeated"


def test_a_waiting_request_in_flight_is_still_known_behind_others() -> None:
    job = with_dataset(size=4)
    held = ask(job, "1", worker="u")
    waiting = ask(job, "a", most=1)
    assert waiting.wait
    ask(job, "b", most=0, unanswered=1)
    ask(job, "2", worker="u", done=reports(held, "bad file"), most=0)
    got = ask(job, "a", most=1)
    behind = ask(job, "c", done=reports(got), most=0, unanswered=1)
    assert ask(job, "a", most=1) == got and got.tasks
    assert ask(job, "c", done=reports(got), most=0, unanswered=1) == behind


def test_a_waiting_request_that_is_asked_again_makes_nobody_forget_a_later_one() -> None:
    job = with_dataset(size=8)
    mine, other = ask(job, "1"), ask(job, "1", worker="u")
    assert ask(job, "a").wait
    later = ask(job, "b", done=reports(mine), unanswered=1)
    assert later.wait and later.outcomes
    ask(job, "2", worker="u", done=reports(other, "bad file"), most=0)
    got = ask(job, "a", unanswered=UNANSWERED_MAX)
    assert got.tasks
    # It stands behind "b" now, which is not answered yet and must not make room for it.
    last = ask(job, "c", most=0, done=reports(got), unanswered=1)
    job.machine = JobMachine.restore(job.machine.snapshot())
    assert ask(job, "b", done=reports(mine), unanswered=1).outcomes == later.outcomes
    assert ask(job, "c", most=0, done=reports(got), unanswered=1) == last


def test_late_requests_are_forgotten_in_their_turn() -> None:
    job = with_dataset(size=4000)
    for number in range(20):
        ask(job, str(number), unanswered=UNANSWERED_MAX if number < 5 else 2)
    remembered = job.machine.state.datasets.remembered["eval"]["t"]
    assert [one.request_id for one in remembered.before] == ["17", "18"]


@pytest.mark.parametrize("states", [b"", bytes(5000)], ids=["plain", "with states"])
def test_what_is_remembered_of_one_worker_is_bounded_in_bytes(states: bytes) -> None:
    most = 400 if states else 10_000
    job = with_dataset(size=64 * most, task_size=1)
    rng = {"rng/torch": states} if states else {}

    def request(number: int) -> LeaseResult:
        unanswered = min(number, UNANSWERED_MAX)
        event = events.TasksRequested(str(number), "eval", "t", (), most, rng, unanswered=unanswered)
        result = job.do(event).result
        assert isinstance(result, LeaseResult)
        return result

    answers = [request(number) for number in range(10)]
    remembered = job.machine.state.datasets.remembered["eval"]["t"]
    size = len(msgspec.msgpack.encode(remembered))
    assert size <= 1.1 * REMEMBERED_BYTES_MAX, "the estimate holds"
    known = [one.request_id for one in remembered.before]
    assert known == [str(number) for number in range(9)][9 - len(known) :] and known
    assert request(9) == answers[9] and request(8) == answers[8]


def test_a_snapshot_of_a_master_that_remembered_one_request_is_read() -> None:
    job = with_dataset()
    first = ask(job, "1")
    stored = msgspec.msgpack.decode(job.machine.snapshot())
    book = stored[1]["datasets"]["remembered"]["eval"]["t"]
    del book["before"]
    job.machine = JobMachine.restore(msgspec.msgpack.encode(stored))
    assert ask(job, "1") == first


def test_a_waiting_request_is_asked_again_and_its_reports_count_once() -> None:
    job = with_dataset(size=8)
    first, other = ask(job, "1"), ask(job, "1", worker="u")
    waiting = ask(job, "2", done=reports(first))
    assert waiting.wait and waiting.outcomes[0].outcome == "accepted" and len(task_commits(job)) == 1
    again = ask(job, "2", done=reports(first))
    assert again == waiting and task_commits(job) == []
    ask(job, "2", worker="u", done=reports(other, "bad file"), most=0)
    assert [note.kind for note in job.notes][-1] == "task_failed"
    got = ask(job, "2", done=reports(first))
    assert [task.index for task in got.tasks] == [1] and got.tasks[0].attempt == 2
    assert got.outcomes == waiting.outcomes
    assert got.tasks[0].rng == {"rng/python": b"1"}, "the states of the first lease"


def test_a_report_of_a_lease_that_the_store_forgot_is_stale_and_the_others_count() -> None:
    job = with_dataset(size=8)
    known = ask(job, "1")
    before = job.machine.snapshot()
    forgotten = ask(job, "2")
    job.machine = JobMachine.restore(before)
    answer = ask(job, "3", done=(*reports(known), *reports(forgotten)))
    assert [one.outcome for one in answer.outcomes] == ["accepted", "stale"]
    assert [task.index for task in answer.tasks] == [task.index for task in forgotten.tasks]
    assert len(task_commits(job)) == 1


def test_an_overdue_lease_goes_back_by_tick() -> None:
    job = with_dataset()
    ask(job, "1")
    job.tick_due()
    assert job.noted("task_timed_out")
    assert ask(job, "1", worker="u").tasks[0].index == 0


def test_a_lost_worker_returns_its_tasks_at_once() -> None:
    job = with_dataset()
    job.join("t", role="tasks")
    ask(job, "1", most=2)
    job.lose("t")
    assert [task.index for task in ask(job, "1", worker="u", most=2).tasks] == [0, 1]


def test_a_drained_worker_costs_its_tasks_no_attempt() -> None:
    job = with_dataset(max_attempts=1)
    job.join("t", role="tasks")
    ask(job, "1")
    job.bye("t", "drained", 0)
    assert ask(job, "1", worker="u").tasks[0].index == 0


def test_a_poison_task_is_parked_with_its_errors() -> None:
    job = with_dataset(max_attempts=2)
    for number in range(2):
        ask(job, f"{number}b", done=reports(ask(job, f"{number}a"), "corrupt record"), most=0)
    assert job.notes[-1].facts["parked"] == "True"
    failed = list_tasks(job.machine, "eval", TaskState.FAILED)
    assert [error.error for error in failed[0].errors] == ["corrupt record"] * 2


def test_a_stream_grows() -> None:
    job = with_dataset(size=None, watermark=4)
    first = ask(job, "1")
    assert ask(job, "2", done=reports(first)).wait
    job.do(events.DatasetExtended("e", "eval", 6, True))
    assert not job.do(events.DatasetExtended("e", "eval", 6, True)).durable
    assert [(task.start, task.end) for task in ask(job, "2", done=reports(first)).tasks] == [(4, 6)]


def test_creating_again() -> None:
    job = with_dataset()
    same = QueueSettings(task_size=4, size=10, lease_seconds=10.0)
    assert job.do(events.DatasetCreated("d", "eval", same)).result is False
    with pytest.raises(Rejection) as refused:
        job.do(events.DatasetCreated("e", "eval", QueueSettings(task_size=5, size=10, lease_seconds=10.0)))
    assert refused.value.reason == "already_exists" and "task_size" in str(refused.value)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (events.TasksRequested("r", "other", "t"), "not_found"),
        (events.TasksRequested("r", "eval", ""), "invalid_argument"),
        (events.TasksRequested("r", "eval", "t", max_tasks=-1), "invalid_argument"),
        (events.TasksRequested("r", "eval", "t", (TaskReport(0, 99, 1),)), "invalid_argument"),
        (events.DatasetCreated("r", "train", QueueSettings(1, size=1)), "invalid_argument"),
        (events.DatasetCreated("r", "x", QueueSettings(0, size=1)), "invalid_argument"),
        (events.DatasetCreated("r", "x", QueueSettings(1)), "invalid_argument"),
        (events.DatasetExtended("r", "eval", 99, False), "wrong_phase"),
    ],
)
def test_malformed_requests_are_refused_and_change_nothing(event: events.Event, reason: str) -> None:
    job = with_dataset()
    before = job.machine.snapshot()
    with pytest.raises(Rejection) as refused:
        job.do(event)
    assert refused.value.reason == reason
    assert job.machine.snapshot() == before


def test_no_tasks_while_suspended() -> None:
    job = with_dataset()
    job.do(events.SuspendRequested("s"))
    with pytest.raises(Rejection) as refused:
        ask(job, "1")
    assert refused.value.reason == "wrong_phase"


def test_progress_says_who_holds_what() -> None:
    job = with_dataset()
    ask(job, "1", most=2)
    (view,) = progress_views(job.machine, job.now)
    assert (view.dataset, view.progress.todo, view.progress.doing) == ("eval", 1, 2)
    assert [(info.index, info.worker) for info in view.holders] == [(0, "t"), (1, "t")]


def test_a_run_of_tasks_is_leased_reported_and_committed_as_one() -> None:
    job = with_dataset(size=22)
    run = job.do(events.TasksRequested("1", "eval", "t", (), 5, {}, runs=True)).result.tasks
    assert [(lease.index, lease.count, lease.start, lease.end) for lease in run] == [(0, 5, 0, 20)]
    result = ask(job, "2", done=(TaskReport(0, 1, 1, count=3),))
    assert [(outcome.index, outcome.count, outcome.outcome) for outcome in result.outcomes] == [
        (1, 3, Outcome.ACCEPTED)
    ]
    assert task_commits(job) == [(1, 4, 16)]
    result = ask(job, "3", done=(TaskReport(0, 0, 1, count=5),), most=0)
    assert [(outcome.index, outcome.count, outcome.outcome) for outcome in result.outcomes] == [
        (0, 1, Outcome.ACCEPTED),
        (1, 3, Outcome.STALE),
        (4, 1, Outcome.ACCEPTED),
    ]
    assert task_commits(job) == [(0, 0, 4), (4, 16, 20)]


@pytest.mark.parametrize(
    "report",
    [
        TaskReport(0, 0, 1, count=99),  # more than there are
        TaskReport(0, 0, 1, count=0),
        TaskReport(0, 0, 1, "broken", count=2),
        TaskReport(0, 0, 1, count=10**9),
    ],
)
def test_an_impossible_run_is_refused_whole(report: TaskReport) -> None:
    job = with_dataset()
    ask(job, "1", most=2)
    before = job.machine.snapshot()
    with pytest.raises(Rejection, match=r"there is no task|one by one|more than"):
        ask(job, "2", done=(TaskReport(0, 0, 1), report))
    assert job.machine.snapshot() == before

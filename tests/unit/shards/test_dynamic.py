"""The life of dynamic tasks, case by case: what a reader should know of the queue."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSettings, InvalidSnapshot
from elastane_shards.permutation import feistel_key, permuted
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import AttemptError, Outcome, QueueStatus, TaskLease, TaskState

LEASE = 60.0


def make(size: int = 10, task_size: int = 1, **settings: object) -> DynamicQueue:
    return DynamicQueue(QueueSettings(task_size=task_size, size=size, **settings))  # type: ignore[arg-type]


def report(queue: DynamicQueue, lease: TaskLease, error: str = "", now: float = 0.0) -> Outcome:
    return queue.report(lease.worker, lease.epoch, lease.index, lease.attempt, error, now)


def indices(leases: list[TaskLease]) -> list[int]:
    return [lease.index for lease in leases]


def test_a_task_is_leased_in_order_and_done_once() -> None:
    queue = make(size=10, task_size=4)
    first, second = queue.lease("a", 2, now=5.0)
    assert (first.start, first.end, first.attempt, first.deadline) == (0, 4, 1, 65.0)
    (last,) = queue.lease("b", 9, now=6.0)
    assert (last.start, last.end) == (8, 10)
    assert [report(queue, lease, now=7.0) for lease in (second, last, first)] == [Outcome.ACCEPTED] * 3
    assert report(queue, first, now=7.0) is Outcome.STALE
    assert (queue.bounds(0), queue.bounds(2)) == ((0, 4), (8, 10))
    assert queue.complete and queue.status(7.0) is QueueStatus.COMPLETE
    assert queue.progress(7.0).samples_done == 10


def test_a_timed_out_task_comes_back_at_the_front_and_the_earliest_first() -> None:
    queue = make()
    queue.lease("a", 1, now=0.0)
    queue.lease("b", 2, now=1.0)
    assert queue.next_deadline() == LEASE
    assert queue.expire(now=LEASE - 0.1) == []
    ended = queue.expire(now=LEASE + 1.0)
    assert [(task.index, task.worker, task.state) for task in ended] == [
        (0, "a", TaskState.TODO),
        (1, "b", TaskState.TODO),
        (2, "b", TaskState.TODO),
    ]
    again = queue.lease("c", 4, now=70.0)
    assert [(lease.index, lease.attempt) for lease in again] == [(0, 2), (1, 2), (2, 2), (3, 1)]
    assert (queue.progress(70.0).timed_out, queue.progress(70.0).requeued) == (3, 3)


def test_a_stale_report_counts_while_the_task_waits() -> None:
    queue = make()
    late, other = queue.lease("a", 2, now=0.0)
    queue.expire(now=100.0)
    assert report(queue, late, now=101.0) is Outcome.ACCEPTED
    assert queue.list_tasks(TaskState.DONE)[0].index == 0
    assert indices(queue.lease("b", 1, now=102.0)) == [1]
    assert report(queue, other, now=103.0) is Outcome.STALE  # b holds it now
    assert queue.list_tasks(TaskState.DOING)[0].worker == "b"


def test_a_stale_error_changes_nothing() -> None:
    queue = make()
    (late,) = queue.lease("a", 1, now=0.0)
    queue.expire(now=100.0)
    before = queue.list_tasks(TaskState.TODO)
    assert report(queue, late, "out of memory", now=101.0) is Outcome.STALE
    assert queue.list_tasks(TaskState.TODO) == before


def test_a_report_of_an_attempt_that_was_not_made_yet_is_stale() -> None:
    queue = make()
    (lease,) = queue.lease("a", 1, now=0.0)
    queue.abandon("a", now=1.0)
    assert queue.report("a", 0, 0, lease.attempt + 1, "", 2.0) is Outcome.STALE


def test_a_report_by_another_worker_is_stale() -> None:
    queue = make()
    (lease,) = queue.lease("a", 1, now=0.0)
    assert queue.report("b", 0, 0, lease.attempt, "", 1.0) is Outcome.STALE
    assert report(queue, lease) is Outcome.ACCEPTED


def test_a_lost_worker_gives_back_all_and_only_its_tasks() -> None:
    queue = make()
    queue.lease("a", 2, now=0.0)
    queue.lease("b", 1, now=0.0)
    queue.lease("a", 1, now=0.0)
    assert indices_of(queue.abandon("a", now=1.0)) == [0, 1, 3]
    assert indices(queue.lease("c", 4, now=2.0)) == [0, 1, 3, 4]
    assert [task.worker for task in queue.list_tasks(TaskState.DOING)] == ["c", "c", "b", "c", "c"]
    assert queue.abandon("a", now=3.0) == []


def indices_of(ended: list[object]) -> list[int]:
    return [task.index for task in ended]  # type: ignore[attr-defined]


def test_a_poison_task_is_parked_with_the_error_of_each_attempt() -> None:
    queue = make(size=2)
    (lease,) = queue.lease("a", 1, now=0.0)
    assert report(queue, lease, "bad record") is Outcome.ACCEPTED
    queue.lease("b", 1, now=1.0)
    assert queue.expire(now=100.0)[0].state is TaskState.TODO
    queue.lease("c", 1, now=101.0)
    assert queue.abandon("c", now=102.0)[0].state is TaskState.FAILED
    (failed,) = queue.list_tasks(TaskState.FAILED)
    assert failed.errors == (
        AttemptError(1, "a", "bad record"),
        AttemptError(2, "b", "timed out after 60 s"),
        AttemptError(3, "c", "the worker was lost"),
    )
    (rest,) = queue.lease("d", 5, now=103.0)
    assert rest.index == 1
    report(queue, rest)
    assert queue.complete
    assert (queue.progress(104.0).failed, queue.progress(104.0).done) == (1, 1)


def test_a_drain_is_no_error_of_the_task_but_its_old_attempt_is_over() -> None:
    queue = make(max_attempts=1)
    (first,) = queue.lease("a", 1, now=0.0)
    assert queue.abandon("a", now=1.0, error="drained", counts=False)[0].state is TaskState.TODO
    (second,) = queue.lease("b", 1, now=2.0)
    assert (second.index, second.attempt) == (0, 2)
    assert report(queue, first) is Outcome.STALE
    assert queue.list_tasks(TaskState.DOING)[0].errors == ()


def test_nobody_is_sent_away_while_a_task_may_come_back() -> None:
    queue = make(size=2)
    one, two = queue.lease("a", 2, now=0.0)
    assert queue.status(1.0) is QueueStatus.WAIT
    report(queue, one)
    assert queue.lease("b", 1, now=1.0) == []
    assert queue.status(1.0) is QueueStatus.WAIT
    assert queue.status(LEASE) is QueueStatus.HAS_TODO  # once expired
    queue.abandon("a", now=2.0)
    assert queue.status(2.0) is QueueStatus.HAS_TODO
    assert indices(queue.lease("b", 1, now=2.0)) == [two.index]


def test_an_overdue_lease_that_will_fail_does_not_come_back() -> None:
    queue = make(size=1, max_attempts=1)
    queue.lease("a", 1, now=0.0)
    assert queue.status(LEASE) is QueueStatus.WAIT
    queue.expire(LEASE)
    assert queue.status(LEASE) is QueueStatus.COMPLETE


def test_a_replay_gets_the_rng_states_of_the_first_lease() -> None:
    queue = make()
    (first,) = queue.lease("a", 1, now=0.0, rng={"rng/python": b"one"})
    queue.abandon("a", now=1.0)
    again, fresh = queue.lease("b", 2, now=2.0, rng={"rng/python": b"two"})
    assert first.rng == again.rng == {"rng/python": b"one"}
    assert fresh.rng == {"rng/python": b"two"}
    restored = DynamicQueue.restore(queue.snapshot())
    restored.abandon("b", now=3.0)
    assert [lease.rng["rng/python"] for lease in restored.lease("c", 2, now=4.0)] == [b"one", b"two"]


def test_the_next_epoch_starts_when_the_one_before_is_finished() -> None:
    queue = make(size=2, epochs=2, max_attempts=1)
    one, two = queue.lease("a", 5, now=0.0)
    report(queue, one)
    assert queue.lease("b", 1, now=1.0) == [] and queue.status(1.0) is QueueStatus.WAIT
    report(queue, two, "bad record")
    assert (queue.epoch, queue.status(2.0)) == (1, QueueStatus.HAS_TODO)
    assert report(queue, one) is Outcome.STALE
    leases = queue.lease("b", 5, now=3.0)
    assert [(lease.epoch, lease.index, lease.attempt) for lease in leases] == [(1, 0, 1), (1, 1, 1)]
    for lease in leases:
        report(queue, lease)
    progress = queue.progress(4.0)
    assert (progress.complete, progress.failed, progress.failed_before) == (True, 0, 1)
    assert [(task.epoch, task.index) for task in queue.list_tasks(TaskState.FAILED)] == [(0, 1)]


def test_a_report_of_a_past_epoch_does_not_reach_the_same_task_of_this_one() -> None:
    queue = make(size=1, epochs=2)
    (old,) = queue.lease("a", 1, now=0.0)
    report(queue, old)
    (new,) = queue.lease("a", 1, now=1.0)
    assert (new.index, new.attempt, new.worker) == (old.index, old.attempt, old.worker)
    assert report(queue, old) is Outcome.STALE
    queue.abandon("a", now=2.0)
    assert report(queue, old) is Outcome.STALE
    assert report(queue, new) is Outcome.ACCEPTED


def test_a_stream_grows_waits_and_ends() -> None:
    queue = DynamicQueue(QueueSettings(task_size=4, watermark=6))
    (first,) = queue.lease("a", 5, now=0.0)
    report(queue, first)
    assert queue.status(1.0) is QueueStatus.WAIT
    assert (queue.progress(1.0).total, queue.progress(1.0).eta_seconds) == (0, None)
    queue.extend(9)
    assert indices(queue.lease("a", 5, now=2.0)) == [1]
    queue.extend(9, closed=True)
    queue.extend(9, closed=True)
    (last,) = queue.lease("b", 5, now=3.0)
    assert (last.start, last.end) == (8, 9)
    with pytest.raises(IllegalTransition):
        queue.extend(10)
    assert DynamicQueue.restore(queue.snapshot()).watermark == 9
    assert queue.settings == QueueSettings(task_size=4, watermark=6)


def test_a_stream_closed_empty_is_complete_in_all_its_epochs() -> None:
    queue = DynamicQueue(QueueSettings(task_size=4, watermark=0, epochs=10**9))
    assert queue.status(0.0) is QueueStatus.WAIT
    queue.extend(0, closed=True)
    assert queue.status(0.0) is QueueStatus.COMPLETE
    queue.validate()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_list_source_hands_out_its_entries(shuffle: bool) -> None:
    entries = tuple(range(100, 110))
    queue = DynamicQueue(QueueSettings(task_size=3, entries=entries, shuffle=shuffle, seed=4, epochs=2))
    key = feistel_key(10, 4, 0)
    order = [entries[permuted(position, key)] if shuffle else entries[position] for position in range(10)]
    leases = queue.lease("a", 10, now=0.0)
    assert [entry for lease in leases for entry in lease.entries] == order
    assert queue.settings.entries == entries
    for lease in leases:
        report(queue, lease)
    second = [entry for lease in queue.lease("a", 10, now=0.0) for entry in lease.entries]
    assert sorted(second) == list(entries)
    assert (second != order) == shuffle


def test_a_snapshot_without_settings_leaves_the_entries_out() -> None:
    settings = QueueSettings(task_size=10, entries=tuple(range(10_000)))
    queue = DynamicQueue(settings)
    queue.lease("a", 3, now=0.0)
    small = queue.snapshot(with_settings=False)
    assert len(small) < 1000 < 80_000 < len(queue.snapshot())
    assert DynamicQueue.restore(small, settings).snapshot() == queue.snapshot()
    with pytest.raises(InvalidSnapshot):
        DynamicQueue.restore(small)


def test_tasks_of_one_call_share_their_rng_states_in_the_snapshot() -> None:
    queue = make(size=1000)
    for worker in ("a", "b"):
        queue.lease(worker, 100, now=0.0, rng={"rng/numpy": bytes(2500), "rng/torch_cpu": bytes(5056)})
    assert len(queue.snapshot()) < 30_000
    assert len(DynamicQueue.restore(queue.snapshot()).snapshot()) == len(queue.snapshot())


def test_a_clock_that_goes_back_shortens_leases_and_keeps_their_order() -> None:
    queue = make()
    queue.lease("a", 1, now=990.0)
    queue.lease("b", 1, now=1000.0)
    queue.lease("c", 1, now=20.0)
    assert queue.next_deadline() == 80.0
    assert indices_of(queue.expire(now=80.0)) == [0, 1, 2]
    queue.validate()


def test_the_rate_looks_at_the_last_half_minute_and_the_rest_takes_its_time() -> None:
    queue = make(size=1000, task_size=10)
    for second in range(60):
        (lease,) = queue.lease("a", 1, now=float(second))
        report(queue, lease, now=second + 0.5)
    progress = queue.progress(59.5)
    assert progress.samples_per_second == pytest.approx(10, rel=0.05)
    assert progress.eta_seconds == pytest.approx(400 / progress.samples_per_second)
    twice = make(size=20, task_size=10, epochs=3)
    (lease,) = twice.lease("a", 1, now=0.0)
    report(twice, lease, now=1.0)
    assert twice.progress(1.0).eta_seconds == pytest.approx(5.0)  # 10 of 60 samples in a second
    assert queue.progress(200.0).samples_per_second == 0
    assert queue.progress(200.0).eta_seconds is None


def test_the_rate_begins_anew_when_the_clock_went_back_by_more_than_the_window() -> None:
    queue = make(size=1000, task_size=10)
    for now in (1000.0, 1001.0, 100.0, 101.0, 102.0):
        (lease,) = queue.lease("a", 1, now=now)
        report(queue, lease, now=now)
    assert queue.progress(102.0).samples_per_second == pytest.approx(15.0)
    assert queue.progress(130.5).samples_per_second == pytest.approx(20 / 30)


def test_pages_of_tasks_cover_a_huge_dataset_without_making_it() -> None:
    queue = make(size=10**12, task_size=7)
    held = queue.lease("a", 3, now=0.0)
    report(queue, held[1])
    assert [task.state for task in queue.list_tasks(limit=4)] == [
        TaskState.DOING,
        TaskState.DONE,
        TaskState.DOING,
        TaskState.TODO,
    ]
    after = (0, queue.num_tasks - 2)
    assert [task.end for task in queue.list_tasks(TaskState.TODO, after=after)] == [10**12]
    assert queue.list_tasks(after=(1, 0)) == []
    with pytest.raises(InvalidRequest):
        queue.list_tasks(limit=0)


@pytest.mark.parametrize(
    ("epoch", "index", "attempt"), [(0, -1, 1), (1, 0, 1), (-1, 0, 1), (0, 0, 0), (0, 10**9, 1)]
)
def test_a_report_of_what_cannot_have_been_leased_is_refused(epoch: int, index: int, attempt: int) -> None:
    queue = make()
    queue.lease("a", 2, now=0.0)
    before = queue.snapshot()
    with pytest.raises(InvalidRequest):
        queue.report("a", epoch, index, attempt, "", 1.0)
    assert queue.snapshot() == before


def test_a_report_of_a_lease_that_the_store_forgot_is_stale_and_the_task_is_leased_again() -> None:
    queue = make(epochs=2)
    queue.lease("a", 2, now=0.0)
    assert queue.report("a", 0, 2, 1, "", 1.0) is Outcome.STALE
    assert queue.report("a", 1, 0, 1, "failed", 1.0) is Outcome.STALE
    assert queue.report_run("a", 0, 1, 2, 1, 1.0) == [(1, 1, Outcome.ACCEPTED), (2, 1, Outcome.STALE)]
    assert [task.index for task in queue.lease("b", 1, now=2.0)] == [2]


@pytest.mark.parametrize(("worker", "max_tasks"), [("", 1), ("a", -1)])
def test_a_malformed_lease_is_refused(worker: str, max_tasks: int) -> None:
    with pytest.raises(InvalidRequest):
        make().lease(worker, max_tasks, now=0.0)


def test_bad_settings_make_no_queue() -> None:
    with pytest.raises(InvalidSettings):
        make(size=0)
    with pytest.raises(InvalidSettings):
        make(task_size=0)


def test_an_endless_error_text_is_cut() -> None:
    queue = make()
    (lease,) = queue.lease("a", 1, now=0.0)
    report(queue, lease, "x" * 10**6)
    assert len(queue.snapshot()) < 10_000


def test_a_billion_samples_half_done_by_64_workers_cost_kilobytes() -> None:
    queue = make(size=10**9, task_size=128)
    half = queue.num_tasks // 2
    queue._tasks.counter = half  # what dealing them one by one gives, without the minute it takes
    queue._tasks.done.add(0, half)
    queue._epoch_samples = half * 128
    held = [lease for worker in range(64) for lease in queue.lease(f"worker-{worker}", 8, now=0.0)]
    for turn in range(4000):
        lease = held.pop(turn * 7919 % len(held))
        report(queue, lease, now=turn * 0.001)
        held += queue.lease(lease.worker, 1, now=turn * 0.001)
    queue.validate()
    assert len(queue.snapshot()) < 50_000
    assert DynamicQueue.restore(queue.snapshot()).snapshot() == queue.snapshot()


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_damaged_snapshots_are_refused_or_read(junk: bytes, place: int, value: int) -> None:
    """Never anything but InvalidSnapshot; a flipped byte may still be a valid snapshot."""
    queue = make(epochs=2, max_attempts=2)
    for lease in queue.lease("a", 4, now=0.0, rng={"rng/python": b"r"})[:2]:
        report(queue, lease, "bad" if lease.index else "")
    snapshot = bytearray(queue.snapshot())
    snapshot[place % len(snapshot)] = value
    for damaged in (junk, bytes(snapshot), bytes(snapshot[:place])):
        try:
            DynamicQueue.restore(damaged).validate()
        except InvalidSnapshot:
            continue


def test_a_snapshot_of_another_version_is_refused() -> None:
    state = msgspec.msgpack.decode(make().snapshot())
    state["version"] = 99
    with pytest.raises(InvalidSnapshot, match="version 99"):
        DynamicQueue.restore(msgspec.msgpack.encode(state))

"""Slots at the master: who owns them, what is leased, what is done again, when a job is complete."""

from __future__ import annotations

import json

import msgspec
import pytest
from job_driver import SIGNATURE, JobDriver, settings
from slots_driver import DATASET, MODEL, SLOTS, SlotsDriver

from elastane_master.decisions import events
from elastane_master.decisions import slot_effects as told
from elastane_master.decisions import slot_events as said
from elastane_master.decisions.events import Rejection, TaskReport
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.slots import checkpoints
from elastane_master.decisions.slots.view import slots_view
from elastane_master.decisions.views import progress_views
from elastane_master.metrics import catalogue
from elastane_master.metrics.counters import JobCounters
from elastane_master.metrics.figures import JobFacts, Samples, add_job
from elastane_master.metrics.measures import Distribution, SlotMeasures
from elastane_shards.settings import QueueSettings
from elastane_slots.applied import AppliedSet
from elastane_slots.assignment import holders
from elastane_slots.pushes import Verdict
from elastane_slots.tasks import TaskName, TaskRun


def begun(*names: str, **changes: object) -> SlotsDriver:
    job = SlotsDriver(**changes)  # type: ignore[arg-type]
    job.begin(*(names or ("ps-0", "ps-1")))
    return job


def owners(job: SlotsDriver) -> list[str]:
    return [place.owner for place in job.map.places]


def names(*tasks: int) -> bytes:
    applied = AppliedSet()
    for task in tasks:
        applied.add(TaskName(DATASET, 0, task))
    return applied.encode()


def leave_parts(job: SlotsDriver, slots: tuple[int, ...]) -> None:
    """All owners answer CloseTasks; `slots` had applied the task."""
    for ps, message in job.heard(told.CloseTasks):
        parts = tuple(
            said.ClosedPart(slot, (slot in slots,) * len(message.tasks), job.map.places[slot].life)
            for slot, place in enumerate(job.map.places)
            if place.owner == ps
        )
        job.do(said.TasksClosed(ps, job.sessions[ps], message.tasks, parts))


# ------------------------------------------------------------------ the model


def test_nothing_is_leased_before_a_model_is_registered_and_every_slot_is_served() -> None:
    job = SlotsDriver()
    assert job.ask().wait and not job.ask().tasks
    job.ps("ps-0")
    assert job.ask().wait
    assert job.do(said.ModelRegistered("w", MODEL)).result is True
    for slot in range(SLOTS):
        assert job.ask().wait
        job.restore(slot)
    [task] = job.lease()
    assert (task.number, task.map_generation) == (1, job.map.generation)
    assert job.do(said.ModelRegistered("w2", MODEL)).result is False


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (msgspec.structs.replace(MODEL, slots=8), "8 slots, and the job 4"),
        (msgspec.structs.replace(MODEL, tensors=(), tables=()), "no parameter"),
        (msgspec.structs.replace(MODEL, tensors=MODEL.tensors * 2), "the same name"),
        (msgspec.structs.replace(MODEL, dense_digest=b"short"), "SHA-256"),
        (
            msgspec.structs.replace(MODEL, tables=(msgspec.structs.replace(MODEL.tables[0], rows=0),)),
            "table 'ids'",
        ),
        (
            msgspec.structs.replace(MODEL, tensors=(msgspec.structs.replace(MODEL.tensors[0], shape=(-1,)),)),
            "tensor 'fc.weight'",
        ),
    ],
)
def test_a_model_that_no_job_can_have_is_refused(model: object, words: str) -> None:
    job = SlotsDriver()
    with pytest.raises(Rejection, match=words):
        job.do(said.ModelRegistered("w", model))  # type: ignore[arg-type]


def test_another_model_is_refused_with_what_differs() -> None:
    job = begun()
    table = msgspec.structs.replace(MODEL.tables[0], width=16)
    with pytest.raises(Rejection, match="table 'ids': width is 16, here 8"):
        job.do(said.ModelRegistered("w", msgspec.structs.replace(MODEL, tables=(table,))))
    with pytest.raises(Rejection, match="torch is '3', here None"):
        job.do(said.ModelRegistered("w", msgspec.structs.replace(MODEL, environment={"torch": "3"})))
    with pytest.raises(Rejection, match="dense parameters begin with other values") as raised:
        job.do(said.ModelRegistered("w", msgspec.structs.replace(MODEL, dense_digest=b"o" * 32)))
    assert "seed=" in raised.value.hint
    with pytest.raises(Rejection, match="buffers and frozen layers, has other values"):
        job.do(said.ModelRegistered("w", msgspec.structs.replace(MODEL, environment={"local": "3"})))


def test_neither_snapshots_nor_backups_are_refused() -> None:
    job = SlotsDriver(checkpoint_url="")
    with pytest.raises(Rejection, match="neither snapshots nor backups"):
        job.do(said.ModelRegistered("w", MODEL))
    assert SlotsDriver(checkpoint_url="", ps_replicas=1).do(said.ModelRegistered("w", MODEL)).result is True


# ------------------------------------------------------------------ leases and reports


def test_the_gate_bounds_fresh_leases_and_returned_tasks_pass_it() -> None:
    job = begun(ps_staleness=1)
    first, second = job.lease(5)
    assert job.ask().wait
    assert job.report(first, "bad") == "accepted"
    [again] = job.lease(5)
    assert (again.index, again.attempt, again.number) == (0, 2, 3)
    assert job.done(second) == "accepted"
    assert job.ask().wait, "one more would overtake the first by two"
    assert job.done(again) == "accepted"
    assert len(job.lease(5)) == 2


def test_leases_that_have_ended_are_fenced_out_where_another_data_set_waits_for_them() -> None:
    job = begun(ps_staleness=1)
    job.do(events.DatasetCreated("d", "other", QueueSettings(pushes=True, task_size=1, size=9)))
    first, second = job.lease(2)
    job.report(first, "it died")
    generation = job.map.generation
    assert job.ask(dataset="other").wait  # the second may be overtaken by the first one's worker already
    assert (job.map.generation, {place.fence for place in job.map.places}) == (generation + 1, {first.number})
    assert job.maps[-1].map == job.map
    assert job.done(second) == "accepted"
    [other] = job.ask(dataset="other").tasks
    assert other.map_generation == generation + 1  # pulls wait for it
    [again] = job.lease()
    assert (again.index, again.attempt) == (0, 2)
    assert job.ask(dataset="other").wait and job.ask().wait
    job.report(again, "it died", returned=True)
    assert job.lease()[0].index == 0  # a returned one of its own needs no fence
    assert job.map.generation == generation + 1


def test_a_fenced_task_that_was_applied_everywhere_before_is_done_by_a_late_report() -> None:
    job = begun(ps_staleness=0)
    job.do(events.DatasetCreated("d", "other", QueueSettings(pushes=True, task_size=1, size=9)))
    [task] = job.lease()
    job.report(task, "it died")
    assert job.ask(dataset="other").tasks
    assert job.done(task) == "accepted"
    assert job.ask().wait and job.machine.state.slots.gate.worst() == 0


def test_no_lease_is_fenced_out_while_a_checkpoint_waits() -> None:
    job = begun(ps_staleness=0)
    job.do(events.DatasetCreated("d", "other", QueueSettings(pushes=True, task_size=1, size=9)))
    [task] = job.lease()
    job.do(said.SlotsCheckpointRequested("c1"))
    job.report(task, "it died")
    generation = job.map.generation
    assert job.ask(dataset="other").wait and job.map.generation == generation


def test_a_worker_that_leaves_gives_its_tasks_back_uncounted() -> None:
    job = begun(ps_staleness=3)
    first, _, third = job.lease(3)
    job.lease(worker="v")
    assert job.done(third) == "accepted"
    for _ in range(4):
        result = job.ask(0, leaves=True)
        assert not result.tasks and not result.wait
        tasks = job.lease(2)
        assert [task.index for task in tasks] == [0, 1]
    assert tasks[0].attempt == 5 and not job.machine.queues.dynamic[DATASET].failed
    assert job.done(first) == "stale"
    assert len(job.machine.state.slots.gate.outstanding) == 3  # the other worker's is its own


def test_a_map_that_the_store_forgot_and_a_worker_has_is_followed_by_another() -> None:
    job = begun()
    generation = job.map.generation
    job.do(said.MapSeen(generation + 5))
    assert job.map.generation == generation + 6 and job.maps[-1].map == job.map
    for older in (generation, 2**60):
        job.do(said.MapSeen(older))
    assert job.map.generation == generation + 6


def test_without_a_limit_all_are_leased_with_numbers_of_their_own() -> None:
    job = begun()
    assert [task.number for task in job.lease(9)] == [1, 2, 3, 4, 5, 6]


def test_a_report_counts_only_if_its_answers_are_of_the_present_lives() -> None:
    job = begun()
    task, other = job.lease(2)
    with pytest.raises(Rejection, match="without having been pushed"):
        job.report(task)
    with pytest.raises(Rejection, match="one by one"):
        job.ask(0, TaskReport(0, 0, 1, count=2, lives_sum=0))
    lives = job.map.lives_sum
    job.lose("ps-1")
    job.tick_due()
    assert job.map.lives_sum > lives
    assert job.done(task, lives=lives) == "returned"
    job.restore_all(snapshot="s")
    assert job.done(task, lives=lives) == "stale", "its lease is over, too"
    [again] = job.lease()
    assert (again.index, again.attempt) == (0, 2)
    assert job.done(again) == "accepted" and job.done(other) == "accepted"
    assert [(one.index, one.reopened) for one in job.task_commits] == [(0, 0), (1, 0)]


def test_a_late_report_counts_while_its_task_waits() -> None:
    job = begun()
    [task] = job.lease()
    job.tick(after=11.0)
    assert job.states["todo"] == 6 and job.done(task) == "accepted" and job.states["done"] == 1


def test_tasks_of_a_worker_that_died_are_leased_again_at_once() -> None:
    job = begun(ps_staleness=0)
    job.do(events.WorkerJoined("w", "w-1", "tasks", SIGNATURE, "host", 1))
    [task] = job.lease()
    assert job.ask(worker="v").wait
    job.do(events.StreamLost("w", "w-1", "its stream broke"))
    [again] = job.lease(worker="v")
    assert (again.index, again.attempt, again.number) == (0, 2, task.number + 1)
    assert job.done(task) == "stale", "the other holds it"
    assert job.done(again) == "accepted"


def test_a_request_that_is_repeated_has_the_same_answer() -> None:
    job = begun()
    request = events.TasksRequested("same", DATASET, "w")
    [task] = job.do(request).result.tasks
    assert job.do(request).result.tasks == (task,) and task.number == 1
    back = TaskReport(0, 0, 1, "a slot went back", returned=True)
    request = events.TasksRequested("back", DATASET, "w", (back,), 0)
    first = job.do(request).result.outcomes
    assert job.do(request).result.outcomes == first and first[0].outcome == "returned"
    assert job.machine.state.slots.returns == {TaskName(DATASET, 0, 0): 1}


def test_a_task_that_is_given_back_again_and_again_is_a_failed_attempt_in_the_end() -> None:
    job = begun(dataset={"max_attempts": 1})
    for _ in range(2):
        [task] = job.lease()
        assert job.report(task, "slot 1 was restored", returned=True) == "returned"
    [task] = job.lease()
    assert job.report(task, "slot 1 was restored", returned=True) == "returned"
    assert job.states["failed"] == 1
    assert "given back 3 times" in job.notes[-1].reason


def test_only_a_task_that_pushes_is_given_back() -> None:
    job = begun()
    plain = events.DatasetCreated("p", "plain", events.QueueSettings(task_size=1, size=3))
    job.do(plain)
    with pytest.raises(Rejection, match="only a task that pushes"):
        job.do(events.TasksRequested("x", "plain", "w", (TaskReport(0, 0, 1, "no", returned=True),)))
    with pytest.raises(Rejection, match="leased one by one"):
        job.do(events.TasksRequested("x", DATASET, "w", runs=True))


def test_a_gradient_with_a_nan_fails_the_job_only_if_its_settings_say_so() -> None:
    job = begun()
    [task] = job.lease()
    job.report(task, "NaN in fc.weight", non_finite=True)
    assert job.state.phase == "waiting" and job.states["todo"] == 6
    job = begun(ps_nonfinite="fail")
    [task] = job.lease()
    job.report(task, "NaN in fc.weight", non_finite=True)
    assert job.state.phase == "failed" and "NaN in fc.weight" in job.state.reason
    assert [ps for ps, _ in job.heard(told.PsDone)] == ["ps-0", "ps-1"]


def test_the_report_that_fails_the_job_gets_no_task_with_its_answer() -> None:
    job = begun(ps_nonfinite="fail")
    [task] = job.lease()
    report = TaskReport(task.epoch, task.index, task.attempt, "NaN in fc.weight", non_finite=True)
    answer = job.ask(1, report)
    assert not answer.tasks and not answer.wait and not answer.complete
    assert job.state.phase == "failed" and job.states["doing"] == 0
    with pytest.raises(Rejection, match="the job is failed: task 0"):
        job.ask(1)


# ------------------------------------------------------------------ loss and return


def test_what_a_restored_slot_lacks_is_done_again_before_it_is_served() -> None:
    job = begun()
    tasks = job.lease(4)
    for task in tasks:
        job.done(task)
    lost = [slot for slot, owner in enumerate(owners(job)) if owner == "ps-1"]
    job.lose("ps-1")
    assert owners(job).count("ps-1") == len(lost), "it may come back"
    job.tick_due()
    assert set(owners(job)) == {"ps-0"} and job.states["done"] == 4
    first, *rest = lost
    job.restore(first, [0, 1])
    assert job.states == {"todo": 4, "doing": 0, "done": 2, "failed": 0}
    assert job.ask().wait, "other slots are not served yet"
    for slot in rest:
        job.restore(slot, [0, 1, 2, 3])
    assert [task.index for task in job.lease(9)] == [2, 3, 4, 5]
    notes = [note for note in job.notes if note.kind == "tasks_reopened"]
    assert [note.facts["count"] for note in notes] == ["2"] and "2 tasks of epoch 0" in notes[0].reason
    [lost_note] = job.noted("ps_lost")
    assert lost_note.facts == {"restored": str(len(lost)), "promoted": "0"}
    done = TaskReport(0, 2, 1, lives_sum=job.map.lives_sum)
    job.ask(0, done)
    assert job.task_commits[-1].reopened == 1


def test_a_snapshot_is_taken_once_for_a_life() -> None:
    job = begun("ps-0")
    [task] = job.lease()
    job.done(task)
    job.lose("ps-0")
    job.tick_due()
    assert owners(job) == [""] * SLOTS
    job.ps("ps-0", process="another")
    assert owners(job) == ["ps-0"] * SLOTS
    place = job.map.places[0]
    event = said.SlotRestored(
        "ps-0", job.sessions["ps-0"], 0, place.life, 1, names(0), "s", since=place.since
    )
    assert not job.do(msgspec.structs.replace(event, since=place.since - 1)).durable
    job.do(event)
    assert job.states["done"] == 1 and job.map.places[0].served
    # Said again, or of another life, it changes nothing.
    for again in (event, msgspec.structs.replace(event, slot=1, life=place.life + 1)):
        assert not job.do(msgspec.structs.replace(again, applied=names())).durable
    with pytest.raises(Rejection, match="not a set of applied tasks"):
        job.do(msgspec.structs.replace(event, slot=1, applied=b"\xff"))


def test_a_snapshot_of_a_later_life_is_followed_by_a_life_of_its_own() -> None:
    """As where a job begins with the snapshots of another."""
    job = SlotsDriver()
    job.ps("ps-0")
    job.do(said.ModelRegistered("w", MODEL))
    place = job.map.places[0]
    event = said.SlotRestored(
        "ps-0", job.sessions["ps-0"], 0, 0, 1, names(0), "s", since=place.since, snapshot_life=3
    )
    job.do(event)
    assert (job.map.places[0].life, job.map.places[0].restoring) == (4, True)
    again = msgspec.structs.replace(event, life=4, since=job.map.places[0].since)
    job.do(again)
    assert job.map.places[0].served and job.map.places[0].life == 4


def test_what_was_asked_is_asked_again_of_who_returns() -> None:
    job = begun(dataset={"max_attempts": 1})
    [task] = job.lease()
    job.report(task, "bad")
    before = job.map
    held = [said.HeldSlot(s, 0, since=p.since) for s, p in enumerate(before.places) if p.owner == "ps-1"]
    job.lose("ps-1")
    job.heard(told.CloseTasks)
    job.ps("ps-1", held=held, generation=before.generation)
    assert job.map == before and "ps-1" in dict(job.heard(told.CloseTasks))


def test_a_slot_that_was_never_saved_begins_anew_and_all_is_done_again() -> None:
    job = begun("ps-0")
    [task] = job.lease()
    job.done(task)
    job.lose("ps-0")
    job.tick_due()
    job.ps("ps-0", process="another")
    job.restore(0)
    assert job.map.places[0].served and job.states["done"] == 0
    assert not job.noted("slots_unrestored") and len(job.noted("tasks_reopened")) == 1
    job.restore_all()
    [again] = job.lease()
    assert again.index == task.index and job.done(again) == "accepted"


def test_a_slot_without_the_snapshot_that_was_saved_waits_if_something_is_done() -> None:
    job = begun("ps-0")
    [task] = job.lease()
    job.done(task)
    saved = said.SlotsSaved("ps-0", job.sessions["ps-0"], "", (said.SavedPart(0, 0, 1),))
    job.do(saved)
    job.lose("ps-0")
    job.tick_due()
    job.ps("ps-0", process="another")
    for _ in range(2):
        job.restore(0)
    assert not job.map.places[0].served and job.ask().wait and job.states["done"] == 1
    assert len(job.noted("slots_unrestored")) == 1
    job.restore_all([0])
    assert job.map.places[0].served and job.lease()


def test_a_backup_that_drains_does_not_wait_for_another_where_there_is_none() -> None:
    job = begun("ps-0", "ps-1", ps_replicas=1)
    assert all(place.backup for place in job.map.places)
    job.do(said.PsLeaving("ps-1", job.sessions["ps-1"], "asked"))
    job.settle_copies()
    assert {(place.owner, place.backup) for place in job.map.places} == {("ps-0", "")}
    # Where another can take its place, no slot is without its backup meanwhile.
    job.ps("ps-2")
    job.ps("ps-3")
    job.settle_copies()
    leaver = job.map.places[0].backup
    backed_up = [slot for slot, place in enumerate(job.map.places) if place.backup == leaver]
    assert all(place.backup for place in job.map.places)
    job.do(said.PsLeaving(leaver, job.sessions[leaver], "asked"))
    while found := [slot for slot, place in enumerate(job.map.places) if place.begun]:
        job.copy(found[0])
        assert all(job.map.places[slot].backup for slot in backed_up)
    assert not job.map.held_by(leaver)


def test_a_process_that_comes_back_in_time_has_its_slots() -> None:
    job = begun()
    [task] = job.lease()
    before = job.map
    job.lose("ps-1")
    held = [said.HeldSlot(s, 0, since=p.since) for s, p in enumerate(before.places) if p.owner == "ps-1"]
    job.ps("ps-1", held=held, generation=before.generation)
    assert job.map == before and job.done(task) == "accepted"
    assert job.machine.next_deadline() is None or job.machine.next_deadline() > job.now + 5
    assert job.notes[-1].facts["returned"] == "True" or "is back" in job.noted("ps_joined")[-1].reason


def test_another_process_of_its_id_has_none_and_the_old_one_stays_away() -> None:
    job = begun()
    lives = job.map.lives_sum
    job.ps("ps-1", process="anew", process_clock="boot", process_started_seconds=5.0)
    assert job.gone == ["ps-1"] and job.map.lives_sum > lives
    assert all(place.owner != "ps-1" or place.restoring for place in job.map.places)
    with pytest.raises(Rejection, match="another process joined later"):
        job.ps("ps-1", process="ps-1")
    with pytest.raises(Rejection, match="another process joined later"):
        job.ps("ps-1", process="third", process_clock="boot", process_started_seconds=4.0)


def test_a_process_that_comes_back_without_a_slot_has_lost_it() -> None:
    job = begun()
    lives = job.map.lives_sum
    job.lose("ps-1")
    job.ps("ps-1", held=(), generation=job.map.generation + 1)
    assert job.map.lives_sum > lives and "came back without slot" in job.noted("ps_lost")[0].reason


def test_after_a_restart_of_the_master_all_may_return() -> None:
    job = begun()
    before = job.map
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    held = {
        ps: [said.HeldSlot(s, 0, since=p.since) for s, p in enumerate(before.places) if p.owner == ps]
        for ps in ("ps-0", "ps-1")
    }
    job.ps("ps-0", held=held["ps-0"], generation=before.generation)
    assert job.map.places == before.places and job.map.generation > before.generation
    job.tick(after=11.0)
    assert set(owners(job)) == {"ps-0"} and "did not return" in job.noted("ps_lost")[0].reason


def test_a_store_that_forgot_is_lifted_above_what_processes_know() -> None:
    job = begun("ps-0")
    generation = job.map.generation
    # In the life that is known, the newest owner is believed.
    held = [said.HeldSlot(slot, 0, since=generation + 7) for slot in range(SLOTS)]
    job.lose("ps-0")
    job.ps("ps-0", held=held, generation=generation + 9, lease_seen=77)
    assert job.map.generation > generation + 9 and job.map.lives_sum == 0
    assert [(p.owner, p.since) for p in job.map.places] == [("ps-0", generation + 7)] * SLOTS
    [task] = job.lease()
    assert task.number == 78


def test_a_life_that_the_store_forgot_is_followed_by_another() -> None:
    """Which tasks were opened again when it began is forgotten, too."""
    job = begun("ps-0")
    tasks = job.lease(2)
    for task in tasks:
        job.done(task)
    job.lose("ps-0")
    job.ps("ps-0", held=[said.HeldSlot(slot, 3, since=40) for slot in range(SLOTS)], generation=41)
    assert all(place.life == 4 and place.restoring and place.fence == 2 for place in job.map.places)
    assert job.map.generation > 41
    job.restore_all([0], snapshot="s")
    assert job.states["done"] == 1


def test_a_later_life_that_only_a_backup_knows_is_not_lost() -> None:
    job = begun("ps-0")
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    job.ps("ps-1", held=[said.HeldSlot(0, 2, since=9, backup=True)], generation=9)
    assert job.map.places[0].life == 0, "its owner may still come"
    job.tick(after=11.0)
    assert job.map.places[0].life > 2


def test_a_life_that_nobody_knows_of_any_more_is_not_begun_again() -> None:
    """A report of it, that comes late, would count for slots that lack its task."""
    job = begun("ps-0")
    stored = job.machine.snapshot()
    sums = set()
    for _ in range(3):  # each time the store has lost what the last master wrote
        job.maps.clear()
        job.machine = JobMachine.restore(stored)
        job.do(events.MasterStarted("m2"))
        assert job.map.lives_sum == 0, "a process may return with its slots"
        job.tick(after=11.0)
        job.ps("ps-1")
        sums.add(job.map.lives_sum)
        life = job.map.places[0].life
        job.restore_all()
        job.lose("ps-1", after=1.0)
        job.tick(after=11.0)
        assert all(place.life == life + 1 for place in job.map.places), "no master has forgotten it"
    assert len(sums) == 3


def test_an_answer_by_a_map_that_the_store_forgot_makes_nothing_done() -> None:
    """The owner that gave it may be gone, and the one that is stored may lack the task."""
    job = begun("ps-0")
    tasks = job.lease(3)
    known, lives = job.map.generation, job.map.lives_sum
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    held = [said.HeldSlot(slot, 0, since=place.since) for slot, place in enumerate(job.map.places)]
    job.ps("ps-0", held=held, generation=known)
    forgotten, other = (known, known + 2), (job.map.generation + 1,)
    assert job.report(tasks[0], lives_sum=lives, map_generations=forgotten) == "returned"
    assert job.report(tasks[1], lives_sum=lives, map_generations=other) == "returned"
    now = (known, job.map.generation)
    assert job.report(tasks[2], lives_sum=lives, map_generations=now) == "accepted"


def test_a_master_counts_on_where_no_forgotten_number_is() -> None:
    job = begun("ps-0")
    [before] = job.lease()
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    generation = job.map.generation
    job.ps("ps-0", held=[said.HeldSlot(slot, 0, since=1) for slot in range(SLOTS)], generation=generation - 1)
    assert not any(place.backup for place in job.map.places) and job.map.generation > generation
    [task] = job.lease(worker="w2")
    assert task.number > before.number + 1000
    job.do(said.SlotsCheckpointRequested("c1", in_flight=True))
    assert job.machine.state.slots.checkpoint is not None
    assert job.machine.state.slots.checkpoint.checkpoint.startswith("checkpoint-000001-")


def test_a_slot_without_an_owner_or_a_snapshot_read_begins_another_life_after_a_restart() -> None:
    """It may have been served in the life that is stored."""
    for lost in (False, True):
        job = begun("ps-0")
        job.lose("ps-0")
        job.tick(after=11.0)
        if not lost:
            job.ps("ps-1")
        before = job.map
        assert all(place.restoring and place.life == 1 for place in before.places)
        job.machine = JobMachine.restore(job.machine.snapshot())
        job.do(events.MasterStarted("m2"))
        assert all(place.life > 1 and place.since > before.generation for place in job.map.places)
        assert [place.owner for place in job.map.places] == [place.owner for place in before.places]


def test_a_master_that_restarts_before_there_is_a_map_begins_with_other_lives() -> None:
    job = SlotsDriver()
    job.do(events.MasterStarted("m2"))
    job.ps("ps-0")
    assert all(place.life > 0 for place in job.map.places)


def test_no_life_goes_back_that_any_process_was_told() -> None:
    """Also of slots that others own, who are gone."""
    job = begun("ps-0", "ps-1")
    [mine, *_] = [slot for slot, place in enumerate(job.map.places) if place.owner == "ps-0"]
    others = {slot for slot, place in enumerate(job.map.places) if place.owner == "ps-1"}
    lives = [5 if slot in others else 0 for slot in range(SLOTS)]
    job.lose("ps-0")
    held = [said.HeldSlot(s, 0, since=p.since) for s, p in enumerate(job.map.places) if p.owner == "ps-0"]
    job.ps("ps-0", held=held, generation=job.map.generation, lives=(*lives, 9))
    assert job.map.places[mine].life == 0 and job.map.places[mine].served
    assert all(job.map.places[slot].life == 6 and job.map.places[slot].restoring for slot in others)


def test_a_backup_that_was_replaced_is_not_promoted() -> None:
    """The store says that ps-0 owns the slots. It has lost them since, as it knows."""
    job = begun("ps-0", "ps-1", ps_replicas=1)
    slots = [slot for slot, place in enumerate(job.map.places) if place.owner == "ps-0"]
    assert slots and all(job.map.places[slot].backup == "ps-1" for slot in slots)
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    job.ps("ps-0", generation=job.map.generation + 3)
    assert all(job.map.places[slot].life > 0 and job.map.places[slot].restoring for slot in slots)


# ------------------------------------------------------------------ copies


def test_slots_come_to_the_processes_that_rank_highest() -> None:
    job = begun("ps-0")
    job.ps("ps-1")
    wanted = [held[0] for held in holders(SLOTS, ["ps-0", "ps-1"])]
    moving = [slot for slot, place in enumerate(job.map.places) if place.target]
    assert moving == [slot for slot, owner in enumerate(wanted) if owner == "ps-1"]
    lives = job.map.lives_sum
    tasks = job.lease(2)
    job.settle_copies()
    assert owners(job) == wanted and job.map.lives_sum == lives
    assert [job.done(task) for task in tasks] == ["accepted"] * 2
    assert job.noted("slots_moved")[-1].facts == {"moved": str(len(moving)), "copied": "0"}


def test_late_news_of_a_copy_that_is_not_wanted_changes_nothing() -> None:
    job = begun("ps-0")
    job.ps("ps-1")
    slot = next(slot for slot, place in enumerate(job.map.places) if place.target)
    begun_at = job.map.places[slot].begun
    broken = said.CopyBroken("ps-0", job.sessions["ps-0"], slot, "ps-1", begun_at, "connection lost")
    job.do(broken)
    assert not job.map.places[slot].target
    job.tick_due()
    assert job.map.places[slot].begun > begun_at, "tried again after a while"
    late = said.SlotCopied("ps-1", job.sessions["ps-1"], slot, "ps-1", begun_at)
    assert not job.do(late).durable and not job.do(broken).durable
    # The owner of a slot that moves does not say when the move is complete.
    now = msgspec.structs.replace(
        late, ps="ps-0", session=job.sessions["ps-0"], begun=job.map.places[slot].begun
    )
    assert not job.do(now).durable


def test_a_backup_takes_over_at_once_and_nothing_is_done_again() -> None:
    job = begun("ps-0", "ps-1", ps_replicas=1, checkpoint_url="")
    assert all(place.backup for place in job.map.places)
    tasks = job.lease(3)
    job.done(tasks[0])
    lives = job.map.lives_sum
    job.lose("ps-1")
    assert owners(job) == ["ps-0"] * SLOTS and job.map.lives_sum == lives
    assert job.done(tasks[1]) == "accepted" and job.states["done"] == 2
    assert job.noted("ps_lost")[0].facts["restored"] == "0"
    job.ps("ps-1", process="anew")
    job.settle_copies()
    assert [(place.owner, place.backup) for place in job.map.places] == [
        tuple(held) for held in holders(SLOTS, ["ps-0", "ps-1"], 2)
    ]


def test_an_owner_that_misses_its_backup_goes_on_alone_by_the_map() -> None:
    job = begun("ps-0", "ps-1", ps_replicas=1)
    place = job.map.places[0]
    lost = said.BackupLost(
        place.owner, job.sessions[place.owner], 0, place.backup, job.map.generation, "timeout"
    )
    stranger = msgspec.structs.replace(lost, ps=place.backup, session=job.sessions[place.backup])
    assert not job.do(stranger).durable
    job.do(lost)
    assert job.map.places[0].backup == "" and not job.map.places[0].joining
    assert not job.do(lost).durable
    job.tick_due()
    assert job.map.places[0].joining == place.backup


def test_who_drains_learns_that_one_without_slots_is_gone() -> None:
    job = begun(*(f"ps-{number}" for number in range(SLOTS + 1)))
    idle, *_ = sorted(set(job.state.slots.processes) - set(owners(job)))
    generation = job.map.generation
    job.maps.clear()
    job.lose(idle)
    assert job.map.generation == generation and idle not in {one.ps for one in job.maps[-1].processes}


def test_a_drained_process_leaves_once_its_slots_have_moved() -> None:
    job = begun("ps-0", "ps-1")
    job.do(said.PsLeaving("ps-1", job.sessions["ps-1"], "SIGTERM", 30.0))
    assert [ps for ps, _ in job.heard(told.PsDrain)] == ["ps-1"]
    job.settle_copies()
    assert set(owners(job)) == {"ps-0"}
    job.do(said.PsLeft("ps-1", job.sessions["ps-1"], "drained"))
    assert job.noted("ps_left") and not job.noted("ps_lost")
    with pytest.raises(Rejection, match="no parameter server 'ps-1'"):
        job.do(said.PsDrainRequested("d", "ps-1"))
    job.do(said.PsDrainRequested("d", "ps-0"))
    # Alone, it keeps its slots; leaving with them is a loss.
    job.do(said.PsLeft("ps-0", job.sessions["ps-0"], "drained"))
    assert owners(job) == [""] * SLOTS and "has left with slots" in job.noted("ps_lost")[0].reason


# ------------------------------------------------------------------ FAILED tasks


def test_a_failed_task_keeps_its_place_until_every_slot_has_closed_it() -> None:
    job = begun(ps_staleness=0, dataset={"max_attempts": 1})
    [task] = job.lease()
    job.heard(told.CloseTasks)
    job.report(task, "bad")
    assert job.ask().wait
    leave_parts(job, slots=(1, 3))
    assert job.machine.state.slots.left_parts == {TaskName(DATASET, 0, 0): (1, 3)}
    assert "2 slots of the model had applied it" in job.noted("task_left_parts")[0].reason
    assert [one.index for one in job.lease()] == [1]


def test_a_task_is_closed_at_new_owners_and_by_the_fence_of_restored_slots() -> None:
    job = begun(dataset={"max_attempts": 1})
    [task] = job.lease()
    job.report(task, "bad")
    asked = dict(job.heard(told.CloseTasks))
    assert asked.keys() == {"ps-0", "ps-1"}
    job.lose("ps-1")
    job.tick_due()
    again = job.heard(told.CloseTasks)
    assert [ps for ps, _ in again] == ["ps-0"]
    restoring = [slot for slot, place in enumerate(job.map.places) if place.restoring]
    for slot in restoring:
        job.restore(slot, [0] if slot == restoring[0] else (), snapshot="s")
    leave_parts(job, slots=())
    assert job.machine.state.slots.left_parts == {TaskName(DATASET, 0, 0): (restoring[0],)}
    # It goes back behind that, too: then it keeps nothing.
    owner = job.map.places[restoring[0]].owner
    job.ps(owner, process="third")
    job.restore_all(snapshot="s")
    assert job.machine.state.slots.left_parts == {}
    # A snapshot of a process that was cut off may have what nobody was told of.
    job.ps(owner, process="fourth")
    slot = next(slot for slot, place in enumerate(job.map.places) if place.restoring)
    job.restore(slot, [0], snapshot="s")
    job.restore_all(snapshot="s")
    assert job.machine.state.slots.left_parts == {TaskName(DATASET, 0, 0): (slot,)}


def test_an_answer_of_another_life_or_of_a_stranger_closes_nothing() -> None:
    job = begun(dataset={"max_attempts": 1})
    [task] = job.lease()
    job.report(task, "bad")
    run = (TaskRun(DATASET, 0, 0, 1),)
    slot, place = 0, job.map.places[0]
    other = "ps-1" if place.owner == "ps-0" else "ps-0"
    for ps, life in ((place.owner, place.life + 1), (other, place.life)):
        part = said.ClosedPart(slot, (True,), life)
        assert not job.do(said.TasksClosed(ps, job.sessions[ps], run, (part,))).durable


# ------------------------------------------------------------------ the end of a data set


def test_workers_are_told_of_the_end_once_every_slot_is_saved() -> None:
    job = begun()
    job.do_all()
    assert job.states["done"] == 6
    assert not job.ask().complete and job.ask().wait
    [view] = progress_views(job.machine, job.now)
    assert not view.progress.complete and view.progress.done == 6
    saves = [(ps, message) for ps, message in job.told if isinstance(message, told.SaveSlots)]
    assert sorted(ps for ps, _ in saves) == ["ps-0", "ps-1"]
    for ps, message in saves:
        parts = tuple(
            said.SavedPart(slot, place.life, 6)
            for slot, place in enumerate(job.map.places)
            if place.owner == ps
        )
        assert not job.ask().complete
        job.do(said.SlotsSaved(ps, job.sessions[ps], message.request, parts))
    assert job.ask().complete
    assert progress_views(job.machine, job.now)[0].progress.complete


def test_a_job_whose_tasks_are_over_waits_for_nothing() -> None:
    job = begun("ps-0", checkpoint_url="", ps_replicas=1, tasks=1)
    [task] = job.lease()
    assert job.done(task) == "accepted" and job.ask().complete
    job.lose("ps-0", after=11.0)
    assert slots_view(job.machine.state.slots, job.machine.queues).waiting == ""


def test_a_slot_that_goes_back_before_the_end_is_told_opens_tasks_again() -> None:
    job = begun()
    job.do_all()
    job.lose("ps-1")
    job.tick_due()
    slot = next(slot for slot, place in enumerate(job.map.places) if place.restoring)
    job.restore(slot, range(5))
    job.restore_all(range(6))
    assert job.states["todo"] == 1
    [task] = job.lease()
    assert job.done(task) == "accepted"
    requests = {message.request for _, message in job.heard(told.SaveSlots)}
    assert len(requests) == 2, "an answer to the first does not count for the second"
    for ps in ("ps-0",):
        parts = tuple(said.SavedPart(s, p.life, 6) for s, p in enumerate(job.map.places) if p.owner == ps)
        job.do(said.SlotsSaved(ps, job.sessions[ps], min(requests), parts))
        assert not job.ask().complete
        job.do(said.SlotsSaved(ps, job.sessions[ps], max(requests), parts))
    assert job.ask().complete


def test_with_backups_and_no_folder_the_end_is_told_at_once() -> None:
    job = begun("ps-0", "ps-1", ps_replicas=1, checkpoint_url="")
    job.do_all()
    assert job.ask().complete


# ------------------------------------------------------------------ checkpoints


def save_parts(job: SlotsDriver, request: str, *applied: int, error: str = "") -> None:
    for ps in sorted(set(owners(job))):
        parts = tuple(
            said.SavedPart(slot, place.life, len(applied), f"f{slot}", b"\x01" * 32, names(*applied), 100)
            for slot, place in enumerate(job.map.places)
            if place.owner == ps
        )
        job.do(said.SlotsSaved(ps, job.sessions[ps], request, () if error else parts, error))


def test_a_checkpoint_waits_for_tasks_in_flight_and_is_complete_with_its_manifest() -> None:
    job = begun()
    first, second = job.lease(2)
    name = job.do(said.SlotsCheckpointRequested("c1")).result
    assert job.do(said.SlotsCheckpointRequested("c1")).durable is False
    assert not job.lease(), "nothing fresh is leased"
    job.report(first, "bad")
    [again] = job.lease()
    assert again.index == 0, "what has begun is brought to its end"
    job.done(second)
    assert not job.heard(told.SaveSlots)
    job.done(again)
    assert [ps for ps, _ in job.heard(told.SaveSlots)] == ["ps-0", "ps-1"]
    save_parts(job, str(name), 0, 1)
    [(owner, manifest)] = job.heard(told.SaveManifest)
    assert owner == job.map.places[0].owner and manifest.folder.endswith(str(name))
    written = json.loads(manifest.manifest)
    assert [slot["surplus"] for slot in written["slots"]] == [[]] * SLOTS
    assert written["done"][DATASET]["done"] == [0, 2] and written["slots"][2]["sha256"] == "01" * 32
    job.do(said.SlotsSaved(owner, job.sessions[owner], str(name)))
    [saved] = job.machine.state.slots.checkpoints
    assert (saved.checkpoint, saved.tasks, saved.surplus) == (name, 2, {})
    assert job.noted("slots_checkpointed")[0].facts["tasks"] == "2" and job.lease()


def test_a_checkpoint_does_not_wait_for_tasks_that_nobody_leases_again() -> None:
    job = begun()
    first, second = job.lease(2)
    job.do(said.SlotsCheckpointRequested("c1"))
    job.report(first, "bad")
    job.tick(after=checkpoints.RETURNED_SECONDS)
    assert not job.heard(told.SaveSlots), "the other one is in flight"
    job.done(second)
    job.tick(after=checkpoints.RETURNED_SECONDS - 0.1)
    assert not job.heard(told.SaveSlots)
    job.tick(after=0.1)
    assert [ps for ps, _ in job.heard(told.SaveSlots)] == ["ps-0", "ps-1"]


def test_tasks_that_a_checkpoint_does_not_wait_for_are_fenced_out_before_a_slot_is_saved() -> None:
    job = begun(ps_staleness=1)
    first, second = job.lease(2)
    job.do(said.SlotsCheckpointRequested("c1"))
    job.report(first, "bad")
    job.done(second)
    job.told.clear()
    [tick] = [job.do(events.Tick(), after=checkpoints.RETURNED_SECONDS)]
    kinds = [
        effect.message.__class__ if isinstance(effect, told.SendPs) else effect.__class__
        for effect in tick.effects
    ]
    assert kinds.index(told.SendMap) < kinds.index(told.SaveSlots)
    assert {place.fence for place in job.map.places} == {second.number}
    assert job.maps[-1].map == job.map and not job.machine.state.slots.gate.returned
    assert not job.lease(), "nothing is leased while slots are saved"
    save_parts(job, str(job.machine.state.slots.checkpoint.checkpoint), 1)  # type: ignore[union-attr]
    [(owner, manifest)] = job.heard(told.SaveManifest)
    assert [slot["surplus"] for slot in json.loads(manifest.manifest)["slots"]] == [[]] * SLOTS
    job.do(said.SlotsSaved(owner, job.sessions[owner], str(manifest.request)))
    assert [task.index for task in job.lease(2)] == [0, 2], "its tasks are done afterwards"


def test_a_checkpoint_with_tasks_in_flight_lists_what_slots_have_of_them() -> None:
    job = begun()
    first, _ = job.lease(2)
    job.done(first)
    name = job.do(said.SlotsCheckpointRequested("c1", in_flight=True)).result
    assert job.lease(), "it does not wait"
    save_parts(job, str(name), 0, 1)
    [(owner, _)] = job.heard(told.SaveManifest)
    job.do(said.SlotsSaved(owner, job.sessions[owner], str(name)))
    [saved] = job.machine.state.slots.checkpoints
    assert saved.surplus == {slot: (TaskRun(DATASET, 0, 1, 2),) for slot in range(SLOTS)}


def test_a_checkpoint_whose_slots_lack_a_done_task_is_none() -> None:
    job = begun()
    [task] = job.lease()
    job.done(task)
    name = job.do(said.SlotsCheckpointRequested("c1")).result
    save_parts(job, str(name))
    [failed] = job.machine.state.slots.failed_checkpoints
    assert "lacks task 0" in failed.error and job.machine.state.slots.checkpoint is None


def test_a_checkpoint_begins_again_when_a_slot_went_back() -> None:
    job = begun()
    job.done(job.lease()[0])
    name = job.do(said.SlotsCheckpointRequested("c1")).result
    job.heard(told.SaveSlots)
    job.lose("ps-1")
    job.tick_due()
    job.restore_all([0])
    assert [ps for ps, _ in job.heard(told.SaveSlots)][-1] == "ps-0"
    save_parts(job, str(name), 0)
    assert job.heard(told.SaveManifest)


def test_a_disk_that_is_full_fails_the_checkpoint_and_is_told_once() -> None:
    job = begun()
    name = job.do(said.SlotsCheckpointRequested("c1")).result
    save_parts(job, str(name), error="no space left on device")
    assert "no space left" in job.machine.state.slots.failed_checkpoints[0].error
    assert len(job.noted("slots_unsaved")) == len(set(owners(job)))
    save_parts(job, "", error="no space left on device")
    assert len(job.noted("slots_unsaved")) == len(set(owners(job)))


def test_all_slots_go_back_to_a_checkpoint() -> None:
    job = begun()
    job.done(job.lease()[0])
    name = str(job.do(said.SlotsCheckpointRequested("c1")).result)
    save_parts(job, name, 0)
    [(owner, _)] = job.heard(told.SaveManifest)
    job.do(said.SlotsSaved(owner, job.sessions[owner], name))
    job.do_all()
    with pytest.raises(Rejection, match="no checkpoint 'other'"):
        job.do(said.SlotsRewindRequested("r", "other"))
    job.do(said.SlotsRewindRequested("r", name))
    assert not job.do(said.SlotsRewindRequested("r", name)).durable
    assert set(job.maps[-1].sources.values()) == {f"slot-checkpoints/{name}"}
    job.restore_all([0])
    assert job.states["todo"] == 5 and job.maps[-1].sources == {}


def test_a_checkpoint_needs_slots_and_a_folder() -> None:
    with pytest.raises(Rejection, match="no slots to save"):
        SlotsDriver().do(said.SlotsCheckpointRequested("c"))
    with pytest.raises(Rejection, match="no folder"):
        begun("ps-0", "ps-1", ps_replicas=1, checkpoint_url="").do(said.SlotsCheckpointRequested("c"))


# ------------------------------------------------------------------ what is shown


def test_what_is_shown_of_slots_and_why_nothing_is_leased() -> None:
    job = SlotsDriver(ps_staleness=0)
    book, queues = job.machine.state.slots, job.machine.queues
    assert slots_view(book, queues).waiting == "no worker has registered the model"
    job.do(said.ModelRegistered("w", MODEL))
    assert "4 of 4 slots wait for a parameter server" in slots_view(book, queues).waiting
    job.ps("ps-0")
    assert "4 of 4 slots are being restored" in slots_view(book, queues).waiting
    job.restore_all()
    assert slots_view(book, queues).waiting == ""
    job.lease()
    view = slots_view(book, queues)
    assert "staleness limit of 0" in view.waiting and (view.outstanding, view.worst) == (1, 0)
    [ps] = view.processes
    assert (ps.ps, ps.state, ps.slots, ps.backups) == ("ps-0", "serving", SLOTS, 0)
    job.do(said.SlotsCheckpointRequested("c"))
    assert "waits for the tasks in flight" in slots_view(book, queues).waiting
    samples = Samples()
    measured = SlotMeasures({"applied": 7}, (4, 2, 1), staleness_sum=4, rows=9, weight_bytes=5, unsaved=1)
    facts = JobFacts(slots=measured)
    add_job(samples, job.machine, facts, JobCounters(job.machine.state), job.now)
    assert samples.by_metric[catalogue.SLOTS_SERVED] == [(("job",), SLOTS)]
    assert dict(samples.by_metric[catalogue.SLOT_TASKS])["job", "leased"] == 1
    assert dict(samples.by_metric[catalogue.SLOT_PUSHES]) == {
        ("job", verdict.value): 7 * (verdict is Verdict.APPLIED) for verdict in Verdict
    }
    assert samples.by_metric[catalogue.SLOT_STALENESS_LIMIT] == [(("job",), 0)]
    [(_, staleness)] = samples.by_metric[catalogue.SLOT_STALENESS]
    assert isinstance(staleness, Distribution) and staleness.sum == 4
    assert [bound for bound, _ in staleness.buckets[:5]] == ["0.0", "1.0", "2.0", "4.0", "8.0"]
    assert [count for _, count in staleness.buckets] == [4, 6, *(7,) * 14]
    assert dict(samples.by_metric[catalogue.SLOT_BYTES]) == {("job", "weights"): 5, ("job", "optimizer"): 0}
    assert samples.by_metric[catalogue.SLOT_ROWS] == [(("job",), 9)]
    assert samples.by_metric[catalogue.SLOT_UNSAVED] == [(("job",), 1)]


def test_a_job_without_slots_says_nothing_of_them() -> None:
    samples = Samples()
    job = JobDriver(settings())
    add_job(samples, job.machine, JobFacts(), JobCounters(job.machine.state), job.now)
    assert not any(metric.name.startswith("elastane_job_slots") for metric in samples.by_metric)

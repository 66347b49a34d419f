"""How rings are formed and changed."""

from __future__ import annotations

import random
import struct

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import ContextDelta, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_proto.generator_positions import GeneratorPosition, find_position


def running(*workers: str, ests: int = 4, **changes: object) -> JobDriver:
    job = JobDriver(settings(ests, **changes))
    job.form(*workers)
    return job


def test_first_ring_waits_for_the_join_window() -> None:
    job = JobDriver(settings(4, join_window_seconds=0.2))
    job.join("a")
    job.join("b")
    assert job.take(effects.Prepare) == {}
    job.tick_due()
    prepares = job.take(effects.Prepare)
    assert set(prepares) == {"a", "b"}
    assert [(m.worker, m.start, m.end) for m in prepares["a"].members] == [("a", 0, 2), ("b", 2, 4)]
    assert job.machine.next_deadline() is not None


def test_first_ring_forms_at_once_when_it_is_full() -> None:
    job = JobDriver(settings(2, join_window_seconds=60.0))
    job.join("a")
    assert job.take(effects.Prepare) == {}
    job.join("b")
    assert set(job.take(effects.Prepare)) == {"a", "b"}


def test_first_ring_waits_for_workers_min() -> None:
    job = JobDriver(settings(4, workers_min=2))
    job.join("a")
    job.tick(after=100.0)
    assert job.take(effects.Prepare) == {}
    assert job.state.phase == "waiting" and "1 of at least 2" in job.state.reason
    job.join("b")
    job.gather()
    assert job.state.phase == "running"


def test_nobody_holds_state_so_the_leader_loads() -> None:
    job = JobDriver(settings(4, checkpoint_url="file:///c"))
    job.join("a")
    job.join("b")
    job.tick_due()
    job.ready("a")
    job.ready("b")
    assert [message for _, message in job.sent if isinstance(message, effects.Load)]
    job.take()
    job.loaded("a")
    go = job.take(effects.Go)
    assert go["a"].donors == (0,) and go["a"].receivers == (1,)
    assert go["a"].contexts == tuple((r, job.deltas(0, r, r + 1)[0].parts) for r in (0, 1))
    assert go["b"].ready_order == (2, 1)


def test_a_step_is_prepared_when_all_contexts_are_in_and_committed_when_all_applied() -> None:
    job = running("a", "b")
    job.report("a", 0)
    assert job.take() == {}
    job.report("b", 0)
    assert set(job.take(effects.Prepared)) == {"a", "b"}
    assert job.commits == []
    job.report("a", 1)
    assert job.commits == [], "b is not known to have applied step 0"
    job.applied("b", 1)
    assert [commit.step for commit in job.commits] == [0]
    assert [(worker, task.virtual_rank) for worker, task in job.commits[0].tasks] == [
        ("a", 0), ("a", 1), ("b", 2), ("b", 3)
    ]  # fmt: skip


def test_a_delta_leaves_other_parts_as_they_were() -> None:
    job = running("a", ests=1)
    job.report("a", 0, contexts=(events.ContextDelta(0, {"rng/python": b"new"}, True),))
    assert job.state.contexts.steps[1][0] == {"rng/python": b"new", "item/x": b"0"}


def test_a_generator_whose_position_was_reported_is_stored_whole() -> None:
    job = running("a", ests=1)
    states = [random_state(draws) for draws in (0, 3, 600)]
    job.report("a", 0, contexts=(ContextDelta(0, {"rng/python": states[0]}),))
    for step in (1, 2):
        position = find_position("rng/python", states[step - 1], states[step])
        assert position is not None
        job.report("a", step, contexts=(ContextDelta(0, {}, positions={"rng/python": position}),))
        stored = JobMachine.restore(job.machine.snapshot()).state.contexts.steps
        assert stored[step + 1][0]["rng/python"] == states[step] and stored[step + 1][0]["item/x"] == b"0"


def test_a_position_in_other_words_is_refused_and_nothing_is_stored() -> None:
    job = running("a", ests=1)
    before, after = random_state(0), random_state(3)
    job.report("a", 0, contexts=(ContextDelta(0, {"rng/python": before}),))
    position = find_position("rng/python", before, after)
    twisted = find_position("rng/python", random_state(1_000), random_state(1_001))
    assert position is not None and twisted is not None
    for delta, reason in (
        (ContextDelta(0, {}, positions={"rng/python": twisted}), "mismatch"),
        (ContextDelta(0, {}, positions={"rng/numpy": position}), "mismatch"),
        (ContextDelta(0, {"rng/python": before}, False, {"rng/python": position}), "invalid_argument"),
    ):
        with pytest.raises(Rejection) as refused:  # the driver checks that the state is as before
            job.report("a", 1, contexts=(delta,))
        assert refused.value.reason == reason
    assert job.state.steps.prepared == 0
    job.report("a", 1, contexts=(ContextDelta(0, {}, positions={"rng/python": position}),))
    assert job.state.contexts.steps[2][0]["rng/python"] == after


def test_only_a_step_may_report_positions() -> None:
    job = JobDriver(settings(1))
    job.join("a")
    job.gather()
    job.ready("a")
    positions = {"rng/python": GeneratorPosition(b"", 0)}
    with pytest.raises(Rejection, match="positions of generators"):
        job.loaded("a", contexts=(ContextDelta(0, {}, False, positions),))


def random_state(draws: int) -> bytes:
    """The state of Python's generator after so many draws and one."""
    generator = random.Random(1)
    generator.getrandbits(32 * (draws + 1))
    version, words, _ = generator.getstate()
    return struct.pack("<626IBd", version, *words, 0, 0.0)


def test_a_join_rides_on_the_next_prepared() -> None:
    job = running("a")
    job.join("b")
    assert job.take(effects.Prepare) == {}
    job.step(0)
    sent = dict(job.sent)
    assert sent["a"].generation == 1 and sent["a"].then_prepare.generation == 2
    assert [m.worker for m in sent["b"].members] == ["a", "b"]
    job.take()
    job.ready("b")
    assert job.take(effects.Go) == {}
    job.ready("a", 1, holds=True)
    go = job.take(effects.Go)
    assert go["b"].resume_step == 1 and go["b"].donors == (0,) and go["b"].receivers == (1,)
    assert not job.noted("history_rewound")


def test_members_of_a_planned_ring_may_form_their_group_before_its_go() -> None:
    job = JobDriver(settings(4))
    job.join("a", rendezvous_key=b"key of a")
    job.tick_due()
    assert job.take(effects.Prepare)["a"].rendezvous_key == b"", "the first ring may grow until its Go"
    job.ready("a")
    job.loaded("a")
    job.join("b", rendezvous_key=b"key of b")
    job.step(0)
    sent = dict(job.sent)
    assert sent["a"].then_prepare.rendezvous_key == sent["b"].rendezvous_key == b"key of a"
    job.take()
    job.ready("a", 1, holds=True)
    job.ready("b")
    job.do(events.LeavingReported("b", job.session("b"), "spot notice", 30.0))
    job.step(1)
    then = {worker: message.then_prepare for worker, message in job.take(effects.Prepared).items()}
    assert then["a"].rendezvous_key == b"key of a" and then["b"].rendezvous_key == b""


def test_a_ring_that_changes_at_once_forms_its_group_after_its_go() -> None:
    job = JobDriver(settings(4))
    job.join("a", rendezvous_key=b"key of a")
    job.join("b", rendezvous_key=b"key of b")
    job.tick_due()
    job.take()
    job.lose("b")
    assert job.take(effects.Prepare)["a"].rendezvous_key == b""


def test_joins_are_gathered_also_while_the_ring_runs() -> None:
    job = running("a", join_window_seconds=0.5)
    job.join("b")
    job.step(0)
    assert job.take(effects.Prepared)["a"].then_prepare is None
    job.do(events.Tick(), after=0.6)
    job.step(1)
    assert job.take(effects.Prepared)["a"].then_prepare is not None


def test_a_death_replays_the_step_in_flight_from_the_highest_applied_step() -> None:
    job = running("a", "b", "c", ests=3)
    job.steps(0, 3)
    job.applied("a", 3)
    job.lose("c")
    assert [m.worker for m in job.take(effects.Prepare)["a"].members] == ["a", "b"]
    job.ready("a", 3, holds=True)
    job.ready("b", 2, holds=True)
    go = job.take(effects.Go)
    assert (go["a"].resume_step, go["a"].donors, go["a"].receivers) == (3, (0,), (1,))
    assert go["b"].contexts == ((2, job.deltas(3, 2, 3)[0].parts),)


def test_survivors_one_step_behind_can_go_on_when_the_donors_die_during_the_hand_over() -> None:
    job = running("a", "b", "c", ests=3)
    job.steps(0, 3)
    job.lose("c")
    job.ready("a", 3, holds=True)
    job.ready("b", 2, holds=True)
    assert job.take(effects.Go)["b"].resume_step == 3
    assert 2 not in [commit.step for commit in job.commits], "b has not applied step 2"
    job.lose("a")
    job.ready("b", 2, holds=True)
    assert job.take(effects.Go)["b"].resume_step == 2
    job.report("b", 2)
    job.report("b", 3)
    assert [commit.step for commit in job.commits] == [0, 1, 2]
    assert not job.noted("history_rewound")


def test_a_broken_collective_waits_for_the_lost_stream_that_explains_it() -> None:
    job = running("a", "b")
    job.step(0)
    job.do(events.RingBrokenReported("a", "a-1", 1, 1, "reset"))
    assert job.take(effects.Prepare) == {}
    assert job.machine.next_deadline() == pytest.approx(job.now + 0.1)
    job.tick_due()
    assert [m.worker for m in job.take(effects.Prepare)["a"].members] == ["a", "b"]


def test_a_broken_collective_of_an_old_generation_changes_nothing() -> None:
    job = running("a", "b")
    job.join("c")
    job.step(0)
    job.all_ready(1)
    assert not job.do(events.RingBrokenReported("a", "a-1", 1, 1, "reset")).durable


def test_a_planned_change_is_given_up_when_a_member_breaks_before_it_applied() -> None:
    job = running("a", "b")
    job.join("c")
    job.step(0)
    job.take()
    job.do(events.RingBrokenReported("a", "a-1", 1, 0, "reset"))
    job.tick_due()
    prepares = job.take(effects.Prepare)
    assert prepares["a"].generation == 3 and set(prepares) == {"a", "b", "c"}


def test_a_leaver_that_dies_before_the_others_applied_ends_the_planned_change() -> None:
    job = running("a", "b")
    job.do(events.DrainRequested("r", "b"))
    job.step(0)
    job.ready("b", 1, holds=True)
    job.take()
    job.lose("b")
    assert job.take(effects.Prepare)["a"].generation == 3, (
        "a may wait for b's part of the all-reduce for ever"
    )


def test_a_leaver_that_dies_after_the_others_applied_changes_nothing() -> None:
    job = running("a", "b", "c")
    job.do(events.DrainRequested("r", "c"))
    job.step(0)
    job.ready("a", 1, holds=True)
    job.ready("b", 1, holds=True)
    job.take()
    job.lose("c")
    assert job.generation == 2 and job.take(effects.Prepare) == {}


def test_a_drained_worker_is_sent_away_once_the_new_ring_goes_and_it_has_stopped() -> None:
    job = running("a", "b")
    job.do(events.LeavingReported("b", "b-1", "spot notice"))
    job.step(0)
    job.ready("a", 1, holds=True)
    assert job.take(effects.Drain) == {}
    job.ready("b", 1, holds=True)
    assert set(job.take(effects.Drain)) == {"b"}
    assert not any(worker == "b" for worker, message in job.sent if isinstance(message, effects.Go))


def test_the_only_holder_stays_one_ring_longer_to_hand_over() -> None:
    job = running("a")
    job.do(events.LeavingReported("a", "a-1", "spot notice"))
    job.join("b")
    job.step(0)
    assert job.members == ("a", "b")
    job.ready("a", 1, holds=True)
    job.ready("b")
    job.take()
    job.step(1)
    assert job.members == ("b",), "now b holds the state too"
    job.ready("a", 2, holds=True)
    job.ready("b", 2, holds=True)
    assert set(job.take(effects.Drain)) == {"a"}
    assert not job.noted("history_rewound")


def test_further_workers_stand_by_and_step_in_after_a_death() -> None:
    job = running("a", "b", ests=2)
    job.join("c")
    assert [note.worker for note in job.noted("worker_standby")] == ["c"]
    job.step(0)
    assert job.take(effects.Prepared)["a"].then_prepare is None
    job.lose("a")
    assert job.members == ("b", "c")


def test_below_workers_min_the_ring_dissolves_and_holders_wait_with_the_state() -> None:
    job = running("a", "b", workers_min=2)
    job.steps(0, 2)
    job.lose("b")
    assert job.take(effects.Prepare)["a"].members == ()
    assert job.state.phase == "waiting"
    job.ready("a", 2, holds=True)
    job.join("c")
    job.gather()
    job.ready("a", 2, holds=True)
    job.ready("c")
    assert job.take(effects.Go)["c"].resume_step == 2
    assert not job.noted("history_rewound")


def test_a_standby_that_holds_more_than_the_members_is_taken_in() -> None:
    job = running("a", "b", ests=2, workers_max=1)
    assert job.members == ("a",)
    job.steps(0, 2)
    job.lose("a")
    job.rejoin("a", 1, 2)
    job.ready("b")
    assert job.members == ("a",) and not any(isinstance(m, effects.Load) for _, m in job.sent)
    job.ready("a", 2, holds=True)
    assert job.take(effects.Go)["a"].resume_step == 2


def test_history_is_not_given_up_before_everybody_who_was_asked_has_answered() -> None:
    job = running("a", ests=2)
    job.join("c")
    job.step(0)
    job.ready("a", 1, holds=True)
    job.ready("c")
    job.join("b")
    job.do(events.LeavingReported("c", "c-1", "spot notice"))
    job.lose("a")
    assert job.members == ("b",)
    job.ready("b")
    assert job.state.ring.stage == "preparing", "c may have received the state meanwhile"
    job.ready("c", 1, holds=True)
    assert job.members == ("b", "c")


def test_who_does_not_answer_does_not_hold_up_a_load_for_ever() -> None:
    job = running("a", ests=2)
    job.join("c")
    job.step(0)
    job.ready("a", 1, holds=True)
    job.ready("c")
    job.join("b")
    job.do(events.LeavingReported("c", "c-1", "spot notice"))
    job.lose("a")
    job.ready("b")
    job.tick_due()
    assert job.closed[-1] == "c"
    assert job.state.ring.stage == "loading"


def test_a_holder_that_comes_back_during_a_load_spares_the_history() -> None:
    job = running("a")
    job.steps(0, 3)
    job.lose("a")
    job.join("b")
    job.gather()
    job.ready("b")
    assert job.state.ring.stage == "loading"
    job.rejoin("a", 1, 3)
    assert job.state.ring.stage == "preparing" and "a" in job.members
    job.ready("a", 3, holds=True)
    job.ready("b")
    assert job.take(effects.Go)["a"].resume_step == 3


def test_what_a_leader_loaded_after_its_load_was_given_up_is_not_the_jobs_state() -> None:
    job = running("a")
    job.lose("a")
    job.join("b")
    job.gather()
    job.ready("b")
    assert job.state.ring.stage == "loading"
    job.rejoin("a", 1, 0)
    job.ready("a", 0, holds=True)
    job.ready("b", 0, holds=True)
    go = job.take(effects.Go)["b"]
    assert [go.members[place].worker for place in go.receivers] == ["b"]


def test_state_received_after_an_abandoned_load_counts() -> None:
    job = running("a")
    job.steps(0, 3)
    job.lose("a")
    job.join("b")
    job.gather()
    job.ready("b")
    assert job.state.ring.stage == "loading"
    job.rejoin("a", 1, 3)
    job.ready("a", 3, holds=True)
    job.ready("b")
    assert job.take(effects.Go)["b"].receivers
    job.lose("a")
    job.ready("b", 3, holds=True)
    assert job.take(effects.Go)["b"].resume_step == 3, "b received the state before a was lost"


def test_all_lost_history_goes_back_to_the_checkpoint() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.steps(0, 5)
    job.lose("a")
    assert job.state.phase == "waiting"
    job.join("b")
    job.gather()
    job.ready("b")
    job.take()
    job.loaded("b", 2, "step-2", rejected=("step-4: sha256 differs",))
    assert job.take(effects.Go)["b"].resume_step == 2
    rewound = job.noted("history_rewound")
    assert rewound[0].facts == {"from_step": "4", "to_step": "2"}
    assert "sha256" in job.noted("checkpoint_rejected")[0].reason
    job.step(2)
    job.step(3)
    assert [commit.step for commit in job.commits] == [0, 1, 2, 3, 2]


def test_claims_of_a_history_that_is_over_are_not_believed() -> None:
    job = running("a")
    job.steps(0, 3)
    job.lose("a")
    job.join("b")
    job.gather()
    job.ready("b")
    job.loaded("b")
    job.steps(0, 3)
    job.rejoin("a", 1, 3)
    job.lose("b")
    job.ready("a", 3, holds=True)
    assert job.state.ring.stage == "loading", "a's weights are of the first history"


def test_a_run_of_a_step_that_a_load_made_void_is_not_believed_although_nothing_committed_was_undone() -> (
    None
):
    job = running("a", "b", checkpoint_url="file:///c")
    job.steps(0, 4)
    assert job.state.steps.committed == 3, "step 3 is prepared, and nobody was heard to have applied it"
    job.lose("a")
    job.lose("b")
    job.join("c")
    job.gather()
    job.ready("c")
    job.loaded("c", 3, "step-3")
    assert not job.noted("history_rewound")
    job.step(3)
    job.applied("c", 4)
    job.lose("c")
    job.take()
    job.rejoin("a", 1, 4)
    job.gather()
    assert job.state.contexts.has(4), "the contexts are there: it is the worker that is not believed"
    job.ready("a", 4, holds=True)
    assert set(job.take(effects.Load)) == {"a"}


def test_a_receiver_that_still_claims_its_old_weights_is_not_believed() -> None:
    job = running("a")
    job.steps(0, 2)
    job.lose("a")
    job.join("b")
    job.gather()
    job.ready("b")
    job.loaded("b")
    job.steps(0, 1)
    job.rejoin("a", 1, 2)
    job.step(1)
    job.ready("b", 2, holds=True)
    job.ready("a", 2, holds=True)
    assert job.take(effects.Go)["a"].receivers == (1,)
    job.lose("b")
    job.ready("a", 2, holds=True)
    assert job.state.ring.stage == "loading"


def test_scaling_takes_effect_at_a_boundary() -> None:
    job = running("a", "b", "c")
    job.do(events.ScaleRequested("r", 1, 2))
    assert job.take(effects.Prepare) == {}
    job.step(0)
    assert job.members == ("a", "b")
    job.all_ready(1)
    job.ready("c", 1, holds=True)
    assert job.take(effects.Drain) == {}, "c stands by"
    job.do(events.ScaleRequested("r2", 1, 3))
    job.step(1)
    assert job.members == ("a", "b", "c")


def test_messages_of_another_session_are_ignored() -> None:
    job = running("a", "b")
    for event in (
        events.StreamLost("a", "a-0", "EOF"),
        events.ReadyReported("a", "a-0", 1, 9, True),
        events.AppliedReported("a", "a-0", 1, 1),
        events.StepReported("a", "a-0", 1, 0, 0, (), ()),
        events.ByeReported("a", "a-0", "drained"),
        events.LeavingReported("a", "a-0", "x"),
    ):
        assert not job.do(event).durable


def test_a_late_report_of_the_generation_before_is_a_harmless_race() -> None:
    job = running("a", "b")
    job.lose("b")
    assert not job.do(events.StepReported("a", "a-1", 1, 0, 0, (), ())).durable


def test_a_report_of_a_generation_to_come_is_stale() -> None:
    job = running("a", "b")
    with pytest.raises(Rejection) as refused:
        job.do(events.StepReported("a", "a-1", 7, 0, 0, (), ()))
    assert refused.value.reason == "stale"


def test_a_duplicate_report_is_answered_with_its_prepared() -> None:
    job = running("a", "b")
    job.step(0)
    job.take()
    assert not job.report("a", 0).durable
    assert job.take(effects.Prepared)["a"].step == 0


def test_a_duplicate_report_during_a_planned_change_is_answered_too() -> None:
    job = running("a")
    job.join("b")
    job.step(0)
    job.take()
    decision = job.do(events.StepReported("a", "a-1", 1, 0, 0, job.deltas(1, 0, 4), ()))
    assert not decision.durable
    assert job.take(effects.Prepared)["a"].then_prepare.generation == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"contexts": ()},
        {"tasks": ()},
        {"step": 1},
    ],
)
def test_malformed_reports_are_refused_and_change_nothing(changes: dict[str, object]) -> None:
    job = running("a")
    before = job.machine.snapshot()
    with pytest.raises(Rejection) as refused:
        job.report("a", **{"step": 0, **changes})
    assert refused.value.reason == ("stale" if "step" in changes else "invalid_argument")
    assert job.machine.snapshot() == before


def test_a_newcomer_that_fills_the_ring_waits_for_no_other() -> None:
    job = running("a", ests=2, join_window_seconds=60.0)
    job.join("b")
    job.step(0)
    then = job.take(effects.Prepared)["a"].then_prepare
    assert then is not None and [member.worker for member in then.members] == ["a", "b"]

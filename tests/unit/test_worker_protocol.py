"""The worker's side of the protocol: the fence, planned changes, reconnects."""

from __future__ import annotations

from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.retransmission import KEPT_BYTES_MAX
from elastane.runtime.step_state import Stage
from elastane_proto.v1 import pipeline_pb2, ring_pb2


def in_ring(generation: int = 1, step: int = 0) -> WorkerProtocol:
    protocol = WorkerProtocol()
    protocol.prepare(ring_pb2.Prepare(generation=generation))
    protocol.go_ahead(ring_pb2.Go(generation=generation, resume_step=step))
    protocol.entered(generation, step, [])
    return protocol


def reported_in_ring(generation: int = 1, step: int = 0) -> WorkerProtocol:
    """In a ring, with the step to apply next reported."""
    protocol = in_ring(generation, step)
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=generation, step=step))
    return protocol


def kinds(outcome: Outcome) -> list[str]:
    return [message.WhichOneof("message") for message in outcome.send]


def test_prepare_fences_at_once_and_aborts_the_collective() -> None:
    protocol = in_ring(step=5)
    outcome = protocol.prepare(ring_pb2.Prepare(generation=2))
    assert outcome.abort
    ready = outcome.send[0].ready
    assert (ready.generation, ready.applied_step, ready.holds_state) == (2, 5, True)


def test_nothing_of_an_old_generation_is_applied_after_ready() -> None:
    protocol = reported_in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0))
    protocol.prepare(ring_pb2.Prepare(generation=2))
    assert not protocol.begin_apply(0) and protocol.attempts.newest.stage is Stage.LOST


def test_prepare_during_the_optimizer_is_answered_after_it_with_the_step_counted() -> None:
    protocol = reported_in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0))
    assert protocol.begin_apply(0)
    assert kinds(protocol.prepare(ring_pb2.Prepare(generation=2))) == []
    outcome = protocol.end_apply(0)
    assert kinds(outcome) == ["ready"]
    assert outcome.send[0].ready.applied_step == 1


def test_prepared_of_another_generation_does_not_count() -> None:
    protocol = in_ring(generation=3)
    protocol.prepared(ring_pb2.Prepared(generation=2, step=0))
    assert not protocol.may_apply(0)


def reported(protocol: WorkerProtocol, step: int, text: str = "") -> None:
    """A step done and applied."""
    report = ring_pb2.StepReport(generation=protocol.generation, step=step)
    report.tasks.add(virtual_rank=0).metrics[text] = 1.0
    protocol.begin_step()
    protocol.report(report)
    protocol.prepared(ring_pb2.Prepared(generation=protocol.generation, step=step))
    assert protocol.begin_apply(step)
    protocol.end_apply(step)


def entered(protocol: WorkerProtocol, generation: int, step: int, history: int) -> None:
    protocol.prepare(ring_pb2.Prepare(generation=generation))
    protocol.lose_step()
    protocol.go_ahead(ring_pb2.Go(generation=generation, resume_step=step, history_generation=history))
    protocol.entered(generation, step, [])


def said_again(protocol: WorkerProtocol, step: int, *, resumed: bool = False) -> list[tuple[int, int]]:
    """Generations and steps of the reports that a master gets which does not know `step`."""
    outcome = protocol.welcome(ring_pb2.Welcome(generation=9, resumed=resumed, reports_from=step))
    reports = [request.step_report for request in outcome.send if request.HasField("step_report")]
    return [(report.generation, report.step) for report in reports]


def test_reports_that_the_master_does_not_know_are_said_again_those_of_older_rings_too() -> None:
    protocol = WorkerProtocol()
    entered(protocol, 1, 0, history=1)
    for step in range(3):
        reported(protocol, step)
    entered(protocol, 2, 3, history=1)
    reported(protocol, 3)
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=2, step=4))
    assert said_again(protocol, 4, resumed=True) == [(2, 4)]
    assert said_again(protocol, 9, resumed=True) == [(2, 4)], "the one in flight, whatever is asked for"
    assert said_again(protocol, 2) == [(1, 2), (2, 3), (2, 4)]
    assert protocol.welcome(ring_pb2.Welcome(generation=9)).send == [], "an older master does not ask"


def test_reports_come_before_the_ready_that_is_said_again() -> None:
    protocol = WorkerProtocol()
    entered(protocol, 1, 0, history=1)
    reported(protocol, 0)
    protocol.prepare(ring_pb2.Prepare(generation=2))
    welcome = ring_pb2.Welcome(generation=2, resumed=True, reports_from=0)
    assert kinds(protocol.welcome(welcome)) == ["step_report", "ready"]


def test_reports_of_steps_that_are_done_again_and_of_another_history_are_void() -> None:
    protocol = WorkerProtocol()
    entered(protocol, 1, 0, history=1)
    for step in range(3):
        reported(protocol, step)
    entered(protocol, 2, 2, history=1)
    assert said_again(protocol, 0) == [(1, 0), (1, 1)]
    entered(protocol, 3, 2, history=3)
    assert said_again(protocol, 0) == [] and protocol.history_generation == 3
    entered(protocol, 4, 2, history=3)
    reported(protocol, 2)
    protocol.prepare(ring_pb2.Prepare(generation=5))
    protocol.loaded(ring_pb2.Loaded(generation=5, step=0))
    assert said_again(protocol, 0) == [] and protocol.history_generation == 5


def test_of_the_reports_so_many_bytes_are_kept() -> None:
    protocol = WorkerProtocol()
    entered(protocol, 1, 0, history=1)
    for step in range(40):
        reported(protocol, step, text="x" * 2**20)
    kept = said_again(protocol, 0)
    assert kept[-1] == (1, 39) and kept == [(1, step) for step in range(40 - len(kept), 40)]
    assert KEPT_BYTES_MAX / 2**20 - 2 < len(kept) < KEPT_BYTES_MAX / 2**20


def test_planned_change_waits_for_the_step() -> None:
    protocol = reported_in_ring()
    planned = ring_pb2.Prepared(generation=1, step=0, then_prepare=ring_pb2.Prepare(generation=2))
    outcome = protocol.prepared(planned)
    assert kinds(outcome) == [] and not outcome.abort
    assert protocol.begin_apply(0)
    outcome = protocol.end_apply(0)
    assert outcome.send[0].ready.applied_step == 1
    assert protocol.changing


def test_planned_change_that_comes_after_the_step_is_answered_at_once() -> None:
    protocol = reported_in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0))
    protocol.begin_apply(0)
    protocol.end_apply(0)
    late = ring_pb2.Prepared(generation=1, step=0, then_prepare=ring_pb2.Prepare(generation=2))
    assert kinds(protocol.prepared(late)) == ["ready"]


def test_an_unplanned_change_supersedes_a_planned_one() -> None:
    protocol = in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0, then_prepare=ring_pb2.Prepare(generation=2)))
    outcome = protocol.prepare(ring_pb2.Prepare(generation=3))
    assert outcome.send[0].ready.generation == 3
    assert protocol.planned is None


def test_go_of_an_overtaken_generation_is_ignored() -> None:
    protocol = in_ring()
    protocol.prepare(ring_pb2.Prepare(generation=2))
    protocol.prepare(ring_pb2.Prepare(generation=3))
    protocol.go_ahead(ring_pb2.Go(generation=2))
    assert protocol.go is None


def test_after_a_reconnect_the_last_report_is_repeated() -> None:
    protocol = reported_in_ring()
    assert kinds(protocol.welcome(ring_pb2.Welcome(generation=1, resumed=True))) == ["step_report"]


def test_after_a_reconnect_ready_is_repeated_while_the_ring_changes() -> None:
    protocol = in_ring()
    protocol.prepare(ring_pb2.Prepare(generation=2))
    assert kinds(protocol.welcome(ring_pb2.Welcome(generation=2, resumed=True))) == ["ready"]


def test_a_failed_forming_does_not_lose_the_go_of_a_newer_generation() -> None:
    protocol = in_ring()
    protocol.prepare(ring_pb2.Prepare(generation=2))
    protocol.go_ahead(ring_pb2.Go(generation=2))
    protocol.prepare(ring_pb2.Prepare(generation=3))
    protocol.go_ahead(ring_pb2.Go(generation=3))
    assert kinds(protocol.forming_failed(2, "the ring broke")) == []
    assert protocol.go is not None and protocol.go.generation == 3


def test_a_late_load_does_not_lose_the_load_of_a_newer_generation() -> None:
    protocol = WorkerProtocol()
    for generation in (1, 2):
        protocol.prepare(ring_pb2.Prepare(generation=generation))
        protocol.load_requested(ring_pb2.Load(generation=generation))
    outcome = protocol.loaded(ring_pb2.Loaded(generation=1, step=0))
    assert protocol.load is not None and protocol.load.generation == 2
    assert not outcome.send[0].ready.holds_state


def test_ready_waits_until_received_state_is_whole() -> None:
    protocol = WorkerProtocol()
    protocol.prepare(ring_pb2.Prepare(generation=1))
    protocol.go_ahead(ring_pb2.Go(generation=1, resume_step=9))
    assert protocol.begin_replace(1)
    assert kinds(protocol.prepare(ring_pb2.Prepare(generation=2))) == []
    ready = protocol.end_replace(1, 9).send[0].ready
    assert (ready.generation, ready.applied_step, ready.holds_state) == (2, 9, True)


def test_weights_are_not_replaced_for_a_generation_that_is_over() -> None:
    protocol = in_ring(step=3)
    protocol.prepare(ring_pb2.Prepare(generation=2))
    protocol.prepare(ring_pb2.Prepare(generation=3))
    assert not protocol.begin_replace(2)


def test_weights_are_not_replaced_for_a_ring_that_the_worker_was_evicted_from() -> None:
    protocol = WorkerProtocol()
    protocol.prepare(ring_pb2.Prepare(generation=10))
    protocol.go_ahead(ring_pb2.Go(generation=10, resume_step=2))
    assert protocol.stands(10)
    protocol.welcome(ring_pb2.Welcome(generation=11))
    assert not protocol.begin_replace(10) and not protocol.stands(10)
    protocol.prepare(ring_pb2.Prepare(generation=12))
    assert protocol.stands(12) and protocol.begin_replace(12)


def test_a_store_that_has_lost_its_end_may_give_the_number_of_a_ring_again() -> None:
    protocol = in_ring(generation=10, step=2)
    protocol.welcome(ring_pb2.Welcome(generation=9))
    assert not protocol.begin_replace(10)
    assert kinds(protocol.prepare(ring_pb2.Prepare(generation=10))) == ["ready"]
    assert protocol.begin_replace(10)


def test_a_broken_ring_is_told_again_after_a_reconnect() -> None:
    protocol = in_ring()
    protocol.broken(0, "connection closed")
    assert kinds(protocol.welcome(ring_pb2.Welcome(generation=1, resumed=True))) == ["ring_broken"]


def test_an_echo_of_prepare_does_not_undo_go() -> None:
    protocol = in_ring()
    protocol.prepare(ring_pb2.Prepare(generation=2))
    protocol.go_ahead(ring_pb2.Go(generation=2))
    outcome = protocol.prepare(ring_pb2.Prepare(generation=2))
    assert protocol.go is not None and not outcome.abort


def test_an_echo_of_prepare_in_its_own_ring_breaks_nothing_off() -> None:
    protocol = reported_in_ring(step=4)
    protocol.prepared(ring_pb2.Prepared(generation=1, step=4, then_prepare=ring_pb2.Prepare(generation=2)))
    assert protocol.prepare(ring_pb2.Prepare(generation=1)) == Outcome()
    assert not protocol.changing and protocol.planned is not None and protocol.begin_apply(4)


def loading(generation: int = 1) -> WorkerProtocol:
    """A leader that has said Loaded, and has no answer yet."""
    protocol = WorkerProtocol()
    protocol.prepare(ring_pb2.Prepare(generation=generation))
    protocol.load_requested(ring_pb2.Load(generation=generation))
    assert kinds(protocol.loaded(ring_pb2.Loaded(generation=generation, step=5))) == ["loaded"]
    return protocol


def go_of_history(generation: int, history: int) -> ring_pb2.Go:
    return ring_pb2.Go(generation=generation, resume_step=5, history_generation=history)


def test_a_history_that_no_go_has_confirmed_is_not_claimed_after_a_reconnect() -> None:
    protocol = loading()
    assert not protocol.hello(job="j").holds_state
    protocol.go_ahead(go_of_history(1, 1))
    assert protocol.hello(job="j").holds_state

    protocol = loading()
    protocol.welcome(ring_pb2.Welcome(generation=2))
    ready = protocol.prepare(ring_pb2.Prepare(generation=2)).send[0].ready
    assert not ready.holds_state, "this master has not said that it knows of the Load"
    protocol.go_ahead(go_of_history(2, 0))  # to receive the state of others
    assert not protocol.hello(job="j").holds_state
    protocol.end_replace(2, 5)
    assert protocol.hello(job="j").holds_state


def test_what_was_loaded_is_said_again_after_a_reconnect_and_counts_once_it_is_confirmed() -> None:
    protocol = loading()
    assert kinds(protocol.welcome(ring_pb2.Welcome(generation=1, resumed=True))) == ["loaded"]
    assert kinds(protocol.load_requested(ring_pb2.Load(generation=1))) == ["loaded"]
    protocol.go_ahead(go_of_history(1, 1))
    assert protocol.prepare(ring_pb2.Prepare(generation=2)).send[0].ready.holds_state


def test_a_change_while_a_load_is_unanswered_is_answered_with_what_is_loaded() -> None:
    ready = loading().prepare(ring_pb2.Prepare(generation=2)).send[0].ready
    assert (ready.applied_step, ready.holds_state) == (5, True), "the master had Loaded before, and decides"


def test_a_master_that_has_forgotten_its_load_is_answered_ready() -> None:
    protocol = loading()
    protocol.welcome(ring_pb2.Welcome(generation=1, resumed=True))
    outcome = protocol.prepare(ring_pb2.Prepare(generation=1))
    assert kinds(outcome) == ["ready"] and not outcome.send[0].ready.holds_state
    assert kinds(protocol.load_requested(ring_pb2.Load(generation=1))) == ["loaded"]


def test_a_worker_that_was_evicted_waits_for_a_new_ring() -> None:
    protocol = reported_in_ring(step=7)
    protocol.prepared(ring_pb2.Prepared(generation=1, step=7))
    outcome = protocol.welcome(ring_pb2.Welcome(generation=4, resumed=False))
    assert outcome.abort
    assert not protocol.begin_apply(7)


def test_an_evicted_worker_drops_its_step_before_it_is_welcomed_again() -> None:
    protocol = reported_in_ring(step=4)
    assert protocol.evict().abort
    assert protocol.changing and not protocol.may_apply(4)
    assert kinds(protocol.welcome(ring_pb2.Welcome(resumed=False))) == []


def test_a_broken_collective_is_reported_once_a_change_is_not_known() -> None:
    protocol = in_ring()
    assert kinds(protocol.broken(0, "connection closed")) == ["ring_broken"]
    protocol.prepare(ring_pb2.Prepare(generation=2))
    assert kinds(protocol.broken(0, "connection closed")) == []


def test_ready_waits_for_the_backward_of_a_step_that_is_reported() -> None:
    protocol = in_ring(step=4)
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=1, step=4), in_backward=True)
    outcome = protocol.prepare(ring_pb2.Prepare(generation=2))
    assert outcome == Outcome(abort=True)
    assert protocol.prepare(ring_pb2.Prepare(generation=2)) == Outcome()
    resumed = protocol.welcome(ring_pb2.Welcome(generation=2, resumed=True))
    assert not any(message.HasField("ready") for message in resumed.send)
    (answer,) = protocol.end_backward().send
    assert (answer.ready.generation, answer.ready.applied_step) == (2, 4)
    assert protocol.end_backward() == Outcome()
    assert protocol.prepare(ring_pb2.Prepare(generation=3)).send[0].ready.generation == 3


def test_a_backward_that_ends_before_prepare_keeps_nobody_waiting() -> None:
    protocol = in_ring(step=4)
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=1, step=4), in_backward=True)
    assert protocol.end_backward() == Outcome()
    assert protocol.prepare(ring_pb2.Prepare(generation=2)).send[0].ready.generation == 2


def test_a_change_that_came_before_the_report_is_answered_once() -> None:
    protocol = in_ring(step=4)
    assert len(protocol.prepare(ring_pb2.Prepare(generation=2)).send) == 1
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=1, step=4), in_backward=True)
    assert protocol.end_backward() == Outcome()


def test_what_the_sentinel_asks_is_kept_for_its_step_and_the_answer_is_said_again() -> None:
    protocol = in_ring(step=1)
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0, check=ring_pb2.Check(step=1)))
    assert protocol.check is not None and protocol.check.step == 1
    assert kinds(protocol.check_report(ring_pb2.CheckReport(generation=1, step=1))) == ["check_report"]
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=1, step=1))
    again = protocol.welcome(ring_pb2.Welcome(generation=1, resumed=True))
    assert kinds(again) == ["step_report", "check_report"]
    protocol.prepared(ring_pb2.Prepared(generation=1, step=1))
    assert protocol.begin_apply(1)
    protocol.end_apply(1)
    assert kinds(protocol.welcome(ring_pb2.Welcome(generation=1, resumed=True))) == []


def test_what_was_asked_in_a_ring_that_is_over_is_forgotten() -> None:
    protocol = in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0, check=ring_pb2.Check(step=1)))
    protocol.check_report(ring_pb2.CheckReport(generation=1, step=1))
    protocol.prepare(ring_pb2.Prepare(generation=2))
    protocol.entered(2, 1, [])
    assert protocol.check is None
    assert kinds(protocol.welcome(ring_pb2.Welcome(generation=2, resumed=True))) == []


def test_what_a_worker_must_do_itself_is_in_the_outcome() -> None:
    protocol, response = in_ring(), ring_pb2.AttendResponse
    manifest = ring_pb2.Checkpoint(checkpoint="c", manifest=[ring_pb2.Saved(file="f")])
    assert protocol.receive(response(checkpoint=manifest)) == Outcome(manifest=manifest)
    assert protocol.checkpoint is None
    explain = ring_pb2.Explain(generation=1, step=4)
    assert protocol.receive(response(compare=ring_pb2.Compare(explain=explain))) == Outcome(explain=explain)
    assert protocol.receive(response()) == Outcome(unknown="None")


def test_what_is_asked_at_the_next_boundary_is_kept_and_done_aborts() -> None:
    protocol, response = in_ring(), ring_pb2.AttendResponse
    checkpoint, drain = ring_pb2.Checkpoint(checkpoint="c", step=1), ring_pb2.Drain(reason="spot notice")
    assert protocol.receive(response(checkpoint=checkpoint)) == Outcome()
    assert protocol.receive(response(drain=drain)) == Outcome()
    assert (protocol.checkpoint, protocol.drain) == (checkpoint, drain) and protocol.changing
    done = ring_pb2.Done(phase="succeeded")
    assert protocol.receive(response(done=done)) == Outcome(abort=True)
    assert protocol.done == done


def test_hello_says_where_a_worker_is() -> None:
    protocol = WorkerProtocol()
    entered(protocol, 3, 5, history=2)
    protocol.prepare(ring_pb2.Prepare(generation=4))
    assert protocol.hello(job="j", pid=7) == ring_pb2.Hello(
        job="j", pid=7, generation=4, applied_step=5, holds_state=True, history_generation=2
    )


def test_at_a_boundary_a_worker_waits_until_it_runs_or_is_asked() -> None:
    protocol = WorkerProtocol()
    assert not protocol.must_act
    protocol.prepare(ring_pb2.Prepare(generation=1))
    assert not protocol.must_act
    protocol.load_requested(ring_pb2.Load(generation=1))
    assert protocol.must_act
    protocol.loaded(ring_pb2.Loaded(generation=1))
    assert not protocol.must_act
    protocol.go_ahead(ring_pb2.Go(generation=1))
    assert protocol.must_act
    protocol.entered(1, 0, [])
    assert protocol.must_act
    protocol.prepare(ring_pb2.Prepare(generation=2))
    assert not protocol.must_act
    protocol.drain = ring_pb2.Drain()
    assert protocol.must_act


# ------------------------------------------------------------------ pipelines


def test_what_was_prepared_is_applied_before_ready() -> None:
    protocol = reported_in_ring(step=5)
    outcome = protocol.prepare(ring_pb2.Prepare(generation=2, prepared_until=6))
    assert outcome.abort and not outcome.send, "first it applies step 5"
    assert protocol.changing and protocol.is_decided(5) and protocol.begin_apply(5)
    ready = protocol.end_apply(5).send[0].ready
    assert (ready.generation, ready.applied_step) == (2, 6)
    protocol.begin_step()
    protocol.report(ring_pb2.StepReport(generation=1, step=6))
    assert not protocol.begin_apply(6), "once only"


def test_a_newer_change_meanwhile_is_the_one_that_is_answered() -> None:
    protocol = reported_in_ring(step=5)
    protocol.prepare(ring_pb2.Prepare(generation=2, prepared_until=6))
    assert not protocol.prepare(ring_pb2.Prepare(generation=3, prepared_until=6)).send
    assert not protocol.prepare(ring_pb2.Prepare(generation=3, prepared_until=6)).send, "an echo"
    assert protocol.begin_apply(5)
    [ready] = protocol.end_apply(5).send
    assert (ready.ready.generation, ready.ready.applied_step) == (3, 6)


def test_a_step_that_is_not_prepared_or_not_reported_is_lost_as_ever() -> None:
    protocol = reported_in_ring(step=5)
    ready = protocol.prepare(ring_pb2.Prepare(generation=2, prepared_until=5)).send[0].ready
    assert ready.applied_step == 5 and not protocol.begin_apply(5)
    begun = in_ring(step=5)
    begun.begin_step()
    assert kinds(begun.prepare(ring_pb2.Prepare(generation=2, prepared_until=6))) == ["ready"]
    assert not begun.may_apply(5)


def test_a_step_that_was_to_be_applied_and_is_lost_is_answered_with_its_number() -> None:
    protocol = reported_in_ring(step=5)
    protocol.prepare(ring_pb2.Prepare(generation=2, prepared_until=6))
    ready = protocol.lose_step().send[0].ready
    assert (ready.generation, ready.applied_step) == (2, 5)
    assert not protocol.lose_step().send


def test_who_is_evicted_applies_nothing_more() -> None:
    protocol = reported_in_ring(step=5)
    protocol.prepare(ring_pb2.Prepare(generation=2, prepared_until=6))
    protocol.evict()
    assert not protocol.begin_apply(5)
    assert kinds(protocol.prepare(ring_pb2.Prepare(generation=3, prepared_until=6))) == ["ready"]


def cut_off(step: int = 5) -> WorkerProtocol:
    """A member of a pipeline that has reported a step, and whose stream has broken."""
    protocol = reported_in_ring(step=step)
    protocol.units = (pipeline_pb2.UnitRange(first_unit=2, end_unit=4),)
    return protocol


def test_who_was_cut_off_applies_what_was_prepared_meanwhile_before_it_is_ready() -> None:
    protocol = cut_off()
    assert protocol.may_finish and protocol.hello().generation == 1
    outcome = protocol.welcome(ring_pb2.Welcome(generation=2, prepared_until=6))
    assert outcome.abort and protocol.is_decided(5) and not protocol.may_finish
    assert not protocol.prepare(ring_pb2.Prepare(generation=2)).send
    assert protocol.begin_apply(5)
    ready = protocol.end_apply(5).send[0].ready
    assert (ready.generation, ready.applied_step) == (2, 6) and ready.units


def test_who_was_cut_off_applies_nothing_of_which_welcome_does_not_say_that_it_is_prepared() -> None:
    for welcome in (ring_pb2.Welcome(generation=2), ring_pb2.Welcome(generation=2, prepared_until=5)):
        protocol = cut_off()
        protocol.welcome(welcome)
        assert not protocol.begin_apply(5)
        ready = protocol.prepare(ring_pb2.Prepare(generation=2)).send[0].ready
        assert (ready.generation, ready.applied_step) == (2, 5)


def test_who_has_answered_a_change_applies_nothing_that_a_later_welcome_says_is_prepared() -> None:
    protocol = cut_off()
    assert kinds(protocol.prepare(ring_pb2.Prepare(generation=2))) == ["ready"]
    assert not protocol.may_finish
    protocol.welcome(ring_pb2.Welcome(generation=3, prepared_until=6))
    assert not protocol.begin_apply(5)


def test_only_members_of_pipelines_may_finish() -> None:
    assert not reported_in_ring(step=5).may_finish
    begun = in_ring(step=5)
    begun.units = (pipeline_pb2.UnitRange(first_unit=2, end_unit=4),)
    begun.begin_step()
    assert not begun.may_finish


def test_ready_says_which_units_are_held() -> None:
    protocol = in_ring(step=5)
    protocol.begin_replace(1)
    protocol.end_replace(1, 5, [pipeline_pb2.UnitRange(first_unit=2, end_unit=4)])
    [ready] = protocol.prepare(ring_pb2.Prepare(generation=2)).send
    assert [(units.first_unit, units.end_unit) for units in ready.ready.units] == [(2, 4)]
    protocol.load_requested(ring_pb2.Load(generation=2))
    protocol.loaded(ring_pb2.Loaded(generation=2, step=3))
    [ready] = protocol.prepare(ring_pb2.Prepare(generation=3)).send
    assert ready.ready.holds_state and not ready.ready.units, "a leader has no units before Go"


def change(generation: int, *workers: str, secret: bytes = b"s") -> ring_pb2.Prepare:
    members = [ring_pb2.Member(worker_id=worker, store_address=f"{worker}:1") for worker in workers]
    return ring_pb2.Prepare(generation=generation, members=members, rendezvous_secret=secret)


def go_of(prepare: ring_pb2.Prepare) -> ring_pb2.Go:
    return ring_pb2.Go(
        generation=prepare.generation, members=prepare.members, rendezvous_secret=prepare.rendezvous_secret
    )


def test_the_group_of_a_planned_change_forms_beside_the_step_before_it() -> None:
    protocol, wanted = reported_in_ring(), change(2, "a", "b")
    planned = ring_pb2.Prepared(generation=1, step=0, then_prepare=wanted)
    outcome = protocol.prepared(planned)
    assert outcome.form == wanted and not outcome.abort
    assert protocol.is_formed_early(go_of(wanted))
    assert protocol.prepared(planned).form is None  # said again after a reconnect: it forms already
    protocol.begin_apply(0)
    protocol.end_apply(0)
    protocol.go_ahead(go_of(wanted))
    protocol.entered(2, 1, [])
    assert not protocol.is_formed_early(go_of(wanted))


def test_a_newcomer_and_a_member_that_has_applied_the_step_form_the_group_at_once_too() -> None:
    newcomer, member, wanted = WorkerProtocol(), in_ring(step=1), change(2, "a", "b")
    assert newcomer.prepare(wanted).form == wanted
    outcome = member.prepared(ring_pb2.Prepared(generation=1, step=0, then_prepare=wanted))
    assert outcome.form == wanted and kinds(outcome) == ["ready"]


def test_a_change_that_is_not_planned_forms_no_group_before_its_go() -> None:
    protocol = in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0, then_prepare=change(2, "a", "b")))
    outcome = protocol.prepare(change(3, "a", secret=b""))
    assert outcome.abort and outcome.form is None
    assert not protocol.is_formed_early(go_of(change(2, "a", "b")))


def test_a_group_that_has_formed_early_is_used_for_its_own_ring_only() -> None:
    """A master whose store has lost a change may decide on other members under the same generation."""
    protocol = in_ring()
    protocol.prepared(ring_pb2.Prepared(generation=1, step=0, then_prepare=change(2, "a", "b")))
    for other in (
        change(2, "a", "c"),
        change(2, "b", "a"),
        change(3, "a", "b"),
        change(2, "a", "b", secret=b"t"),
    ):
        assert not protocol.is_formed_early(go_of(other))
    again = change(2, "a", "c")
    assert protocol.prepared(ring_pb2.Prepared(generation=1, step=0, then_prepare=again)).form == again
    protocol.evict()
    assert not protocol.is_formed_early(go_of(again))


def followed(generation: int = 4) -> WorkerProtocol:
    """A newcomer that follows the ring of this generation."""
    protocol = WorkerProtocol()
    protocol.prepare(ring_pb2.Prepare(generation=generation))
    protocol.follow_requested(ring_pb2.Follow(generation=generation, step=7, history_generation=2))
    assert protocol.must_act and protocol.begin_following() is not None
    return protocol


def test_a_newcomer_that_follows_is_ready_when_it_has_followed_to_the_end() -> None:
    protocol = followed()
    outcome = protocol.prepare(ring_pb2.Prepare(generation=5, followed=True))
    assert kinds(outcome) == [] and not outcome.stop_following
    (ready,) = (message.ready for message in protocol.end_following(9).send)
    assert (ready.generation, ready.applied_step, ready.holds_state) == (5, 9, True)


def test_a_newcomer_whose_ring_changes_otherwise_stops_and_holds_nothing() -> None:
    protocol = followed()
    assert protocol.prepare(ring_pb2.Prepare(generation=5)).stop_following
    outcome = protocol.end_following(None, "the ring changed")
    assert kinds(outcome) == ["follow_report", "ready"]
    assert outcome.send[0].follow_report.error == "the ring changed"
    assert not outcome.send[1].ready.holds_state


def test_what_a_newcomer_has_followed_is_not_claimed_in_a_hello_before_a_go() -> None:
    protocol = followed()
    protocol.end_following(9)
    assert not protocol.hello().holds_state
    protocol.prepare(ring_pb2.Prepare(generation=5))
    protocol.go_ahead(ring_pb2.Go(generation=5, resume_step=9, history_generation=2))
    assert protocol.hello().holds_state


def test_a_follow_is_forgotten_with_the_ring_it_names() -> None:
    protocol = WorkerProtocol()
    protocol.follow_requested(ring_pb2.Follow(generation=4))
    protocol.prepare(ring_pb2.Prepare(generation=5))
    assert protocol.begin_following() is None and not protocol.must_act
    protocol.follow_requested(ring_pb2.Follow(generation=4))
    assert not protocol.must_act


def test_who_is_sent_away_stops_to_follow() -> None:
    for name in ("drain", "done"):
        message = ring_pb2.AttendResponse()
        getattr(message, name).SetInParent()
        assert followed().receive(message).stop_following
    assert followed().evict().stop_following


def test_a_report_with_positions_is_not_repeated_to_a_master_that_would_leave_them_out() -> None:
    for positions in (True, False):
        protocol = in_ring()
        for step in (0, 1):
            protocol.begin_step()
            report = ring_pb2.StepReport(generation=1, step=step)
            report.contexts.add(delta=True).positions.add(name="rng/python", checksum=step)
            protocol.report(report)
            if step == 0:
                protocol.prepared(ring_pb2.Prepared(generation=1, step=0))
                protocol.begin_apply(0)
                protocol.end_apply(0)
        welcome = ring_pb2.Welcome(generation=1, resumed=True, reports_from=0, generator_positions=positions)
        outcome = protocol.welcome(welcome)
        assert protocol.takes_positions is positions
        assert kinds(outcome) == (["step_report", "step_report"] if positions else [])
        assert outcome.abort is not positions, "it leaves the ring, and is given whole contexts with the next"

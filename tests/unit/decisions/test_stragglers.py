"""Stragglers: fewer ESTs for them, or another in their place; what is told of it, and what is not tried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastane_master.decisions import autoscaling, balance, effects, events, membership, stragglers
from elastane_master.runs.elastic_jobs import targets_of
from elastane_proto.history import events as history
from elastane_proto.history.describe import describe
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=1000, epochs=20)
C = 0.1
"""Seconds of an EST on a usual worker."""


@pytest.fixture(autouse=True)
def looks_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "LOOK_STEPS", 1)


class Job(JobDriver):
    """A job of 16 ESTs on four workers, each on its host; heartbeats say how fast they are."""

    def __init__(self, workers: str = "abcd", ests: int = 16) -> None:
        super().__init__(settings(ests, workers_max=4), LONG)
        self.form(*workers)
        self.next_step = 0

    def join(self, worker: str, **changes: Any) -> None:
        super().join(worker, **{"host": f"host-{worker}", **changes})

    def beat(self, worker: str, straggler: str = "none", ratio: float = 1.0, **changes: object) -> bool:
        """Hear a heartbeat; return whether it is stored."""
        slow = straggler in ("compute", "data")
        event = events.AppliedReported(
            worker,
            self.session(worker),
            self.generation,
            self.state.workers[worker].applied_step,
            device_type="t4",
            est_seconds=C / ratio if slow else C,
            est_steps=balance.EST_STEPS_MIN,
            ring_generation=self.generation,
            ring_step_seconds=4.4 * C,
            ring_steps=balance.RING_STEPS_MIN,
            straggler=straggler,
            rate_ratio=ratio,
        )
        return self.do(msgspec.structs.replace(event, **changes)).durable

    def beats(self, slow: str = "", cause: str = "compute", ratio: float = 0.5, **changes: object) -> None:
        """All workers say how fast they are, and after a while again."""
        changes = {"ring_step_seconds": 8.4 * C if slow else 4.4 * C, **changes}
        for _ in range(2):
            self.now += balance.UPDATE_SECONDS
            for worker in list(self.state.workers):
                said = (cause, ratio) if worker in slow else ("none", 1.0)
                self.beat(worker, *said, **changes)

    def go_on(self, steps: int = 1) -> None:
        """All members report steps, and answer where the ring changes."""
        for _ in range(steps):
            generation, before = self.generation, self.members
            self.step(self.next_step)
            self.next_step += 1
            if self.generation != generation:
                for worker in {*before, *self.members}:
                    holds = worker in before
                    self.ready(worker, self.next_step if holds else 0, holds=holds)

    @property
    def counts(self) -> dict[str, int]:
        return {member.worker: member.end - member.start for member in self.state.ring.members}

    def told(self, kind: type) -> list[Any]:
        return [note.event for note in self.notes if isinstance(note.event, kind)]


# ---------------------------------------------------------------- fewer ESTs


def test_a_straggler_without_a_standby_gets_fewer_ests_and_it_is_told() -> None:
    job = Job()
    job.beats("c")
    job.go_on()
    assert sorted(job.counts.values()) == [2, 4, 5, 5]
    assert job.counts["c"] == 2
    (told,) = job.told(history.StragglerReweighted)
    assert (told.worker, told.cause, told.ratio, told.ests_before, told.ests) == ("c", "compute", 0.5, 4, 2)
    assert told.rate_before == pytest.approx(1 / (8.4 * C))
    assert told.rate_after == pytest.approx(1 / (5.4 * C))
    assert "c gets 2 ESTs instead of 4: a straggler, it computes at 0.50" in describe(told)
    assert "computes at 0.50 of the usual rate of its device type" in job.state.workers["c"].reason


def test_a_ring_that_grows_gives_all_fewer_ests_which_is_nothing_to_tell() -> None:
    job = Job()
    job.beats("c", "network")
    job.state.settings = msgspec.structs.replace(job.state.settings, workers_max=8)
    job.join("e")
    job.join("f")
    job.beats("c", "network")
    job.go_on()
    assert max(job.counts.values()) == 3
    assert job.told(history.StragglerReweighted) == []


def test_a_worker_a_third_slower_counts_by_itself_only_as_a_straggler() -> None:
    job = Job()
    for worker in "abd":
        job.beat(worker)
    job.beat("c", "none", 0.75, est_seconds=C / 0.75)
    job.go_on()
    assert set(job.counts.values()) == {4}
    job.beats("c", ratio=0.75)
    job.go_on()
    assert job.counts["c"] == 3


def test_a_remedy_after_a_good_start_is_judged_by_the_steps_that_had_become_slow() -> None:
    job = Job()
    job.beats()
    job.go_on()
    job.beats("c")
    job.go_on(balance.LOOK_STEPS)
    assert job.counts["c"] == 2
    job.now += balance.PAUSE_SECONDS_MAX
    job.beats("c", ring_step_seconds=5.4 * C)
    job.go_on(2 * balance.LOOK_STEPS)
    assert job.counts["c"] == 2, "steps were shorter before the straggler, and are shorter than with it"
    assert job.state.balance.backoff_seconds == 0.0


def test_one_that_recovers_gets_as_many_as_the_others_again() -> None:
    job = Job()
    job.beats("c")
    job.go_on()
    job.now += balance.PAUSE_SECONDS
    job.beats(ring_step_seconds=5.4 * C)
    assert job.state.workers["c"].straggler == ""
    job.go_on(2)
    assert set(job.counts.values()) == {4}
    assert job.state.workers["c"].reason in ("hosts ESTs 8 to 11", "hosts ESTs 4 to 7")


def test_what_is_not_known_of_a_worker_changes_nothing_and_news_is_stored_once() -> None:
    job = Job()
    job.beats("c")
    assert not job.beat("c", "", est_seconds=2 * C)
    assert job.state.workers["c"].straggler == "compute"
    assert not job.beat("c", "compute", 0.5)
    assert not job.beat("c", "compute", 0.46, est_seconds=2 * C)
    job.now += stragglers.UPDATE_SECONDS
    assert not job.beat("c", "compute", 0.46, est_seconds=2 * C)
    assert job.beat("c", "compute", 0.3, est_seconds=2 * C)
    assert not job.beat("c", "compute", 0.5, est_seconds=2 * C), "so soon"
    assert job.beat("c", "none")
    assert not job.beat("c", "none")


# ---------------------------------------------------------------- another in its place


def replaced(slow: str = "c", cause: str = "compute", ratio: float = 0.5) -> Job:
    """A job of which another worker, which stood by, has the straggler's place."""
    job = Job()
    job.join("e")
    job.go_on()
    assert "e" not in job.members
    job.beats(slow, cause, ratio)
    job.go_on()
    return job


@pytest.mark.parametrize("slow", "abcd")
def test_a_standby_gets_the_place_of_a_straggler_in_one_change_and_the_leader_is_not_exempt(
    slow: str,
) -> None:
    job = Job()
    job.join("e")
    job.go_on()
    job.beats(slow)
    generation = job.generation
    job.take()
    job.step(job.next_step)
    job.next_step += 1
    assert job.generation == generation + 1
    assert job.state.ring.planned
    assert set(job.members) == {*"abcde"} - {slow}
    assert job.members[0] == ("b" if slow == "a" else "a")
    assert not job.state.workers[slow].draining, "until the new ring trains"
    for worker in job.members:
        job.ready(worker, job.next_step if worker != "e" else 0, holds=worker != "e")
    assert job.state.ring.stage == "running"
    assert job.state.workers[slow].draining
    job.ready(slow, job.next_step, holds=True)
    assert [worker for worker, message in job.sent if isinstance(message, effects.Drain)] == [slow]
    (told,) = job.told(history.StragglerReplaced)
    assert (told.worker, told.newcomer, told.cause, told.host) == (slow, "e", "compute", f"host-{slow}")
    assert told.rate_before == pytest.approx(1 / (8.4 * C))
    assert told.rate_after == pytest.approx(1 / (4.4 * C))
    assert told.barred_seconds == 0
    assert job.told(history.WorkerDraining)[-1].by == "straggler"
    assert f"e replaced {slow}" in describe(told)
    job.bye(slow, "drained", job.next_step)
    job.go_on(3)
    assert len(job.members) == 4


def test_fewer_ests_that_reach_the_plan_are_the_remedy_though_a_standby_is_there() -> None:
    job = Job(ests=18)
    job.join("e")
    job.go_on()
    # With 5 5 4 4 or 5 5 5 3 ESTs, four workers need 5 c, also if one of them takes 1.25 c for each of four.
    job.beats("c", ratio=0.8)
    job.go_on()
    assert "c" in job.members
    assert job.told(history.StragglerReplaced) == []


def test_a_newcomer_that_is_lost_before_the_ring_forms_gives_the_straggler_its_place_back() -> None:
    job = Job()
    job.join("e")
    job.go_on()
    job.beats("c")
    job.step(job.next_step)
    job.next_step += 1
    assert "c" not in job.members
    job.lose("e")
    assert set(job.members) == set("abcd")
    for worker in job.members:
        job.ready(worker, job.next_step, holds=True)
    assert job.state.ring.stage == "running"
    assert not job.state.workers["c"].draining
    assert job.told(history.StragglerReplaced) == []
    assert job.state.stragglers.replacing is None


def test_a_straggler_that_is_lost_meanwhile_is_replaced_all_the_same() -> None:
    job = Job()
    job.join("e")
    job.go_on()
    job.beats("c")
    job.step(job.next_step)
    job.next_step += 1
    for worker in "abd":
        job.ready(worker, job.next_step, holds=True)
    job.lose("c")
    job.ready("e")
    assert len(job.members) == 4
    job.go_on(2)


def test_a_slow_network_is_no_matter_of_ests_but_of_another_worker() -> None:
    job = Job()
    job.beats("c", "network", 0.5)
    job.go_on()
    assert set(job.counts.values()) == {4}
    job.join("e")
    job.now += balance.PAUSE_SECONDS
    job.beats("c", "network", 0.5)
    job.go_on(2)
    assert "c" not in job.members
    assert job.told(history.StragglerReplaced)[0].cause == "network"


def test_a_slow_network_delays_computing_and_not_the_scripts_code_after_it() -> None:
    job = Job()
    job.join("e")
    job.now += balance.PAUSE_SECONDS
    job.beats("c", "network", 0.5, after_est_seconds=9 * C, ring_step_seconds=44.4 * C)
    job.go_on(2)
    (found,) = job.told(history.StragglerReplaced)
    assert found.rate_before == pytest.approx(1 / (44.4 * C))
    assert found.rate_after == pytest.approx(1 / (40.4 * C))


@pytest.mark.parametrize("change", [1e9, 0.0])
def test_what_costs_more_than_it_saves_is_left(change: float) -> None:
    job = Job()
    job.join("e")
    job.go_on()
    job.state.balance.change_seconds = change
    job.beats("c")
    job.go_on()
    assert ("c" in job.members) == bool(change)


def test_a_standby_that_is_slow_itself_or_of_an_unknown_device_or_in_quarantine_replaces_nobody() -> None:
    for known in ({"straggler": "compute"}, {"device_type": "p100", "est_seconds": 0.0}, {"held_until": 1e9}):
        job = Job()
        job.join("e")
        job.go_on()
        job.beats("c")
        for name, value in known.items():
            setattr(job.state.workers["e"], name, value)
        job.go_on()
        assert "c" in job.members


def test_a_ring_whose_only_holder_of_the_state_is_the_straggler_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    job.join("e")
    job.go_on()
    job.beats("c")
    monkeypatch.setattr(stragglers, "_holds_state", lambda state, members: False)
    job.go_on()
    assert "c" in job.members


def test_no_choice_that_makes_the_ring_smaller_is_taken() -> None:
    job = Job()
    job.join("e")
    job.go_on()
    job.beats("c", ratio=0.1)  # three without it would be faster than four with it
    wanted = membership.next_members(job.state, planned=True, without="c")
    assert stragglers.replacement(job.state, job.now, lambda worker: wanted) is not None
    smaller = msgspec.structs.replace(wanted, members=wanted.members[1:])
    assert stragglers.replacement(job.state, job.now, lambda worker: smaller) is None


def test_the_slowest_of_two_goes_first_and_the_next_after_a_pause() -> None:
    job = Job()
    job.join("e")
    job.join("f")
    job.go_on()
    job.now += balance.UPDATE_SECONDS
    for worker in "abef":
        job.beat(worker, ring_step_seconds=10 * C)
    job.beat("c", "compute", 0.5, ring_step_seconds=10 * C)
    job.beat("d", "compute", 0.4, ring_step_seconds=10 * C)
    job.go_on()
    assert "d" not in job.members
    job.bye("d", "drained", job.next_step)
    job.now += 1.0
    for worker in "abef":
        job.beat(worker, ring_step_seconds=8 * C)
    job.beat("c", "compute", 0.5, ring_step_seconds=8 * C)
    job.go_on()
    assert "c" in job.members
    job.now += balance.PAUSE_SECONDS
    job.go_on()
    assert "c" not in job.members


def test_steps_that_are_longer_afterwards_bar_further_replacements() -> None:
    job = replaced()
    assert "c" not in job.members
    job.bye("c", "drained", job.next_step)
    job.join("f")
    job.go_on()
    for worker in job.members:
        job.beat(worker, "compute" if worker == "d" else "none", 0.5, ring_step_seconds=8.4 * C * 1.1)
    job.beat("f")
    job.go_on()
    assert job.state.stragglers.backoff_seconds == balance.BACKOFF_SECONDS
    for seconds, is_barred in ((balance.BACKOFF_SECONDS - 40, True), (60, False)):
        job.now += seconds
        for worker in job.members:
            job.beat(worker, "compute" if worker == "d" else "none", 0.5, ring_step_seconds=5 * C)
        job.go_on()
        assert ("d" in job.members) == is_barred


def test_a_standby_is_wanted_as_long_as_it_would_pay() -> None:
    job = Job()
    assert stragglers.standbys_wanted(job.state) == 0
    job.beats("c")
    assert stragglers.standbys_wanted(job.state) == 1
    job.go_on()
    assert job.counts["c"] == 2
    job.beats("c", ring_step_seconds=5.4 * C)
    assert stragglers.standbys_wanted(job.state) == 1, "5 c could be 4 c"
    job.join("e")
    job.beat("e")
    assert stragglers.standbys_wanted(job.state) == 1, "or it would be sent away again"
    job.now += balance.PAUSE_SECONDS
    job.go_on(2)
    assert "c" not in job.members
    assert stragglers.standbys_wanted(job.state) == 0


def test_a_job_that_scales_by_itself_asks_for_the_standby_within_its_bounds() -> None:
    job = Job()
    scaled = {"scaling": "efficiency=0.1", "workers_max": 5}
    job.state.settings = msgspec.structs.replace(job.state.settings, **scaled)
    job.state.scaling.target = 4
    job.beats("c")
    view = autoscaling.view(job.state)
    assert view is not None
    assert view.workers_target == 5
    assert autoscaling.workers_target(job.state) == 4, "the ring is no larger"
    assert targets_of(7, "j", job.machine).workers == 5, "runs are given the standby too"
    job.state.scaling.target = 5
    view = autoscaling.view(job.state)
    assert view is not None
    assert view.workers_target == 5


# ---------------------------------------------------------------- hosts


def replaced_twice(**changes: Any) -> Job:
    """A job of which two workers of one host were replaced."""
    job = Job("ab")
    for worker in "cd":
        job.join(worker, host="slow")
    job.go_on()
    for slow, standby in (("c", "e"), ("d", "f")):
        job.join(standby, **changes)
        job.go_on()
        job.now += 2 * balance.PAUSE_SECONDS
        job.beats(slow)
        job.go_on()
        assert slow not in job.members
        job.bye(slow, "drained", job.next_step)
    return job


def test_a_host_of_which_two_were_replaced_gets_no_worker_for_an_hour() -> None:
    job = replaced_twice()
    assert job.told(history.StragglerReplaced)[-1].barred_seconds == 3600
    assert "host slow gets no worker for 60 min" in describe(job.told(history.StragglerReplaced)[-1])
    job.join("c", host="slow")
    assert "is on host slow" in job.state.workers["c"].reason
    assert job.told(history.HostBarred)[-1].host == "slow"
    job.lose("a")
    assert "c" not in job.members
    for worker in job.members:
        job.ready(worker, job.next_step, holds=True)
    job.tick_due()
    assert job.now < 3600
    job.do(events.Tick(), after=3600)
    assert job.state.workers["c"].held_until is None
    job.lose("c")
    job.join("c", host="slow")
    assert job.state.workers["c"].held_until is None, "the hour is over"


def test_replacements_more_than_an_hour_apart_bar_nothing() -> None:
    job = Job("ab")
    for worker in "cd":
        job.join(worker, host="slow")
    job.go_on()
    for slow, standby in (("c", "e"), ("d", "f")):
        job.join(standby)
        job.go_on()
        job.now += 3601
        job.beats(slow)
        job.go_on()
        assert slow not in job.members
        job.bye(slow, "drained", job.next_step)
    assert job.state.stragglers.barred == {}


def test_the_only_host_is_not_barred() -> None:
    job = Job("ab")
    for record in job.state.workers.values():
        record.host = "slow"
    for worker in "cd":
        job.join(worker, host="slow")
    job.go_on()
    for slow, standby in (("c", "e"), ("d", "f")):
        job.join(standby, host="slow")
        job.go_on()
        job.now += 2 * balance.PAUSE_SECONDS
        job.beats(slow)
        job.go_on()
        job.bye(slow, "drained", job.next_step)
    assert job.state.stragglers.barred == {}


def test_a_job_of_the_version_before_has_no_stragglers() -> None:
    job = Job()
    stored = msgspec.msgpack.decode(job.machine.snapshot())
    del stored[1]["stragglers"]
    for worker in stored[1]["workers"].values():
        for name in ("straggler", "rate_ratio", "straggler_at"):
            worker.pop(name, None)
    restored = type(job.machine).restore(msgspec.msgpack.encode(stored))
    assert restored.state == job.state

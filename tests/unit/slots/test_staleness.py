"""The gate: what it grants, and its properties in thousands of seeded schedules (see `schedules`)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from elastane_shards.errors import IllegalTransition, InvalidSettings, InvariantViolated
from elastane_slots.staleness import StalenessGate
from elastane_slots.tasks import TaskName
from slow import further
from unit.slots.schedules import DATASET, Broken, Plan, run, serial

LIMITS = (0, 1, 3, 7)


def task(index: int) -> TaskName:
    return TaskName(DATASET, 0, index)


def leased(gate: StalenessGate, *indices: int) -> StalenessGate:
    for index in indices:
        gate.leased(task(index), max(gate.leases.values(), default=0) + 1)
    return gate


def test_without_a_limit_there_is_always_room() -> None:
    assert leased(StalenessGate(), *range(100)).room() is None


def test_with_zero_one_task_follows_the_other() -> None:
    gate = StalenessGate(limit=0)
    for index in range(3):
        assert gate.room() == 1
        leased(gate, index)
        assert gate.room() == 0
        gate.done(task(index))


def test_a_slow_task_holds_the_others_back_until_it_is_over() -> None:
    gate = leased(StalenessGate(limit=3), 0, 1, 2, 3)
    assert gate.room() == 0
    for index in (1, 2, 3):
        gate.done(task(index))
    assert (gate.room(), gate.worst()) == (0, 3)
    gate.gave_back(task(0))  # its worker died: others go on, as far as it may still be applied
    assert (gate.room(), gate.worst()) == (3, 0)
    leased(gate, 0)  # it needs no room
    assert (gate.room(), gate.worst()) == (3, 0)


def test_a_returned_task_keeps_its_place_since_its_worker_may_wake_up() -> None:
    gate = leased(StalenessGate(limit=1), 0, 1)
    gate.gave_back(task(0))
    gate.gave_back(task(1))
    assert gate.room() == 0
    leased(gate, 1, 0)
    gate.done(task(1))
    gate.done(task(0))
    assert gate.room() == 2


def test_a_failed_task_keeps_its_place_until_no_slot_takes_it() -> None:
    gate = leased(StalenessGate(limit=1), 0, 1)
    gate.failed(task(0))
    assert (gate.room(), gate.worst()) == (0, 1)
    gate.closed(task(0))
    assert (gate.room(), gate.worst()) == (0, 1)  # it may have been applied since the other's pull
    gate.closed(task(0))  # told twice
    gate.done(task(1))
    assert gate.room() == 2


def test_a_late_report_of_an_ended_lease_counts() -> None:
    gate = leased(StalenessGate(limit=2), 0)
    gate.gave_back(task(0))
    gate.done(task(0))
    assert (gate.room(), gate.finished) == (3, 1)


def test_returned_tasks_are_forgotten_once_their_leases_are_fenced_out() -> None:
    gate = leased(StalenessGate(limit=2), 0, 1, 2)
    gate.gave_back(task(0))
    gate.gave_back(task(2))
    assert gate.fence(last=3) == 1  # none that is outstanding is after it
    assert gate.forgettable(1) == [task(0)]
    gate.fenced(1)
    assert (gate.room(), gate.worst()) == (0, 2)  # it may have been applied since the other's pull
    gate.done(task(0))  # all of it was, before: a late report
    assert gate.finished == 1
    gate.done(task(1))
    assert gate.fence(last=3) == 3
    gate.fenced(3)
    assert (gate.room(), gate.returned, gate.leases) == (3, {}, {})
    leased(gate, 2)
    assert gate.room() == 2  # as any other


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    gate = leased(StalenessGate(limit=1), 0, 1)
    gate.failed(task(1))
    before = msgspec.msgpack.encode(gate)
    for change in (
        lambda: gate.leased(task(0), 3),
        lambda: gate.leased(task(1), 3),
        lambda: gate.leased(task(2), 3),
        lambda: gate.done(task(1)),
        lambda: gate.gave_back(task(1)),
        lambda: gate.failed(task(2)),
    ):
        with pytest.raises(IllegalTransition):
            change()
        assert msgspec.msgpack.encode(gate) == before
    with pytest.raises(InvalidSettings):
        StalenessGate(limit=-1).check()
    StalenessGate(limit=0).check()


def test_it_is_stored_as_it_is() -> None:
    gate = leased(StalenessGate(limit=5), 0, 1, 2, 3)
    gate.done(task(1))
    gate.gave_back(task(2))
    gate.failed(task(3))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(gate), type=StalenessGate)
    assert read == gate and list(read.outstanding) == list(gate.outstanding)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({}), type=StalenessGate) == StalenessGate()


def test_contradictions_are_found() -> None:
    for gate in (
        StalenessGate(outstanding={task(0): 0}, returned={task(0): None}),
        StalenessGate(finished=3, outstanding={task(0): 2, task(1): 1}),
        StalenessGate(outstanding={task(0): 1}),
        StalenessGate(limit=1, outstanding={task(0): 0, task(1): 0}, closing={task(2): None}),
    ):
        with pytest.raises(InvariantViolated):
            gate.validate()


# ---------------------------------------------------------------- schedules


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    "faults",
    [
        {},
        {"deaths": 16, "workers": 6, "slots": 2},
        {"restores": 4},
        {"attempts": 2},
        {"restores": 4, "attempts": 2, "deaths": 12},
        {"deserted": True, "deaths": 12},
        {"deserted": True, "restores": 4, "attempts": 3, "deaths": 12},
    ],
    ids=["deaths", "many deaths", "restores", "failed", "all", "deserted", "deserted, all"],
)
@pytest.mark.parametrize("hundred", [0, pytest.param(range(1, 5), marks=further, id="400 more")])
def test_no_live_push_is_refused_nothing_stands_still_and_staleness_keeps_its_limit(
    limit: int, faults: dict[str, int], hundred: int | range
) -> None:
    """4 limits, 7 kinds of faults, 500 seeds: 14,000 schedules, a fifth of them in the quick tests."""
    hundreds = hundred if isinstance(hundred, range) else [hundred]
    plans = [Plan(seed, limit, **faults) for h in hundreds for seed in range(100 * h, 100 * h + 100)]  # type: ignore[arg-type]
    worst = max(run(plan).worst for plan in plans)
    assert min(limit, 4) <= worst <= limit  # so few workers hardly come to 7


@pytest.mark.parametrize("faults", [{}, {"restores": 4, "attempts": 2}], ids=["deaths", "all"])
def test_without_a_limit_everything_is_applied_once_too(faults: dict[str, int]) -> None:
    for seed in range(200):
        run(Plan(seed, None, **faults))  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "workers"), [(0, 4), (None, 1)])
def test_one_at_a_time_is_the_serial_run(limit: int | None, workers: int) -> None:
    """With s = 0, and with one worker, as long as no attempt is cut off between two slots."""
    for seed in range(50):
        plan = Plan(seed, limit, workers=workers, deaths=0)
        assert [weights.value for weights in run(plan).weights] == serial(plan.tasks, plan.slots)


def test_several_at_a_time_are_another_run() -> None:
    plans = [Plan(seed, 3, deaths=0) for seed in range(20)]
    assert any([w.value for w in run(plan).weights] != serial(plan.tasks, plan.slots) for plan in plans)


def test_with_zero_the_slots_apply_tasks_in_one_order_whatever_dies() -> None:
    for seed in range(200):
        orders = {tuple(weights.names) for weights in run(Plan(seed, 0)).weights}
        assert len(orders) == 1


def test_the_faults_really_happen() -> None:
    runs = [run(Plan(seed, 3, restores=4, attempts=2, deaths=12)) for seed in range(100)]
    refused = {verdict for one in runs for verdict in one.refused}
    assert {"restored", "closed"} <= refused
    assert any(one.failed for one in runs) and any(one.lives != [0, 0, 0] for one in runs)
    assert any(one.worst == 3 for one in runs)


# ---------------------------------------------------------------- controls: each broken rule is found


class _Unchecked(StalenessGate):
    def validate(self) -> None:
        pass


class _Open(_Unchecked):
    """No gate."""

    def room(self) -> int | None:
        return None


class _Counting(_Unchecked):
    """As many tasks as the limit says, however many finish beside a slow one."""

    def room(self) -> int | None:
        assert self.limit is not None
        return max(0, self.limit + 1 - len(self.outstanding))


class _Forgetful(_Unchecked):
    """Returned tasks do not count."""

    def room(self) -> int | None:
        room = super().room()
        return room if room is None else room + len(self.returned)


class _Uncounting(_Unchecked):
    def fenced(self, fence: int) -> None:
        before = self.finished
        super().fenced(fence)
        self.finished = before


class _Remembering(_Unchecked):
    def forgettable(self, fence: int) -> list[TaskName]:
        return []


CONTROLS = {
    "no gate": Plan(0, 1, gate=lambda limit: _Open(limit=limit)),
    "a gate that counts leases alone": Plan(0, 1, gate=lambda limit: _Counting(limit=limit)),
    "new tasks before returned ones, which do not count": Plan(
        0, 1, returned_first=False, gate=lambda limit: _Forgetful(limit=limit)
    ),
    "pushes without names": Plan(0, 1, names=False),
    "FAILED tasks are never closed": Plan(0, 1, closes=False, attempts=2),
    "a restored slot takes leases from before": Plan(
        0, 1, fences=False, restores=5, deaths=16, slots=2, tasks=8
    ),
    "answers of an earlier life make a task DONE": Plan(0, 1, lives=False, restores=4),
    "ended leases are forgotten and not fenced out": Plan(0, 1, deserted=True, fences_ended=False, deaths=12),
    "a fenced task is not counted": Plan(
        0, 1, deserted=True, deaths=12, gate=lambda limit: _Uncounting(limit=limit)
    ),
    "returned tasks of a data set that nobody asks for are never forgotten": Plan(
        0, 1, deserted=True, deaths=12, gate=lambda limit: _Remembering(limit=limit)
    ),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_broken_rule_is_found(control: str) -> None:
    for seed in range(1500):
        try:
            run(replace(CONTROLS[control], seed=seed))
        except Broken:
            return
        except IllegalTransition:
            continue  # not what is looked for
    pytest.fail(f"{control}: not found in 1500 seeds")

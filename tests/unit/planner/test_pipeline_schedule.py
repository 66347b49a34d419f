"""List ordering, 1F1B and GPipe: which blocks a device runs, in which order, and that no order deadlocks."""

from __future__ import annotations

from itertools import product

import pytest

from elastane_planner.errors import InvalidPlan, InvalidRequest
from elastane_planner.plan import Plan, Stage
from elastane_planner.schedule import (
    Block,
    Order,
    blocks,
    from_csv,
    gpipe,
    in_flight,
    linear,
    listed,
    one_f_one_b,
    to_csv,
)

ORDERS = [blocks, gpipe, one_f_one_b]


def plan_of(*replicas: int) -> Plan:
    """A plan with a unit a stage and so many replicas of each."""
    seats = [sum(replicas[:stage]) for stage in range(len(replicas) + 1)]
    return Plan(tuple(Stage(s, s + 1, tuple(range(seats[s], seats[s + 1]))) for s in range(len(replicas))))


def text(own: tuple[Block, ...]) -> str:
    return " ".join(f"{block.kind}{block.micro_batch}" for block in own)


def queues_of_the_paper(stages: int, micro_batches: int) -> list[list[Block]]:
    """SPP's execution scheduler word for word, with its queues: blocks by stage."""
    places = 4 * stages - 3
    queues: list[list[int]] = [list(range(micro_batches))] + [[] for _ in range(places)]
    order: list[list[Block]] = [[] for _ in range(stages)]
    while any(queues[:places]):
        popped = [(j, queues[j].pop(0)) for j in range(places) if queues[j]]
        for j, micro_batch in popped:
            queues[j + 1].append(micro_batch)
            if j % 2 == 0:
                stage = min(j, places - 1 - j) // 2
                if j <= 2 * stages - 2:
                    order[stage].append(Block("F", stage, micro_batch))
                if j >= 2 * stages - 2:
                    order[stage].append(Block("B", stage, micro_batch))
    return order


@pytest.mark.parametrize(("stages", "micro_batches"), list(product([1, 2, 3, 5], [1, 2, 7, 30])))
def test_without_replicas_it_is_the_list_ordering_of_the_paper(stages: int, micro_batches: int) -> None:
    expected = queues_of_the_paper(stages, micro_batches)
    assert [list(own) for own in blocks(plan_of(*[1] * stages), micro_batches).values()] == expected


def test_by_hand() -> None:
    order = blocks(plan_of(1, 1), 6)
    assert text(order[0]) == "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"
    assert text(order[1]) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"
    assert [text(own) for own in one_f_one_b(plan_of(1, 1), 3).values()] == [
        "F0 F1 B0 F2 B1 B2",
        "F0 B0 F1 B1 F2 B2",
    ]
    assert text(gpipe(plan_of(2), 3)[0]) == "F0 F2 B0 B2"


def test_a_replica_runs_whole_micro_batches_one_in_r() -> None:
    order = blocks(plan_of(2, 3), 7)
    assert {block.micro_batch for block in order[0]} == {0, 2, 4, 6}
    assert [{block.micro_batch for block in order[device]} for device in (2, 3, 4)] == [
        {0, 3, 6},
        {1, 4},
        {2, 5},
    ]


def test_more_replicas_than_micro_batches_leave_devices_without_a_block() -> None:
    assert blocks(plan_of(3), 2) == {
        0: (Block("F", 0, 0), Block("B", 0, 0)),
        1: (Block("F", 0, 1), Block("B", 0, 1)),
        2: (),
    }


SHAPES = [shape for stages in range(1, 5) for shape in product([1, 2, 3, 5], repeat=stages)]


@pytest.mark.parametrize("make", ORDERS, ids=lambda make: make.__name__)
def test_no_order_deadlocks_and_each_has_all_blocks(make) -> None:  # type: ignore[no-untyped-def]
    for shape in SHAPES:
        for micro_batches in (1, 4, 9):
            plan = plan_of(*shape)
            sequence = linear(make(plan, micro_batches), plan, micro_batches)
            assert len(set(sequence)) == 2 * len(shape) * micro_batches


def test_listed_never_puts_a_block_before_what_it_waits_for() -> None:
    for shape in SHAPES:
        last, done = len(shape) - 1, set()
        for block in listed(shape, 8):
            kind, stage, micro_batch = block
            if kind == "F" and stage:
                assert ("F", stage - 1, micro_batch) in done
            if kind == "B":
                assert (("F", last, micro_batch) if stage == last else ("B", stage + 1, micro_batch)) in done
            done.add(block)


def test_in_flight_is_what_the_order_has() -> None:
    for shape in SHAPES:
        for micro_batches in (1, 3, 10, 40):
            plan, most = plan_of(*shape), [0] * len(shape)
            for own in blocks(plan, micro_batches).values():
                kept = 0
                for block in own:
                    kept += 1 if block.kind == "F" else -1
                    most[block.stage] = max(most[block.stage], kept)
            assert in_flight(shape, micro_batches) == tuple(most)


def test_csv_of_torch_both_ways() -> None:
    order = blocks(plan_of(1, 2), 3)
    assert to_csv(order).splitlines()[1] == "1F0,1B0,1F2,1B2"
    assert from_csv(to_csv(order)) == order
    with pytest.raises(InvalidPlan, match="1I0"):
        from_csv("0F0,1I0\n")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({0: (Block("F", 0, 0),)}, "1 of 4 blocks"),
        ({0: (Block("B", 0, 0), Block("F", 0, 0)), 1: (Block("F", 1, 0), Block("B", 1, 0))}, "never ends"),
        ({0: (Block("F", 0, 0), Block("F", 0, 0))}, "comes twice"),
        ({1: (Block("F", 0, 0),)}, "not one of device 1"),
        ({0: (Block("F", 0, 4),)}, "not one of device 0"),
        ({0: (Block("F", 7, 0),)}, "never ends"),
    ],
)
def test_orders_that_cannot_be_run(order: Order, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        linear(order, plan_of(1, 1), 1)


@pytest.mark.parametrize("make", ORDERS, ids=lambda make: make.__name__)
def test_no_micro_batch(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest, match="at least one micro-batch"):
        make(plan_of(1), 0)

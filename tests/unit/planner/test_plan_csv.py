"""Schedules with transfers are those that torch makes of ours, and are read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane_planner.errors import InvalidPlan
from elastane_planner.plan import Plan, Stage
from elastane_planner.plan_csv import read_schedule, stages_of, with_transfers
from elastane_planner.schedule import Order, blocks, gpipe, one_f_one_b, to_csv


def _plan(*replicas: int) -> Plan:
    stages, device = [], 0
    for index, count in enumerate(replicas):
        stages.append(Stage(index, index + 1, tuple(range(device, device + count))))
        device += count
    return Plan(tuple(stages))


@pytest.mark.parametrize("make", [blocks, gpipe, one_f_one_b])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_transfers_are_where_torch_puts_them(make: object, stages: int) -> None:
    from torch.distributed.pipelining.schedules import _Action, _add_send_recv

    plan = _plan(*[1] * stages)
    order: Order = make(plan, 5)  # type: ignore[operator]
    rows = [[_Action.from_str(cell) for cell in row.split(",")] for row in to_csv(order).splitlines()]
    lowered = _add_send_recv(dict(enumerate(rows)), lambda stage: stage, stages)
    ours = [row.split(",") for row in with_transfers(order, plan, 5).splitlines()]
    assert ours == [[str(action) for action in lowered[rank]] for rank in range(stages)]


def test_torch_runs_our_csv(tmp_path: Path) -> None:
    """Torch's simulation of a schedule ends, so each receive has its send, in an order without a deadlock."""
    from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

    plan = _plan(1, 1, 1)
    text = with_transfers(blocks(plan, 4), plan, 4)
    actions = {
        rank: [_Action.from_str(cell) for cell in row.split(",")]
        for rank, row in enumerate(text.splitlines())
    }
    _simulate_comms_compute(actions, lambda stage: stage, 3)


@pytest.mark.parametrize("replicas", [(1,), (1, 1), (2, 1), (1, 3, 2)])
@pytest.mark.parametrize("micro_batches", [1, 4, 7])
def test_both_formats_are_read_back(replicas: tuple[int, ...], micro_batches: int) -> None:
    plan = _plan(*replicas)
    order = blocks(plan, micro_batches)
    assert read_schedule(to_csv(order)) == order
    text = with_transfers(order, plan, micro_batches)
    assert read_schedule(text) == order
    assert ("SEND" in text) == (len(replicas) > 1)
    if micro_batches == 7:
        assert stages_of(order) == {index: stage.devices for index, stage in enumerate(plan.stages)}


@pytest.mark.parametrize(
    "text",
    [
        "0SEND_F0,0F0,0B0",  # sent before it is there
        "0F0,0SEND_F0,0B0",  # nobody receives it
        "0F0,0B0\n1F0,1RECV_F0,1B0",  # received after it was needed
        "0F0,0B0\n1RECV_F0,1F0,1B0",  # nobody sends it
        "0SEND_F0",  # without its block
        "0F0,0W0",
        "0F0,hello",
    ],
)
def test_transfers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidPlan):
        read_schedule(text)


def test_an_order_of_another_plan_is_refused() -> None:
    with pytest.raises(InvalidPlan):
        with_transfers(blocks(_plan(1, 1), 4), _plan(2), 4)


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,1F0",  # two stages on one device
        "0F0,0F1\n0F1,0F2",  # a block twice
        "0F0,0F1\n0F2,0F3",  # not in turn
    ],
)
def test_schedules_that_no_plan_has(text: str) -> None:
    with pytest.raises(InvalidPlan):
        stages_of(read_schedule(text))

"""Schedules with their transfers, in the CSV of torch.distributed.pipelining.

A row is a device (torch: a rank), a cell an action: `2F0` the forward of micro-batch 0 on stage 2, `2SEND_F0`
and `3RECV_F0` its output on the way. Torch's "compute_only" has forwards and backwards alone
(`schedule.to_csv`), "compute_comms" the transfers, too. Torch's runtime knows one device a stage; with
replicas, the same stage is in several rows, each with its own micro-batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from elastane_planner.errors import InvalidPlan
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block, Order, from_csv, linear

_TRANSFER: Final = re.compile(r"(\d+)(SEND|RECV)_(F|B)(\d+)")


def with_transfers(order: Order, plan: Plan, micro_batches: int) -> str:
    """Return an order as "compute_comms": a frame is sent after its block, and received from then on.

    Transfers are placed as torch's own lowering places them. Raises InvalidPlan for an order of another plan.
    """
    linear(order, plan, micro_batches)
    last = len(plan.stages) - 1
    rows: dict[int, list[str]] = {device: [] for device in sorted(order)}
    left = {device: list(reversed(order[device])) for device in rows if order[device]}
    there: set[Block] = set()  # blocks whose input has come
    while left:
        for device in list(left):
            block = left[device][-1]
            waits = block.stage > 0 if block.kind == "F" else block.stage < last
            if waits and block not in there:
                continue
            left[device].pop()
            if not left[device]:
                del left[device]
            rows[device].append(str(block))
            target = block.stage + (1 if block.kind == "F" else -1)
            if 0 <= target <= last:
                kind, micro_batch = block.kind, block.micro_batch
                rows[device].append(f"{block.stage}SEND_{kind}{micro_batch}")
                rows[plan.stages[target].replica_of(micro_batch)].append(f"{target}RECV_{kind}{micro_batch}")
                there.add(Block(kind, target, micro_batch))
    return "".join(",".join(row) + "\n" for row in rows.values())


def read_schedule(text: str) -> dict[int, tuple[Block, ...]]:
    """Read either format; row n is device n. Transfers follow from the blocks, so they are only checked.

    Raises InvalidPlan for a cell that is neither, a transfer before its block or after the block that needs
    it, and one that is sent and never received or the other way round.
    """
    blocks: list[str] = []
    sent: set[str] = set()
    received: set[str] = set()
    for row, line in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        places = {cell: place for place, cell in enumerate(cells)}
        kept = []
        for place, cell in enumerate(cells):
            if (match := _TRANSFER.fullmatch(cell)) is None:
                kept.append(cell)
                continue
            stage, verb, kind, micro_batch = match.groups()
            block = places.get(f"{stage}{kind}{micro_batch}")
            if block is None or (block > place) == (verb == "SEND"):
                raise InvalidPlan(
                    f"row {row} of a schedule has {cell} on the wrong side of {stage}{kind}{micro_batch}, or "
                    "without it",
                    hint="A device sends what it has computed, and receives what it needs next.",
                    row=row,
                    cell=cell,
                )
            target = int(stage) + (1 if kind == "F" else -1)
            if verb == "SEND":
                sent.add(f"{target}{kind}{micro_batch}")
            else:
                received.add(f"{stage}{kind}{micro_batch}")
        blocks.append(",".join(kept))
    if lost := sorted(sent ^ received):
        raise InvalidPlan(
            f"the schedule has transfers with only one end: to {', '.join(lost)}", frames=", ".join(lost)
        )
    return from_csv("".join(f"{row}\n" for row in blocks))


def stages_of(order: Order) -> Mapping[int, tuple[int, ...]]:
    """Return the devices of each stage of an order, replica by replica.

    Raises InvalidPlan if a device runs two stages or replicas do not take turns: such plans are not
    supported.
    """
    found: dict[int, dict[int, int]] = {}
    for device in sorted(order):
        for block in order[device]:
            other = found.setdefault(block.stage, {}).setdefault(block.micro_batch, device)
            if other != device:
                raise InvalidPlan(f"devices {other} and {device} both run {block}", block=block)
    stages: dict[int, tuple[int, ...]] = {}
    owner: dict[int, int] = {}
    for stage, by_micro_batch in sorted(found.items()):
        micro_batches = sorted(by_micro_batch)
        replicas = len(set(by_micro_batch.values()))
        devices = tuple(by_micro_batch[micro_batch] for micro_batch in micro_batches[:replicas])
        if any(by_micro_batch[m] != devices[m % replicas] for m in micro_batches):
            raise InvalidPlan(f"the replicas of stage {stage} do not take turns", stage=stage)
        for device in devices:
            if owner.setdefault(device, stage) != stage:
                raise InvalidPlan(
                    f"device {device} runs stages {owner[device]} and {stage}",
                    hint="A device runs one stage.",
                    device=device,
                )
        stages[stage] = devices
    return stages

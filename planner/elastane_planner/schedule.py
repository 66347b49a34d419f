"""The order in which each device runs the blocks of a step.

A block is the forward (F) or the backward (B) of one micro-batch on one stage. The order is the same in the
simulator, in the executor and in pictures; it depends only on the plan's shape, never on times.

`blocks` is the list ordering of SPP (INFOCOM 2022), in which a micro-batch passes 4S - 3 places: forward and
send of stages 0..S-2 in turn, both blocks of the last stage as one, then send and backward back to stage 0.
In each pass every place takes its first micro-batch and hands it to the next. There a stage's replicas share
each micro-batch; here each takes whole ones, one in r, so that a block lasts r passes, and a send one. As all
places take one micro-batch a pass, none ever waits, and the backward of micro-batch m is due with the
forward of m + lag: a device runs the blocks by pass, forward before backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import ceil
from typing import Literal, NamedTuple

from elastane_planner.errors import InvalidPlan, InvalidRequest
from elastane_planner.plan import Plan


class Block(NamedTuple):
    """The forward or backward of one micro-batch on one stage."""

    kind: Literal["F", "B"]
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = Mapping[int, tuple[Block, ...]]
"""Blocks of a step by device, in the order in which it runs them. Devices without a stage are not there."""


def blocks(plan: Plan, micro_batches: int) -> dict[int, tuple[Block, ...]]:
    """Return the list ordering of a plan. The last stage runs a micro-batch's blocks one after the other.

    Raises InvalidRequest without a micro-batch.
    """
    _check(micro_batches)
    return _by_device(plan, listed(tuple(stage.replicas for stage in plan.stages), micro_batches))


def lags(replicas: Iterable[int]) -> tuple[int, ...]:
    """Return, by stage, how many micro-batches a forward is ahead of the backward in the same pass."""
    counts = list(replicas)
    last = len(counts) - 1
    return tuple(
        counts[stage] + counts[last] + 2 * sum(counts[stage + 1 : last]) + 2 * (last - stage)
        if stage < last
        else 0
        for stage in range(last + 1)
    )


def in_flight(replicas: Iterable[int], micro_batches: int) -> tuple[int, ...]:
    """Return, by stage, the most micro-batches that a replica keeps for backward in list ordering."""
    counts = list(replicas)
    return tuple(
        min(ceil(micro_batches / count), lag // count + 1)
        for count, lag in zip(counts, lags(counts), strict=True)
    )


@lru_cache(maxsize=256)
def listed(replicas: tuple[int, ...], micro_batches: int) -> tuple[Block, ...]:
    """Return all blocks of a step in list ordering: each comes after its inputs."""
    due: list[tuple[int, int, Block]] = []
    last = len(replicas) - 1
    forward_pass = 0
    for stage, lag in enumerate(lags(replicas)):
        for micro_batch in range(micro_batches):
            start = forward_pass + micro_batch
            due.append((start, stage, Block("F", stage, micro_batch)))
            due.append((start + lag, 2 * last + 1 - stage, Block("B", stage, micro_batch)))
        forward_pass += replicas[stage] + 1
    return tuple(block for _, _, block in sorted(due))


def gpipe(plan: Plan, micro_batches: int) -> dict[int, tuple[Block, ...]]:
    """Return GPipe's order: all forwards, then all backwards."""
    _check(micro_batches)
    return _warmed_up(plan, micro_batches, lambda stage: micro_batches)


def one_f_one_b(plan: Plan, micro_batches: int) -> dict[int, tuple[Block, ...]]:
    """Return PipeDream's 1F1B: enough forwards first to keep later devices busy, then alternating.

    Without replicas a stage keeps min(M, S - stage) micro-batches in flight.
    """
    _check(micro_batches)
    counts = [stage.replicas for stage in plan.stages]
    return _warmed_up(plan, micro_batches, lambda stage: ceil(sum(counts[stage:]) / counts[stage]))


def linear(order: Order, plan: Plan, micro_batches: int) -> tuple[Block, ...]:
    """Return all blocks of an order as one sequence in which each comes after its inputs.

    Raises InvalidPlan if a block is missing, duplicated or on the wrong device, or if devices would deadlock.
    """
    last = len(plan.stages) - 1
    done: set[Block] = set()
    sequence: list[Block] = []
    left = {device: list(reversed(own)) for device, own in sorted(order.items())}
    progress = True
    while progress:
        progress = False
        for device, own in left.items():
            while own and (_before(own[-1], last) in done or _before(own[-1], last) is None):
                block = own.pop()
                known = 0 <= block.stage <= last and 0 <= block.micro_batch < micro_batches
                if not known or plan.stages[block.stage].replica_of(block.micro_batch) != device:
                    raise InvalidPlan(f"block {block} is not one of device {device}", block=block)
                if block in done:
                    raise InvalidPlan(f"block {block} comes twice", block=block)
                done.add(block)
                sequence.append(block)
                progress = True
    if stuck := [str(own[-1]) for own in left.values() if own]:
        raise InvalidPlan(f"the schedule never ends: {', '.join(stuck)} wait for later blocks, or for none")
    if len(done) != 2 * micro_batches * (last + 1):
        raise InvalidPlan(f"an order has {len(done)} of {2 * micro_batches * (last + 1)} blocks")
    return tuple(sequence)


def to_csv(order: Order) -> str:
    """Return an order as torch.distributed.pipelining's CSV ("compute_only"): a row a device, cells 2F0."""
    return "".join(",".join(map(str, order[device])) + "\n" for device in sorted(order))


def from_csv(text: str) -> dict[int, tuple[Block, ...]]:
    """Read torch's CSV ("compute_only"); row n is device n. Raises InvalidPlan for an unknown cell.

    Only full backwards are supported: not I and W, which split one, and no transfers.
    """
    order = {}
    for device, row in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in row.split(",")]
        order[device] = tuple(_parsed(cell, device) for cell in cells if cell)
    return order


def _parsed(cell: str, row: int) -> Block:
    """Return the block that a cell of a CSV names."""
    for kind in ("F", "B"):
        stage, found, micro_batch = cell.partition(kind)
        if found and stage.isdecimal() and micro_batch.isdecimal():
            return Block("F" if kind == "F" else "B", int(stage), int(micro_batch))
    raise InvalidPlan(
        f"row {row} of a schedule has {cell!r}, which is no block",
        hint="Forwards and full backwards alone, as 2F0 and 2B0.",
        row=row,
        cell=cell,
    )


def _before(block: Block, last: int) -> Block | None:
    """Return the block of the same micro-batch that this one waits for."""
    kind, stage, micro_batch = block
    if kind == "F":
        return Block("F", stage - 1, micro_batch) if stage else None
    return Block("F", stage, micro_batch) if stage == last else Block("B", stage + 1, micro_batch)


def _warmed_up(plan: Plan, micro_batches: int, ahead: Callable[[int], int]) -> dict[int, tuple[Block, ...]]:
    """Return the order in which each replica runs some forwards, then alternates backward and forward."""
    order: dict[int, tuple[Block, ...]] = {}
    for index, stage in enumerate(plan.stages):
        for replica, device in enumerate(stage.devices):
            own = range(replica, micro_batches, stage.replicas)
            warm = min(ahead(index), len(own))
            sequence = [Block("F", index, micro_batch) for micro_batch in own[:warm]]
            for number, micro_batch in enumerate(own):
                sequence.append(Block("B", index, micro_batch))
                sequence += [Block("F", index, later) for later in own[warm + number : warm + number + 1]]
            order[device] = tuple(sequence)
    return order


def _by_device(plan: Plan, sequence: Iterable[Block]) -> dict[int, tuple[Block, ...]]:
    """Distribute a sequence of blocks to the devices that run them."""
    order: dict[int, list[Block]] = {device: [] for device in plan.devices}
    for block in sequence:
        order[plan.stages[block.stage].replica_of(block.micro_batch)].append(block)
    return {device: tuple(own) for device, own in order.items()}


def _check(micro_batches: int) -> None:
    if micro_batches < 1:
        raise InvalidRequest("a step has at least one micro-batch", micro_batches=micro_batches)

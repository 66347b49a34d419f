"""Compares every division of small models into pipelines with stock DDP of four processes, bit for bit.

    make pipeline-parity                 all models, cuts, memories, replicas and orders, and the controls
    make pipeline-parity ONLY=cnn        one model
    python -m parity.pipeline_matrix --device cuda      on a GPU, beside the uncut model

Stock DDP is trained once for each model (gloo, real processes). The pipelines' workers run in this process,
in random order of their blocks (`elastane.pipeline.local_links`): sha256 of weights, optimizer, buffers,
losses of all ranks, and of the generators are compared after every step.

Exit codes: 0 all equal and all controls with a broken rule differ, 1 otherwise, 2 usage.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import torch

from elastane_planner.plan import Memory, Plan, Stage
from elastane_planner.schedule import Block, blocks, gpipe, one_f_one_b
from parity.pipeline_controls import CONTROLS, NOTHING_BROKEN
from parity.pipeline_models import MODELS
from parity.pipeline_runs import ESTS, LocalJob, Trace, stock

STAGES_MAX: Final = 4
MEMORIES: Final[tuple[Memory, ...]] = get_args(Memory)
#: Maximum number of workers of a ring: one for each EST.
MEMBERS_MAX: Final = ESTS


@dataclass(frozen=True)
class Case:
    """A plan of a model. order: of the blocks; seed: of a random order, shadows, and of the run's order."""

    model: str
    plan: Plan
    members: int
    order: str
    seed: int

    def __str__(self) -> str:
        return f"{self.model}: {self.plan.text()}, {self.members} workers, {self.order}, seed {self.seed}"


def any_order(plan: Plan, micro_batches: int, seed: int) -> dict[int, tuple[Block, ...]]:
    """Return a random valid order of blocks: a random topological order of their dependencies."""
    draw = random.Random(f"order {seed}")
    last = len(plan.stages) - 1
    order: dict[int, list[Block]] = {device: [] for device in plan.devices}
    able = [Block("F", 0, micro) for micro in range(micro_batches)]
    while able:
        block = able.pop(draw.randrange(len(able)))
        kind, stage, micro = block
        order[plan.stages[stage].replica_of(micro)].append(block)
        if kind == "F":
            able.append(Block("F", stage + 1, micro) if stage < last else Block("B", stage, micro))
        elif stage:
            able.append(Block("B", stage - 1, micro))
    return {device: tuple(own) for device, own in order.items()}


ORDERS: Final[dict[str, Callable[[Plan, int, int], dict[int, tuple[Block, ...]]]]] = {
    "listed": lambda plan, micro_batches, seed: blocks(plan, micro_batches),
    "gpipe": lambda plan, micro_batches, seed: gpipe(plan, micro_batches),
    "1f1b": lambda plan, micro_batches, seed: one_f_one_b(plan, micro_batches),
    "random": any_order,
}


def cuts(units: int) -> Iterator[tuple[int, ...]]:
    """Yield the bounds of all cuts into 1 to 4 stages: (0, .., units)."""
    for stages in range(1, min(STAGES_MAX, units) + 1):
        for inner in itertools.combinations(range(1, units), stages - 1):
            yield (0, *inner, units)


def replicas(stages: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of workers of the stages."""
    for counts in itertools.product(range(1, MEMBERS_MAX + 1), repeat=stages):
        if sum(counts) <= MEMBERS_MAX:
            yield counts


def cases(model: str) -> Iterator[Case]:
    """Yield every case of a model: cuts x memories x replicas, each in two of the orders in turn.

    A fifth of the stages use another kind of memory. Placement of stages on workers, shadows and workers
    without a stage are random.
    """
    number = 0
    for bounds in cuts(len(MODELS[model].units())):
        stages = len(bounds) - 1
        for counts, memory in itertools.product(replicas(stages), MEMORIES):
            for _ in range(2):
                number += 1
                yield _case(model, bounds, counts, memory, number)


def _case(model: str, bounds: Sequence[int], counts: Sequence[int], memory: Memory, number: int) -> Case:
    draw = random.Random(f"case {model} {number}")
    members = draw.randint(sum(counts), MEMBERS_MAX)
    free = draw.sample(range(members), members)
    chosen, shadows = [], []
    for first, end, count in zip(bounds, bounds[1:], counts, strict=False):
        devices, free = tuple(free[:count]), free[count:]
        kept = memory if draw.random() < 0.8 else draw.choice(MEMORIES)
        chosen.append(Stage(first, end, devices, kept))
        others = [member for member in range(members) if member not in devices]
        shadows.append(tuple(member for member in others if draw.random() < 0.2))
    order = list(ORDERS)[number % len(ORDERS)]
    return Case(model, Plan(tuple(chosen), tuple(shadows)), members, order, number)


def run(case: Case, device: str = "cpu") -> Trace:
    """Train a case."""
    job = LocalJob(MODELS[case.model], seed=case.seed, device=device)
    try:
        job.set_plan(case.plan, case.members, ORDERS[case.order](case.plan, ESTS, case.seed))
        return job.run()
    finally:
        job.close()


def uncut(names: Sequence[str], device: str) -> dict[str, Trace]:
    """Train these models undivided on one worker, as the reference where there is no stock DDP."""
    _deterministic()
    plans = {name: Plan((Stage(0, len(MODELS[name].units()), (0,)),)) for name in names}
    return {name: run(Case(name, plan, 1, "gpipe", 0), device) for name, plan in plans.items()}


def _deterministic() -> None:
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


#: Reference traces and device, in the processes that compare.
_STOCK: dict[str, Trace] = {}
_DEVICE = ["cpu"]


def _begin(traces: dict[str, Trace], device: str) -> None:
    _deterministic()
    _STOCK.update(traces)
    _DEVICE[0] = device


def verdict(case: Case) -> tuple[str, str]:
    """Return (description of the case, what differs or was raised; "" if nothing)."""
    try:
        return str(case), ", ".join(run(case, _DEVICE[0]).differences(_STOCK[case.model]))
    except Exception as error:  # noqa: BLE001 (it is the case's verdict)
        notes = "".join(getattr(error, "__notes__", []))
        return str(case), f"{type(error).__name__}: {error}{notes}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all; returns the exit code."""
    parser = argparse.ArgumentParser(description="Pipelines beside stock DDP, bit for bit.")
    parser.add_argument("--only", choices=sorted(MODELS), help="this model alone")
    parser.add_argument("--processes", type=int, default=2, help="processes that compare")
    parser.add_argument("--every", type=int, default=1, help="every n-th case alone")
    parser.add_argument("--device", default="cpu", help="cuda: beside the uncut model instead of stock DDP")
    chosen = parser.parse_args(arguments)
    names = [chosen.only] if chosen.only else list(MODELS)
    began = time.perf_counter()
    _deterministic()  # as in the processes that compare: the controls run here
    traces = stock(names) if chosen.device == "cpu" else uncut(names, chosen.device)
    beside = f"stock DDP of {ESTS} processes" if chosen.device == "cpu" else "uncut models"
    print(f"{beside}: {len(names)} models, {time.perf_counter() - began:.0f} s")
    work = [case for name in names for case in itertools.islice(cases(name), 0, None, chosen.every)]
    counted: Counter[str] = Counter()
    wrong = []
    context = multiprocessing.get_context("forkserver")
    with context.Pool(chosen.processes, _begin, (traces, chosen.device)) as pool:
        for case, found in zip(work, pool.imap(verdict, work, chunksize=8), strict=True):
            counted[case.model] += 1
            if found[1]:
                wrong.append(found)
                print(f"DIFFERS  {found[0]}: {found[1]}")
        for name in names:
            print(f"{name}: {counted[name]} plans, {sum(w[0].startswith(f'{name}:') for w in wrong)} differ")
        missed = 0
        for control in (*NOTHING_BROKEN, *CONTROLS):
            if control.model not in names or chosen.device != "cpu":
                continue
            found = control.differing(traces[control.model])
            differ = sum(map(bool, found))
            missed += bool(differ) != (control in CONTROLS)
            print(f"control, {control.title}: {differ} of {len(found)} cuts of {control.model} differ")
    print(f"{len(work) - len(wrong)} of {len(work)} plans equal, {time.perf_counter() - began:.0f} s")
    return int(bool(wrong or missed))


if __name__ == "__main__":
    sys.exit(main())

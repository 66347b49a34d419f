"""What a script does to gradients after `pipe(batch)` reaches nobody who holds the same units."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from elastane.collective.rendezvous import RendezvousStore
from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.ring_links import RingLinks
from elastane_planner.plan import Plan, Stage
from integration.ring_threads import form_ring, in_threads
from unit.pipeline.test_pipeline_executor import GENERATORS, _Units


@pytest.mark.parametrize(
    "plan",
    [Plan((Stage(0, 1, (0,)),), ((1,),)), Plan((Stage(0, 1, (0,)), Stage(1, 2, (2,))), ((1,), (1,)))],
    ids=["one stage", "two stages"],
)
def test_a_shadow_that_comes_late_gets_the_sums_and_not_what_became_of_them(plan: Plan) -> None:
    """gloo reads a message when its receiver asks for it: clipping in place before that would be sent.

    The shadow asks when all others wait until what they have sent is out, or have changed it.
    """
    torch.manual_seed(1)
    count, members = len(plan.stages), 1 + max(*plan.devices, 1)
    modules = [nn.Linear(300, 300) for _ in range(count)]
    store = RendezvousStore("127.0.0.1")
    ring = form_ring(store, "sums", members)
    links = [RingLinks(transport) for transport in ring]
    own = [_Units(copy.deepcopy(modules)) for _ in ring]
    executors = [StepExecutor(units, lambda out, _: out.sum(), 2, GENERATORS) for units in own]
    ranges = [(0, 2), *[(2, 2)] * (members - 1)]
    for me, executor in enumerate(executors):
        executor.set_ring(plan, me, ranges, links[me], 1, None)

    sums = [threading.Event() for _ in ring]
    done = [threading.Event() for _ in ring]

    def settling(me: int, settle: Callable[[], None]) -> Callable[[], None]:
        def settled() -> None:
            if sums[me].is_set():
                done[me].set()
            settle()

        return settled

    for me, one in enumerate(links):
        one.settle = settling(me, one.settle)  # type: ignore[method-assign]

    def step(me: int) -> dict[str, torch.Tensor]:
        executor = executors[me]
        executor.begin_step(0)
        if me == 1:
            assert all(done[other].wait(20) for other in range(members) if other != me)
        batch = MicroBatch(torch.ones(3, 300), None, GENERATORS.capture())
        executor.run_wave(0, {0: batch, 1: batch} if me == 0 else {}, last=True)
        sums[me].set()
        executor.sum_gradients()
        named = nn.Sequential(*own[me].modules).named_parameters()
        seen = {name: param.grad for name, param in named if param.grad is not None}
        found = {name: gradient.clone() for name, gradient in seen.items()}
        for gradient in seen.values():
            gradient.zero_()
        done[me].set()
        return found

    found = in_threads(members, step)
    for me in {0, members - 1} - {1}:
        for name, gradient in found[me].items():
            assert gradient.abs().sum() > 0 and torch.equal(found[1][name], gradient), name
    for executor, one, transport in zip(executors, links, ring, strict=True):
        executor.end_step(applied=False)
        executor.close()
        one.close()
        transport.close()
    store.close()

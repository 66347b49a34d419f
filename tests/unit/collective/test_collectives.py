"""Which collectives a step starts, and in which order, on a ring of one member."""

from __future__ import annotations

import threading

import pytest
import torch

from elastane.collective.collectives import StepCollectives
from elastane.collective.ring_errors import RingAborted
from elastane.collective.ring_thread import finish_in_thread
from elastane.collective.transport import RingTransport


@pytest.fixture
def alone():
    ring = RingTransport.form(store_address="", prefix="", rank=0, size=1, cancel=threading.Event())
    collectives = StepCollectives(torch.device("cpu"), [torch.zeros(2)])
    collectives.set_ring(ring, [(0, 2)], 0)
    yield collectives
    collectives.close()


class Plan:
    """A bucket whose sum is noted; an error instead of a name is raised."""

    def __init__(self, name, ran):
        self.name, self.ran = name, ran

    def run(self, transport, tag):
        if isinstance(self.name, Exception):
            raise self.name
        self.ran.append((self.name, tag))

    def settle(self):
        pass


class Memory:
    """`Slots`, as far as the end of a step needs them."""

    def __init__(self, plans):
        self.plans = plans

    def settle(self):
        pass


def test_a_bucket_waits_for_those_before_it_and_the_last_one_until_it_is_let_go(alone):
    ran = []
    plans = [Plan(name, ran) for name in "abcd"]
    missing, started = [0, 2, 0, 0], 0
    alone.begin_step()
    started = alone.start_buckets(plans, started, 3, missing, backward_done=False)
    assert started == 1
    missing[1] = 0
    started = alone.start_buckets(plans, started, 3, missing, backward_done=False)
    assert started == 3, "the last one is held"
    assert alone.start_buckets(plans, started, 4, missing, backward_done=True) == 4
    assert alone.finish(Memory(plans), None) is None
    assert ran == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


def test_the_buffers_are_those_of_the_last_step_that_succeeded(alone):
    for step, error in enumerate((None, RingAborted("the ring is over"), None)):
        plans = [Plan(error or "a", [])]
        alone.begin_step()
        alone.start_buckets(plans, 0, 1, [0], backward_done=True)
        alone.keep_buffers([torch.full((2,), float(step))])
        alone.broadcast_buffers()
        assert alone.finish(Memory(plans), None) is error
        assert alone.buffers[0].tolist() == ([0.0, 0.0] if step < 2 else [2.0, 2.0])


def test_a_step_that_is_given_up_fails_with_its_reason_and_the_next_one_without(alone):
    alone.begin_step()
    alone.give_up("a draw")
    alone.start_buckets(plans := [Plan(RingAborted("aborted"), [])], 0, 1, [0], backward_done=True)
    assert str(alone.finish(Memory(plans), None)) == "a draw"
    alone.begin_step()
    alone.start_buckets(plans, 0, 1, [0], backward_done=True)
    assert str(alone.finish(Memory(plans), None)) == "aborted"


def test_a_caller_works_while_its_task_waits_for_others():
    ring = RingTransport.form(store_address="", prefix="", rank=0, size=1, cancel=threading.Event())
    is_working = threading.Event()
    assert finish_in_thread("task", ring, lambda: is_working.wait(60), is_working.set)

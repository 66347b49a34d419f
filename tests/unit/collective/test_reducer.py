"""The reducer's rules, on a ring of one member."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from elastane.collective import slots
from elastane.collective.allreduce import CanonicalAllreduce
from elastane.collective.gradient_digest import GradientDigest
from elastane.collective.reducer import Reducer
from elastane.collective.ring_errors import RingAborted
from elastane.collective.transport import RingTransport
from elastane_common.errors import StepError, UnsupportedError


def _alone():
    return RingTransport.form(store_address="", prefix="", rank=0, size=1, cancel=threading.Event())


@pytest.fixture
def make():
    made = []

    def build(module, ests=3, **options):
        names, params = zip(*module.named_parameters(), strict=True)
        reducer = Reducer(params, names, ests, list(module.buffers()), **options)
        reducer.set_ring(_alone(), [(0, ests)], 0)
        made.append(reducer)
        return reducer

    yield build
    for reducer in made:
        reducer.close()


class _Elementwise(nn.Module):
    """Its gradient is x times the loss's: no sum that starts from 0.0 hides a -0.0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self, x):
        return x * self.weight


class _TwoTypes(nn.Linear):
    """Two buckets: of a ring of one, all but the last are summed by the ring's thread."""

    def __init__(self):
        super().__init__(4, 2)
        self.factor = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x) * self.factor


class _Report:
    """What the worker does during the last backward."""

    def __init__(self, first=lambda: False, last=lambda: ""):
        self.first_gradient = first
        self.last_gradient = lambda: last() or ""


def _step(reducer, module, ests=3, zero=lambda: None, loss=None, x=None, report=None):
    for slot in range(ests):
        reducer.begin_backward(slot, slot == ests - 1, record_order=False, report=report)
        zero()
        batch = torch.full((2, 4), float(slot + 1)) if x is None else x
        (loss or (lambda out: out.sum()))(module(batch)).backward()


def test_gradients_are_the_est_s_own_until_the_last_turn(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    seen = []
    for slot in range(3):
        reducer.begin_backward(slot, slot == 2, record_order=slot == 0)
        module(torch.full((2, 4), float(slot + 1))).sum().backward()
        seen.append(module.weight.grad)
        if slot < 2:
            module.weight.grad.zero_()  # what the script does with it is its own affair
    assert torch.allclose(seen[2], torch.full((2, 4), 4.0))
    assert torch.equal(module.bias.grad, torch.full((2,), 2.0))
    assert sorted(reducer.ready_order) == [0, 1]


def test_a_step_that_is_reported_early_is_summed_when_it_is_confirmed(make, monkeypatch):
    """The first gradient of the last turn asks; the last bucket waits for the end of the backward."""
    module, events = _TwoTypes(), []
    run = CanonicalAllreduce.run
    monkeypatch.setattr(CanonicalAllreduce, "run", lambda *args: (events.append("sum"), run(*args)))
    reducer = make(module)
    report = _Report(lambda: events.append("report") is None, lambda: events.append("confirm"))
    _step(reducer, module, zero=lambda: events.append("turn"), report=report)
    assert [event for event in events if event != "sum"] == ["turn", "turn", "turn", "report", "confirm"]
    assert events.count("sum") == 2 and events[-1] == "sum"
    assert torch.equal(module.bias.grad, torch.full((2,), 2.0))


def test_which_gradients_there_were_when_a_step_began_is_told_all_through_it(make):
    """Workers that compare their states are asked within a step, at whichever line of it they are."""
    module = nn.Linear(4, 2)
    reducer, told = make(module), []

    def cleared():
        module.zero_grad()
        told.append(reducer.gradients.state_dict())

    for _ in range(2):
        _step(reducer, module, zero=cleared)
        told.append(reducer.gradients.state_dict())
        reducer.end_step()
    assert [state["defined"] for state in told] == [[]] * 4 + [[0, 1]] * 4
    module.zero_grad()  # between two steps it is the script's
    assert reducer.gradients.state_dict() == {"defined": []}


def test_averages_are_the_same_and_have_no_graph_where_backward_makes_one(make):
    averages = []
    for options in ({}, {"create_graph": True}):
        torch.manual_seed(0)
        module = nn.Linear(4, 2)
        reducer = make(module)
        for slot in range(3):
            module.zero_grad()
            reducer.begin_backward(slot, slot == 2, record_order=False)
            module(torch.full((2, 4), slot + 1.0)).square().sum().backward(**options)
        averages.append([module.weight.grad, module.bias.grad])
        assert not any(one.requires_grad for one in averages[-1])
    assert all(torch.equal(*pair) for pair in zip(*averages, strict=True))


def test_a_step_that_is_not_confirmed_is_not_summed(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module, report=_Report(lambda: True, lambda: "a draw"))
    assert isinstance(reducer.failure, RingAborted)
    assert str(reducer.failure) == "a draw"
    assert torch.allclose(module.weight.grad, torch.full((2, 4), 2.0))  # the last EST's own, scaled


def _run(reducer, module, batches, *, guest=None, digests=None):
    """A step of ESTs with these batches; guest: batch of another worker's EST, first."""
    turns = [(0, batch, False) for batch in ([guest] if guest is not None else [])]
    turns += [(slot, batch, True) for slot, batch in enumerate(batches)]
    for slot, batch, own in turns:
        digest = GradientDigest()
        reducer.begin_backward(
            slot, own and slot == len(batches) - 1, record_order=False, guest=not own, digest=digest
        )
        module.zero_grad()
        module(batch).sum().backward()
        if digests is not None:
            digests.append(digest.value())


@pytest.mark.parametrize("kind", [_TwoTypes, lambda: nn.Linear(4, 2)])
def test_another_workers_est_leaves_no_trace_and_its_digest_is_its_hosts(make, kind):
    module = kind()
    reducer = make(module)
    batches = [torch.randn(2, 4) for _ in range(3)]
    plain, digests = [], []
    _run(reducer, module, batches, digests=digests)
    plain = [param.grad.clone() for param in module.parameters()]
    for rank, batch in enumerate(batches):
        reducer.end_step()
        seen = []
        _run(reducer, module, batches, guest=batch, digests=seen)
        assert seen == [digests[rank], *digests]
        assert all(map(torch.equal, plain, [param.grad for param in module.parameters()]))
    reducer.end_step()
    _run(reducer, module, batches, guest=torch.nextafter(batches[0], batches[1]), digests=(seen := []))
    assert seen[0] not in digests


def test_a_parameter_that_only_another_workers_est_uses_keeps_its_gradient(make):
    module = nn.ModuleDict({"used": nn.Linear(4, 2), "spare": nn.Linear(4, 2)})
    reducer = make(module, find_unused_parameters=True)
    for slot, last, name in ((0, False, "spare"), (0, False, "used"), (1, False, "used"), (2, True, "used")):
        reducer.begin_backward(slot, last, record_order=False, guest=name == "spare")
        module[name](torch.ones(2, 4)).sum().backward()
        module.zero_grad() if not last else None
    assert module["spare"].weight.grad is None
    assert torch.allclose(module["used"].weight.grad, torch.full((2, 4), 2.0))


@pytest.mark.parametrize("early", [True, False])
def test_a_ring_that_ends_by_itself_is_not_said_to_be_given_up(make, early):
    """Whenever the step is reported, and though the one before was given up."""
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module, report=_Report(lambda: early, lambda: "a draw"))
    reducer.set_ring(ring := _alone(), [(0, 3)], 0)
    _step(reducer, module, zero=module.zero_grad, report=_Report(lambda: early, ring.abort))
    assert isinstance(reducer.failure, RingAborted)
    assert "a draw" not in str(reducer.failure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_gradients_are_put_aside_together_and_big_ones_alone(make, dtype):
    """Both ways give the product that DDP gives; of narrow types only one would, where it is not a number."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 3)).to(dtype)
    x = torch.randn(5, 300).to(dtype)
    x[0, ::7] = torch.nan
    found = []
    for limit in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slots, "GATHERED_ELEMENTS_MAX", limit)
            module.zero_grad()
            reducer = make(module, 1 + 2)
            _step(reducer, module, zero=module.zero_grad, loss=lambda out: out.float().square().sum(), x=x)
            assert reducer._slots.gathered == [limit > 1 and dtype is torch.float32]
        found.append([param.grad.clone() for param in module.parameters()])
        reducer.close()
    assert any(grad.isnan().any() for grad in found[0])
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(*found, strict=True))


def test_a_hook_behind_ours_changes_the_gradient_of_no_est(make):
    """Every EST's gradient is taken as our hook finds it, whichever EST a worker runs last."""

    def clamp(param):
        if param.grad is not None:  # the last turn's are taken away
            param.grad.clamp_(-0.5, 0.5)
            clamped.append(param)

    clamped, found = [], []
    for hook in (None, clamp):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        reducer = make(module)
        for param in module.parameters() if hook else ():
            param.register_post_accumulate_grad_hook(hook)
        _step(reducer, module, zero=module.zero_grad)
        assert reducer._slots.gathered == [True]
        found.append([param.grad.clone() for param in module.parameters()])
    assert len(clamped) == 2 * 4
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_gradient_that_another_parameter_s_hook_changes_is_refused(make):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    reducer = make(module)

    def double_the_other(param):
        module[1].weight.grad.mul_(2)

    module[0].bias.register_post_accumulate_grad_hook(double_the_other)
    with pytest.raises(UnsupportedError, match=r"1\.weight was changed while backward"):
        _step(reducer, module, zero=module.zero_grad)


def test_report_comes_before_the_sums(make):
    module = nn.Linear(4, 2)
    grads_at_report = []
    reducer = make(module)
    _step(reducer, module, report=_Report(last=lambda: grads_at_report.append(module.weight.grad)))
    assert grads_at_report == [None]
    assert module.weight.grad is not None


def test_backward_outside_the_loop_is_the_script_s_own(make):
    module = nn.Linear(4, 2)
    make(module)
    module(torch.ones(1, 4)).sum().backward()
    assert torch.equal(module.weight.grad, torch.ones(2, 4))


def test_backward_between_two_steps_is_the_script_s_own(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module)
    averaged = module.weight.grad.clone()
    reducer.end_step()
    module.zero_grad()
    module(torch.ones(2, 4)).sum().backward()
    assert torch.equal(module.weight.grad, torch.full((2, 4), 2.0))
    module.zero_grad()
    _step(reducer, module)
    assert torch.equal(module.weight.grad, averaged)


def test_a_parameter_without_a_gradient_is_named(make):
    module = nn.ModuleDict({"used": nn.Linear(4, 2), "idle": nn.Linear(4, 2)})
    reducer = make(module)
    reducer.begin_backward(0, False, record_order=False)
    with pytest.raises(StepError, match=r"no gradient to idle\.weight, idle\.bias .*find_unused_parameters"):
        module["used"](torch.ones(1, 4)).sum().backward()


@pytest.mark.parametrize("ests", [1, 3])
def test_a_second_backward_in_a_turn_is_refused(make, ests):
    module = nn.Linear(4, 2)
    reducer = make(module, ests)
    reducer.begin_backward(0, ests == 1, record_order=False)
    module(torch.ones(1, 4)).sum().backward()
    with pytest.raises(StepError, match="second gradient"):
        module(torch.ones(1, 4)).sum().backward()


def test_a_turn_without_backward_is_refused(make):
    reducer = make(nn.Linear(4, 2))
    reducer.begin_backward(0, False, record_order=False)
    with pytest.raises(StepError, match="without backward"):
        reducer.begin_backward(1, False, record_order=False)


def test_a_sparse_gradient_is_refused(make):
    module = nn.Embedding(5, 3, sparse=True)
    reducer = make(module)
    reducer.begin_backward(0, False, record_order=False)
    with pytest.raises(UnsupportedError, match="sparse"):
        module(torch.tensor([1])).sum().backward()


def test_a_sparse_gradient_behind_dense_ones_is_refused(make):
    module = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    make(module).begin_backward(0, False, record_order=False)
    with pytest.raises(UnsupportedError, match=r"0\.weight has a sparse"):
        module(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("ests", [1, 3])
def test_a_second_backward_in_a_turn_through_other_parameters_is_refused(make, ests):
    module = nn.ModuleDict({"first": nn.Linear(4, 2), "second": nn.Linear(4, 2)})
    reducer = make(module, ests, find_unused_parameters=True)
    reducer.begin_backward(0, ests == 1, record_order=False)
    module["first"](torch.ones(1, 4)).sum().backward()
    with pytest.raises(StepError, match=r"second\..* got a second gradient"):
        module["second"](torch.ones(1, 4)).sum().backward()


def test_zeroing_in_place_turns_negative_zeros_positive_for_every_est(make):
    """Stock ranks add -0.0 to the zeros that zero_grad(set_to_none=False) leaves, and get 0.0."""
    module = _Elementwise()
    reducer = make(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            reducer.drop()
        _step(
            reducer,
            module,
            zero=lambda: optimizer.zero_grad(set_to_none=False),
            loss=lambda out: (out * -0.0).sum(),
        )
        signs = torch.signbit(module.weight.grad)
        assert signs.all() if step == 0 else not signs.any(), "only the first one is added to nothing"


def test_zeroing_to_none_keeps_negative_zeros(make):
    module = _Elementwise()
    reducer = make(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        _step(reducer, module, zero=optimizer.zero_grad, loss=lambda out: (out * -0.0).sum())
        assert torch.signbit(module.weight.grad).all()


def test_gradients_that_are_never_zeroed_are_refused(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module)
    with pytest.raises(UnsupportedError, match="added to those of the step before"):
        _step(reducer, module)


def test_an_aborted_ring_leaves_the_est_s_gradients_and_a_failure(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    transport = _alone()
    reducer.set_ring(transport, [(0, 3)], 0)
    transport.abort()
    _step(reducer, module)
    assert isinstance(reducer.failure, RingAborted)
    assert torch.allclose(module.weight.grad, torch.full((2, 4), 2.0))  # 3 + 3 of the last EST, scaled
    module.weight.grad.fill_(float("nan"))
    reducer.set_ring(_alone(), [(0, 3)], 0)
    _step(reducer, module)
    assert reducer.failure is None
    assert module.weight.grad is not None


def test_a_thread_that_hangs_in_an_aborted_ring_is_left_with_the_memory_it_works_on(make, monkeypatch):
    """gloo never ends the wait for a message of which a part has come."""
    released, wrote = threading.Event(), threading.Event()
    run = CanonicalAllreduce.run

    def hanging(plan, transport, tag):
        assert released.wait(60)
        for memory in (*plan.slots, plan.out):
            memory.fill_(float("nan"))
        wrote.set()

    module = _TwoTypes()
    reducer = make(module)
    _step(reducer, module, zero=module.zero_grad)
    reducer.end_step()
    reducer.set_ring(ring := _alone(), [(0, 3)], 0)
    monkeypatch.setattr(CanonicalAllreduce, "run", hanging)
    _step(reducer, module, zero=module.zero_grad, report=_Report(last=ring.abort))
    assert isinstance(reducer.failure, RingAborted)
    assert torch.equal(module.bias.grad, torch.full((2,), 2.0) * (1.0 / 3))  # the last EST's own, scaled

    monkeypatch.setattr(CanonicalAllreduce, "run", run)
    reducer.set_ring(_alone(), [(0, 3)], 0)

    turns = iter(range(3))

    def late_write_in_the_last_turn():
        module.zero_grad()
        if next(turns) == 2:
            released.set()
            assert wrote.wait(60)

    _step(reducer, module, zero=late_write_in_the_last_turn)
    assert reducer.failure is None
    assert torch.equal(module.bias.grad, torch.full((2,), 2.0))


def test_a_dropped_step_can_be_run_again(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    reducer.begin_backward(0, False, record_order=False)
    module(torch.full((2, 4), 9.0)).sum().backward()
    reducer.begin_backward(1, False, record_order=False)
    reducer.drop()
    _step(reducer, module)
    assert torch.allclose(module.weight.grad, torch.full((2, 4), 4.0))


def test_buffers_of_est_0_come_back_as_they_were_captured(make):
    module = nn.BatchNorm1d(4)
    expected = [torch.randn(4), torch.rand(4), torch.tensor(7)]
    captured = [tensor.clone() for tensor in expected]

    def report():
        reducer.collectives.keep_buffers(captured)
        reducer.collectives.broadcast_buffers()
        for tensor in captured:
            tensor.zero_()  # the script goes on with its own memory

    reducer = make(module)
    _step(reducer, module, report=_Report(last=report))
    assert [tensor.dtype for tensor in reducer.collectives.buffers] == [t.dtype for t in module.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(reducer.collectives.buffers, expected, strict=True))


def test_a_change_of_layout_uses_memory_again_but_not_what_the_script_sees(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module)
    shown = module.weight.grad.clone()
    block = reducer._slots.plans[0].blocks[0]
    reducer.set_layout([1, 0])
    reducer.begin_backward(0, False, record_order=False)
    assert reducer._slots.plans[0].blocks[0] is block
    assert reducer._slots.plans[0].blocks[-1].data_ptr() != module.weight.grad.data_ptr()
    assert torch.equal(module.weight.grad, shown)


def test_a_change_of_the_ring_leaves_the_sums_where_the_script_sees_them(make):
    """All members would wait for new memory and a copy of all gradients."""
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module)
    reducer.end_step()
    shown = [(param.grad.data_ptr(), param.grad.clone()) for param in module.parameters()]
    sums = reducer._slots.plans[0].blocks[-1]
    reducer.set_ring(_alone(), [(0, 3)], 0)
    reducer.begin_backward(0, False, record_order=False)
    assert reducer._slots.plans[0].blocks[-1] is sums
    for param, average, (place, value) in zip(
        module.parameters(), reducer._slots.averages, shown, strict=True
    ):
        assert param.grad is average and average.data_ptr() == place and torch.equal(average, value)


def test_sums_whose_length_depends_on_the_ring_are_copied(make, monkeypatch):
    module = nn.Linear(4, 2)
    reducer = make(module)
    _step(reducer, module)
    reducer.end_step()
    shown = [param.grad.clone() for param in module.parameters()]
    monkeypatch.setattr("elastane.collective.allreduce.chunk_elements", lambda *args: 64)
    reducer.set_ring(_alone(), [(0, 3)], 0)
    reducer.begin_backward(0, False, record_order=False)
    assert reducer._slots.plans[0].blocks[-1].numel() == 3 * 64
    for param, average, value in zip(module.parameters(), reducer._slots.averages, shown, strict=True):
        assert param.grad is average and torch.equal(average, value)


@pytest.mark.parametrize(("order", "fits"), [([3, 2, 1, 0], True), (None, False)])
def test_memory_provided_for_a_ring_is_used_where_it_fits(make, order, fits, monkeypatch):
    """Another layout than the ring has costs the time, and no more."""
    monkeypatch.setattr(slots, "CanonicalAllreduce", partial(CanonicalAllreduce, way="ring"))
    module = nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 600))  # its last layout has two buckets
    reducer = make(module, ests=6)
    reducer.provide(order, 3, None)
    provided = {block.data_ptr() for blocks in reducer._provided.values() for block in blocks}
    assert len(provided) == 3 * (2 if order else 1)
    reducer.set_ring(RingTransport(object(), 0, 2), [(0, 3), (3, 6)], 0)
    reducer.set_layout([3, 2, 1, 0])
    reducer.begin_backward(0, False, record_order=False)
    used = {slot.data_ptr() for plan in reducer._slots.plans for slot in plan.slots}
    assert used == provided if fits else not used & provided
    assert not reducer._provided
    reducer.provide(order, 3, None)
    assert not reducer._provided, "it has memory already"


def test_a_closed_reducer_leaves_the_model_alone(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    reducer.begin_backward(0, True, record_order=False)
    reducer.close()
    module(torch.ones(1, 4)).sum().backward()
    assert module.weight.grad is not None


def test_a_failed_step_does_not_hold_the_old_ring(make):
    module = nn.Linear(4, 2)
    reducer = make(module)
    transport = _alone()
    reducer.set_ring(transport, [(0, 3)], 0)
    transport.abort()
    _step(reducer, module)
    gone = weakref.ref(transport)
    del transport
    reducer.set_ring(_alone(), [(0, 3)], 0)
    gc.collect()
    assert gone() is None


def test_buckets_are_reduced_while_backward_goes_on(make, monkeypatch):
    """Also when gradients come in another order than the layout's: then in the layout's order."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    reducer = make(module, 1, bucket_cap_mb=1e-5)  # a bucket for every weight with its bias
    reducer.begin_backward(0, True, record_order=True)
    out = module(torch.ones(2, 4))
    out.sum().backward()
    reducer.set_layout(reducer.ready_order)
    reduced, tags = threading.Event(), []
    run = CanonicalAllreduce.run

    def observed(plan, transport, tag):
        run(plan, transport, tag)
        tags.append(tag)
        reduced.set()

    monkeypatch.setattr(CanonicalAllreduce, "run", observed)
    reducer.begin_backward(0, True, record_order=False)
    hidden = module[0](torch.ones(2, 4))
    seen_in_backward = []
    hidden.register_hook(lambda _: seen_in_backward.append(reduced.wait(30)))
    module.zero_grad()
    module[2](module[1](hidden)).sum().backward()
    assert seen_in_backward == [True]
    assert len(tags) > 1
    assert tags == sorted(tags)

"""The executor's rules beside the bits (tests/parity): refusals, notes, steps given up, collectives."""

from __future__ import annotations

import random
from time import sleep
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.frames import BoundaryError, FrameError, FrameKey, Kind, frame_of
from elastane.pipeline.local_links import LocalHub, run_together
from elastane.pipeline.messages import Messages
from elastane.pipeline.refusals import UnitReachError
from elastane.pipeline.ring_plan import RingPlanError, plan_of
from elastane.rng import Generators
from elastane_common.errors import RepeatDiffersError, StepError, UnsupportedError
from elastane_planner.plan import Plan, Stage
from elastane_proto.v1 import pipeline_pb2

GENERATORS = Generators()


class _Units:
    """Units of one process that holds all of them."""

    def __init__(self, modules):
        self.modules, self.count = modules, len(modules)
        self.names = [str(unit) for unit in range(self.count)]
        named = list(nn.Sequential(*modules).named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.specs = [
            SimpleNamespace(
                name=name,
                shape=tuple(p.shape),
                stride=p.stride(),
                dtype=p.dtype,
                requires_grad=p.requires_grad,
            )
            for name, p in named
        ]

    def module(self, unit):
        return self.modules[unit]


class _Job:
    """Workers of a plan in this process. build: makes a worker's modules, equal in all."""

    def __init__(self, build, plan, members, ests, loss=lambda out, target: out.float().sum(), **options):
        torch.manual_seed(1)
        state = [module.state_dict() for module in build()]
        self.hub, self.ests, self.executors, self.units = LocalHub(), ests, [], []
        self.ranges = [(ests * m // members, ests * (m + 1) // members) for m in range(members)]
        for me in range(members):
            modules = build()
            for module, values in zip(modules, state, strict=True):
                module.load_state_dict(values)
            self.units.append(_Units(modules))
            self.executors.append(StepExecutor(self.units[-1], loss, ests, GENERATORS, **options))
            self.executors[-1].set_ring(plan, me, self.ranges, self.hub.links(me), 1, None)
        self.step = 0

    def together(self, call):
        links = [executor._ring().links for executor in self.executors]
        steps = zip(links, map(call, self.executors, range(len(links))), strict=True)
        return run_together(list(steps), random.Random(0).choice)

    def forward_backward(self, batch=lambda est: (torch.randn(3, 4), None), twice=False):
        for executor in self.executors:
            executor.begin_step(self.step, twice=twice)
        batches = []
        for start, end in self.ranges:
            torch.manual_seed(start)
            own = {est: batch(est) for est in range(start, end)}
            batches.append({e: MicroBatch(x, y, GENERATORS.capture()) for e, (x, y) in own.items()})
        ends = self.together(lambda executor, me: executor.wave(0, batches[me], last=True))
        self.together(lambda executor, me: executor.sums())
        return ends

    def end(self, applied=True):
        for executor in self.executors:
            executor.end_step(applied)
        self.step += 1


def _two(memory="plain", units=2):
    return Plan((Stage(0, 1, (0,), memory), Stage(1, units, (1,), memory)))


def _linears():
    return [nn.Linear(4, 4), nn.Linear(4, 2)]


@pytest.mark.parametrize("memory", ["plain", "checkpoint", "swap"])
def test_what_is_known_after_a_step(memory):
    job = _Job(_linears, _two(memory), 2, 3)
    ends = job.forward_backward()
    assert sorted(est for end in ends for est in end) == [0, 1, 2]
    held = [[p.grad is not None for p in units.parameters] for units in job.units]
    assert held == [[True, True, False, False], [False, False, True, True]]
    assert all(executor.losses == job.executors[0].losses for executor in job.executors)
    assert len(job.executors[0].losses) == 3
    assert job.executors[0].ready_order == [3, 2, 1, 0] or sorted(job.executors[0].ready_order) == [
        0,
        1,
        2,
        3,
    ]
    assert job.executors[1].ready_order is None
    job.end()
    assert set(job.executors[0].unit_seconds) == {0} and set(job.executors[1].unit_seconds) == {1}
    assert all(f > 0 and b > 0 for e in job.executors for f, b in e.unit_seconds.values())


def test_the_time_of_a_block_is_its_units_with_the_loss_and_what_is_beside_them(monkeypatch):
    send = Messages.send
    monkeypatch.setattr(Messages, "send", lambda *given: (sleep(0.01), send(*given))[1])

    def loss(output, target):
        sleep(0.03)
        return output.sum()

    job = _Job(_linears, _two(), 2, 4, loss=loss)
    for _ in range(3):
        job.forward_backward()
        job.end()
    (first, second), ((unit, _), (last, _)) = (
        [executor.overhead_seconds for executor in job.executors],
        [executor.unit_seconds[me] for me, executor in enumerate(job.executors)],
    )
    assert all(seconds > 0.01 for seconds in (*first, second[1])), "each of these blocks sends a frame"
    assert second[0] < 0.01 and unit < 0.01, "the last stage's forward sends none"
    assert last > 0.03 > max(*first, *second), "the loss is the last unit's"


@pytest.mark.parametrize("memory", ["checkpoint", "swap"])
def test_what_is_beside_the_units_is_not_measured_where_activations_are_not_just_kept(memory):
    job = _Job(_linears, _two(memory), 2, 3)
    job.forward_backward()
    job.end()
    assert [executor.overhead_seconds for executor in job.executors] == [(0.0, 0.0)] * 2


def test_the_process_s_generators_are_as_before():
    job = _Job(lambda: [nn.Dropout(0.5), nn.Linear(4, 2)], _two(), 2, 2)
    for executor in job.executors:
        executor.begin_step(0)
    parts = GENERATORS.capture()
    batches = [{est: MicroBatch(torch.ones(3, 4), None, parts)} for est in range(2)]
    before = GENERATORS.capture()
    ends = job.together(lambda executor, me: executor.wave(0, batches[me], last=True))
    assert GENERATORS.capture() == before
    assert all(end.parts != before for one in ends for end in one.values())


class _Draws(nn.Module):
    """Draws, and raises in its forward or in its backward."""

    def __init__(self, where):
        super().__init__()
        self._where, self.weight = where, nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = x * self.weight
        if self._where == "backward":
            y.register_hook(self._raises)
            return y
        return self._raises(y)

    def _raises(self, tensor):
        torch.rand(3)
        raise ValueError(self._where)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_process_s_generators_are_as_before_when_a_unit_raises(where):
    job = _Job(lambda: [nn.Linear(4, 4), _Draws(where)], _two(), 2, 2)
    for executor in job.executors:
        executor.begin_step(0)
    before = GENERATORS.capture()
    batches = [{est: MicroBatch(torch.ones(3, 4), None, before)} for est in range(2)]
    with pytest.raises(ValueError, match=where) as raised:
        job.together(lambda executor, me: executor.wave(0, batches[me], last=True))
    assert any(f"in the {where} of EST 0 on stage 1" in note for note in raised.value.__notes__)
    assert GENERATORS.capture() == before


class _Noisy(nn.Module):
    """What a first run could spoil: generators, buffers, the input."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(x * 1.0 + torch.randn(4))).mul_(2)


@pytest.mark.parametrize("memory", ["plain", "checkpoint", "swap"])
def test_of_a_forward_that_is_run_twice_nothing_is_left(memory):
    found = []
    for twice in (False, True):
        job = _Job(lambda: [nn.Linear(4, 4), _Noisy()], _two(memory), 2, 3)
        for _ in range(2):
            ends = job.forward_backward(twice=twice)
            gradients = [
                p.grad.clone() for units in job.units for p in units.parameters if p.grad is not None
            ]
            job.end()
        buffers = [buffer for units in job.units for m in units.modules for buffer in m.buffers()]
        states = [dict(end[est].parts) for end in ends for est in sorted(end)]
        found.append((gradients, buffers, job.executors[0].losses, states))
    one, two = found
    assert one[3] == two[3]
    for part in range(3):
        assert all(torch.equal(a, b) for a, b in zip(one[part], two[part], strict=True))


@pytest.mark.parametrize("memory", ["plain", "checkpoint"])
def test_what_a_unit_or_the_loss_keeps_shows_when_its_forward_is_run_twice(memory):
    seen = []

    def counting(out, target):
        seen.append(0)
        return out.sum() * len(seen)

    class Counting(nn.Linear):
        def forward(self, x):
            seen.append(0)
            return super().forward(x) * len(seen)

    job = _Job(_linears, _two(memory), 2, 2, counting)
    job.forward_backward()
    job.end()
    with pytest.raises(RepeatDiffersError, match="loss_fn was run twice"):
        job.forward_backward(twice=True)
    job = _Job(lambda: [nn.Linear(4, 4), Counting(4, 2)], _two(memory), 2, 2)
    with pytest.raises(RepeatDiffersError, match="unit 1 was run twice"):
        job.forward_backward(twice=True)


class _Raises(nn.Module):
    def __init__(self, when):
        super().__init__()
        self.when = when

    def forward(self, x):
        if x[0, 0] == self.when:
            raise ValueError("as it likes")
        return x


def test_a_unit_that_raises_is_named_with_est_and_stage_and_the_step_can_be_dropped():
    job = _Job(
        lambda: [nn.Linear(4, 4), nn.Sequential(nn.Tanh(), _Raises(0)), nn.Linear(4, 4)],
        _two("plain", 3),
        2,
        2,
    )
    job.units[1].modules[1][1].when = None
    job.forward_backward()
    job.end()
    before = GENERATORS.capture()
    for executor in job.executors:
        executor.begin_step(1)

    class Bad(nn.Module):
        def forward(self, x):
            raise ValueError("as it likes")

    job.units[1].modules[1].forward = Bad().forward
    batches = [{est: MicroBatch(torch.ones(3, 4), None, before)} for est in range(2)]
    with pytest.raises(ValueError, match="as it likes") as raised:
        job.together(lambda executor, me: executor.wave(0, batches[me], last=True))
    notes = "".join(raised.value.__notes__)
    assert "in unit 1" in notes and "forward of EST 0 on stage 1, step 1" in notes
    assert GENERATORS.capture() == before
    for executor in job.executors:
        executor.drop()
        executor.drop()
    assert all(p.grad is None for units in job.units for p in units.parameters)


class _Weighted(nn.Linear):
    def __init__(self, how):
        super().__init__(4, 4)
        self.how = how

    def forward(self, x):
        return self.how(self, super().forward(x))


def _refused(make, error, words, memory="plain", plan=None, members=2, **more):
    for whole in (False, True):  # the cut does not matter
        modules = len(make())
        chosen = Plan((Stage(0, modules, (1,), memory),)) if whole else plan or _two(memory, modules)
        job = _Job(make, chosen, members, 2, **more)
        with pytest.raises(error, match=words):
            job.forward_backward()
        for executor in job.executors:
            executor.close()


def test_units_that_return_parameters_or_views_of_them_are_refused():
    def make(how):
        return lambda: [_Weighted(how), nn.Identity(), nn.Linear(4, 2)]

    _refused(make(lambda unit, y: unit.weight), UnitReachError, "unit 0 returns parameter 0.weight")
    _refused(make(lambda unit, y: (y, unit.weight[1:])), UnitReachError, "parameter 0.weight, or a view")
    _refused(make(lambda unit, y: {"b": unit.bias.detach()}), UnitReachError, "parameter 0.bias")


def test_values_that_cannot_be_sent_are_refused_wherever_the_model_is_cut():
    def make(value):
        return lambda: [_Weighted(lambda unit, y: (y, value)), _First(), nn.Linear(4, 2)]

    _refused(make({1, 2}), BoundaryError, "an object of type set")
    _refused(make(torch.zeros(2).to_sparse()), BoundaryError, "sparse")


class _First(nn.Module):
    def forward(self, values):
        return values[0]


def test_sparse_gradients_and_parameters_without_one_are_refused():
    sparse = lambda: [nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2)]  # noqa: E731
    job = _Job(sparse, _two(), 2, 2)
    with pytest.raises(UnsupportedError, match=r"parameter 0\.weight has a sparse gradient"):
        job.forward_backward(lambda est: (torch.tensor([[1, 2]]), None))
    unused = lambda: [_Weighted(lambda unit, y: y.detach()), nn.Linear(4, 2)]  # noqa: E731
    _refused(unused, StepError, r"no gradient to 0\.weight, 0\.bias")


def test_units_that_reach_over_their_boundary_are_refused():
    kept = []

    def make():
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.other = lambda: first.weight
        second.forward = lambda x, second=second: functional.linear(x, second.weight + second.other())
        return [first, second]

    _refused(make, UnitReachError, "unit 1 uses parameter 0.weight, which another unit has")

    def side():
        first = _Weighted(lambda unit, y: kept.append(y) or y)
        return [nn.Linear(4, 4), first, _Weighted(lambda unit, y: y + kept[-1])]

    # In a process of its own the last would find nothing; here it finds a tensor of another stage.
    _refused_cut(side, "did not come with its input", Plan(tuple(Stage(s, s + 1, (s,)) for s in range(3))), 3)


@pytest.mark.parametrize("memory", ["plain", "checkpoint", "swap"])
def test_a_loss_of_all_weights_is_refused_wherever_the_model_is_cut(memory):
    """With one stage it would be computed, and in the next ring it could not be."""
    made = []  # the first are for their initial values; the last member's compute the loss

    def make():
        made.append([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)])
        return made[-1]

    def penalised(places):
        return lambda out, _: out.sum() + sum(made[-1][place].weight.pow(2).sum() for place in places)

    plans = Plan((Stage(0, 3, (1,), memory),)), _two(memory, 3)
    for plan in plans:
        job = _Job(make, plan, 2, 2, penalised([0, 2]))
        with pytest.raises(UnitReachError, match=r"loss_fn uses parameter 0\.weight") as refused:
            job.forward_backward()
        assert "weight_decay" in refused.value.hint
    # The last unit is where the loss is.
    for plan in plans:
        _Job(make, plan, 2, 2, penalised([2])).forward_backward()


class _Scales(nn.Module):
    """Writes in place to a view of what the unit before has computed."""

    def forward(self, x):
        x[:, 1:].mul_(2.0)
        return x.view(-1, 2, 2).relu_().flatten(1)


def test_units_of_one_stage_may_share_parameters_and_write_to_what_they_get():
    def make():
        first, last = nn.Linear(4, 4), nn.Linear(4, 4)
        last.weight = first.weight
        narrow = _Weighted(lambda unit, y: y.view(-1, 2, 2)[:, :, :].flatten(1))
        return [first, narrow, _Scales(), nn.Identity(), nn.Dropout(0.1), last]

    _Job(make, Plan((Stage(0, 6, (0,)),)), 1, 2).forward_backward()


def _refused_cut(make, words, plan=None, members=2):
    with pytest.raises(UnitReachError, match=words):
        _Job(make, plan or _two(), members, 3).forward_backward()


def test_writing_to_memory_that_a_value_shares_is_refused():
    halves = lambda: [_Weighted(lambda unit, y: (y, y[:, 1:])), _Writes()]  # noqa: E731
    job = _Job(halves, _two(), 2, 2)
    with pytest.raises(UnitReachError, match="writes in place"):
        job.forward_backward()


class _Writes(nn.Module):
    def forward(self, values):
        values[1].mul_(2)
        return values[0]


class _Unsteady(nn.Module):
    calls = 0

    def forward(self, x):
        _Unsteady.calls += 1
        return x + torch.rand(_Unsteady.calls).sum()


def test_a_forward_that_draws_otherwise_the_second_time_is_refused():
    job = _Job(lambda: [nn.Linear(4, 4), _Unsteady()], _two("checkpoint"), 2, 1)
    with pytest.raises(StepError, match="stage 1 drew other random numbers"):
        job.forward_backward()


def test_losses_are_scalars_and_have_no_parameters():
    job = _Job(_linears, _two(), 2, 2, loss=lambda out, target: out)
    with pytest.raises(StepError, match=r"a tensor of shape \(3, 2\), not a scalar"):
        job.forward_backward()
    with pytest.raises(UnitReachError, match="put its trainable part into the last unit"):
        StepExecutor(_Units(_linears()), nn.Linear(2, 1), 2, GENERATORS)


def test_a_frame_of_another_step_or_generation_is_an_error():
    job = _Job(_linears, _two(), 2, 2)
    for executor in job.executors:
        executor.begin_step(4)
    for generation, step in ((1, 3), (2, 4)):
        executor = job.executors[1]
        running = executor.wave(0, {}, last=True)
        wait = next(running)
        frame = frame_of(FrameKey(Kind.FORWARD, 1, 0, 0), generation, step, torch.zeros(3, 4))
        assert wait.key == frame.key
        with pytest.raises(FrameError, match=rf"step {step}, generation {generation} came in step 4"):
            running.send(frame)


def test_a_plan_of_another_model_or_version_changes_nothing():
    job = _Job(_linears, _two(), 2, 2)
    executor = job.executors[0]
    links = job.hub.links(0)
    with pytest.raises(RingPlanError, match="does not fit its model"):
        executor.set_ring(Plan((Stage(0, 3, (0,)),)), 0, job.ranges, links, 2, None)
    message = pipeline_pb2.PipelinePlan()
    message.stages.add(first_unit=0, end_unit=2, replicas=[0], memory=9)
    with pytest.raises(RingPlanError, match="does not know"):
        executor.set_ring(message, 0, job.ranges, links, 2, None)
    job.forward_backward()


def test_a_message_s_plan_is_the_planner_s():
    message = pipeline_pb2.PipelinePlan()
    message.stages.add(first_unit=0, end_unit=1, replicas=[0], shadows=[2])
    message.stages.add(first_unit=1, end_unit=4, replicas=[1, 2], memory=pipeline_pb2.STAGE_MEMORY_SWAP)
    stages = (Stage(0, 1, (0,)), Stage(1, 4, (1, 2), "swap"))
    assert plan_of(message) == Plan(stages, ((2,), ()))


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_the_norm_is_torch_s_of_the_whole_model(norm_type):
    job = _Job(lambda: [nn.Linear(4, 40), nn.Linear(40, 30, dtype=torch.float64), nn.Linear(30, 2)],
               Plan((Stage(0, 1, (1,)), Stage(1, 3, (0,)))), 3, 3)  # fmt: skip
    for units in job.units:
        units.modules[1].register_forward_pre_hook(lambda module, args: args[0].double())
        units.modules[2].register_forward_pre_hook(lambda module, args: args[0].float())
    job.forward_backward()
    whole = [nn.Parameter(p.detach().clone()) for p in job.units[0].parameters]
    for place, parameter in enumerate(whole):
        shown = [u.parameters[place].grad for u in job.units if u.parameters[place].grad is not None]
        parameter.grad = shown[0].clone()
    expected = torch.nn.utils.clip_grad_norm_(whole, 0.5, norm_type)
    for total in job.together(lambda executor, me: executor.clip(0.5, norm_type)):
        assert torch.equal(total, expected)
    for place, parameter in enumerate(whole):
        for units in job.units:
            if units.parameters[place].grad is not None:
                assert torch.equal(units.parameters[place].grad, parameter.grad)


def test_a_norm_that_is_not_finite_is_an_error_for_all_who_ask_for_one():
    job = _Job(_linears, _two(), 2, 2)
    job.forward_backward(lambda est: (torch.full((3, 4), float("inf")), None))
    with pytest.raises(RuntimeError, match="non-finite"):
        job.together(lambda executor, me: executor.clip(0.5, error_if_nonfinite=True))


def test_a_device_is_waited_for_once_to_learn_whether_gradients_are_finite(monkeypatch):
    job = _Job(_linears, _two(), 2, 2)
    job.forward_backward()
    asked, convert = [], torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: asked.append(tensor) or convert(tensor))
    job.together(lambda executor, me: executor.not_finite())
    assert len(asked) == 2, "each member once"


def test_a_gradient_that_is_not_finite_anywhere_is_known_to_all():
    job = _Job(_linears, _two(), 2, 2)
    job.forward_backward()
    assert job.together(lambda executor, me: executor.not_finite()) == [False] * 2
    for place, value in ((0, float("inf")), (3, float("nan"))):
        grad = job.units[place // 2].parameters[place].grad
        kept = grad.clone()
        grad.view(-1)[1] = value
        assert job.together(lambda executor, me: executor.not_finite()) == [True] * 2
        grad.copy_(kept)


def test_evaluation_gives_the_model_s_outputs_and_changes_nothing():
    def make():
        return [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)]

    job = _Job(make, Plan((Stage(0, 2, (0,)), Stage(2, 4, (2, 1)))), 3, 3)
    job.forward_backward(lambda est: (torch.randn(5, 4), None))
    job.end()
    buffers = [b.clone() for units in job.units for b in nn.Sequential(*units.modules).buffers()]
    inputs = [[torch.randn(2, 4) for _ in range(count)] for count in (3, 0, 2)]
    for training in (False, True):
        for units in job.units:
            for module in units.modules:
                module.train(training)
        before = GENERATORS.capture()
        outputs = job.together(lambda executor, me: executor.evaluation(inputs[me]))
        assert GENERATORS.capture() == before
        assert [len(one) for one in outputs] == [3, 0, 2]
        after = [b for units in job.units for b in nn.Sequential(*units.modules).buffers()]
        assert all(map(torch.equal, buffers, after))
        assert not any(value.requires_grad for one in outputs for value in one)
        if not training:
            stages = [
                job.units[0].modules[0],
                job.units[0].modules[1],
                job.units[1].modules[2],
                job.units[1].modules[3],
            ]
            whole = nn.Sequential(*stages).eval()
            for given, got in zip(inputs, outputs, strict=True):
                assert all(torch.equal(whole(x), y) for x, y in zip(given, got, strict=True))
    assert job.together(lambda executor, me: executor.evaluation([])) == [[], [], []]
    job.forward_backward(lambda est: (torch.randn(5, 4), None))


def test_a_scaled_loss_scales_gradients_alone():
    plain, scaled = (_Job(_linears, _two(), 2, 2, scale=scale) for scale in (None, lambda loss: loss * 4))
    for job in (plain, scaled):
        torch.manual_seed(0)
        job.forward_backward(lambda est: (torch.full((3, 4), 1.0 + est), None))
    assert all(map(torch.equal, plain.executors[0].losses, scaled.executors[0].losses))
    assert torch.equal(plain.units[0].parameters[0].grad * 4, scaled.units[0].parameters[0].grad)


def test_frozen_parameters_are_left_alone_and_a_stage_may_have_no_parameters():
    def make():
        modules = [nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2)]
        modules[1].requires_grad_(False)
        return modules

    job = _Job(make, Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)), Stage(2, 3, (2,)))), 3, 3)
    job.forward_backward()
    assert [p.grad is None for p in job.units[1].parameters] == [True] * 4
    assert [p.grad is None for p in job.units[2].parameters] == [True, True, False, False]
    job.end()


@pytest.mark.parametrize(("ests", "plan", "members"), [
    (1, Plan((Stage(0, 1, (0,)), Stage(1, 2, (0,)))), 1),
    (2, Plan((Stage(0, 2, (0, 1)),)), 2),
    (1, Plan((Stage(0, 2, (0,)),)), 1),
], ids=["a device twice", "replicas", "one"])  # fmt: skip
def test_fewest_micro_batches(ests, plan, members):
    if len(set(plan.devices)) < len(plan.devices):
        with pytest.raises(RingPlanError, match="at most one stage"):
            _Job(_linears, plan, members, ests)
        return
    job = _Job(_linears, plan, members, ests)
    job.forward_backward()
    assert len(job.executors[0].losses) == ests


def test_fewer_micro_batches_than_stages():
    job = _Job(lambda: [nn.Linear(4, 4) for _ in range(3)],
               Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)), Stage(2, 3, (2,)))), 2 + 1, 3)  # fmt: skip
    job.forward_backward()
    job.end(applied=False)
    assert job.executors[0].gradient_bytes == 3 * 20 * 4

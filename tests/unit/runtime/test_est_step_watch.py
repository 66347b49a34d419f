"""What must be the same in all turns of a step: what is found, named, and left alone."""

from __future__ import annotations

import copy

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from elastane.runtime.est_step import EstsDisagreeError, EstStep
from elastane.runtime.est_step_watch import CLOSE_STEPS, EstStepWatch, differing, hyperparameters
from elastane.runtime.forward_watch import ForwardWatch, SecondForwardError
from elastane.runtime.interval import BuffersChangedError
from elastane.runtime.loop_carried import AttributeWatch, CarriedValueError
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.runtime.rank0_buffers import Rank0Buffers
from elastane.runtime.step_state import Stage, StepState
from elastane.runtime.weight_copies import CopyNotPreparedError, CopyWatch
from elastane_common.errors import StepError


class Body:
    """A worker of `ests` ESTs: runs a loop body for each turn, as the trainer and the prepared calls do."""

    def __init__(self, *extras: object, ests: int = 2, hosted: int | None = None) -> None:
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader([0])
        prepared = PreparedObjects([self.net, self.optimizer, loader, *extras])
        self.watch = EstStepWatch(prepared, (), ests)
        self.hosted = ests if hosted is None else hosted
        self.est_step = EstStep(StepState(), 0, 0, ends=False)

    def step(self, number: int, before=lambda: None, after=lambda: None, hook=lambda: None) -> None:
        self.watch.begin_step(number)
        state = StepState(number, Stage.REPORTED)
        for slot in range(self.hosted):
            self.est_step = EstStep(state, slot, slot, ends=slot == self.hosted - 1)
            before()
            self.watch.used(self.est_step, self.optimizer)
            if self.est_step.last:
                self.watch.before_step(self.est_step)
                state.prepare()
                with torch.no_grad():
                    for parameter in self.net.parameters():
                        parameter.sub_(0.1)
                hook()
                self.watch.after_step()
            after()
            self.watch.end_est_step(self.est_step)

    def stepped(self) -> bool:
        self.est_step.asked_stepped = True
        return self.est_step.applied

    def set_lr(self, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr


def test_a_body_that_keeps_the_rules_is_left_alone() -> None:
    body = Body()
    with torch.no_grad():
        for number in range(4):
            body.step(
                number,
                before=lambda number=number: body.set_lr(1 / (number + 1)),
                after=lambda: body.net[0].weight.clamp_(-0.1, 0.1) if body.stepped() else None,
                hook=lambda: body.net[0].weight.mul_(0.5),
            )


def test_an_lr_that_turns_do_not_share_is_named_with_both_values() -> None:
    body, turns = Body(), iter(range(9))
    with pytest.raises(
        EstsDisagreeError, match=r"lr of param_group 0 of the SGD is 1 in the turn of EST 1, .* was 0"
    ):
        body.step(0, before=lambda: body.set_lr(next(turns)))


def test_a_rate_in_a_tensor_that_turns_change_in_place_is_named() -> None:
    body, rate = Body(), torch.tensor(0.5)
    body.optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(EstsDisagreeError, match=r"lr of param_group 0 .* was 1.5 in an earlier turn"):
        body.step(0, before=lambda: rate.add_(1.0))


def test_a_hyperparameter_that_a_turn_adds_is_named() -> None:
    body, turns = Body(), iter(range(9))
    with pytest.raises(EstsDisagreeError, match=r"scale of param_group 0 .* is 1 in the turn of EST 1"):
        body.step(
            0, before=lambda: body.optimizer.param_groups[0].update({"scale": 1} if next(turns) else {})
        )


def test_a_replay_is_held_to_the_first_run_until_other_state_is_in_place() -> None:
    body = Body(hosted=1)
    body.step(0, before=lambda: body.set_lr(1.0))
    body.step(1, before=lambda: body.set_lr(0.5))
    with pytest.raises(EstsDisagreeError, match=r"is 0.25 .* was 0.5 in an earlier turn of step 1"):
        body.step(1, before=lambda: body.set_lr(0.25))
    body.watch.replaced()
    body.step(1, before=lambda: body.set_lr(0.25))


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("hosted", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_that_the_body_writes_in_every_turn_are_named(data: bool, hosted: int, when: str) -> None:
    body = Body(hosted=hosted)

    def decay() -> None:
        weight = body.net[2].weight
        with torch.no_grad():
            (weight.data if data else weight).mul_(0.9)

    with pytest.raises(EstsDisagreeError, match=r"parameter 2.weight was written to in step 0"):
        body.step(0, **{when: decay})


def test_with_one_est_nothing_is_done_twice() -> None:
    body = Body(ests=1)
    with torch.no_grad():
        body.step(0, after=lambda: body.net[2].weight.mul_(0.9))


def test_norms_are_compared_in_the_first_steps_and_whenever_something_new_may_run() -> None:
    body = Body()
    for number in range(CLOSE_STEPS):
        body.step(number)
    body.step(CLOSE_STEPS, after=lambda: body.net[2].weight.data.mul_(0.9))
    body.watch.look_closely()
    with pytest.raises(EstsDisagreeError):
        body.step(CLOSE_STEPS + 1, after=lambda: body.net[2].weight.data.mul_(0.9))


def test_an_lr_changed_behind_the_step_by_every_turn_is_refused_at_any_number_of_workers() -> None:
    body = Body(hosted=1)
    body.step(0, after=lambda: body.stepped() and body.set_lr(0.05))
    with pytest.raises(EstsDisagreeError, match=r"without checking job.stepped"):
        body.step(1, after=lambda: body.set_lr(0.01))


@pytest.mark.parametrize("hosted", [1, 2])
def test_a_parameter_that_a_turn_freezes_by_itself_is_named(hosted: int) -> None:
    """As `if loss < threshold:` does: under DDP the ranks would train different parameters, too."""
    body = Body(hosted=hosted)
    body.step(0)
    where = r"EST 1 from an earlier turn" if hosted == 2 else "without checking job.stepped"
    with pytest.raises(EstsDisagreeError, match=rf"requires_grad of parameter 0.weight .*{where}"):
        body.step(1, after=lambda: body.net[0].requires_grad_(False))


def test_parameters_may_be_frozen_where_all_turns_do_it() -> None:
    body = Body()
    for number in range(6):
        body.step(
            number,
            before=lambda number=number: body.net[0].requires_grad_(number < 2),
            after=lambda number=number: body.net[1].requires_grad_(number < 4) if body.stepped() else None,
        )
    assert not body.net[0].weight.requires_grad and not body.net[1].weight.requires_grad


def test_parameters_may_be_frozen_before_the_forward_by_the_number_of_the_step() -> None:
    body = Body()
    for number in range(4):
        body.step(number, before=lambda number=number: body.net[0].requires_grad_(number < 2))


def test_parameters_may_be_frozen_for_a_part_of_each_turn() -> None:
    """As for one of two networks of a GAN."""
    body = Body()
    for number in range(3):
        body.step(
            number,
            before=lambda: body.net[2].requires_grad_(False),
            after=lambda: body.net[2].requires_grad_(True),
        )


def test_a_turn_that_trains_in_another_mode_than_an_earlier_one_is_named() -> None:
    """As `if loss.item() < 1: net.bn.eval()` does, or an evaluation after the step that leaves eval()."""
    body = Body()
    body.step(0)
    with pytest.raises(
        EstsDisagreeError, match=r"1 is in eval\(\) in the turn of EST 1, and was in train\(\)"
    ):
        body.step(1, after=lambda: body.net[1].eval())


def test_each_optimizer_may_step_in_modes_of_its_own() -> None:
    body = Body()
    other = torch.optim.SGD([body.net[0].weight], lr=0.1)
    body.watch = EstStepWatch(
        PreparedObjects([body.net, body.optimizer, other, torch.utils.data.DataLoader([0])]), (), 2
    )

    def before() -> None:
        body.net.eval()
        body.watch.used(body.est_step, other)
        body.net.train()

    for number in range(2):
        body.step(number, before=before)


def asks_rank(body: Body) -> int:
    body.est_step.asked_rank = True
    return body.est_step.rank


def test_an_evaluation_of_one_rank_that_leaves_the_model_in_eval_is_warned_of_once() -> None:
    body = Body()
    with capture_logs() as logs:
        for number in range(4):
            body.step(number, before=lambda: body.net.eval() if asks_rank(body) == 0 else None)
    (said,) = [one["event"] for one in logs if one["log_level"] == "warning"]
    assert said.startswith("the turn of EST 0 in step 0 has asked which rank it is")
    assert "the turn of EST 1 in step 0 trains in eval(), too" in said


def test_modes_are_left_alone_where_each_turn_sets_its_own_and_where_all_change_them() -> None:
    body = Body()

    def before(number: int) -> None:
        body.net.train()
        body.net[1].train(number < 2)
        asks_rank(body)

    def after() -> None:
        if asks_rank(body) == 0:
            body.net.eval()

    with capture_logs() as logs:
        for number in range(4):
            body.step(number, before=lambda number=number: before(number), after=after)
    assert logs == []


def test_a_turn_without_optimizer_step_is_named_with_the_option() -> None:
    watch = Body().watch
    watch.begin_step(3)
    with pytest.raises(StepError, match=r"EST 0 in step 3 ended without.*accumulation_steps=k"):
        watch.end_est_step(EstStep(StepState(3), 0, 0, ends=False))
    watch.end_est_step(
        EstStep(StepState(3), 0, 0, ends=False, batches=2)
    )  # more mini-batches of the step are to come


def test_prepared_copies_change_where_the_step_is_applied() -> None:
    average = nn.Linear(3, 4).requires_grad_(False)
    body = Body(average)
    with torch.no_grad():
        body.step(0, after=lambda: average.weight.mul_(0.5) if body.stepped() else None)
        with pytest.raises(EstsDisagreeError, match="weight of the prepared Linear was written to"):
            body.step(1, after=lambda: average.weight.mul_(0.5))


def test_hyperparameters_are_plain_values_and_nan_is_itself() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    one = torch.optim.AdamW([{"params": [parameter], "lr": torch.tensor(0.5), "names": ["a"]}])
    found = hyperparameters(one)
    assert found["lr of param_group 0"] == 0.5
    assert found["betas of param_group 0"] == (0.9, 0.999)
    assert not any(name.startswith(("params", "names")) for name in found)
    assert differing({"a": float("nan")}, {"a": float("nan")}) is None
    assert differing({"a": 1, "b": 2}, {"a": 1}) == "b"


# ---------------------------------------------------------------------- attributes and copies


class Counting(nn.Linear):
    calls = 0

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.t, self.seen, self.table = 0, 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        self.seen += 1
        if self.table is None:
            self.table = torch.ones(3)
        return super().forward(x * self.table) / self.t


class Slow(torch.optim.SGD):
    def __init__(self, params) -> None:
        super().__init__(params, lr=0.1)
        self.k = 0

    def step(self, closure=None):
        self.k += 1
        if self.k % 5:
            super().step(closure)


def test_attributes_that_go_on_changing_are_named_once_it_is_certain() -> None:
    net = Counting()
    optimizer = Slow(net.parameters())
    watch = AttributeWatch(PreparedObjects([net, optimizer, torch.utils.data.DataLoader([0])]))
    est_step = EstStep(StepState(0, Stage.PREPARED), 0, 0, ends=True)
    optimizer.step()
    watch.end_est_step(est_step)
    optimizer.step()
    with pytest.raises(CarriedValueError, match=r"Slow.k \(test_est_step_watch.py, line \d+\).*state_dict"):
        watch.end_est_step(est_step)
    watch = AttributeWatch(
        PreparedObjects([net, torch.optim.SGD(net.parameters()), torch.utils.data.DataLoader([0])])
    )
    net(torch.ones(1, 3))
    watch.end_est_step(est_step)
    watch.end_est_step(est_step)  # nothing new: it was set up once
    net(torch.ones(1, 3))
    watch.end_est_step(est_step)
    net(torch.ones(1, 3))
    with pytest.raises(CarriedValueError, match=r"model.t \(test_est_step_watch.py, line \d+\)"):
        watch.end_est_step(est_step)


class Shadow:
    """An average as many write it."""

    def __init__(self, net: nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in net.named_parameters()}

    def update(self, net: nn.Module) -> None:
        for name, value in net.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * value.detach()

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state):
        self.shadow = state


def looked(net: nn.Module, *extras: object) -> tuple[CopyWatch, EstStep]:
    objects = [net, torch.optim.SGD(net.parameters()), torch.utils.data.DataLoader([0]), *extras]
    return CopyWatch(PreparedObjects(objects), ()), EstStep(StepState(0, Stage.PREPARED), 0, 0, ends=True)


def move(net: nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)


def test_a_copy_that_was_not_prepared_is_named_when_the_body_changes_it() -> None:
    net = nn.Linear(3, 2)
    ema, gradients = copy.deepcopy(net), [torch.zeros(2, 3)]
    watch, est_step = looked(net)
    watch.begin()
    move(net)
    gradients = [torch.ones_like(p) for p in net.parameters()]  # another object in every turn
    watch.end_est_step(est_step)
    ema.weight.data.add_(1)
    with pytest.raises(CopyNotPreparedError, match=r"ema holds a copy of the weights.*= job.prepare\(net"):
        watch.end_est_step(est_step)
    assert gradients


def test_an_object_with_an_average_is_named_unless_prepared_and_updated_once() -> None:
    net = nn.Linear(3, 2)
    shadow = Shadow(net)
    watch, est_step = looked(net)
    watch.begin()
    move(net)
    shadow.update(net)
    with pytest.raises(CopyNotPreparedError, match="shadow holds a copy"):
        watch.end_est_step(est_step)
    watch, est_step = looked(net, shadow)
    est_step.asked_stepped = True
    watch.begin()
    move(net)
    shadow.update(net)
    watch.end_est_step(est_step)
    shadow.update(net)
    est_step.asked_stepped = False
    with pytest.raises(EstsDisagreeError, match="the prepared Shadow was changed"):
        watch.end_est_step(est_step)


def test_of_a_bare_list_a_warning_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Linear(3, 2)
    averages = [parameter.detach().clone() for parameter in net.parameters()]
    watch, est_step = looked(net)
    watch.begin()
    for _ in range(3):
        averages[0].add_(1)
        watch.end_est_step(est_step)
    said = capsys.readouterr()
    assert (said.out + said.err).count("a copy of the weights changes in every turn") == 1


def test_of_an_average_that_is_updated_between_epochs_a_warning_says_so_once() -> None:
    net = nn.Linear(3, 2)
    averaged, best, frozen = copy.deepcopy(net), copy.deepcopy(net), copy.deepcopy(net)
    prepared = copy.deepcopy(net)
    watch, _ = looked(net, prepared)
    with capture_logs() as said:
        for _ in range(3):
            watch.begin()
            for one in (net, averaged, prepared):
                move(one)
            best = copy.deepcopy(net)
    assert [line["variable"] for line in said] == ["averaged"]
    assert "not prepared has changed since" in said[0]["event"] and best is not frozen


# ---------------------------------------------------------------------- forwards


@pytest.mark.parametrize("batch_norm", [True, False])
def test_a_second_forward_is_refused_where_the_first_has_changed_a_buffer(batch_norm: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4) if batch_norm else nn.GroupNorm(2, 4))
    running: list[EstStep | None] = [EstStep(StepState(5), 1, 0, ends=False)]
    watch = ForwardWatch(list(net.buffers()), lambda: running[0])
    net.register_forward_pre_hook(watch)
    x = torch.randn(4, 3)

    watch.begin()
    net(x)
    running[0] = None  # backward() is over: an evaluation may follow
    net(x)
    running[0] = EstStep(StepState(5), 1, 0, ends=False, batches=2)
    watch.begin()
    net(x)  # within no_sync nothing is broadcast
    net(x)
    running[0] = EstStep(StepState(5), 1, 0, ends=False)
    net.eval()
    watch.begin()
    net(x)
    net.train()
    net(x)
    copied = copy.deepcopy(net)
    copied(x)
    if not batch_norm:
        net(x)
        return
    with pytest.raises(
        SecondForwardError, match=r"step 5 has a second forward .* buffer 1.num_batches_tracked"
    ):
        net(x)


def test_the_sign_of_a_zero_in_a_buffer_is_a_change_between_epochs() -> None:
    buffers = Rank0Buffers(nn.BatchNorm1d(3))
    buffers.check_between_epochs(4)
    buffers.tensors[0][1] = -0.0
    with pytest.raises(BuffersChangedError, match="buffer running_mean was written to between two epochs"):
        buffers.check_between_epochs(4)

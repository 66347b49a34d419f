"""After a load, fresh objects go on exactly as the ones that were exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from elastane.state.codec import Exported, StateFormatError, StateNotCarriedError, encode
from elastane.state.stream import StreamLayout, exported_from_stream
from elastane.state.train_state import StateError, TrainState
from unit.state.models import OPTIMIZERS, Net, build, train


def staged(exported: Exported) -> Exported:
    """The export as it arrives elsewhere: views into one buffer of bytes."""
    layout = StreamLayout(exported.specs)
    stream = torch.empty(layout.total_bytes, dtype=torch.uint8)
    return exported_from_stream(
        exported.structure, layout.gather(exported.tensors, 0, layout.total_bytes, stream)
    )


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any] | None] = {
    "none": None,
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5], gamma=0.3),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=40, cycle_momentum=False),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.95**step),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.7),
}


def check_resume(optimizer: str, scheduler: str, dtype: torch.dtype, trained: int = 0) -> None:
    """Trains, loads into other objects (that have themselves `trained` steps), and compares what follows."""
    make = {"optimizer": OPTIMIZERS[optimizer], "scheduler": SCHEDULERS[scheduler], "dtype": dtype}
    donor, receiver = build(**make), build(**make, seed=1)
    train(receiver, range(50, 50 + trained))
    train(donor, range(4))
    exported = donor.export()
    before = donor.fingerprint()
    assert receiver.fingerprint()["weights"] != before["weights"]

    copy = staged(exported)
    receiver.load(copy)
    for tensor in copy.tensors:  # the staging memory is gone, the state must stand without it
        tensor.zero_()

    assert receiver.fingerprint() == before
    assert receiver.export().structure == exported.structure
    assert train(receiver, range(4, 9)) == train(donor, range(4, 9))
    assert receiver.fingerprint() == donor.fingerprint() != before


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_identically(optimizer: str) -> None:
    check_resume(optimizer, "none", torch.float32)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_goes_on_identically(scheduler: str) -> None:
    check_resume("adamw", scheduler, torch.float32)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd_momentum", "adamw_amsgrad_tensor_lr"])
@pytest.mark.parametrize("trained", [0, 2], ids=["newcomer", "behind"])
def test_bfloat16_and_a_receiver_that_already_has_state(optimizer: str, trained: int) -> None:
    check_resume(optimizer, "cosine", torch.bfloat16, trained)


class Float32Momentum(torch.optim.Optimizer):
    """Keeps float32 state beside bfloat16 parameters, as mixed-precision optimizers do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    sum_ = state.setdefault("sum", torch.zeros_like(parameter, dtype=torch.float32))
                    state["history"] = [*state.get("history", [])[-1:], sum_.mean()]
                    state["count"] = state.get("count", 0) + 1
                    sum_.mul_(0.9).add_(parameter.grad.float())
                    parameter.sub_((group["lr"] * sum_).to(parameter.dtype))


def test_float32_state_of_bfloat16_parameters_is_not_cast() -> None:
    donor, receiver = (build(Float32Momentum, seed=seed, dtype=torch.bfloat16) for seed in (0, 1))
    train(donor, range(3))
    receiver.load(staged(donor.export()))
    state = receiver.optimizers[0].state[receiver.model.convolution.weight]
    assert state["sum"].dtype == torch.float32 and state["count"] == 3
    assert receiver.fingerprint() == donor.fingerprint()
    # This is what torch's own load does to it, and why it is not used.
    torch_own = build(Float32Momentum, seed=1, dtype=torch.bfloat16)
    torch_own.optimizers[0].load_state_dict(donor.optimizers[0].state_dict())
    assert torch_own.optimizers[0].state[torch_own.model.convolution.weight]["sum"].dtype == torch.bfloat16


def test_adamw_step_tensors_and_group_options_are_exact() -> None:
    donor, receiver = build(), build(seed=1)
    train(donor, range(3))
    donor.optimizers[0].param_groups[1]["lr"] = 0.1 + 0.2
    receiver.load(staged(donor.export()))
    entry = receiver.optimizers[0].state[receiver.model.convolution.weight]
    assert entry["step"].dtype == torch.float32 and entry["step"].shape == () and entry["step"].item() == 3
    groups = receiver.optimizers[0].param_groups
    assert (
        groups[1]["lr"] == 0.1 + 0.2 and type(groups[1]["lr"]) is float and groups[1]["weight_decay"] == 0.3
    )
    assert type(groups[0]["betas"]) is tuple and groups[0]["params"][0] is receiver.model.convolution.weight


def test_memory_and_identity_of_what_the_script_holds_are_kept() -> None:
    make = OPTIMIZERS["adamw_amsgrad_tensor_lr"]
    donor, receiver = build(make), build(make, seed=1)
    train(receiver, range(2))
    parameters = {name: (p, p.data_ptr()) for name, p in receiver.model.named_parameters()}
    group, state = receiver.optimizers[0].param_groups[0], receiver.optimizers[0].state
    lr, moment = group["lr"], state[receiver.model.convolution.weight]["exp_avg"]
    running = receiver.model.norm.running_mean
    train(donor, range(3))
    receiver.load(staged(donor.export()))
    for name, parameter in receiver.model.named_parameters():
        assert parameter is parameters[name][0] and parameter.data_ptr() == parameters[name][1]
    assert receiver.optimizers[0].param_groups[0] is group and group["lr"] is lr
    assert receiver.optimizers[0].state[receiver.model.convolution.weight]["exp_avg"] is moment
    assert receiver.model.norm.running_mean is running
    assert receiver.model.first.weight is receiver.model.second.weight


def test_strides_follow_the_donor_in_the_same_memory() -> None:
    donor, receiver = build(), build(seed=1)
    receiver.model.to(memory_format=torch.contiguous_format)
    pointer = receiver.model.convolution.weight.data_ptr()
    receiver.load(staged(donor.export()))
    weight = receiver.model.convolution.weight
    assert weight.stride() == donor.model.convolution.weight.stride() and weight.data_ptr() == pointer
    assert torch.equal(weight, donor.model.convolution.weight)
    assert train(receiver, range(3)) == train(donor, range(3))


def test_an_optimizer_without_state_empties_the_receivers() -> None:
    donor, receiver = build(), build(seed=1)
    train(receiver, range(2))
    receiver.load(staged(donor.export()))
    assert not receiver.optimizers[0].state
    assert receiver.fingerprint() == donor.fingerprint()


def test_loading_ones_own_export_changes_nothing() -> None:
    state = build()
    train(state, range(2))
    before = state.fingerprint()
    state.load(state.export())
    assert state.fingerprint() == before


def test_tied_optimizer_tensors_stay_tied_and_others_apart() -> None:
    shared, apart = torch.tensor(0.01), torch.tensor(0.01)

    def make(lrs: list[torch.Tensor]) -> TrainState:
        layers = nn.ModuleList(nn.Linear(2, 2) for _ in lrs)
        groups = [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, lrs, strict=True)]
        return TrainState(layers, [torch.optim.SGD(groups, foreach=False)])

    donor, receiver = make([shared, apart, shared]), make([torch.tensor(0.5)] * 3)
    receiver.load(staged(donor.export()))
    lrs = [group["lr"] for group in receiver.optimizers[0].param_groups]
    assert lrs[0] is lrs[2] and lrs[1] is not lrs[0]


class Tracker:
    def __init__(self, value: object) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.value = state["value"]


def test_extras_grad_scaler_and_averaged_model() -> None:
    def make(seed: int) -> TrainState:
        state = build(seed=seed)
        state.extras = {
            "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**10),
            "average": torch.optim.swa_utils.AveragedModel(state.model),
            "tracker": Tracker(torch.full((3,), float(seed))),
        }
        return state

    donor, receiver = make(0), make(1)
    donor.extras["scaler"].scale(torch.ones(1))
    donor.extras["scaler"].update(new_scale=37.0)
    train(donor, range(2))
    donor.extras["average"].update_parameters(donor.model)
    copy = staged(donor.export())
    receiver.load(copy)
    for tensor in copy.tensors:
        tensor.zero_()
    assert receiver.extras["scaler"].get_scale() == 37.0
    assert torch.equal(receiver.extras["tracker"].value, torch.zeros(3))
    averages = [state.extras["average"].state_dict() for state in (donor, receiver)]
    assert all(torch.equal(averages[0][key], averages[1][key]) for key in averages[0])


def test_extra_state_of_modules() -> None:
    class Counting(nn.Linear):
        count = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"count": self.count}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    donor, receiver = TrainState(nn.Sequential(Counting(2, 2))), TrainState(nn.Sequential(Counting(2, 2)))
    donor.model[0].count = 7
    receiver.load(staged(donor.export()))
    assert receiver.model[0].count == 7


def test_buffers_that_are_none_or_of_another_size() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("mask", None)
            self.register_buffer("table", torch.zeros(2))

    donor, receiver = TrainState(Lazy()), TrainState(Lazy())
    donor.model.mask, donor.model.table = torch.ones(3, dtype=torch.bool), torch.arange(5.0)
    receiver.load(staged(donor.export()))
    assert torch.equal(receiver.model.mask, donor.model.mask) and torch.equal(
        receiver.model.table, torch.arange(5.0)
    )
    receiver.load(staged(TrainState(Lazy()).export()))
    assert receiver.model.mask is None and receiver.model.table.shape == (2,)


def test_an_optimizer_with_its_own_load_state_dict_is_used_as_it_is() -> None:
    class Own(torch.optim.SGD):
        loaded = 0

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loaded += 1
            super().load_state_dict(state)

    donor, receiver = (build(lambda p: Own(p, lr=0.1, momentum=0.9), seed=seed) for seed in (0, 1))
    train(donor, range(2))
    receiver.load(staged(donor.export()))
    assert receiver.optimizers[0].loaded == 1 and receiver.fingerprint() == donor.fingerprint()


def test_the_hooks_of_the_optimizer_run() -> None:
    donor, receiver = build(), build(seed=1)
    calls: list[str] = []
    receiver.optimizers[0].register_load_state_dict_pre_hook(lambda _o, _s: calls.append("before"))
    receiver.optimizers[0].register_load_state_dict_post_hook(lambda _o: calls.append("after"))
    receiver.load(staged(donor.export()))
    assert calls == ["before", "after"]


def different_shape() -> TrainState:
    state = build()
    state.model.second = nn.Linear(4, 5)
    return state


def different_dtype() -> TrainState:
    return build(dtype=torch.float64)


def more_parameters() -> TrainState:
    state = build()
    state.model.third = nn.Linear(1, 1)
    return state


def other_groups() -> TrainState:
    state = build()
    return TrainState(state.model, [torch.optim.AdamW(state.model.parameters())])


def no_optimizer() -> TrainState:
    return TrainState(build().model)


def with_scheduler() -> TrainState:
    return build(scheduler=SCHEDULERS["cosine"])


def with_extra() -> TrainState:
    state = build()
    state.extras["tracker"] = Tracker(1)
    return state


def more_buffers() -> TrainState:
    state = build()
    state.model.register_buffer("more", torch.zeros(1))
    return state


@pytest.mark.parametrize(
    "donor",
    [
        different_shape,
        different_dtype,
        more_parameters,
        other_groups,
        no_optimizer,
        with_scheduler,
        with_extra,
        more_buffers,
    ],
)
def test_a_state_of_other_objects_is_refused_before_anything_changes(donor: Callable[[], TrainState]) -> None:
    receiver = build(seed=1)
    train(receiver, range(2))
    before = receiver.fingerprint()
    with pytest.raises(StateError):
        receiver.load(staged(donor().export()))
    assert receiver.fingerprint() == before


@pytest.mark.parametrize("state", [{}, [], {"parameters": {}}, 7])
def test_something_else_is_no_training_state(state: object) -> None:
    with pytest.raises(StateFormatError, match="not the state of a training run"):
        build().load(encode(state))


def test_an_extra_that_cannot_be_carried_is_named() -> None:
    state = build()
    state.extras["tracker"] = Tracker(open)
    with pytest.raises(StateNotCarriedError, match=r"extras\.tracker\.value: object of type"):
        state.export()


def test_export_copies_nothing() -> None:
    state = build()
    pointers = {tensor.data_ptr() for tensor in state.export().tensors}
    assert {parameter.data_ptr() for parameter in state.model.parameters()} <= pointers


def test_tied_weights_travel_once() -> None:
    state = TrainState(Net())
    shapes = [tuple(tensor.shape) for tensor in state.export().tensors]
    assert shapes.count((4, 4)) == 1

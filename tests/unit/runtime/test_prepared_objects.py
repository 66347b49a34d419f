"""What `prepare` takes, and what becomes of the objects' methods."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from elastane.runtime.options import TrainOptions
from elastane.runtime.prepared_objects import (
    LateGroupError,
    PreparedObjects,
    UnpreparedScalerError,
    check_modules,
    intercept,
    refuse_new_groups,
    refuse_other_scalers,
    replace_method,
    set_to_none,
)
from elastane_common.errors import UnsupportedError


class Counter:
    """The script's own state."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.fixture
def parts():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, DataLoader([0, 1, 2])


def test_objects_are_told_apart_in_any_order(parts):
    model, optimizer, loader = parts
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    averaged, ema = AveragedModel(model), copy.deepcopy(model)
    scaler, counter = torch.amp.GradScaler("cpu"), Counter()
    prepared = PreparedObjects([averaged, loader, counter, scaler, ema, optimizer, scheduler, model])
    assert prepared.model is model
    assert prepared.loader is loader
    assert prepared.optimizers == [optimizer]
    assert prepared.schedulers == [scheduler]
    assert prepared.scalers == [scaler]
    assert prepared.averaged == [averaged]
    assert list(prepared.extras.values()) == [averaged, counter, scaler, ema]
    assert list(prepared.extras) == [
        "prepared.0.AveragedModel",
        "prepared.2.Counter",
        "prepared.3.GradScaler",
        "prepared.4.Linear",
    ]


def test_two_models_that_are_trained_are_refused(parts):
    model, _, loader = parts
    other = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(UnsupportedError, match="2 models to train"):
        PreparedObjects([model, other, optimizer, loader])


def test_an_object_without_state_is_refused(parts):
    with pytest.raises(UnsupportedError, match="got a object, which has no state_dict"):
        PreparedObjects([*parts, object()])


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_model_optimizer_and_loader_are_needed(parts, missing):
    with pytest.raises(UnsupportedError, match="prepare takes one model, one training DataLoader"):
        PreparedObjects([part for place, part in enumerate(parts) if place != missing])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Embedding(3, 2, sparse=True), "0 produces sparse gradients .*sparse=False"),
        (nn.EmbeddingBag(3, 2, sparse=True), "0 produces sparse gradients"),
        (nn.SyncBatchNorm(2), "0 is a SyncBatchNorm, .*use BatchNorm"),
        (nn.LazyLinear(2), "0 has uninitialized .lazy. parameters"),
    ],
)
def test_modules_that_cannot_be_exact_are_named_before_training(module, words):
    with pytest.raises(UnsupportedError, match=words):
        check_modules(nn.Sequential(module, nn.Linear(2, 2)))


class Recorder:
    """`StepCalls` that lets nothing through."""

    def __init__(self):
        self.calls = []

    @staticmethod
    def adding():
        """Asked by the clipping functions, which keep it for the rest of the process."""
        return False

    def _note(self, kind):
        def call(original, *args, **kwargs):
            self.calls.append((kind, getattr(original, "__name__", "step")))

        return call

    def __getattr__(self, kind):
        return self._note(kind)


def test_calls_that_count_once_a_step_are_intercepted(parts):
    model, optimizer, loader = parts
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    averaged, scaler = AveragedModel(model), torch.amp.GradScaler("cpu")
    prepared, calls = PreparedObjects([model, optimizer, loader, scheduler, averaged, scaler]), Recorder()
    plain_state = scheduler.state_dict()
    intercept(prepared, calls, zeroing=True)
    optimizer.step()
    optimizer.zero_grad()
    model.zero_grad()
    scheduler.step()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    averaged.update_parameters(model)
    assert [kind for kind, _ in calls.calls] == [
        "optimizer_step", "zero_grad", "zero_grad", "scheduler_step",
        "unscale", "optimizer_step", "once", "once",
    ]  # fmt: skip
    assert scheduler.state_dict() == plain_state, "nothing of ours is in a scheduler's state"
    assert "update_parameters" not in averaged.state_dict()


def test_a_step_that_a_scheduler_watches_still_says_whose_it_is(parts):
    model, optimizer, loader = parts
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    owners = []

    class Calls(Recorder):
        def optimizer_step(self, original, *args):
            owners.append(original.__self__)
            return original(*args)

    intercept(PreparedObjects([model, optimizer, loader]), Calls(), zeroing=False)
    optimizer.step()
    assert owners == [optimizer]
    assert optimizer.step._wrapped_by_lr_sched
    assert optimizer._opt_called


def test_gradients_are_zeroed_as_torch_zeroes_them(parts):
    class Own(torch.optim.SGD):
        def zero_grad(self):
            owned.append(1)

    model, optimizer, _ = parts
    owned, optimizers = [], [optimizer, Own(model.parameters(), lr=0.1)]
    for one in optimizers:
        replace_method(one, "zero_grad", set_to_none)

    def backward():
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad.abs().sum() > 0

    for zero in (optimizer.zero_grad, lambda: optimizer.zero_grad(set_to_none=True)):
        backward()
        zero()
        assert model.weight.grad is None and model.bias.grad is None
    backward()
    optimizer.zero_grad(set_to_none=False)
    assert model.weight.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    optimizers[1].zero_grad()
    assert owned == [1]
    with pytest.raises(TypeError):
        optimizer.zero_grad(to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.zero_grad()
    assert "Optimizer.zero_grad#SGD.zero_grad" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0},
        {"accumulation_steps": 0},
        {"steps_per_epoch": -1},
        {"static_graph": True, "accumulation_steps": 2},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UnsupportedError, match=next(iter(options))):
        TrainOptions.of(options)


def test_an_unknown_option_is_refused_with_the_known_ones():
    words = r"no option find_unused .*find_unused_parameters, static_graph"
    with pytest.raises(UnsupportedError, match=words):
        TrainOptions.of({"find_unused": True})


def test_copies_and_files_of_what_was_prepared_are_the_script_s_own(parts, tmp_path):
    model, optimizer, loader = parts
    prepared, calls = PreparedObjects([model, optimizer, loader]), Recorder()
    intercept(prepared, calls, zeroing=True)
    copied = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for one in (copied, loaded):
        one(torch.ones(1, 2)).sum().backward()
        one.zero_grad()
        assert one.weight.grad is None
    copy.deepcopy(optimizer).step()
    assert calls.calls == []
    model.zero_grad()
    assert calls.calls == [("zero_grad", "zero_grad")]


class Holder(Counter):
    """As libraries hide a scaler."""

    def __init__(self):
        super().__init__()
        self._scaler = torch.amp.GradScaler("cpu")


@pytest.fixture
def other_scalers(monkeypatch):
    """`refuse_other_scalers` changes the class, for as long as the process lives; here, the test."""
    for name in ("step", "unscale_"):
        monkeypatch.setattr(torch.amp.GradScaler, name, getattr(torch.amp.GradScaler, name))


@pytest.mark.usefixtures("other_scalers")
def test_a_scaler_in_an_object_is_prepared_with_it_and_others_are_refused(parts):
    model, optimizer, loader = parts
    holder = Holder()
    assert PreparedObjects([model, optimizer, loader, holder, holder._scaler]).scalers == [holder._scaler]
    prepared = PreparedObjects([model, optimizer, loader, holder])
    assert prepared.scalers == [holder._scaler]
    refuse_other_scalers(prepared)
    other = torch.amp.GradScaler("cpu")
    other.scale(model(torch.ones(1, 2)).sum()).backward()
    for call in (other.unscale_, other.step):
        with pytest.raises(UnpreparedScalerError, match="a GradScaler that was not prepared steps the SGD"):
            call(optimizer)
    other.step(torch.optim.SGD(model.parameters(), lr=0.1))  # its own affair
    torch.amp.GradScaler("cpu", enabled=False).step(optimizer)
    holder._scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    holder._scaler.step(optimizer)


def test_a_group_added_after_prepare_is_refused_and_a_copy_takes_it(parts):
    model, optimizer, loader = parts
    refuse_new_groups(PreparedObjects([model, optimizer, loader]))
    with pytest.raises(LateGroupError, match="add_param_group") as caught:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert "create all groups before prepare" in caught.value.hint
    copy.deepcopy(optimizer).add_param_group({"params": [nn.Parameter(torch.ones(1))]})

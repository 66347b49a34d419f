"""What is measured of each unit, and that one unit at a time is held."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastane.pipeline.profiling import Measurement, ProfileError, profile_units, resized, samples_of
from elastane.pipeline.units import Units
from elastane.state.unit_optimizer import UnitOptimizer

BATCH, WIDTH = 4, 8
FLOAT = 4


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None


class Sleeper(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.seconds = forward, backward

    def forward(self, given: Tensor) -> Tensor:
        return _Sleep.apply(given * self.scale, *self.seconds)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def _batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)) for _ in range(count)]


def _measured(given: Any, steps: int = 2, **more: Any) -> Measurement:
    return profile_units(Units.build(given), _batches(), _loss, steps=steps, **more)


def test_the_workspace_is_what_a_unit_takes_beside_its_stash() -> None:
    class Wide(nn.Linear):
        def forward(self, given: Tensor) -> Tensor:
            with torch.no_grad():
                given.repeat(1, 100).sum()  # of no use after it
            return super().forward(given)

    plain, wide = (
        _measured([nn.Linear(WIDTH, WIDTH), kind(WIDTH, WIDTH)], steps=1).profile.units[1].workspace_bytes
        for kind in (nn.Linear, Wide)
    )
    assert 0 < plain < 90 * BATCH * WIDTH * FLOAT < wide


def test_times_are_those_of_each_unit() -> None:
    found = _measured([Sleeper(0.01, 0.02), lambda: Sleeper(0.03, 0.005)], steps=3)
    first, second = found.profile.units
    for unit, (forward, backward) in ((first, (0.01, 0.02)), (second, (0.03, 0.005))):
        assert forward <= unit.forward_seconds < 2 * forward + 0.01
        assert backward <= unit.backward_seconds < 2 * backward + 0.01
    assert len(found.spread) == 2 and found.samples == BATCH


def test_bytes_of_a_perceptron() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, 16), nn.ReLU(inplace=True), nn.BatchNorm1d(16), nn.Linear(16, WIDTH)
    )
    found = _measured(model).profile.units
    assert [unit.name for unit in found] == ["0", "1", "2", "3"]
    assert [unit.parameter_bytes for unit in found] == [
        (WIDTH * 16 + 16) * FLOAT,
        0,
        32 * FLOAT,
        (WIDTH * 16 + WIDTH) * FLOAT,
    ]
    assert [unit.buffer_bytes for unit in found] == [0, 0, 2 * 16 * FLOAT + 8, 0]
    wide, narrow = BATCH * 16 * FLOAT, BATCH * WIDTH * FLOAT
    assert [unit.boundary_bytes for unit in found] == [wide, wide, wide, narrow]
    # The first saves its input. ReLU changes and saves the tensor that it is given; BatchNorm saves it, too,
    # with mean and deviation. The last saves its input, the loss the difference.
    assert [unit.activation_bytes for unit in found] == [narrow, wide, 2 * 16 * FLOAT, wide + narrow]


def _saved_bytes(model: nn.Sequential, given: Tensor, target: Tensor) -> int:
    """What a forward of the whole model keeps, each storage once, without parameters."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = _loss(model(given), target)
    assert loss.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("inplace", [False, True])
def test_activations_of_all_units_are_those_of_the_whole_model(inplace: bool) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(WIDTH, 16),
            nn.LayerNorm(16),
            nn.ReLU(inplace),
            nn.Dropout(0.5),
            nn.Linear(16, 16),
            nn.Sigmoid(),
            nn.BatchNorm1d(16),
            nn.Tanh(),
            nn.Linear(16, WIDTH),
        )

    (given, target), *_ = batches = _batches()
    units = profile_units(Units.build(model()), batches, _loss, steps=1).profile.units
    assert sum(unit.activation_bytes for unit in units) == _saved_bytes(model(), given, target)


def test_optimizer_state_is_measured() -> None:
    units = Units.build([nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)])
    optimizer = UnitOptimizer.build(units, lambda parameters: torch.optim.AdamW(parameters))
    found = profile_units(units, _batches(), _loss, steps=1, optimizer=optimizer).profile.units
    parameters = (WIDTH * WIDTH + WIDTH) * FLOAT
    assert [unit.optimizer_bytes for unit in found] == [
        2 * parameters + 2 * FLOAT,
        0,
        2 * parameters + 2 * FLOAT,
    ]
    assert not units.held


def test_one_unit_is_held_at_a_time_and_ties_together() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    units = Units.build([shared, nn.Linear(WIDTH, WIDTH), shared])
    held: list[set[int]] = []
    seen = units.module(1).register_forward_pre_hook(lambda *_: held.append(set(units.held)))
    shared.register_forward_pre_hook(lambda *_: held.append(set(units.held)))
    found = profile_units(units, _batches(), _loss, steps=1).profile
    seen.remove()
    assert {frozenset(each) for each in held} == {frozenset({0, 2}), frozenset({1})}
    assert [unit.tie for unit in found.units] == [1, 0, 1]
    assert found.cuts == ()
    assert [unit.parameter_bytes for unit in found.units][2] == 0  # counted once


def test_units_may_put_out_tuples_and_integers() -> None:
    class Split(nn.Module):
        def forward(self, given: Tensor) -> tuple[Tensor, Tensor, None]:
            return given * 2, torch.arange(3), None

    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, given: tuple[Tensor, Tensor, None]) -> Tensor:
            assert given[2] is None and given[1].dtype == torch.int64
            return given[0] * self.weight

    found = _measured([Split(), Join()]).profile.units
    assert found[0].boundary_bytes == BATCH * WIDTH * FLOAT + 3 * 8


def test_shapes_may_vary() -> None:
    batches = [(torch.randn(n, WIDTH), torch.randn(n, WIDTH)) for n in (2, 6, 4)]
    units = Units.build([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
    found = profile_units(units, batches, _loss, steps=3)
    assert found.profile.units[0].boundary_bytes == 4 * WIDTH * FLOAT
    assert found.samples == 2


def test_what_a_unit_raises_names_it() -> None:
    with pytest.raises(RuntimeError) as raised:
        _measured([nn.Linear(WIDTH, WIDTH), nn.Linear(3, 3)])
    assert "in unit 1 (1), which was being profiled" in raised.value.__notes__


def test_without_a_batch_nothing_is_measured() -> None:
    with pytest.raises(ProfileError, match="no batch"):
        profile_units(Units.build([nn.Linear(1, 1)]), [], _loss)


def test_micro_batches_of_other_sizes() -> None:
    batch = (
        torch.arange(8.0).reshape(4, 2),
        {"mask": torch.arange(4), "name": "x", "scale": torch.tensor(1.0)},
    )
    less, more = resized(batch, 3), resized(batch, 9)
    assert less[0].shape == (3, 2) and less[1]["mask"].tolist() == [0, 1, 2]
    assert more[1]["mask"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert less[1]["name"] == "x" and more[1]["scale"].item() == 1.0
    assert samples_of(batch) == 4
    with pytest.raises(ProfileError):
        resized((1, "two", torch.tensor(3.0)), 4)

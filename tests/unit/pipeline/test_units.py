"""Units of a model: initial weights as stock's, storage that comes and goes, ties, and what is refused."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elastane.pipeline.units import InitialValuesError, Units, UnitsError
from elastane_common.errors import EXIT_REFUSED


class Drawing(nn.Module):
    """Draws its weights from all three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2) + random.random() + float(np.random.rand()))
        self.register_buffer("table", torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def a_net() -> list[Any]:
    return [
        functools.partial(nn.Linear, 4, 8),
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        nn.ReLU,
        functools.partial(nn.BatchNorm1d, 8),
        Drawing,
        lambda: nn.Linear(8, 2, dtype=torch.bfloat16),
    ]


def seed() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def bits(module: nn.Module) -> dict[str, Any]:
    return {
        name: (
            t.dtype,
            tuple(t.shape),
            t.stride(),
            t.detach().contiguous().reshape(-1).view(torch.uint8).tolist(),
        )
        for name, t in (*module.named_parameters(), *module.named_buffers())
    }


def stock() -> nn.Sequential:
    seed()
    return nn.Sequential(*(build() for build in a_net()))


def test_initial_values_and_generators_are_those_of_the_stock_script() -> None:
    expected, after = stock(), draws()
    seed()
    units = Units.build(a_net())
    assert draws() == after
    assert units.held == frozenset() and units.count == 6
    for unit in (5, 0, 4, 1, 3, 2):  # in any order
        units.hold(units.held | {unit})
        torch.rand(7)
        before = torch.get_rng_state()
        units.initialise(unit)
        assert torch.equal(torch.get_rng_state(), before)
    assert bits(units.as_model()) == bits(expected)
    assert [spec.name for spec in units.specs] == [name for name, _ in expected.named_parameters()]
    assert [(spec.shape, spec.stride) for spec in units.specs] == [
        (tuple(p.shape), p.stride()) for p in expected.parameters()
    ]


def test_modules_have_their_values_again_until_training_has_begun() -> None:
    expected = stock()
    seed()
    given = nn.Sequential(*(build() for build in a_net()))
    units = Units.build(given)
    assert units.as_model() is given
    for _ in range(2):
        units.hold(range(6))
        for unit in range(6):
            units.initialise(unit)
        assert bits(given) == bits(expected)
        with torch.no_grad():
            for parameter in units.parameters:
                parameter.fill_(1.0)
        given[3].running_mean.fill_(9.0)
        units.hold([])
    units.started()
    units.hold([0])
    with pytest.raises(InitialValuesError, match=r"unit 0 \(0\) are gone: training has begun"):
        units.initialise(0)


def test_parameters_keep_their_identity_shape_and_strides_and_lose_their_memory() -> None:
    units = Units.build(a_net())
    units.hold([1])
    units.initialise(1)
    weight = units.parameters[2]
    assert weight is units.module(1).weight and weight.is_contiguous(memory_format=torch.channels_last)
    address, values = weight.untyped_storage(), weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    units.hold([0])
    assert weight is units.module(1).weight and weight.shape == (4, 3, 3, 3) and weight.requires_grad
    assert address.nbytes() == 0 and weight.untyped_storage().nbytes() == 4
    assert weight.grad is None and torch.isnan(weight).all()
    units.hold([1])
    assert weight.stride() == values.stride() and address.nbytes() == values.nbytes


def test_a_released_parameter_refuses_to_be_written() -> None:
    units = Units.build(a_net())
    with pytest.raises(RuntimeError, match="single memory location"), torch.no_grad():
        units.parameters[0].normal_()


def test_at_most_one_unit_is_in_memory_while_they_are_built() -> None:
    alive: list[nn.Module] = []
    built_beside: list[int] = []

    def layer() -> nn.Module:
        built_beside.append(sum(p.untyped_storage().nbytes() > 8 for m in alive for p in m.parameters()))
        alive.append(nn.Linear(16, 16))
        return alive[-1]

    Units.build([layer] * 5)
    assert built_beside == [0] * 5


def test_a_nested_sequential_is_flattened_with_stock_names() -> None:
    class Block(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + super().forward(x)

    given = nn.Sequential()
    given.add_module("body", nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2))))
    given.add_module("residual", Block(nn.Linear(2, 2), nn.Tanh()))
    units = Units.build(given)
    assert units.names == ("body.0", "body.1.0", "body.1.1", "residual")
    assert [spec.name for spec in units.specs] == [name for name, _ in given.named_parameters()]


def test_hooks_of_a_sequential_that_would_see_a_part_of_it_are_refused() -> None:
    given = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    given[1].register_forward_hook(lambda *_: None)
    with pytest.raises(UnitsError, match="Sequential 1 has hooks"):
        Units.build(given)


# ------------------------------------------------------------------ ties


def test_units_that_share_a_parameter_are_tied_and_held_together() -> None:
    embedding, head, between = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(4, 4)
    head.weight = embedding.weight  # type: ignore[assignment]
    before = embedding.weight.detach().clone()
    units = Units.build([embedding, between, head])
    assert units.ties == (1, 0, 1)
    assert [spec.name for spec in units.specs] == ["0.weight", "1.weight", "1.bias"]
    assert units.owned(2) == () and units.tied_with([2]) == {0, 2}
    with pytest.raises(UnitsError, match=r"share parameters with units \[2\]"):
        units.hold([0, 1])
    assert units.held == frozenset()
    units.hold([0, 2])
    units.initialise(2)
    units.initialise(0)
    assert head.weight is embedding.weight and torch.equal(head.weight, before)


def test_one_module_in_two_places() -> None:
    norm, relu = nn.BatchNorm1d(4), nn.ReLU()
    given = nn.Sequential(nn.Linear(4, 4), norm, relu, nn.Linear(4, 4), norm, relu)
    units = Units.build(given)
    assert units.ties == (0, 1, 0, 0, 1, 0)  # a module without state ties nothing
    units.hold([1, 4])
    for unit in (1, 4):
        units.initialise(unit)
    assert units.module(4) is norm and norm.running_mean.tolist() == [0.0] * 4
    assert [name for name, _, _ in units.owned_buffers(4)] == []


def test_a_buffer_of_two_units_ties_them() -> None:
    table = torch.arange(4.0)
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    for module in (first, second):
        module.register_buffer("table", table)
    units = Units.build([first, nn.Linear(2, 2), second])
    assert units.ties == (1, 0, 1)
    units.hold([0, 2])
    units.initialise(0)
    units.initialise(2)
    assert first.table is second.table and first.table.tolist() == [0.0, 1.0, 2.0, 3.0]


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "has no units"),
        (nn.Sequential(), "has no units"),
        (None, "given as None"),
        (5, "given as an object of type int"),
        (nn.Linear(2, 2), "given as an object of type Linear"),
        ([nn.Linear(2, 2), 5], "unit 1 is an object of type int"),
        ([nn.Linear(2, 2), lambda: "text"], "given as unit 1 returned an object of type str"),
        ([lambda: None], "given as unit 0 returned None"),
        ([nn.ReLU, nn.Tanh], "2 units of the pipeline have no parameters"),
        ([lambda: nn.LazyLinear(3)], r"parameter weight of unit 0 \(0\) is not initialized"),
        ([lambda: nn.Linear(2, 2, device="meta")], "on the meta device"),
    ],
)
def test_what_cannot_be_units_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(UnitsError, match=words) as refused:
        Units.build(given)
    assert refused.value.exit_code == EXIT_REFUSED and refused.value.hint


def test_one_unit_and_all_parameters_in_one_unit_are_fine() -> None:
    assert Units.build([nn.Linear(2, 2)]).count == 1
    assert Units.build([nn.ReLU, lambda: nn.Linear(2, 2), nn.Tanh]).specs[0].unit == 1


def test_different_parameters_in_one_memory_are_refused() -> None:
    flat = torch.zeros(8)
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    first.weight.data, second.weight.data = flat[:4].view(2, 2), flat[4:].view(2, 2)
    with pytest.raises(UnitsError, match=r"weight of unit 1 \(1\) is in the memory of weight of unit 0"):
        Units.build([first, second])


def test_views_of_one_memory_within_a_unit_stay_such() -> None:
    flat = torch.arange(8.0)
    unit = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    unit[0].weight.data, unit[1].weight.data = flat[:4].view(2, 2), flat[4:].view(2, 2)
    units = Units.build([nn.Linear(1, 1), unit])
    assert flat.untyped_storage().nbytes() == 0
    units.hold([1])
    units.initialise(1)
    assert flat.tolist() == list(range(8))


def test_memory_that_cannot_be_freed_is_left_for_memory_that_can() -> None:
    module = nn.Linear(2, 2, bias=False)
    module.weight.data = torch.from_numpy(np.arange(4, dtype=np.float32).reshape(2, 2))
    units = Units.build([module])
    units.hold([0])
    units.initialise(0)
    assert module.weight.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert module.weight.untyped_storage().resizable()


@pytest.mark.parametrize("use", [lambda w: w.mul_(2), lambda w: w.clone()], ids=["writes", "reads"])
def test_a_constructor_that_uses_a_released_unit_is_refused(use: Any) -> None:
    made: list[nn.Linear] = []

    def first() -> nn.Module:
        made.append(nn.Linear(2, 2))
        return made[-1]

    def second() -> nn.Module:
        module = nn.Linear(2, 2)
        with torch.no_grad():
            module.weight = nn.Parameter(use(made[0].weight))
        return module

    with pytest.raises(UnitsError, match=r"unit 1 \(1\) reads or writes values of an earlier unit"):
        Units.build([first, second])


def test_a_constructor_that_builds_otherwise_the_second_time_is_found_out() -> None:
    generator, sizes = torch.Generator().manual_seed(0), iter([2, 3])

    def own_generator() -> nn.Module:
        module = nn.Linear(2, 2)
        with torch.no_grad():
            module.weight.normal_(generator=generator)
        return module

    existing = nn.Linear(2, 2)
    again = iter([nn.Linear(2, 2), 5])
    units = Units.build(
        [own_generator, lambda: nn.Linear(2, next(sizes)), lambda: existing, lambda: next(again)]
    )
    units.hold(range(4))
    before = torch.get_rng_state()
    for unit, words in enumerate(
        [
            "gave other values",
            "built another module .* weight differs",
            "returns what existed",
            "returned an object",
        ]
    ):
        with pytest.raises(InitialValuesError, match=words) as refused:
            units.initialise(unit)
        assert refused.value.facts.get("unit") == unit
    assert torch.equal(torch.get_rng_state(), before)


def test_errors_of_a_constructor_pass_through() -> None:
    def broken() -> nn.Module:
        raise KeyError("of the script")

    with pytest.raises(KeyError, match="of the script"):
        Units.build([nn.Linear(2, 2), broken])


def test_stock_jobs_keep_everything() -> None:
    expected = stock()
    seed()
    units = Units.build(a_net(), release=False)
    assert units.held == frozenset(range(6))
    assert bits(units.as_model()) == bits(expected)


def test_zero_sized_and_scalar_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.5))
            self.none = nn.Parameter(torch.zeros(0, 3))
            self.register_buffer("flag", torch.tensor(True))
            self.register_buffer("absent", None)

    units = Units.build([Odd, functools.partial(nn.Linear, 2, 2)])
    units.hold([0])
    units.initialise(0)
    odd: Any = units.module(0)
    assert odd.scale.item() == 2.5 and odd.none.shape == (0, 3) and odd.flag.item() and odd.absent is None


# ------------------------------------------------------------------ split by torch


class Deep(nn.Module):
    def __init__(self, *, skip: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8)) for _ in range(3)]
        )
        self.head = nn.Linear(8, 10, bias=False)
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = first = self.embedding(x)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden)) + hidden
        if self.skip:
            hidden = hidden + first
        outputs: torch.Tensor = self.head(hidden)
        return outputs


def split(model: nn.Module) -> Any:
    from torch.distributed.pipelining import SplitPoint, pipeline

    points = {"layers.1": SplitPoint.BEGINNING, "layers.2": SplitPoint.BEGINNING}
    return pipeline(model, mb_args=(torch.zeros(4, dtype=torch.int64),), split_spec=points)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_torch_has_split_computes_what_the_whole_one_does() -> None:
    seed()
    model, x = Deep(), torch.arange(4)
    expected = {n: t.detach().clone() for n, t in model.named_parameters()}
    units = Units.build(split(model))
    assert units.count == 3 and units.ties == (0, 0, 0)
    assert all(torch.isnan(p).all() for p in model.parameters())  # they are the model's own
    units.hold(range(3))
    for unit in range(3):
        units.initialise(unit)
    assert {
        s.name.partition(".")[2]: p for s, p in zip(units.specs, units.parameters, strict=True)
    }.keys() == (expected.keys())
    assert all(torch.equal(p, expected[n]) for n, p in model.named_parameters())
    torch.manual_seed(5)
    whole = model(x)
    gradients = torch.autograd.grad(whole.sum(), list(model.parameters()))
    torch.manual_seed(5)
    hidden: Any = x
    for unit in range(3):
        hidden = units.module(unit)(hidden)
    assert torch.equal(hidden, whole)
    parts = torch.autograd.grad(hidden.sum(), list(model.parameters()))
    assert all(map(torch.equal, gradients, parts))
    with pytest.raises(UnitsError, match=r"unit 0 was traced in training mode, which aten.dropout"):
        units.as_model().eval()
    units.as_model().train()


@pytest.mark.filterwarnings("ignore")
def test_a_split_model_whose_values_pass_over_a_part_is_refused() -> None:
    with pytest.raises(UnitsError, match=r"part 1 of the split model takes getitem; .* and nothing else"):
        Units.build(split(Deep(skip=True)))

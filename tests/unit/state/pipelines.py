"""Workers of a pipeline in one process: each has units of its own, and together they train one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from elastane.pipeline.units import Units
from elastane.state.fingerprint import fingerprint
from elastane.state.train_state import TrainState
from elastane.state.unit_optimizer import NamedParameters, UnitOptimizer
from elastane.state.unit_state import Staged, UnitState
from elastane_proto.v1 import pipeline_pb2


class Pool(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).mean((2, 3))


class Counting(nn.Linear):
    """A buffer that is not persistent, one that is set from None while it trains, and extra state."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("last", None)
        self.seen = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x.detach().mean(0)
        self.seen += len(x)
        return super().forward(x)


def constructors() -> list[Callable[[], nn.Module]]:
    """Everything that makes state hard: channels_last, BatchNorm, a unit without state, ties, extra state."""
    made: dict[str, nn.Linear] = {}

    def first() -> nn.Module:
        made["first"] = nn.Linear(4, 4, bias=False)
        return made["first"]

    def second() -> nn.Module:
        linear = nn.Linear(4, 4)
        linear.weight = made["first"].weight
        return linear

    return [
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        lambda: nn.BatchNorm2d(4),
        Pool,
        first,
        nn.Tanh,
        second,
        Counting,
    ]


COUNT = 7
TIED = {3, 5}

#: Cuts of the model into stages; units 3 and 5 are tied.
CUTS = ([7], [3, 7], [1, 2, 7], [6, 7], [2, 3, 6, 7])

Optimizers = Callable[[NamedParameters], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizers] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw_amsgrad_tensor_lr": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.01), amsgrad=True, foreach=False
    ),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.5),
    "groups": lambda p: torch.optim.AdamW(
        [
            {"params": [v for n, v in p.named() if v.ndim > 1], "weight_decay": 0.3},
            {"params": [v for n, v in p.named() if v.ndim <= 1], "lr": 0.02},
        ]
    ),
    "named": lambda p: torch.optim.AdamW(p.named(), lr=0.01),
}


class Tracker:
    def __init__(self) -> None:
        self.best = 1.5

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.best = state["best"]


def a_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


class Stock:
    """The same script without a pipeline."""

    def __init__(self, optimizer: Optimizers = OPTIMIZERS["adamw"], *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(*(build() for build in constructors()))
        self.optimizer = optimizer(NamedParameters(self.model.named_parameters()))
        self.scheduler = a_scheduler(self.optimizer)
        self.state = TrainState(self.model, [self.optimizer], [self.scheduler], {"tracker": Tracker()})

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            _loss(self.model(_input(step))).backward()
            self.optimizer.step()
            self.scheduler.step()


class Worker:
    """One worker's objects, built as every worker builds them; it holds nothing yet."""

    def __init__(
        self,
        optimizer: Optimizers = OPTIMIZERS["adamw"],
        *,
        seed: int = 0,
        given: Any = None,
        build: Callable[[], Sequence[Any]] = constructors,
    ) -> None:
        torch.manual_seed(seed)
        self.units = Units.build(given or build())
        self.optimizer = UnitOptimizer.build(self.units, optimizer)
        self.scheduler = a_scheduler(self.optimizer.optimizer)
        self.tracker = Tracker()
        self.state = UnitState(self.units, self.optimizer, [self.scheduler], {"tracker": self.tracker})

    def begin(self, units: Iterable[int]) -> Worker:
        """Take the script's initial values."""
        self.state.adopt(units, Staged(), initial=units)
        return self


def stages(cut: Sequence[int]) -> list[range]:
    return [range(start, end) for start, end in zip([0, *cut], cut, strict=False)]


def begun(cut: Sequence[int], optimizer: Optimizers = OPTIMIZERS["adamw"]) -> list[Worker]:
    """Workers with a stage each, at step 0."""
    return [Worker(optimizer).begin(stage) for stage in stages(cut)]


def train(workers: Sequence[Worker], steps: range) -> None:
    """Those steps, each unit run and stepped by every worker to whom its plan gives it."""
    count = workers[0].units.count
    for step in steps:
        for worker in workers:
            worker.optimizer.optimizer.zero_grad()
        # A copy of each stage, or of none, so that shadows have gradients of their own.
        outputs = _input(step)
        chain = [next(w for w in workers if unit in w.state.active) for unit in range(count)]
        for unit, worker in enumerate(chain):
            outputs = worker.units.module(unit)(outputs)
        _loss(outputs).backward()
        for worker in workers:
            _shadow(worker, chain)
            worker.optimizer.optimizer.step()
            worker.scheduler.step()
            worker.state.settle()
            worker.units.started()


def _shadow(worker: Worker, chain: Sequence[Worker]) -> None:
    """Give a worker's further copies of units the gradients, buffers and extra state of the one that ran."""
    for unit in worker.state.active:
        ran = chain[unit]
        if ran is worker:
            continue
        for place in worker.units.owned(unit):
            worker.units.parameters[place].grad = ran.units.parameters[place].grad
        for mine, theirs in zip(
            worker.units.module(unit).modules(), ran.units.module(unit).modules(), strict=True
        ):
            for name, buffer in theirs._buffers.items():
                mine._buffers[name] = None if buffer is None else buffer.clone()
            if isinstance(theirs, Counting):
                mine.seen = theirs.seen  # type: ignore[assignment]


def _input(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(5, 3, 6, 6, generator=generator)


def _loss(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.pow(2).mean()


def bits(tensor: torch.Tensor | None) -> Any:
    """Dtype, shape, strides and bytes of a tensor."""
    if tensor is None:
        return None
    plain = tensor.detach()
    return (plain.dtype, tuple(plain.shape), plain.stride(), plain.contiguous().numpy().tobytes())


def values(model: nn.Module) -> dict[str, Any]:
    """All parameters and buffers of a model, as bits."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: bits(tensor) for name, tensor in named}


def held_values(worker: Worker) -> dict[str, Any]:
    """The same of the units that a worker steps."""
    active = worker.state.active
    prefixes = tuple(worker.units.prefix(unit) for unit in active)
    return {name: v for name, v in values(worker.units.as_model()).items() if name.startswith(prefixes)}


def stepped(worker: Worker) -> dict[str, Any]:
    """State of the optimizer of the units that a worker steps, by stock name."""
    return {
        worker.units.prefix(unit) + name: {
            key: bits(value) if isinstance(value, torch.Tensor) else value for key, value in entry.items()
        }
        for unit in worker.state.active
        for name, entry in worker.optimizer.export_unit(unit).items()
    }


def stock_stepped(stock: Stock) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in stock.model.named_parameters()}
    return {
        names[id(parameter)]: {k: bits(v) if isinstance(v, torch.Tensor) else v for k, v in entry.items()}
        for parameter, entry in stock.optimizer.state.items()
    }


def assert_like_stock(workers: Sequence[Worker], stock: Stock) -> None:
    """Units, optimizers and schedules have the bits of the stock script; together the workers have all."""
    expected, state = values(stock.model), stock_stepped(stock)
    seen: set[str] = set()
    for worker in workers:
        mine = held_values(worker)
        assert mine == {name: expected[name] for name in mine}
        steps = stepped(worker)
        assert steps == {name: state[name] for name in state if name in steps}
        seen |= mine.keys()
        owned = {
            n
            for u in worker.state.active
            for n in (worker.units.prefix(u) + o for o in worker.units.owned_parameters(u))
        }
        assert steps.keys() == owned & state.keys()
        for group, other in zip(
            worker.optimizer.optimizer.param_groups, stock.optimizer.param_groups, strict=True
        ):
            assert {
                k: bits(v) if isinstance(v, torch.Tensor) else v
                for k, v in group.items()
                if k not in ("params", "param_names")
            } == {
                k: bits(v) if isinstance(v, torch.Tensor) else v
                for k, v in other.items()
                if k not in ("params", "param_names")
            }
        assert worker.scheduler.state_dict() == stock.scheduler.state_dict()
    assert seen == expected.keys()


def a_plan(
    cut: Sequence[int],
    replicas: Sequence[Sequence[int]],
    *,
    shadows: Sequence[Sequence[int]] | None = None,
    held: Sequence[Iterable[int]] = (),
    checkpoint: str = "",
) -> pipeline_pb2.PipelinePlan:
    """Stages with these members; each unit comes from the members that hold it, else from the checkpoint."""
    plan = pipeline_pb2.PipelinePlan()
    for index, (stage, members) in enumerate(zip(stages(cut), replicas, strict=True)):
        plan.stages.add(
            first_unit=stage.start,
            end_unit=stage.stop,
            replicas=members,
            shadows=shadows[index] if shadows else [],
        )
    for unit in range(cut[-1]):
        donors = [member for member, units in enumerate(held) if unit in set(units)]
        plan.sources.add(
            first_unit=unit, end_unit=unit + 1, donors=donors, checkpoint="" if donors else checkpoint
        )
    return plan


def same_as_stock(state: TrainState, stock: Stock) -> bool:
    return state.fingerprint() == fingerprint(
        stock.model, [stock.optimizer], [stock.scheduler, *stock.state.extras.values()]
    )

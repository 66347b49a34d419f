"""Checks that an optimizer can be divided by unit, because it treats each parameter separately.

A worker steps only the parameters of its units. An optimizer whose step of a parameter depends on others (a
line search, a norm over all, an estimate of distance) would silently take different steps on each worker.
torch's optimizers are known; a copy of any other is tried on small parameters, together and separately.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, Final

import torch
from torch.optim import Optimizer

from elastane_common.errors import UnsupportedError

#: Classes, by name, whose step of a parameter depends on others.
_MIXING: Final = frozenset(
    {
        *("LBFGS", "SLS", "HessianFree", "KFAC", "DoG"),
        *("SAM", "ASAM", "ESAM", "GSAM", "WSAM"),
        *("Prodigy", "DAdaptAdam", "DAdaptAdan", "DAdaptAdaGrad", "DAdaptLion", "DAdaptSGD"),
    }
)
_TRIED_STEPS: Final = 3
_SIZE_MAX: Final = 3


class UndividedOptimizerError(UnsupportedError):
    """The optimizer of a pipeline cannot be divided by unit."""

    code = "ELA382"


def check_divided(optimizer: Optimizer) -> None:
    """Raise UndividedOptimizerError unless each parameter's step depends only on that parameter."""
    kind = type(optimizer)
    for ancestor in kind.__mro__:
        if ancestor.__name__ in _MIXING:
            raise _mixes(kind.__name__, "its step of a parameter depends on the others")
    for group in optimizer.param_groups:
        if group.get("max_grad_norm"):
            raise _mixes(kind.__name__, "max_grad_norm is a norm over all its parameters")
    own = kind.state_dict is not Optimizer.state_dict or kind.load_state_dict is not Optimizer.load_state_dict
    if own or optimizer._optimizer_state_dict_post_hooks or optimizer._optimizer_load_state_dict_pre_hooks:
        raise UndividedOptimizerError(
            f"{kind.__name__} has a state_dict of its own, which cannot be divided by unit",
            hint="use an optimizer with torch's state_dict",
            optimizer=kind.__name__,
        )
    if not kind.__module__.startswith("torch.optim."):
        _try(optimizer)


def _try(optimizer: Optimizer) -> None:
    """Step copies on two small parameters per group, together and separately; the bits must be equal."""
    name = type(optimizer).__name__
    places = [(index, which) for index in range(len(optimizer.param_groups)) for which in (0, 1)]
    forked = (
        [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    )
    with torch.random.fork_rng(devices=forked):
        try:
            together = _stepped(optimizer, places)
            apart = [_stepped(optimizer, [place])[0] for place in places]
        except Exception as error:
            raise UndividedOptimizerError(
                f"{name} cannot be tried on small parameters, so it is not known whether it mixes them:"
                f" {type(error).__name__}: {error}",
                hint="use an optimizer of torch.optim, or one whose step needs no closure",
                optimizer=name,
            ) from error
    if not all(map(torch.equal, together, apart)):
        raise _mixes(name, "its step of a parameter differs with the others present")


def _stepped(optimizer: Optimizer, places: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Return the values of the parameters at these places (group, number) after some steps of a copy."""
    torch.manual_seed(0)
    copy: Any = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        vars(copy)[name] = value.copy() if isinstance(value, dict | list | set) else value
    copy.state = defaultdict(dict)
    parameters = {place: _small(optimizer.param_groups[place[0]]["params"], place) for place in places}
    copy.param_groups = [
        {**group, "params": [parameters[place] for place in places if place[0] == index]}
        for index, group in enumerate(optimizer.param_groups)
    ]
    for step in range(_TRIED_STEPS):
        for place, parameter in parameters.items():
            parameter.grad = _drawn(parameter, 100 + step, place)
        copy.step()
    return [parameters[place].detach() for place in places]


def _small(parameters: list[torch.Tensor], place: tuple[int, int]) -> torch.nn.Parameter:
    like = next(itertools.chain(parameters, [torch.zeros(1)]))
    shape = [min(size, _SIZE_MAX) for size in like.shape]
    small = torch.zeros(shape, dtype=like.dtype, device=like.device)
    return torch.nn.Parameter(_drawn(small, 0, place))


def _drawn(like: torch.Tensor, seed: int, place: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1000 + place[0] * 2 + place[1])
    return torch.randn(like.shape, generator=generator).to(like)


def _mixes(name: str, reason: str) -> UndividedOptimizerError:
    return UndividedOptimizerError(
        f"{name} mixes parameters, which the stages of a pipeline hold apart: {reason}",
        hint="use an optimizer that treats each parameter for itself, e.g. AdamW",
        optimizer=name,
    )

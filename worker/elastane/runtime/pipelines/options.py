"""Keyword arguments of `job.prepare_pipeline`, and refusals of those that pipelines do not support."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from elastane.pipeline.refusals import check_loss
from elastane.runtime.options import TrainOptions
from elastane.runtime.pipelines.batch import pair
from elastane.runtime.pipelines.errors import PipelineOptionError
from elastane_common.sizes import parse_size
from elastane_planner.errors import PlanError
from elastane_planner.profile import Profile

Split = Callable[[Any], tuple[Any, Any]]

_DDP_ONLY: Final = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")


@dataclass(frozen=True)
class PipelineOptions:
    """Options of `prepare_pipeline`.

    loss_fn: (output of the last unit, target) -> scalar loss. split: mini-batch -> (input, target).
    scheduler: constructor, called with the optimizer. memory_bytes: memory that this worker's stage may use;
    0: unknown. profile: times of the units; None: they are measured while the job trains. train: options
    shared with `prepare`.
    """

    loss_fn: Callable[[Any, Any], Tensor]
    split: Split
    scheduler: Callable[[torch.optim.Optimizer], Any] | None
    memory_bytes: int
    profile: Profile | None
    train: TrainOptions

    @classmethod
    def of(
        cls,
        loss_fn: Any,
        scheduler: Any,
        split: Any,
        memory: str | int | None,
        profile: str | Path | None,
        others: Mapping[str, Any],
    ) -> PipelineOptions:
        """Build options from the arguments. Raises PipelineOptionError, UnitReachError, UnsupportedError."""
        for name, value in (("loss_fn", loss_fn), ("split", split), ("scheduler", scheduler)):
            if value is not None and not callable(value):
                hint = {
                    "loss_fn": "give a function of the model's output and the target",
                    "split": "give a function of a mini-batch that returns (input, target)",
                    "scheduler": "give a function of the optimizer: lambda optimizer: StepLR(optimizer, 10)",
                }[name]
                raise PipelineOptionError(f"{name} is a {type(value).__name__}, not a function", hint=hint)
        if loss_fn is None:
            raise PipelineOptionError(
                "prepare_pipeline has no loss_fn", hint="give a function of the model's output and the target"
            )
        check_loss(loss_fn)
        if asked := [name for name in _DDP_ONLY if others.get(name)]:
            raise PipelineOptionError(
                f"a pipeline has no {', '.join(asked)}",
                hint="leave it out: every parameter of a unit takes part in every step's loss",
            )
        return cls(
            loss_fn,
            split if split is not None else pair,
            scheduler,
            0 if memory is None else _bytes_of(memory),
            None if profile is None else read_profile(Path(profile)),
            TrainOptions.of(others),
        )

    def check_profile(self, names: Sequence[str]) -> None:
        """Raise PipelineOptionError if the profile describes other units."""
        if self.profile is None:
            return
        found = [unit.name for unit in self.profile.units]
        if found != list(names):
            place = next((i for i, (a, b) in enumerate(zip(found, names, strict=False)) if a != b), None)
            what = (
                f"{len(found)} units, the model has {len(names)}"
                if place is None
                else f"unit {place} named {found[place]!r}, in the model it is {names[place]!r}"
            )
            raise PipelineOptionError(
                f"the profile is of another model: it has {what}",
                hint="measure this one: elastane profile train.py",
            )


def _bytes_of(given: str | int) -> int:
    """Return the bytes of `memory=`: a number, or a size like "2GiB". Raises PipelineOptionError."""
    try:
        return parse_size(str(given))
    except ValueError:
        raise PipelineOptionError(
            f"memory is {given!r}", hint='give bytes, as a number or like "2GiB"'
        ) from None


def read_profile(path: Path) -> Profile:
    """Read the JSON of a profile. Raises PipelineOptionError."""
    try:
        return Profile.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineOptionError(f"the profile {path} cannot be read: {error}") from error
    except PlanError as error:
        raise PipelineOptionError(f"{path}: {error}", hint=error.hint) from error


def check_loader(loader: Any) -> None:
    """Raise PipelineOptionError for anything but torch's DataLoader."""
    if not isinstance(loader, DataLoader):
        raise PipelineOptionError(
            f"the loader of a pipeline was given as a {type(loader).__name__}",
            hint="prepare_pipeline takes units, the optimizer's constructor and the training DataLoader",
        )


def check_extras(extras: Sequence[Any]) -> None:
    """Raise PipelineOptionError for objects that need the whole model."""
    for extra in extras:
        if isinstance(extra, torch.nn.Module):
            raise PipelineOptionError(
                f"a {type(extra).__name__} was prepared beside the units: no worker has all the weights"
                " that it needs",
                hint="put what is trained into a unit; averages of weights need job.prepare",
            )
        if isinstance(extra, torch.optim.Optimizer):
            raise PipelineOptionError(
                f"a second optimizer, {type(extra).__name__}, was prepared",
                hint="one optimizer trains all units: give it groups of parameters",
            )
        if hasattr(extra, "optimizer") and hasattr(extra, "step"):
            raise PipelineOptionError(
                f"a {type(extra).__name__} was given as an object",
                hint="give its constructor: scheduler=lambda optimizer: StepLR(optimizer, 10)",
            )

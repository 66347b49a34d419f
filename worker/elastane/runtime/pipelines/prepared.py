"""The objects that `prepare_pipeline` builds from the script's arguments, the same in every mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.options import PipelineOptions, check_extras, check_loader
from elastane.runtime.pipelines.scaling import check_scalers
from elastane.runtime.prepared_objects import PreparedObjects, check_modules, check_schedulers
from elastane.state.unit_optimizer import UnitOptimizer


@dataclass(frozen=True)
class PreparedPipeline:
    """The units of a script's model, and the objects that train them.

    objects: the stock model, optimizer, loader, schedulers and extras, sorted as by `prepare`. scheduler:
    None if the script has none.
    """

    units: Units
    optimizer: UnitOptimizer
    scheduler: Any
    objects: PreparedObjects
    options: PipelineOptions

    @classmethod
    def build(
        cls,
        units: Any,
        optimizer: Callable[..., Any],
        loader: DataLoader[Any],
        extras: Sequence[Any],
        options: PipelineOptions,
        *,
        release: bool,
    ) -> PreparedPipeline:
        """Build the units, then the optimizer, then the scheduler, as the stock script would in that order.

        release: True to hold no unit afterwards, False to hold all. Raises UnsupportedError for what
        pipelines do not support.
        """
        check_loader(loader)
        check_extras(extras)
        built = Units.build(units, release=release)
        options.check_profile(built.names)
        divided = UnitOptimizer.build(built, optimizer)
        if not release:
            every = range(built.count)
            divided.hold(every, every)
        scheduler = None if options.scheduler is None else options.scheduler(divided.optimizer)
        prepared = [built.as_model(), divided.optimizer, loader]
        objects = PreparedObjects([*prepared, *([] if scheduler is None else [scheduler]), *extras])
        check_scalers(objects.scalers)
        check_modules(objects.model)
        check_schedulers(objects)
        return cls(built, divided, scheduler, objects, options)

    def returned(self, pipe: Any, loader: Any) -> tuple[Any, ...]:
        """Return the objects for the script: pipe, optimizer, loader, and the scheduler if there is one."""
        found = pipe, self.optimizer.optimizer, loader
        return found if self.scheduler is None else (*found, self.scheduler)

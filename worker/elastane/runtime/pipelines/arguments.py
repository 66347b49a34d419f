"""The arguments of `job.prepare_pipeline`, as the script passed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastane.runtime.pipelines.options import PipelineOptions
from elastane.runtime.pipelines.prepared import PreparedPipeline


@dataclass(frozen=True)
class PipelineArguments:
    """Arguments of `Job.prepare_pipeline`, which describes them. options: all other keyword arguments."""

    units: Any
    optimizer: Any
    loader: Any
    extras: tuple[Any, ...]
    loss_fn: Any
    scheduler: Any
    split: Any
    memory: str | int | None
    profile: Any
    options: Mapping[str, Any]

    def without_profile(self) -> PipelineArguments:
        """Return the same arguments without a profile."""
        return replace(self, profile=None)

    def build(self, *, release: bool) -> PreparedPipeline:
        """Check the options, and build the pipeline. release, errors: see `PreparedPipeline.build`."""
        chosen = PipelineOptions.of(
            self.loss_fn, self.scheduler, self.split, self.memory, self.profile, self.options
        )
        return PreparedPipeline.build(
            self.units, self.optimizer, self.loader, self.extras, chosen, release=release
        )

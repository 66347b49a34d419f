"""Keyword arguments of `job.prepare`: reduction of gradients and length of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from elastane_common.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of `job.prepare`; the first four are those of torch's DistributedDataParallel.

    find_unused_parameters: parameters may take no part in the loss, on some ESTs or on all. static_graph: the
    graph never changes; allows reentrant activation checkpointing. gradient_as_bucket_view: decides how
    gradients are scaled if the script zeroes them in place. bucket_cap_mb: limit of a bucket in MiB.
    accumulation_steps: mini-batches of an EST in one global step, as with DDP's no_sync() in all but the
    last; the remainder of an epoch makes a shorter step. steps_per_epoch: mini-batches of an EST in an epoch
    of an IterableDataset, which has no length.
    """

    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: float | None = None
    accumulation_steps: int = 1
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None and self.bucket_cap_mb <= 0:
            raise UnsupportedError(
                f"bucket_cap_mb is {self.bucket_cap_mb}", hint="give a positive number of MiB"
            )
        if self.static_graph and self.accumulation_steps > 1:
            raise UnsupportedError(
                "static_graph and accumulation_steps cannot be combined: stock DDP fails with both, too",
                hint="omit static_graph; reentrant checkpointing works without it",
            )
        for name in ("accumulation_steps", "steps_per_epoch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UnsupportedError(f"{name} is {value}", hint="give at least 1")

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> TrainOptions:
        """Build options from the keyword arguments of `prepare`.

        Raises UnsupportedError for an unknown one.
        """
        known = [option.name for option in fields(cls)]
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            raise UnsupportedError(
                f"prepare has no option {', '.join(unknown)}", hint=f"the options are {', '.join(known)}"
            )
        return cls(**keywords)

    def ddp_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for DistributedDataParallel in stock mode."""
        return {
            "find_unused_parameters": self.find_unused_parameters,
            "static_graph": self.static_graph,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            "bucket_cap_mb": self.bucket_cap_mb,
        }

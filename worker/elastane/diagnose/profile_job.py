"""Job of mode "profile": measures the units of the script's pipeline within `prepare_pipeline`, then exits.

The script runs unchanged up to there, as one process with one rank. Nothing after `prepare_pipeline` runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import torch
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from elastane.diagnose.ending import end_script
from elastane.diagnose.profile_report import PROGRESS, ProfileReport, Sized, write_report
from elastane.pipeline.block_overhead import overhead_seconds
from elastane.pipeline.profiling import STEPS_MIN, Measurement, ProfileError, profile_units, resized
from elastane.rng import seed_all
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.pipelines.arguments import PipelineArguments
from elastane.runtime.pipelines.prepared import PreparedPipeline
from elastane.runtime.stock import LocalJob, LocalTask

_ESTS_DEFAULT: Final = 2
"""Begins the lines that tell `elastane profile` how far this process is."""


class ProfileSettings(BaseSettings):
    """Settings that `elastane profile` passes to the script's process, as ELASTANE_PROFILE_<NAME>.

    report: file for the profiles. steps: timed for each unit. samples: further micro-batch sizes.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_PROFILE_", extra="ignore")

    report: Path = Path(os.devnull)
    steps: int = Field(default=STEPS_MIN, ge=1)
    samples: tuple[int, ...] = ()


class ProfileJob(LocalJob):
    """A process that acts as EST 0 of a job of N, until its units are measured."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        self._settings = ProfileSettings()
        self.num_ests = environment.ests or _ESTS_DEFAULT
        self.rank, self.is_leader = 0, True

    def _upload_turn(self) -> None:
        """Upload nothing: a script that is profiled has no trained model."""

    def prepare(self, *objects: Any, **options: Any) -> Any:
        raise ProfileError(
            "the script calls job.prepare: its model is not divided into units",
            hint="`elastane profile` is for scripts with job.prepare_pipeline",
        )

    def _prepare_pipeline(self, given: PipelineArguments) -> NoReturn:
        """Measure all units, write the report, and end the script.

        The profile is not read: it may be the file that is to be written.
        """
        prepared = given.without_profile().build(release=True)
        built = prepared.units
        if self._seed is not None:
            seed_all(self._seed)
        device = next((p.device for p in built.parameters), torch.device("cpu"))
        overhead = _overhead(device)
        split, steps = prepared.options.split, range(self._settings.steps)
        taken = [split(batch) for _, batch in zip(steps, given.loader, strict=False)]
        profiles = []
        for samples in (0, *self._settings.samples):
            batches = taken if not samples else [_cut(pair, samples) for pair in taken]
            measured = self._measure(prepared, batches)
            profile = msgspec.structs.replace(measured.profile, **overhead)
            profiles.append(Sized(samples=measured.samples, profile=profile, spread=list(measured.spread)))
        write_report(
            self._settings.report,
            ProfileReport(
                profiles=profiles,
                classes=[type(built.module(unit)).__name__ for unit in range(built.count)],
                device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
                threads=torch.get_num_threads(),
                steps=self._settings.steps,
            ),
        )
        end_script()

    def _measure(self, prepared: PreparedPipeline, batches: list[tuple[Any, Any]]) -> Measurement:
        units, options = prepared.units, prepared.options

        def told(unit: int) -> None:
            _tell(f"unit {unit + 1} of {units.count} ({units.names[unit]})")

        return profile_units(
            units,
            batches,
            options.loss_fn,
            steps=self._settings.steps,
            optimizer=prepared.optimizer,
            told=told,
        )

    def epochs(self, count: int, *, max_steps: int | None = None, progress: bool = True) -> Iterator[int]:
        raise ProfileError(
            "the script reached job.epochs without job.prepare_pipeline",
            hint="`elastane profile` is for scripts with job.prepare_pipeline",
        )

    def tasks(self, dataset: str, *, size: int, task_size: int, **settings: Any) -> Iterator[LocalTask]:
        raise ProfileError("the script leases tasks: it has no pipeline", hint="see job.prepare_pipeline")


def _overhead(device: torch.device) -> dict[str, float]:
    """Return what blocks take beside their units. On a GPU that is not known: the host works meanwhile."""
    if device.type != "cpu":
        return {}
    _tell("blocks without units")
    forward, backward = overhead_seconds()
    return {"forward_overhead_seconds": forward, "backward_overhead_seconds": backward}


def _tell(text: str) -> None:
    sys.stderr.write(f"{PROGRESS}{text}\n")
    sys.stderr.flush()


def _cut(pair: tuple[Any, Any], samples: int) -> tuple[Any, Any]:
    given, target = resized(list(pair), samples)
    return given, target

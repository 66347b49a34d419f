"""A pipeline's plan by worker ids, as decided, stored and shown; `effects` has the form sent with Go."""

from __future__ import annotations

from typing import Literal

import msgspec

StageMemory = Literal["plain", "checkpoint", "swap"]


class StageOnWorkers(msgspec.Struct, frozen=True):
    """A stage of a plan, by worker ids: replicas in their order, shadows."""

    first_unit: int
    end_unit: int
    replicas: tuple[str, ...]
    shadows: tuple[str, ...] = ()
    memory: StageMemory = "plain"


class StagePlan(msgspec.Struct, frozen=True):
    """A pipeline's stages. workers: those it was made for, in the ring's order.

    step_seconds: predicted, 0.0: not known. bubble: share of time in which workers wait for others' blocks.
    stage_seconds: load of each stage in a step. reason: of this plan.
    """

    stages: tuple[StageOnWorkers, ...]
    workers: tuple[str, ...]
    step_seconds: float = 0.0
    bubble: float = 0.0
    stage_seconds: tuple[float, ...] = ()
    reason: str = ""

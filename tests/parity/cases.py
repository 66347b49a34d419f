"""A random training script, drawn from a seed: what it trains, how it is fed, on how many ESTs. Pure.

Every draw is made whether it counts or not, so that a case keeps its other features when one dimension
gets a further value at the end. What scripts do besides the plain loop (`Habits`) is drawn from a stream of
its own. What torch or the job would refuse is not drawn.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass
from typing import Final

MODELS: Final = ("mlp", "cnn", "transformer", "branching", "bag", "wide")
PRECISIONS: Final = ("float32", "float32", "float32", "bf16-autocast", "fp16-scaler", "bf16", "float64")
OPTIMIZERS: Final = (
    "sgd",
    "nesterov",
    "adam",
    "adamw",
    "amsgrad",
    "rmsprop",
    "adagrad",
    "nadam",
    "two",
    "groups",
)
SCHEDULES: Final = ("none", "step", "epoch", "both", "one-cycle")
CLIPS: Final = ("none", "norm", "value")
SAMPLERS: Final = (
    "shuffle", "shuffle", "sequential", "distributed", "weighted", "replacement", "random", "batches",
    "stream", "stateful-stream",
)  # fmt: skip
CHECKPOINTING: Final = ("", "", "plain", "reentrant")
VALIDATIONS: Final = ("none", "all", "all", "leader", "both")
SEEDS: Final = ("none", "none", "none", "none", "prepare", "epoch")
AVERAGES: Final = ("none", "none", "kept", "teacher")


@dataclass(frozen=True)
class Habits:
    """What a script does around the plain loop, and besides it once a step; nothing by default.

    validation: who validates after an epoch, with a DataLoader of validation_workers (in train mode if
    left_on). seeded: where all ranks get the same seed. draws_early: random numbers before the first epoch;
    draws_each_rank: as many as the state says, for each rank. carried: best metric and patience decide the
    lr, and after `patience` bad epochs (0: never) the end; rolled_back: the best weights, too, are carried,
    and taken up again. steps_max: 0 for all. rate_by_step: the lr is made of `job.step`. clamped: weights,
    once a step. copied: a moving average made by hand. second_forward, evaluated: in the body. draws_own:
    samples drawn by a RandomSampler with replacement, beside the data's size, from torch's generator.
    """

    validation: str = "none"
    validation_workers: int = 0
    left_on: bool = False
    seeded: str = "none"
    draws_early: bool = False
    draws_each_rank: bool = False
    carried: bool = False
    patience: int = 0
    rolled_back: bool = False
    steps_max: int = 0
    rate_by_step: bool = False
    clamped: bool = False
    copied: str = "none"
    second_forward: bool = False
    evaluated: bool = False
    draws_own: int | None = None


@dataclass(frozen=True)
class Case:
    """One script. seed: the job's, or None; the other fields are named after what they choose."""

    ests: int
    model: str
    precision: str
    optimizer: str
    schedule: str
    clip: str
    sampler: str
    size: int
    batch_size: int
    drop_last: bool
    data_workers: int
    persistent: bool
    prefetch: int | None
    init_fn: bool
    own_generator: bool
    pin_memory: bool
    find_unused: bool
    static_graph: bool
    bucket_view: bool
    bucket_cap_mb: float | None
    accumulation: int
    checkpointing: str
    in_place_zeros: bool
    zero_after_step: bool
    channels_last: bool
    average: bool
    registered: bool
    dropout: float
    seed: int | None
    epochs: int
    habits: Habits = Habits()

    def arguments(self) -> list[str]:
        """What the script is called with."""
        return [json.dumps(dataclasses.asdict(self))]

    @classmethod
    def parse(cls, text: str) -> Case:
        """Inverse of `arguments`."""
        fields = json.loads(text)
        return cls(**{**fields, "habits": Habits(**fields["habits"])})


def random_case(seed: int) -> Case:
    """The case of a seed; always one that stock DDP can run."""
    draw = random.Random(f"elastane case {seed}")

    def chance(share: float) -> bool:
        return draw.random() < share

    model = draw.choice(MODELS)
    sampler = draw.choice(SAMPLERS)
    stream = sampler in ("stream", "stateful-stream")
    data_workers = draw.choice((0, 0, 1, 2, 3))
    accumulation = draw.choice((1, 1, 1, 2, 3))
    if sampler == "stream" and data_workers == 0:
        data_workers = 2  # without state_dict it can only be gone through again by data workers
    checkpointing = draw.choice(CHECKPOINTING) if model == "transformer" else ""
    unused = chance(0.15)
    static = chance(0.15)
    static_graph = model != "branching" and (static or checkpointing == "reentrant")
    if static_graph:
        accumulation = 1  # an internal assertion of torch's reducer fails under no_sync()
    precision = draw.choice(PRECISIONS)
    prefetch = draw.choice((None, 1, 4))
    ests = draw.choice((2, 3, 3, 4, 5))
    case = Case(
        ests=ests,
        model=model,
        precision=precision,
        optimizer=draw.choice(OPTIMIZERS),
        schedule=draw.choice(SCHEDULES),
        clip=draw.choice(CLIPS),
        sampler=sampler,
        size=draw.randint(16, 24) * ests * accumulation,
        batch_size=draw.randint(3, 5),
        drop_last=chance(0.3),
        data_workers=data_workers,
        persistent=chance(0.3) and data_workers > 0 and not stream,
        prefetch=prefetch if data_workers else None,
        init_fn=chance(0.3),
        own_generator=chance(0.2),
        pin_memory=chance(0.1),
        find_unused=model == "branching" or (unused and not static_graph),
        static_graph=static_graph,
        bucket_view=chance(0.25),
        bucket_cap_mb=draw.choice((None, None, 0.01, 1.0)),
        accumulation=accumulation,
        checkpointing=checkpointing,
        in_place_zeros=chance(0.25),
        zero_after_step=chance(0.3),
        channels_last=chance(0.4),
        average=chance(0.2),
        registered=chance(0.3) and not (stream and sampler == "stream"),
        dropout=draw.choice((0.0, 0.1, 0.3)),
        seed=draw.choice((None, 1, 2, 3)),
        epochs=draw.choice((3, 4)),
    )
    return dataclasses.replace(case, habits=_random_habits(seed, case))


def _random_habits(seed: int, case: Case) -> Habits:
    """What the case of a seed does besides, as far as its other features allow it."""
    draw = random.Random(f"elastane habits {seed}")

    def chance(share: float) -> bool:
        return draw.random() < share

    buffers = case.model == "cnn"  # DDP's ranks have statistics of their own
    seeded = draw.choice(SEEDS)
    habits = Habits(
        validation=draw.choice(VALIDATIONS),
        validation_workers=draw.choice((0, 0, 0, 1)),
        left_on=chance(0.3) and not buffers,
        seeded=seeded,
        draws_early=chance(0.4),
        draws_each_rank=chance(0.3),
        carried=chance(0.4),
        patience=draw.choice((0, 1, 2)),
        rolled_back=chance(0.3) and not buffers,
        steps_max=draw.choice((0, 0, 0, max(8, draw.randint(5, 12)))),  # room for the churn
        rate_by_step=chance(0.3) and case.schedule == "none",
        clamped=chance(0.3),
        copied=draw.choice(AVERAGES),
        second_forward=chance(0.3) and not (buffers or case.find_unused or case.static_graph),
        evaluated=chance(0.3),
        draws_own=draw.choice((None, -5, 0, 7)) if case.sampler == "replacement" else None,
    )
    if habits.copied == "teacher" and case.model == "branching":
        habits = dataclasses.replace(habits, copied="kept")
    if not habits.carried:
        habits = dataclasses.replace(habits, patience=0, rolled_back=False)
    if seeded == "epoch":  # where something has been drawn by then, one seed for all is refused
        habits = dataclasses.replace(
            habits, validation="none", draws_early=False, draws_each_rank=False, left_on=False
        )
    return habits
